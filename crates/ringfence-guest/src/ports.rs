//! Ports inside: HTTP CONNECT to loopback, and bytes from there on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::connect::{Reply, bare, refused};

/// How long a server inside may take to accept.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many bytes wait in each direction for an end that reads slowly.
const BUFFER: usize = 32 * 1024;

/// Connects the caller to a port inside.
pub(crate) async fn connect(request: Request<Incoming>) -> Reply {
    let addresses = match request.uri().authority().and_then(|to| Some((loopback(to.host())?, to.port_u16()?))) {
        Some((hosts, port)) => hosts.into_iter().map(move |host| SocketAddr::new(host, port)),
        None => {
            return refused(StatusCode::BAD_REQUEST, "CONNECT takes a loopback address and a port: 127.0.0.1:8080");
        }
    };
    let mut port = 0;
    for address in addresses {
        port = address.port();
        let Ok(Ok(server)) = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await else { continue };
        tokio::task::spawn_local(carry(request, server));
        return bare(StatusCode::OK);
    }
    refused(StatusCode::BAD_GATEWAY, format!("nothing listens inside on {port}: port is not open"))
}

/// The addresses that a name of loopback means; `None` for any other.
fn loopback(host: &str) -> Option<Vec<IpAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback).map(|address| vec![address])
}

/// Carries bytes both ways. An end that has no more to say is told to the other, which may go on.
async fn carry(request: Request<Incoming>, mut server: TcpStream) {
    let Ok(caller) = hyper::upgrade::on(request).await else { return };
    let _ = server.set_nodelay(true); // slower without, and no worse
    let _ = tokio::io::copy_bidirectional_with_sizes(&mut TokioIo::new(caller), &mut server, BUFFER, BUFFER).await; // either end may break off
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_can_be_named() {
        assert_eq!(loopback("LocalHost").unwrap().len(), 2);
        assert_eq!(loopback("127.0.0.1"), Some(vec![Ipv4Addr::LOCALHOST.into()]));
        assert_eq!(loopback("[::1]"), Some(vec![Ipv6Addr::LOCALHOST.into()]));
        for other in ["", "example.org", "10.0.0.1", "169.254.169.254", "[fe80::1]", "0.0.0.0", "[::]"] {
            assert_eq!(loopback(other), None, "{other}");
        }
    }
}
