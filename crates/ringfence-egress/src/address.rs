//! Classification of IP addresses: public, private, loopback, cloud metadata and others.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Class of an IP address, by the network that uses the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AddressClass {
    /// Address on the public internet.
    Public,
    /// Address of a private network: RFC 1918, carriers' shared addresses, unique local IPv6, and
    /// IPv6's deprecated site-local range.
    Private,
    /// Loopback address of this machine.
    Loopback,
    /// Address that is valid on one link only.
    LinkLocal,
    /// Address of a cloud's metadata service, which hands out a machine's credentials.
    Metadata,
    /// Address of a multicast group.
    Multicast,
    /// Unspecified address (`0.0.0.0` or `::`). The address belongs to nobody, but systems take it
    /// for this machine.
    Unspecified,
    /// Address reserved for documentation, benchmarks, protocols or future use.
    Reserved,
}

impl AddressClass {
    /// Returns the name of the class in results and events.
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

/// Returns the class of an address.
///
/// An IPv6 address can carry IPv4 addresses. If a carried address is not public, the result is the
/// class of that IPv4 address.
pub fn classify(address: IpAddr) -> AddressClass {
    match address.to_canonical() {
        IpAddr::V4(address) => classify_ipv4(address),
        IpAddr::V6(address) => classify_ipv6(address),
    }
}

fn classify_ipv4(address: Ipv4Addr) -> AddressClass {
    let bits = address.to_bits();
    let within = |first: &Ipv4Addr, prefix: u32| {
        (bits ^ first.to_bits()).checked_shr(32 - prefix).unwrap_or(0) == 0
    };
    let range = IPV4_RANGES.iter().find(|(first, prefix, _)| within(first, *prefix));
    range.map_or(AddressClass::Public, |(_, _, class)| *class)
}

fn classify_ipv6(address: Ipv6Addr) -> AddressClass {
    let bits = address.to_bits();
    let within = |first: &Ipv6Addr, prefix: u32| {
        (bits ^ first.to_bits()).checked_shr(128 - prefix).unwrap_or(0) == 0
    };
    let range = IPV6_RANGES.iter().find(|(first, prefix, _)| within(first, *prefix));
    let own = range.map_or(AddressClass::Public, |(_, _, class)| *class);
    carried_ipv4_addresses(address)
        .map(classify_ipv4)
        .find(|class| *class != AddressClass::Public)
        .unwrap_or(own)
}

/// Returns the IPv4 addresses that may receive the packets sent to an IPv6 address.
pub(crate) fn carried_ipv4_addresses(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let ipv4 =
        |high: u16, low: u16| Some(Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low)));
    let carried = match address.segments() {
        // `::` and `::1` look IPv4-compatible, but are special addresses of IPv6 itself.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None, None],
        // IPv4-compatible (RFC 4291, section 2.5.5.1), IPv4-mapped, IPv4-translated (RFC 7915),
        // NAT64 (RFC 6052).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => [ipv4(high, low), None],
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => [ipv4(high, low), None],
        // Teredo (RFC 4380): the server's address, and the client's address with all bits inverted.
        [0x2001, 0, server_high, server_low, _, _, high, low] => {
            [ipv4(server_high, server_low), ipv4(!high, !low)]
        }
        _ => [None, None],
    };
    carried.into_iter().flatten()
}

/// IPv4 ranges that are not public: IANA's registry of special-purpose addresses, and the addresses
/// at which clouds hand out a machine's credentials.
///
/// The first match counts, so an exception stands before the range that contains it.
const IPV4_RANGES: &[(Ipv4Addr, u32, AddressClass)] = &[
    // Amazon, Google, Azure, Oracle, DigitalOcean, Hetzner, OpenStack.
    (Ipv4Addr::new(169, 254, 169, 254), 32, AddressClass::Metadata),
    // Amazon: ECS tasks and EKS pods.
    (Ipv4Addr::new(169, 254, 170, 2), 32, AddressClass::Metadata),
    (Ipv4Addr::new(169, 254, 170, 23), 32, AddressClass::Metadata),
    // Tencent.
    (Ipv4Addr::new(169, 254, 0, 23), 32, AddressClass::Metadata),
    // Scaleway.
    (Ipv4Addr::new(169, 254, 42, 42), 32, AddressClass::Metadata),
    // Alibaba.
    (Ipv4Addr::new(100, 100, 100, 200), 32, AddressClass::Metadata),
    // Azure's wire server: an ordinary address, which only Azure's machines can reach.
    (Ipv4Addr::new(168, 63, 129, 16), 32, AddressClass::Metadata),
    // Oracle, former address.
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
    // 6to4 relays, deprecated (RFC 7526).
    (Ipv4Addr::new(192, 88, 99, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(192, 168, 0, 0), 16, AddressClass::Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, AddressClass::Reserved),
    (Ipv4Addr::new(198, 51, 100, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(203, 0, 113, 0), 24, AddressClass::Reserved),
    (Ipv4Addr::new(224, 0, 0, 0), 4, AddressClass::Multicast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, AddressClass::Reserved),
];

/// IPv6 ranges and their classes; as in [`IPV4_RANGES`], the first match counts.
///
/// Only `2000::/3` was ever allocated for the internet, so the last entry reserves every other
/// address.
const IPV6_RANGES: &[(Ipv6Addr, u32, AddressClass)] = &[
    // Amazon: machines and EKS pods.
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
    // NAT64: public only if the carried IPv4 address is public.
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, AddressClass::Public),
    // Teredo: public only if the carried IPv4 addresses are public. The range around Teredo is for
    // protocols.
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
