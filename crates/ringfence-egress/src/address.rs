//! What an address is.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Whose an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AddressClass {
    /// One of the internet's.
    Public,
    /// A network's own: RFC 1918, carriers' shared addresses, unique local IPv6.
    Private,
    /// This machine's.
    Loopback,
    /// A link's own.
    LinkLocal,
    /// The service of a cloud that hands out a machine's credentials.
    Metadata,
    /// A group's.
    Multicast,
    /// Nobody's, which systems take for this machine.
    Unspecified,
    /// Set aside: for documents, benchmarks, protocols, the future.
    Reserved,
}

impl AddressClass {
    /// The name in results and events.
    pub const fn as_str(self) -> &'static str {
        match self {
            AddressClass::Public => "public",
            AddressClass::Private => "private",
            AddressClass::Loopback => "loopback",
            AddressClass::LinkLocal => "link_local",
            AddressClass::Metadata => "metadata",
            AddressClass::Multicast => "multicast",
            AddressClass::Unspecified => "unspecified",
            AddressClass::Reserved => "reserved",
        }
    }
}

impl fmt::Display for AddressClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressClass::LinkLocal => "link-local",
            other => other.as_str(),
        })
    }
}

/// Says what an address is. One that carries IPv4 addresses is the least public thing that they are.
pub fn classify(address: IpAddr) -> AddressClass {
    match address.to_canonical() {
        IpAddr::V4(address) => of_ipv4(address),
        IpAddr::V6(address) => of_ipv6(address),
    }
}

fn of_ipv4(address: Ipv4Addr) -> AddressClass {
    let bits = address.to_bits();
    let within = |first: &Ipv4Addr, prefix: u32| (bits ^ first.to_bits()).checked_shr(32 - prefix).unwrap_or(0) == 0;
    let range = IPV4.iter().find(|(first, prefix, _)| within(first, *prefix));
    range.map_or(AddressClass::Public, |(_, _, class)| *class)
}

fn of_ipv6(address: Ipv6Addr) -> AddressClass {
    let bits = address.to_bits();
    let within = |first: &Ipv6Addr, prefix: u32| (bits ^ first.to_bits()).checked_shr(128 - prefix).unwrap_or(0) == 0;
    let range = IPV6.iter().find(|(first, prefix, _)| within(first, *prefix));
    let own = range.map_or(AddressClass::Public, |(_, _, class)| *class);
    carried(address).map(of_ipv4).find(|class| *class != AddressClass::Public).unwrap_or(own)
}

/// The IPv4 addresses that packets to an IPv6 address may end up at.
pub(crate) fn carried(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let ipv4 = |high: u16, low: u16| Some(Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low)));
    let carried = match address.segments() {
        // `::` and `::1` are addresses of IPv6 itself.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None, None],
        // IPv4-compatible (RFC 4291 2.5.5.1), IPv4-mapped, IPv4-translated (RFC 7915), NAT64 (RFC 6052).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => [ipv4(high, low), None],
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => [ipv4(high, low), None],
        // Teredo (RFC 4380): the server, and the client with its bits flipped.
        [0x2001, 0, server_high, server_low, _, _, high, low] => [ipv4(server_high, server_low), ipv4(!high, !low)],
        _ => [None, None],
    };
    carried.into_iter().flatten()
}

/// What is not public of IPv4, the exceptions before what they are in: IANA's registry of special addresses, and where
/// clouds keep a machine's credentials.
const IPV4: &[(Ipv4Addr, u32, AddressClass)] = &[
    // Amazon, Google, Azure, Oracle, DigitalOcean, Hetzner, OpenStack.
    (Ipv4Addr::new(169, 254, 169, 254), 32, AddressClass::Metadata),
    // Amazon: tasks of ECS, pods of EKS.
    (Ipv4Addr::new(169, 254, 170, 2), 32, AddressClass::Metadata),
    (Ipv4Addr::new(169, 254, 170, 23), 32, AddressClass::Metadata),
    // Tencent.
    (Ipv4Addr::new(169, 254, 0, 23), 32, AddressClass::Metadata),
    // Scaleway.
    (Ipv4Addr::new(169, 254, 42, 42), 32, AddressClass::Metadata),
    // Alibaba.
    (Ipv4Addr::new(100, 100, 100, 200), 32, AddressClass::Metadata),
    // Azure's wire server: an address like any other's, which only its machines reach.
    (Ipv4Addr::new(168, 63, 129, 16), 32, AddressClass::Metadata),
    // Oracle, of old.
    (Ipv4Addr::new(192, 0, 0, 192), 32, AddressClass::Metadata),
    (Ipv4Addr::UNSPECIFIED, 32, AddressClass::Unspecified),
    (Ipv4Addr::new(0, 0, 0, 0), 8, AddressClass::Reserved),
    (Ipv4Addr::new(10, 0, 0, 0), 8, AddressClass::Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, AddressClass::Private),
    (Ipv4Addr::new(127, 0, 0, 0), 8, AddressClass::Loopback),
    (Ipv4Addr::new(169, 254, 0, 0), 16, AddressClass::LinkLocal),
    (Ipv4Addr::new(172, 16, 0, 0), 12, AddressClass::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(192, 0, 2, 0), 24, AddressClass::Reserved),
    // Relays of 6to4, deprecated (RFC 7526).
    (Ipv4Addr::new(192, 88, 99, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(192, 168, 0, 0), 16, AddressClass::Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, AddressClass::Reserved),
    (Ipv4Addr::new(198, 51, 100, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(203, 0, 113, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(224, 0, 0, 0), 4, AddressClass::Multicast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, AddressClass::Reserved),
];

/// The same of IPv6, where only `2000::/3` was ever given out.
const IPV6: &[(Ipv6Addr, u32, AddressClass)] = &[
    // Amazon: machines, pods of EKS.
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128, AddressClass::Metadata),
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23), 128, AddressClass::Metadata),
    // Google.
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128, AddressClass::Metadata),
    // Scaleway.
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42), 128, AddressClass::Metadata),
    // OpenStack.
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128, AddressClass::Metadata),
    (Ipv6Addr::UNSPECIFIED, 128, AddressClass::Unspecified),
    (Ipv6Addr::LOCALHOST, 128, AddressClass::Loopback),
    // NAT64: as public as the address that it carries.
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, AddressClass::Public),
    // Teredo, likewise; around it, addresses of protocols.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, AddressClass::Public),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, AddressClass::Reserved),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, AddressClass::Reserved),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, AddressClass::Reserved),
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3, AddressClass::Public),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, AddressClass::Private),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, AddressClass::LinkLocal),
    // Site-local, deprecated (RFC 3879).
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, AddressClass::Private),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, AddressClass::Multicast),
    (Ipv6Addr::UNSPECIFIED, 0, AddressClass::Reserved),
];

#[cfg(test)]
mod tests;
