//! Port forwarding: HTTP CONNECT to a loopback address inside the sandbox.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::connect_protocol::{Reply, refusal_reply, status_reply};

/// Time limit for a server inside the sandbox to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Size in bytes of the buffer for each direction of a forwarded connection.
const COPY_BUFFER_BYTES: usize = 32 * 1024;

/// Answers a CONNECT request: connects the client to a port inside the sandbox.
pub(crate) async fn connect_port(request: Request<Incoming>) -> Reply {
    let addresses = match request
        .uri()
        .authority()
        .and_then(|to| Some((loopback_addresses(to.host())?, to.port_u16()?)))
    {
        Some((hosts, port)) => hosts.into_iter().map(move |host| SocketAddr::new(host, port)),
        None => {
            return refusal_reply(
                StatusCode::BAD_REQUEST,
                "CONNECT takes a loopback address and a port: 127.0.0.1:8080",
            );
        }
    };
    let mut port = 0;
    for address in addresses {
        port = address.port();
        let Ok(Ok(server)) =
            tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await
        else {
            continue;
        };
        tokio::task::spawn_local(copy_both_ways(request, server));
        return status_reply(StatusCode::OK);
    }
    refusal_reply(
        StatusCode::BAD_GATEWAY,
        format!("nothing listens inside on {port}: port is not open"),
    )
}

/// Returns the addresses of a host name or address that means loopback; `None` for any other host.
fn loopback_addresses(host: &str) -> Option<Vec<IpAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback).map(|address| vec![address])
}

/// Copies bytes in both directions. If one end stops sending, the other end sees the end of the
/// stream, and can continue to send.
async fn copy_both_ways(request: Request<Incoming>, mut server: TcpStream) {
    let Ok(caller) = hyper::upgrade::on(request).await else { return };
    let _ = server.set_nodelay(true); // a failure only makes the connection slower
    // Ignore the error, because either end may close the connection at any time.
    let _ = tokio::io::copy_bidirectional_with_sizes(
        &mut TokioIo::new(caller),
        &mut server,
        COPY_BUFFER_BYTES,
        COPY_BUFFER_BYTES,
    )
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_have_addresses() {
        assert_eq!(loopback_addresses("LocalHost").unwrap().len(), 2);
        assert_eq!(loopback_addresses("127.0.0.1"), Some(vec![Ipv4Addr::LOCALHOST.into()]));
        assert_eq!(loopback_addresses("[::1]"), Some(vec![Ipv6Addr::LOCALHOST.into()]));
        for other in
            ["", "example.org", "10.0.0.1", "169.254.169.254", "[fe80::1]", "0.0.0.0", "[::]"]
        {
            assert_eq!(loopback_addresses(other), None, "{other}");
        }
    }
}
