//! Trial of the network of a pod: addresses that a closed network must not reach.
//!
//! A network policy of Kubernetes is not in force when a pod starts: the first connections of a pod
//! get out. Therefore the guest holds back all code until its own connections were denied.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::log;

/// Variable with the address of the node, which the description of the pod sets.
pub(crate) const NODE_ADDRESS_VARIABLE: &str = "RINGFENCE_NODE_ADDRESS";
/// Start of the names of the variables with which Kubernetes tells a pod of its services.
pub(crate) const SERVICE_VARIABLE_PREFIX: &str = "KUBERNETES_";
/// Ports that nodes listen on: of the API server, the kubelet, and the health check of kube-proxy.
const NODE_PORTS: [u16; 3] = [6443, KUBELET_PORT, 10256];
/// Table of the neighbours that the kernel has found in the local network.
const NEIGHBOURS_FILE: &str = "/proc/net/arp";
/// Port of the kubelet, which listens on every node.
const KUBELET_PORT: u16 = 10250;
/// Address of the metadata service of most clouds.
const METADATA_ADDRESS: ([u8; 4], u16) = ([169, 254, 169, 254], 80);
/// Time within which an address that can be reached answers.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
/// Time for which an address must be denied without a break before it counts as denied. A network
/// that is not ready yet denies everything, too.
const DENIAL_TIME: Duration = Duration::from_millis(300);
/// Pause between two tries.
const TRY_INTERVAL: Duration = Duration::from_millis(50);
/// Time within which a network without a policy must have become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// File whose content the kubelet shows as the message of the end of a container.
const TERMINATION_FILE: &str = "/dev/termination-log";

/// Report about the pod of this guest.
#[derive(Debug, Serialize)]
struct PodReport {
    /// Addresses that can be reached.
    reached: Vec<String>,
    /// Limit of the number of processes in the pod, if there is one.
    process_limit: Option<u64>,
}

/// Reports as the message of the container's end what the pod reaches. With `limit`, waits that
/// long for a network policy to deny everything.
pub(crate) fn try_network(limit: Duration) -> ExitCode {
    let addresses = addresses_to_try();
    let reached = if limit.is_zero() {
        wait_until_ready(&addresses)
    } else {
        wait_until_denied(&addresses, limit)
    };
    let reached = reached.iter().map(SocketAddr::to_string).collect();
    let report = PodReport { reached, process_limit: read_process_limit() };
    let text = serde_json::to_string(&report).expect("it has only string keys");
    match fs_err::write(TERMINATION_FILE, text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::write_line(format_args!("error: cannot report: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Waits until the network denies every address of the trial. Returns an error that names the
/// addresses that can still be reached at the end of `limit`.
pub(crate) fn hold_until_denied(limit: Duration) -> Result<(), String> {
    let reached = wait_until_denied(&addresses_to_try(), limit);
    if reached.is_empty() {
        return Ok(());
    }
    let reached: Vec<_> = reached.iter().map(SocketAddr::to_string).collect();
    let why = format!(
        "the network is not closed: after {} seconds, {} can be reached",
        limit.as_secs(),
        reached.join(", ")
    );
    // The log has the error, too.
    let _ = fs_err::write(TERMINATION_FILE, &why);
    Err(why)
}

/// Returns the addresses that a pod without a policy may reach: the API server, the kubelet of the
/// node, and the metadata service of the cloud.
fn addresses_to_try() -> Vec<SocketAddr> {
    let variable = |name: &str| std::env::var(name).ok();
    let address = |host: String, port: u16| {
        host.parse::<IpAddr>().ok().map(|host| SocketAddr::from((host, port)))
    };
    let api_server = variable("KUBERNETES_SERVICE_HOST").and_then(|host| {
        let port = variable("KUBERNETES_SERVICE_PORT")?.parse().ok()?;
        address(host, port)
    });
    let kubelet = variable(NODE_ADDRESS_VARIABLE).and_then(|host| address(host, KUBELET_PORT));
    let known = [api_server, kubelet, Some(SocketAddr::from(METADATA_ADDRESS))];
    known.into_iter().flatten().collect()
}

/// Returns the link-local addresses of the neighbours, with the ports of nodes. Rules that are made
/// only for IPv4 do not close these. The neighbours are known after the first try of an address.
fn link_local_addresses() -> Vec<SocketAddr> {
    let table = fs_err::read_to_string(NEIGHBOURS_FILE).unwrap_or_default();
    let neighbours = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let [_, _, _, hardware, _, device] = columns[..] else { return None };
        let scope = fs_err::read_to_string(format!("/sys/class/net/{device}/ifindex")).ok()?;
        Some((link_local(hardware)?, scope.trim().parse::<u32>().ok()?))
    });
    let addresses = neighbours.flat_map(|(address, scope)| {
        NODE_PORTS.map(|port| SocketAddr::V6(SocketAddrV6::new(address, port, 0, scope)))
    });
    addresses.collect()
}

/// Returns the link-local address that a kernel makes of a hardware address (EUI-64).
fn link_local(hardware: &str) -> Option<Ipv6Addr> {
    let bytes: Vec<u8> =
        hardware.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<_>>()?;
    let [a, b, c, d, e, f] = bytes[..] else { return None };
    if bytes.iter().all(|byte| *byte == 0) {
        return None; // nobody answered
    }
    let mut address = [0; 16];
    address[..2].copy_from_slice(&[0xfe, 0x80]);
    address[8..].copy_from_slice(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Some(Ipv6Addr::from(address))
}

fn with_neighbours(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    addresses.iter().copied().chain(link_local_addresses()).collect()
}

/// Waits until some address can be reached, and returns all such addresses.
fn wait_until_ready(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let reached = reachable(&with_neighbours(addresses));
        if !reached.is_empty() || Instant::now() > deadline {
            return reached;
        }
        thread::sleep(TRY_INTERVAL);
    }
}

/// Waits until all addresses have been denied for [`DENIAL_TIME`]. Returns the addresses that can
/// still be reached after `limit`.
fn wait_until_denied(addresses: &[SocketAddr], limit: Duration) -> Vec<SocketAddr> {
    let deadline = Instant::now() + limit;
    let mut denied_since: Option<Instant> = None;
    loop {
        let reached = reachable(&with_neighbours(addresses));
        if reached.is_empty() {
            let since = *denied_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= DENIAL_TIME {
                return reached;
            }
        } else {
            denied_since = None;
            if Instant::now() > deadline {
                return reached;
            }
        }
        thread::sleep(TRY_INTERVAL);
    }
}

/// Returns the addresses to which a connection can be made now. All are tried at once.
fn reachable(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_reachable =
        |address: &SocketAddr| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).is_ok();
    thread::scope(|scope| {
        let tries: Vec<_> = addresses
            .iter()
            .map(|address| (address, scope.spawn(move || is_reachable(address))))
            .collect();
        let reached = tries.into_iter().filter_map(|(address, tried)| {
            // A thread that panicked has tried nothing, so the address counts as reachable.
            tried.join().unwrap_or(true).then_some(*address)
        });
        reached.collect()
    })
}

/// Reads the limit of processes of this container's cgroup, for either version of cgroups.
fn read_process_limit() -> Option<u64> {
    let files = ["/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"];
    files.iter().find_map(|file| fs_err::read_to_string(file).ok()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn an_address_is_reachable_as_long_as_something_listens() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(reachable(&[address]), [address]);
        assert_eq!(wait_until_denied(&[address], Duration::ZERO), [address]);
        drop(listener);
        assert_eq!(reachable(&[address]), []);
        assert_eq!(wait_until_denied(&[address], Duration::ZERO), []);
    }

    #[test]
    fn a_hardware_address_gives_the_link_local_address() {
        let address = link_local("6a:57:49:38:59:b5").unwrap();
        assert_eq!(address.to_string(), "fe80::6857:49ff:fe38:59b5");
        assert_eq!(link_local("00:00:00:00:00:00"), None);
        assert_eq!(link_local("6a:57"), None);
    }

    #[test]
    fn a_denial_counts_only_after_a_while_without_a_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let begun = Instant::now();
        let (closed, wait_for_close) = std::sync::mpsc::channel();
        let closing = thread::spawn(move || {
            listener.accept().unwrap(); // the first try got out
            drop(listener);
            closed.send(Instant::now()).unwrap();
        });
        assert_eq!(wait_until_denied(&[address], Duration::from_secs(60)), []);
        let closed = wait_for_close.recv().unwrap();
        assert!(begun.elapsed() >= closed.duration_since(begun) + DENIAL_TIME / 2);
        closing.join().unwrap();
    }
}
