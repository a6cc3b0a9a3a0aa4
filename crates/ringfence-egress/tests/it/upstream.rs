//! Tests of a host that itself must use a proxy.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use ringfence_egress::UpstreamProxies;

use crate::fixture::{
    DnsServer, ProxyBuilder, TestServer, answered, explanation, head, in_time, refused,
};

/// Starts an upstream proxy that requires `user:pass word`, and answers every tunnel and request
/// itself.
async fn upstream() -> TestServer {
    TestServer::new(|mut stream: TcpStream, heard: Arc<Mutex<Vec<u8>>>| async move {
        while let Some(request) = request(&mut stream).await {
            heard.lock().unwrap().extend_from_slice(request.as_bytes());
            let answer: &[u8] = if !request
                .to_ascii_lowercase()
                .contains("authorization: basic dxnlcjpwyxnzihdvcmq=\r\n")
            {
                b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
            } else if request.starts_with("CONNECT ") {
                b"HTTP/1.1 200 Connection established\r\nX: y\r\n\r\nbanner"
            } else {
                b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
            };
            stream.write_all(answer).await.unwrap();
        }
    })
    .await
}

async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(bytes).ok()
}

fn variables(port: u16, no: &'static str) -> UpstreamProxies {
    let proxy = format!("http://user:pass%20word@127.0.0.1:{port}");
    let read = UpstreamProxies::from_variables(|name| match name {
        "HTTP_PROXY" | "https_proxy" => Some(proxy.clone()),
        "NO_PROXY" => Some(no.to_owned()),
        _ => None,
    });
    read.unwrap().unwrap()
}

#[tokio::test]
async fn tunnels_and_requests_go_through_the_upstream_with_its_password_and_as_names() {
    in_time(async {
        let (dns, upstream) = (DnsServer::loopback().await, upstream().await);
        // Only the upstream can resolve the name.
        let stage = ProxyBuilder::allowing(["outside.invalid"]);
        let proxy = ProxyBuilder { upstream: Some(variables(upstream.port(), "")), ..stage }
            .start(&dns)
            .await;
        let mut client = proxy.tunnel("outside.invalid:443").await;
        let mut banner = [0; 6];
        client.read_exact(&mut banner).await.unwrap();
        assert_eq!(&banner, b"banner");
        assert!(
            upstream.heard().starts_with("CONNECT outside.invalid:443 HTTP/1.1\r\n"),
            "{}",
            upstream.heard()
        );

        answered(&proxy.get("outside.invalid").await);
        assert!(
            upstream.heard().contains("GET http://outside.invalid:80/ HTTP/1.1\r\n"),
            "{}",
            upstream.heard()
        );
        assert_eq!(proxy.allowed_connections().len(), 2);
        assert!(proxy.allowed_connections().iter().all(|passage| passage.address.is_none()));

        refused(&proxy.get("other.invalid").await, 403, "unlisted");
        refused(&proxy.get("10.0.0.1").await, 403, "internal");
    })
    .await;
}

#[tokio::test]
async fn a_name_with_an_internal_address_here_is_not_sent_upstream() {
    in_time(async {
        let (dns, upstream, host) =
            (DnsServer::loopback().await, upstream().await, TestServer::web().await);
        let authority = format!("origin.test:{}", host.port());
        let stage = ProxyBuilder::allowing([&authority]);
        let proxy = ProxyBuilder { upstream: Some(variables(upstream.port(), "")), ..stage }
            .start(&dns)
            .await;
        refused(&proxy.get(&authority).await, 403, "internal");
        let answer =
            proxy.ask(format!("CONNECT {authority} HTTP/1.1\r\nConnection: close\r\n\r\n")).await;
        refused(&answer, 403, "internal");
        assert_eq!(upstream.heard(), "");

        let stage = ProxyBuilder::allowing(host.rules("origin.test"));
        let proxy = ProxyBuilder { upstream: Some(variables(upstream.port(), "")), ..stage }
            .start(&dns)
            .await;
        answered(&proxy.get(&authority).await);
        assert_eq!((upstream.connections(), host.connections()), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn hosts_in_no_proxy_are_reached_directly() {
    in_time(async {
        let (dns, upstream, host) =
            (DnsServer::loopback().await, upstream().await, TestServer::web().await);
        let stage = ProxyBuilder::allowing(host.rules("origin.test"));
        let proxy = ProxyBuilder {
            upstream: Some(variables(upstream.port(), "elsewhere, .test")),
            ..stage
        }
        .start(&dns)
        .await;
        answered(&proxy.get(&format!("origin.test:{}", host.port())).await);
        assert_eq!((upstream.connections(), host.connections()), (0, 1));
    })
    .await;
}

#[tokio::test]
async fn an_https_proxy_is_not_used_for_plain_requests() {
    in_time(async {
        let (dns, upstream, host) =
            (DnsServer::loopback().await, upstream().await, TestServer::web().await);
        let proxy = format!("http://user:pass%20word@127.0.0.1:{}", upstream.port());
        let only_tunnels =
            UpstreamProxies::from_variables(|name| (name == "HTTPS_PROXY").then(|| proxy.clone()))
                .unwrap();
        let proxy = ProxyBuilder {
            upstream: only_tunnels,
            ..ProxyBuilder::allowing(host.rules("origin.test"))
        }
        .start(&dns)
        .await;
        let authority = format!("origin.test:{}", host.port());
        answered(&proxy.get(&authority).await);
        assert_eq!((upstream.connections(), host.connections()), (0, 1));
        proxy.tunnel(&authority).await;
        assert_eq!((upstream.connections(), host.connections()), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn a_refusal_by_the_upstream_is_quoted() {
    in_time(async {
        let (dns, upstream) = (DnsServer::loopback().await, upstream().await);
        let port = upstream.port();
        let without = UpstreamProxies::from_variables(|name| match name {
            "all_proxy" => Some(format!("127.0.0.1:{port}")),
            _ => None,
        });
        let stage = ProxyBuilder {
            upstream: without.unwrap(),
            ..ProxyBuilder::allowing(["outside.invalid"])
        };
        let proxy = stage.start(&dns).await;
        let answer =
            proxy.ask("CONNECT outside.invalid:443 HTTP/1.1\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert_eq!(explanation(&answer)["reason"], "upstream");
        assert!(answer.contains("407 Proxy Authentication Required"), "{answer}");
        let mut client = proxy.client().await;
        client.write_all(b"GET http://outside.invalid/ HTTP/1.1\r\n\r\n").await.unwrap();
        let answer = head(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    })
    .await;
}

#[test]
fn variables_that_name_no_usable_proxy_are_errors() {
    let read = |value: &str| {
        let value = value.to_owned();
        UpstreamProxies::from_variables(move |name| (name == "HTTPS_PROXY").then(|| value.clone()))
    };
    assert!(read("").unwrap().is_none());
    assert!(read(" ").unwrap().is_none());
    assert!(read("http://proxy:3128").unwrap().is_some());
    assert!(read("proxy:3128").unwrap().is_some());
    let message = |value: &str| read(value).unwrap_err().to_string();
    assert_eq!(
        message("socks5h://proxy:1080"),
        "`HTTPS_PROXY` names a proxy with the scheme `socks5h`: only `http://` is supported"
    );
    // The message must not contain the password.
    let unreadable = message("http://user:hunter2@:x");
    assert!(unreadable.starts_with("`HTTPS_PROXY` does not name a proxy"), "{unreadable}");
    assert!(!unreadable.contains("hunter2"), "{unreadable}");
}
