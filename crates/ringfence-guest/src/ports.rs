//! Port forwarding: HTTP CONNECT to a loopback address inside the sandbox.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::connect::{Reply, bare, refused};

/// Time limit for a server inside the sandbox to accept a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// Size in bytes of the buffer for each direction of a forwarded connection.
const BUFFER: usize = 32 * 1024;

/// Answers a CONNECT request: connects the client to a port inside the sandbox.
pub(crate) async fn connect(request: Request<Incoming>) -> Reply {
    let addresses =
        match request.uri().authority().and_then(|to| Some((loopback(to.host())?, to.port_u16()?)))
        {
            Some((hosts, port)) => hosts.into_iter().map(move |host| SocketAddr::new(host, port)),
            None => {
                return refused(
                    StatusCode::BAD_REQUEST,
                    "CONNECT takes a loopback address and a port: 127.0.0.1:8080",
                );
            }
        };
    let mut port = 0;
    for address in addresses {
        port = address.port();
        let Ok(Ok(server)) = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await
        else {
            continue;
        };
        tokio::task::spawn_local(carry(request, server));
        return bare(StatusCode::OK);
    }
    refused(StatusCode::BAD_GATEWAY, format!("nothing listens inside on {port}: port is not open"))
}

/// Returns the addresses of a host name or address that means loopback; `None` for any other host.
fn loopback(host: &str) -> Option<Vec<IpAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback).map(|address| vec![address])
}

/// Copies bytes in both directions. If one end stops sending, the other end sees the end of the
/// stream, and can continue to send.
async fn carry(request: Request<Incoming>, mut server: TcpStream) {
    let Ok(caller) = hyper::upgrade::on(request).await else { return };
    let _ = server.set_nodelay(true); // a failure only makes the connection slower
    // Ignore the error, because either end may close the connection at any time.
    let _ = tokio::io::copy_bidirectional_with_sizes(
        &mut TokioIo::new(caller),
        &mut server,
        BUFFER,
        BUFFER,
    )
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_can_be_named() {
        assert_eq!(loopback("LocalHost").unwrap().len(), 2);
        assert_eq!(loopback("127.0.0.1"), Some(vec![Ipv4Addr::LOCALHOST.into()]));
        assert_eq!(loopback("[::1]"), Some(vec![Ipv6Addr::LOCALHOST.into()]));
        for other in
            ["", "example.org", "10.0.0.1", "169.254.169.254", "[fe80::1]", "0.0.0.0", "[::]"]
        {
            assert_eq!(loopback(other), None, "{other}");
        }
    }
}
