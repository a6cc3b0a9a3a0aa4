//! Interfaces of the current network namespace, netdevice(7).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketType};

/// Settings of a tunnel, which is a device that passes the packets of a network to a program.
#[derive(Debug, Clone, Copy)]
pub struct Tunnel {
    /// Address of the sandbox's end.
    pub address: Ipv4Addr,
    /// Prefix length of the network, in bits.
    pub prefix: u8,
    /// Size limit of a packet (the MTU), in bytes.
    pub packet: u16,
}

/// Activates the loopback interface `lo`.
pub fn activate_loopback() -> io::Result<()> {
    let mut request = interface_request(b"lo");
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    configure(&inet_socket()?, libc::SIOCSIFFLAGS, &mut request)
}

/// Creates a tunnel with `device`, the Linux kernel's `networking/tuntap.rst`, and makes it the
/// default route.
///
/// The tunnel belongs to the network namespace in which the device is opened.
pub fn create_tunnel(device: &Path, tunnel: &Tunnel) -> io::Result<OwnedFd> {
    const NAME: &[u8] = b"tun0";
    let device =
        rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let mut request = interface_request(NAME);
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    configure(&device, libc::TUNSETIFF, &mut request)?;

    let socket = inet_socket()?;
    let mut request = interface_request(NAME);
    request.ifr_ifru.ifru_addr = socket_address(tunnel.address);
    configure(&socket, libc::SIOCSIFADDR, &mut request)?;
    let mut request = interface_request(NAME);
    let mask = u32::MAX.checked_shl(32 - u32::from(tunnel.prefix)).unwrap_or(0);
    request.ifr_ifru.ifru_netmask = socket_address(Ipv4Addr::from_bits(mask));
    configure(&socket, libc::SIOCSIFNETMASK, &mut request)?;
    let mut request = interface_request(NAME);
    request.ifr_ifru.ifru_mtu = tunnel.packet.into();
    configure(&socket, libc::SIOCSIFMTU, &mut request)?;
    let mut request = interface_request(NAME);
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    configure(&socket, libc::SIOCSIFFLAGS, &mut request)?;
    default_route(&socket, NAME)?;
    Ok(device)
}

fn inet_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?)
}

/// Returns a request about the interface `name`, which must be shorter than `IFNAMSIZ`.
fn interface_request(name: &[u8]) -> libc::ifreq {
    // SAFETY: ifreq is integers and a union of plain data; all zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
    request
}

/// Returns an address in the form that requests about interfaces use.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let [a, b, c, d] = address.octets();
    // sockaddr_in has the same 16 bytes: in `sa_data`, the port comes first (two bytes), then the
    // address (ip(7)).
    let bytes = [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0];
    libc::sockaddr {
        sa_family: libc::AF_INET as libc::sa_family_t,
        sa_data: bytes.map(|byte| byte as libc::c_char),
    }
}

fn configure(on: impl AsFd, operation: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every operation of this module on interfaces reads and writes one ifreq, which is
    // alive and zero-padded.
    let result = unsafe { libc::ioctl(on.as_fd().as_raw_fd(), operation, &raw mut *request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Adds a default route through the interface `name`, route(8), `SIOCADDRT`.
fn default_route(socket: &OwnedFd, name: &[u8]) -> io::Result<()> {
    // SAFETY: rtentry is integers, plain addresses and one pointer that may be null; all zeroes is
    // valid.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_flags = libc::RTF_UP;
    let mut device = interface_request(name).ifr_name;
    route.rt_dev = device.as_mut_ptr();
    // SAFETY: SIOCADDRT reads one rtentry; its device name is NUL-terminated and outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
