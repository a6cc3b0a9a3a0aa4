//! Tests with clients that send arbitrary bytes.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use ringfence_egress::{ClientLimits, Proxy, RequestKind, Target};

use crate::fixture::{DnsServer, ProxyBuilder, TestServer, in_time};

/// Changes a few bytes, or cuts off the rest. The same seed gives the same result.
fn mutated(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap() % most.max(1)
    };
    let mut bytes = bytes.to_vec();
    for _ in 0..=next(4) {
        let place = next(bytes.len());
        match next(4) {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, u8::try_from(next(256)).unwrap()),
            2 => drop(bytes.splice(place..place, b"\r\n".iter().copied())),
            _ => bytes
                .iter_mut()
                .skip(place)
                .take(1)
                .for_each(|byte| *byte = u8::try_from(next(256)).unwrap()),
        }
    }
    bytes
}

/// Sends `bytes`, ends the stream, and waits until the answer ends. The content of the answer does
/// not matter.
async fn say(mut client: DuplexStream, bytes: &[u8]) {
    let _ = client.write_all(bytes).await; // the proxy may have refused the client by then
    let _ = client.shutdown().await;
    let _ = client.read_to_end(&mut Vec::new()).await;
}

fn impatient() -> ClientLimits {
    ClientLimits { greeting: std::time::Duration::from_millis(500), ..ClientLimits::default() }
}

#[tokio::test]
async fn no_client_input_crashes_the_proxy_or_reaches_a_host() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let (proxy, _) =
            ProxyBuilder { limits: impatient(), ..ProxyBuilder::default() }.proxy(&dns);
        let port = host.port();
        let socks =
            [&b"\x05\x01\x00\x05\x01\x00\x03\x0borigin.test"[..], &port.to_be_bytes()].concat();
        let templates = [
            format!("GET http://origin.test:{port}/ HTTP/1.1\r\nHost: origin.test:{port}\r\n\r\n")
                .into_bytes(),
            format!("CONNECT origin.test:{port} HTTP/1.1\r\nHost: origin.test\r\n\r\nmore")
                .into_bytes(),
            format!(
                "POST http://127.0.0.1:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n\
                 abc\r\n0\r\n\r\n"
            )
            .into_bytes(),
            format!(
                "PUT http://[::1]:{port}/ HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET / \
                     HTTP/1.1\r\n\r\n"
            )
            .into_bytes(),
            socks,
        ];
        for seed in 0..1000 {
            let bytes = mutated(&templates[usize::try_from(seed).unwrap() % templates.len()], seed);
            let (client, inside) = tokio::io::duplex(256);
            let proxy: Proxy = proxy.clone();
            let carried = tokio::spawn(async move { proxy.carry(inside).await });
            say(client, &bytes).await;
            assert!(carried.await.is_ok(), "a panic for {}", bytes.escape_ascii());
        }
        assert_eq!(host.connections(), 0);
    })
    .await;
}

#[tokio::test]
async fn no_opening_of_a_tunnel_crashes_the_proxy() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let stage = ProxyBuilder {
            limits: impatient(),
            ..ProxyBuilder::allowing(host.rules("origin.test"))
        };
        let (proxy, _) = stage.proxy(&dns);
        let hello = crate::tls::first_message(&crate::tls::configured().0, "origin.test");
        let request = b"GET / HTTP/1.1\r\nHost: origin.test\r\nUpgrade: websocket\r\nConnection: \
                        upgrade\r\n\r\n";
        for seed in 0..300 {
            let bytes = mutated(if seed % 2 == 0 { &hello } else { request }, seed);
            let (client, inside) = tokio::io::duplex(256);
            let proxy = proxy.clone();
            let target = Target::from_address(host.address.ip(), host.port()).unwrap();
            let target = if seed % 3 == 0 {
                target
            } else {
                Target::from_parts("origin.test", host.port()).unwrap()
            };
            let carried = tokio::spawn(async move {
                proxy.carry_to(inside, &target, RequestKind::Transparent).await
            });
            say(client, &bytes).await;
            carried
                .await
                .unwrap_or_else(|_| panic!("a panic for {}", bytes.escape_ascii()))
                .unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_with_too_many_headers_is_refused_and_reported() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        for (count, is_answered) in [(90, true), (101, false), (500, false)] {
            let told = proxy.codes().len();
            let others: String = (0..count - 2).map(|index| format!("A{index}: b\r\n")).collect();
            let headers = format!("Host: {authority}\r\nConnection: close\r\n{others}\r\n");
            let answer = proxy.ask(format!("GET http://{authority}/ HTTP/1.1\r\n{headers}")).await;
            assert_eq!(answer.starts_with("HTTP/1.1 200 "), is_answered, "{count}: {answer}");
            assert_eq!(proxy.codes().len(), told + usize::from(!is_answered), "{count}");
        }
        assert!(
            proxy.denials().iter().all(|denial| denial.target == authority),
            "{:?}",
            proxy.denials()
        );
    })
    .await;
}
