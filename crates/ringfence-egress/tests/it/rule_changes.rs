//! Tests of rules that are replaced while the proxy serves.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, rustls};

use ringfence_egress::{ProxyMode, RequestKind};

use crate::fixture::{
    DnsServer, ProxyBuilder, RunningProxy, TestServer, answered, head, in_time, refused,
};
use crate::tls::configured;

const NONE: [&str; 0] = [];

/// Sends bytes through a tunnel to an echo host, and returns whether they came back.
async fn echoes(client: &mut TcpStream, said: &[u8]) -> bool {
    let mut heard = vec![0; said.len()];
    client.write_all(said).await.is_ok()
        && client.read_exact(&mut heard).await.is_ok()
        && heard == said
}

/// Writes bytes to a tunnel, and returns after the write has woken the proxy and before the proxy
/// reads the bytes.
async fn say_unheard(client: &TcpStream, said: &[u8]) {
    let (nudge, nudged) = UnixStream::pair().unwrap();
    nudge.writable().await.unwrap();
    // Both writes happen before any task is woken, and the test's own task runs first.
    client.try_write(said).unwrap();
    nudge.try_write(b"now").unwrap();
    nudged.readable().await.unwrap();
}

/// Waits until a connection has ended or was reset.
async fn is_cut(client: &mut TcpStream) -> bool {
    matches!(client.read(&mut [0; 1]).await, Ok(0) | Err(_))
}

async fn get(proxy: &RunningProxy, authority: &str, expected: Result<(), &str>) {
    let answer = proxy.get(authority).await;
    match expected {
        Ok(()) => answered(&answer),
        Err(code) => refused(&answer, 403, code),
    }
}

#[tokio::test]
async fn new_requests_are_judged_by_the_current_rules() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        get(&proxy, &authority, Ok(())).await;
        proxy.set_rules(&NONE, &NONE);
        get(&proxy, &authority, Err("unlisted")).await;
        proxy.set_rules(&host.rules("origin.test"), std::slice::from_ref(&authority));
        get(&proxy, &authority, Err("listed")).await;
        proxy.set_rules(&host.rules("origin.test"), &[]);
        get(&proxy, &authority, Ok(())).await;
        assert_eq!(proxy.codes(), ["unlisted", "listed"]);
    })
    .await;
}

#[tokio::test]
async fn only_tunnels_that_are_no_longer_allowed_are_cut() {
    in_time(async {
        let (dns, host, other) =
            (DnsServer::loopback().await, TestServer::echo().await, TestServer::echo().await);
        let both = [host.rules("origin.test"), other.rules("other.test")].concat();
        let proxy = ProxyBuilder::allowing(&both).start(&dns).await;
        let mut cut = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        let mut stays = proxy.tunnel(&format!("other.test:{}", other.port())).await;
        let mut silent = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        assert!(echoes(&mut cut, b"\x00one").await && echoes(&mut stays, b"\x00one").await);
        proxy.set_rules(&both, &[]);
        assert!(echoes(&mut cut, b"\x00two").await, "the same rules cut nothing");
        proxy.set_rules(&other.rules("other.test"), &[]);
        let _ = cut.write_all(b"\x00three").await; // the tunnel may be gone already
        assert!(is_cut(&mut cut).await && is_cut(&mut silent).await);
        assert!(echoes(&mut stays, b"\x00three").await);
        assert!(!host.heard().contains("three"), "{}", host.heard());
        assert_eq!(proxy.codes(), ["unlisted", "unlisted"]);
        assert_eq!(proxy.denials()[0].via, RequestKind::Connect);
        assert_eq!(proxy.denials()[0].target, format!("origin.test:{}", host.port()));
    })
    .await;
}

#[tokio::test]
async fn bytes_held_during_a_rule_change_are_not_carried_afterwards() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, heard| async move {
            let mut said = [0; 4];
            while stream.read_exact(&mut said).await.is_ok()
                && stream.write_all(&said).await.is_ok()
            {
                heard.lock().unwrap().extend_from_slice(&said);
            }
            heard.lock().unwrap().extend_from_slice(b"over");
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        assert!(echoes(&mut client, b"\x00one").await);
        say_unheard(&client, b"\x00two").await;
        proxy.set_rules(&host.rules("origin.test"), &[]);
        client.read_exact(&mut [0; 4]).await.unwrap();
        say_unheard(&client, b"\x00end").await;
        proxy.set_rules(&NONE, &NONE);
        assert!(is_cut(&mut client).await);
        while !host.heard().ends_with("over") {
            tokio::task::yield_now().await;
        }
        assert_eq!(host.heard(), "\0one\0twoover");
    })
    .await;
}

#[tokio::test]
async fn a_tunnel_is_cut_when_its_address_becomes_denied() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        assert!(echoes(&mut client, b"\x00one").await);
        proxy.set_rules(&[format!("origin.test:{}", host.port())], &[]);
        assert!(is_cut(&mut client).await);
        assert_eq!(proxy.codes(), ["internal"]);
    })
    .await;
}

#[tokio::test]
async fn observe_mode_cuts_a_tunnel_when_its_host_becomes_denied() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let (authority, own) = (format!("origin.test:{}", host.port()), [host.address.to_string()]);
        let proxy = ProxyBuilder { mode: ProxyMode::Observe, ..ProxyBuilder::allowing(&own) }
            .start(&dns)
            .await;
        let mut client = proxy.tunnel(&authority).await;
        proxy.set_rules(&own, &["other.test".to_owned()]);
        assert!(echoes(&mut client, b"\x00one").await, "no rule denies it");
        proxy.set_rules(&own, &[authority]);
        assert!(is_cut(&mut client).await);
        assert_eq!(proxy.codes(), ["listed"]);
    })
    .await;
}

#[tokio::test]
async fn a_tunnel_to_an_address_is_cut_when_its_tls_name_becomes_denied() {
    in_time(async {
        let (client, server) = configured();
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let host = TestServer::new(move |stream, _| {
            let acceptor = acceptor.clone();
            async move {
                let mut stream = acceptor.accept(stream).await.unwrap();
                let mut said = [0; 4];
                while stream.read_exact(&mut said).await.is_ok()
                    && stream.write_all(&said).await.is_ok()
                {}
            }
        })
        .await;
        let dns = DnsServer::loopback().await;
        let authority = host.address.to_string();
        let proxy = ProxyBuilder::allowing([&authority]).start(&dns).await;
        let tunnel = proxy.tunnel(&authority).await;
        let name = ServerName::try_from("front.test").unwrap();
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, tunnel).await.unwrap();
        let denied = format!("front.test:{}", host.port());
        let mut heard = [0; 4];
        for deny in [vec!["other.test".to_owned()], vec![denied]] {
            stream.write_all(b"ping").await.unwrap();
            stream.read_exact(&mut heard).await.unwrap();
            proxy.set_rules(std::slice::from_ref(&authority), &deny);
        }
        assert!(matches!(stream.read(&mut heard).await, Ok(0) | Err(_)));
        assert_eq!(proxy.codes(), ["listed"]);
    })
    .await;
}

#[tokio::test]
async fn a_busy_tunnel_is_cut_during_a_transfer() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, _| async move {
            while stream.write_all(&[1; 64 * 1024]).await.is_ok() {}
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        client.read_exact(&mut vec![0; 4 << 20]).await.unwrap();
        proxy.set_rules(&NONE, &NONE);
        // Bytes that were already under way still arrive.
        while client.read(&mut vec![0; 1 << 20]).await.is_ok_and(|read| read > 0) {}
        assert_eq!(proxy.codes(), ["unlisted"]);
    })
    .await;
}

#[tokio::test]
async fn requests_on_a_kept_connection_are_judged_by_the_current_rules() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        for in_tunnel in [false, true] {
            let mut client =
                if in_tunnel { proxy.tunnel(&authority).await } else { proxy.client().await };
            let form = if in_tunnel { String::new() } else { format!("http://{authority}") };
            let request = format!("GET {form}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            assert!(head(&mut client).await.starts_with("HTTP/1.1 200 "));
            client.read_exact(&mut [0; 5]).await.unwrap();
            let asked = host.heard().len();
            proxy.set_rules(&NONE, &NONE);
            client.write_all(request.as_bytes()).await.unwrap();
            let answer = head(&mut client).await;
            assert!(answer.contains("x-ringfence-denied: unlisted\r\n"), "{answer}");
            assert_eq!(host.heard().len(), asked, "the second request was sent on");
            // A connection without a request is not an attempt to reach a host, so no denial is
            // reported.
            assert_eq!(proxy.codes().len(), 1 + usize::from(in_tunnel));
            proxy.set_rules(&host.rules("origin.test"), &[]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_partial_answer_is_cut_and_an_awaited_answer_is_denied() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, heard| async move {
            let asked = head(&mut stream).await;
            heard.lock().unwrap().extend_from_slice(asked.as_bytes());
            if asked.contains("/begun") {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
                    .await
                    .unwrap();
            }
            let _ = stream.read(&mut [0; 1]).await; // blocks until the proxy cuts the connection
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let ask = async |path: &str| {
            let mut client = proxy.client().await;
            let request =
                format!("GET http://{authority}{path} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            while !host.heard().contains(path) {
                tokio::task::yield_now().await;
            }
            client
        };
        let mut begun = ask("/begun").await;
        assert!(head(&mut begun).await.starts_with("HTTP/1.1 200 "));
        begun.read_exact(&mut [0; 5]).await.unwrap();
        let mut waiting = ask("/waiting").await;
        proxy.set_rules(&NONE, &NONE);
        assert!(is_cut(&mut begun).await);
        let answer = head(&mut waiting).await;
        assert!(answer.contains("x-ringfence-denied: unlisted\r\n"), "{answer}");
        assert_eq!(proxy.codes(), ["unlisted", "unlisted"]);
    })
    .await;
}

#[tokio::test]
async fn a_web_socket_that_is_no_longer_allowed_is_cut() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web_socket().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.web_socket(&format!("origin.test:{}", host.port())).await;
        assert!(echoes(&mut client, b"ping").await);
        proxy.set_rules(&NONE, &NONE);
        assert!(is_cut(&mut client).await);
        assert_eq!(proxy.codes(), ["unlisted"]);
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_is_still_being_made_is_judged_again() {
    in_time(async {
        // A DNS server that never answers keeps the connection attempt waiting.
        let (silent, host) = (DnsServer::silent().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&silent).await;
        let mut client = proxy.client().await;
        client
            .write_all(format!("CONNECT origin.test:{} HTTP/1.1\r\n\r\n", host.port()).as_bytes())
            .await
            .unwrap();
        while silent.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        proxy.set_rules(&NONE, &NONE);
        let answer = head(&mut client).await;
        assert!(answer.contains("x-ringfence-denied: unlisted\r\n"), "{answer}");
        assert_eq!(host.connections(), 0);
    })
    .await;
}
