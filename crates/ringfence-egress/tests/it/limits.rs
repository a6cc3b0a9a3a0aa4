//! Tests of limits on clients, and of the end of the proxy.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use ringfence_egress::ClientLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::fixture::{
    DnsServer, LOOPBACK, ProxyBuilder, TestServer, answered, explanation, in_time, refused,
};

#[tokio::test]
async fn a_client_with_a_slow_request_head_is_disconnected() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let authority = format!("origin.test:{}", host.port());
        let stage = ProxyBuilder::allowing(host.rules("origin.test"));
        let limits = ClientLimits { greeting: Duration::from_millis(200), ..stage.limits };
        let proxy = ProxyBuilder { limits, ..stage }.start(&dns).await;
        for beginning in ["", "GET http://", "\x05", "\x05\x01\x00\x05\x01"] {
            let mut client = proxy.client().await;
            client.write_all(beginning.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
        }
        // The same limit holds for the opening of a tunnel, from its first byte on.
        for beginning in [&b"\x16\x03\x01"[..], b"GET / HTT"] {
            let mut client = proxy.tunnel(&authority).await;
            // Silence alone does not end a tunnel, even for twice the time that a greeting may
            // take.
            tokio::time::sleep(Duration::from_millis(400)).await;
            client.write_all(beginning).await.unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await.unwrap();
        }
        answered(&proxy.get(&authority).await);
        assert_eq!(host.heard().matches("GET").count(), 1, "{}", host.heard());
    })
    .await;
}

#[tokio::test]
async fn an_endless_request_head_is_refused() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let authority = format!("origin.test:{}", host.port());
        let stage = ProxyBuilder::allowing(host.rules("origin.test"));
        let limits = ClientLimits { head: 4096, ..stage.limits };
        let proxy = ProxyBuilder { limits, ..stage }.start(&dns).await;
        let request = |filling: usize| {
            let filling = "a".repeat(filling);
            format!(
                "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nX: {filling}\r\n\
                 Connection: close\r\n\r\n"
            )
        };
        answered(&proxy.ask(request(3000)).await);
        refused(&proxy.ask(request(5000)).await, 400, "malformed");
        refused(&proxy.ask(request(200_000)).await, 400, "malformed");
        assert_eq!(host.connections(), 1);
    })
    .await;
}

#[tokio::test]
async fn the_proxy_holds_a_thousand_connections_and_refuses_one_more() {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 8192) {
        panic!("this test needs 8192 descriptors, and the host allows {:?}", limit.maximum);
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let authority = host.address.to_string();
        let stage = ProxyBuilder::allowing(host.rules("origin.test"));
        let limits = ClientLimits { connections: 1000, ..stage.limits };
        let proxy = ProxyBuilder { limits, ..stage }.start(&dns).await;
        let mut clients = Vec::new();
        for _ in 0..1000 {
            clients.push(proxy.tunnel(&authority).await);
        }
        let answer = proxy.get(&authority).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert_eq!(explanation(&answer)["reason"], "full");
        for client in &mut clients {
            client.write_all(b"\x01x").await.unwrap();
        }
        for client in &mut clients {
            let mut echo = [0; 2];
            client.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, b"\x01x");
        }
        // When a connection ends, another client can connect.
        drop(clients.pop());
        loop {
            let mut client = proxy.client().await;
            client
                .write_all(format!("CONNECT {authority} HTTP/1.1\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let mut status = [0; 12];
            client.read_exact(&mut status).await.unwrap();
            if &status == b"HTTP/1.1 200" {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_proxy_that_ends_closes_every_connection() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut tunnel = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        tunnel.write_all(b"\x01x").await.unwrap();
        tunnel.read_exact(&mut [0; 2]).await.unwrap();
        let address = proxy.end().await;
        // The stream may end or be reset. In both cases, the proxy carries nothing any more.
        let rest = tunnel.read(&mut [0; 1]).await;
        assert!(matches!(rest, Ok(0) | Err(_)), "{rest:?}");
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    })
    .await;
}

#[tokio::test]
async fn a_unix_socket_serves_like_a_port() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("proxy.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (proxy, _) = ProxyBuilder::allowing(host.rules("origin.test")).proxy(&dns);
        let server = tokio::spawn(async move { proxy.serve(listener).await });
        let authority = format!("origin.test:{}", host.port());
        let mut client = UnixStream::connect(&path).await.unwrap();
        let request = format!("GET http://{authority}/ HTTP/1.1\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answered(&answer);
        server.abort();
    })
    .await;
}

#[tokio::test]
async fn an_idle_connection_uses_little_memory() {
    let (proxy, _) = ProxyBuilder::allowing(["origin.test"]).proxy(&DnsServer::loopback().await);
    let (client, _other) = UnixStream::pair().unwrap();
    let carried = proxy.carry(client);
    assert!(size_of_val(&carried) < 2048, "{} bytes are held for each", size_of_val(&carried));
}

#[tokio::test]
async fn waiting_connections_are_judged_before_a_proxy_ends() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let (proxy, events) = ProxyBuilder::allowing(["origin.test"]).proxy(&dns);
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        for number in 0..20 {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let request = format!("CONNECT other{number}.test:443 HTTP/1.1\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
        }
        proxy.drain();
        proxy.serve(listener).await.unwrap();
        assert_eq!(events.lock().unwrap().len(), 20);
    })
    .await;
}
