//! Tests of SOCKS5 clients.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use ringfence_egress::RequestKind;

use crate::fixture::{DnsServer, ProxyBuilder, RunningProxy, TestServer, head, in_time};

/// Greets the proxy, sends `request`, and returns the stream and the code of the reply.
async fn ask(proxy: &RunningProxy, request: &[u8]) -> (TcpStream, u8) {
    let mut client = proxy.client().await;
    client.write_all(&[5, 1, 0]).await.unwrap();
    let mut method = [0; 2];
    client.read_exact(&mut method).await.unwrap();
    assert_eq!(method, [5, 0]);
    client.write_all(request).await.unwrap();
    let mut reply = [0; 10];
    client.read_exact(&mut reply).await.unwrap();
    assert_eq!(reply[0], 5);
    (client, reply[1])
}

/// Returns a request that names its target by host name.
fn named(command: u8, name: &[u8], port: u16) -> Vec<u8> {
    let length = u8::try_from(name.len()).unwrap();
    [&[5, command, 0, 3, length], name, &port.to_be_bytes()].concat()
}

#[tokio::test]
async fn names_and_addresses_are_reached_if_they_are_listed() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let port = host.port();
        let by_address = [&[5, 1, 0, 1, 127, 0, 0, 1], &port.to_be_bytes()[..]].concat();
        let mapped = [
            &[5, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1],
            &port.to_be_bytes()[..],
        ];
        for request in [
            named(1, b"origin.test", port),
            named(1, b"127.0.0.1", port),
            by_address,
            mapped.concat(),
        ] {
            let (mut client, code) = ask(&proxy, &request).await;
            assert_eq!(code, 0, "{request:?}");
            client.write_all(b"\x03hi").await.unwrap();
            let mut echo = [0; 3];
            client.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, b"\x03hi");
        }
        assert_eq!(host.connections(), 4);

        for request in [
            named(1, b"other.test", port),
            named(1, b"origin.test", 22),
            vec![5, 1, 0, 1, 10, 0, 0, 1, 0, 80],
        ] {
            assert_eq!(ask(&proxy, &request).await.1, 2, "{request:?}");
        }
        assert_eq!(proxy.codes(), ["unlisted", "unlisted", "internal"]);
        assert!(proxy.denials().iter().all(|denial| denial.via == RequestKind::Socks5));
    })
    .await;
}

#[tokio::test]
async fn unsupported_commands_and_address_types_have_their_own_replies() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let (bind, udp, unknown) = (2, 3, 9);
        for command in [bind, udp, unknown] {
            assert_eq!(
                ask(&proxy, &named(command, b"origin.test", host.port())).await.1,
                7,
                "{command}"
            );
        }
        assert_eq!(ask(&proxy, &[5, 1, 0, 2]).await.1, 8);

        let mut client = proxy.client().await;
        client.write_all(&[5, 1, 2]).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, [5, 0xff]);
        assert_eq!(host.connections(), 0);
        assert_eq!(proxy.codes(), ["malformed", "protocol", "malformed", "malformed", "malformed"]);
        let named = format!("origin.test:{}", host.port());
        assert!(
            proxy.denials()[..2].iter().all(|denial| denial.target == named),
            "{:?}",
            proxy.denials()
        );
    })
    .await;
}

#[tokio::test]
async fn invalid_names_reach_no_host() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let names: [&[u8]; 7] = [
            b"",
            b"origin.test\0.other.test",
            b"\0",
            b"user@origin.test",
            b"origin.test:80",
            b"a..test",
            b"or igin.test",
        ];
        for name in names {
            assert_eq!(ask(&proxy, &named(1, name, host.port())).await.1, 2, "{name:?}");
        }
        assert_eq!(ask(&proxy, &named(1, b"origin.test", 0)).await.1, 2);
        for name in [&b"origin\xff.test"[..], b"\xc3"] {
            assert_ne!(ask(&proxy, &named(1, name, host.port())).await.1, 0, "{name:?}");
        }
        assert_eq!(proxy.codes().len(), names.len() + 3, "each refusal is recorded");
        assert!(proxy.codes().iter().all(|code| *code == "malformed"), "{:?}", proxy.denials());
        assert_eq!(dns.asked(), [""; 0]);
        assert_eq!(host.connections(), 0);
    })
    .await;
}

#[tokio::test]
async fn unresolved_names_and_refused_connections_have_their_own_replies() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let rules =
            [host.rules("origin.test").to_vec(), vec![format!("unknown.invalid:{}", host.port())]]
                .concat();
        let proxy = ProxyBuilder::allowing(rules).start(&dns).await;
        let port = host.port();
        assert_eq!(ask(&proxy, &named(1, b"unknown.invalid", port)).await.1, 4);
        drop(host);
        assert_eq!(ask(&proxy, &named(1, b"origin.test", port)).await.1, 5);
        assert_eq!(proxy.denials(), []);
    })
    .await;
}

#[tokio::test]
async fn plain_requests_over_socks_are_judged_too() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let port = host.port();
        for (name, status) in [(format!("origin.test:{port}"), 200), ("front.test".to_owned(), 403)]
        {
            let (mut client, code) = ask(&proxy, &named(1, b"origin.test", port)).await;
            assert_eq!(code, 0);
            client
                .write_all(format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes())
                .await
                .unwrap();
            let head = head(&mut client).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        }
    })
    .await;
}
