//! Tests of tunnels, and of plain HTTP in tunnels.

use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::net::TcpSocket;

use ringfence_egress::{ConnectionRefusal, RequestKind, Target};

use crate::fixture::{DnsServer, ProxyBuilder, TestServer, explanation, head, in_time, refused};

#[tokio::test]
async fn tunnels_open_to_listed_hosts_only() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        client.write_all(b"\x00binary").await.unwrap();
        let mut echo = [0; 7];
        client.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"\x00binary");

        let request =
            |authority: &str| format!("CONNECT {authority} HTTP/1.1\r\nConnection: close\r\n\r\n");
        refused(&proxy.ask(request("origin.test:22")).await, 403, "unlisted");
        refused(&proxy.ask(request("other.test:443")).await, 403, "unlisted");
        refused(&proxy.ask(request("169.254.169.254:80")).await, 403, "internal");
        refused(&proxy.ask(request("0x7f.1:80")).await, 403, "internal");
        let vias: Vec<RequestKind> = proxy.denials().iter().map(|denial| denial.via).collect();
        assert_eq!(vias, [RequestKind::Connect; 4]);
    })
    .await;
}

#[tokio::test]
async fn bytes_sent_right_after_the_connect_request_are_not_lost() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.client().await;
        let request = format!("CONNECT origin.test:{} HTTP/1.1\r\n\r\n\x01eager", host.port());
        client.write_all(request.as_bytes()).await.unwrap();
        head(&mut client).await;
        let mut echo = [0; 6];
        client.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"\x01eager");
    })
    .await;
}

#[tokio::test]
async fn a_server_may_speak_first() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, _| async move {
            stream.write_all(b"SSH-2.0-server\r\n").await.unwrap();
            let mut banner = [0; 16];
            stream.read_exact(&mut banner).await.unwrap();
            stream.write_all(&banner).await.unwrap();
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        let mut banner = [0; 16];
        client.read_exact(&mut banner).await.unwrap();
        assert_eq!(&banner, b"SSH-2.0-server\r\n");
        client.write_all(b"SSH-2.0-client\r\n").await.unwrap();
        client.read_exact(&mut banner).await.unwrap();
        assert_eq!(&banner, b"SSH-2.0-client\r\n");
    })
    .await;
}

#[tokio::test]
async fn the_end_of_one_side_is_passed_on_while_the_other_still_sends() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, _| async move {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(format!("{} bytes", all.len()).as_bytes()).await.unwrap();
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        client.write_all(&[1; 100_000]).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "100000 bytes");

        // A client sends nothing and ends its stream.
        let mut client = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "0 bytes");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_closed_its_sending_side_still_receives() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, heard| async move {
            stream.write_all(b"bye").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            heard.lock().unwrap().append(&mut all);
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "bye");
        client.write_all(b"\x02still here").await.unwrap();
        client.shutdown().await.unwrap();
        while host.heard().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(host.heard(), "\x02still here");
    })
    .await;
}

/// Returns bytes without a pattern, so that a shifted or lost chunk changes the result.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..length.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(length).collect()
}

#[tokio::test]
async fn a_tunnel_carries_ten_megabytes_both_ways_unchanged() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let sent = noise(10_000_001);
        let client = proxy.tunnel(&format!("origin.test:{}", host.port())).await;
        let (mut reader, mut writer) = split(client);
        let mut received = Vec::new();
        let write = async {
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(write, reader.read_to_end(&mut received));
        read.unwrap();
        assert_eq!(Sha256::digest(&received), Sha256::digest(&sent));
    })
    .await;
}

#[tokio::test]
async fn bodies_of_ten_megabytes_pass_both_ways_unchanged() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let host = TestServer::new(|mut stream, _| async move {
            head(&mut stream).await;
            let mut body = vec![0; 10_000_001];
            stream.read_exact(&mut body).await.unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(&body).await.unwrap();
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let sent = noise(10_000_001);
        let mut client = proxy.client().await;
        let length = sent.len();
        let request = format!(
            "PUT http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nContent-Length: \
                     {length}\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.unwrap();
        client.write_all(&sent).await.unwrap();
        head(&mut client).await;
        let mut received = vec![0; length];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(Sha256::digest(&received), Sha256::digest(&sent));
    })
    .await;
}

#[tokio::test]
async fn plain_requests_in_a_tunnel_must_name_the_tunnels_host() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let mut client = proxy.tunnel(&authority).await;
        let request = |host: &str| format!("GET /path HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for _ in 0..2 {
            client.write_all(request(&authority).as_bytes()).await.unwrap();
            assert!(head(&mut client).await.starts_with("HTTP/1.1 200 "));
            client.read_exact(&mut [0; 5]).await.unwrap();
        }
        client.write_all(request("front.test").as_bytes()).await.unwrap();
        let answer = head(&mut client).await;
        assert!(answer.contains("x-ringfence-denied: other_name\r\n"), "{answer}");
        assert_eq!(proxy.codes(), ["other_name"]);
        // The tunnel's own connection carried both requests.
        assert_eq!(host.connections(), 1);
        assert_eq!(host.heard().matches("GET /path HTTP/1.1\r\n").count(), 2);
    })
    .await;
}

#[tokio::test]
async fn disguised_requests_are_read_as_requests() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        for (said, code) in [
            ("GET / HTTP/1.1\r\nHost: front.test\r\n\r\n", "other_name"),
            ("\r\nGET / HTTP/1.1\r\nHost: front.test\r\n\r\n", "other_name"),
            ("BREW /caf\u{e9} HTTP/1.1\r\nHost: front.test\r\n\r\n", "malformed"),
            ("GET\t/ HTTP/1.1\r\nHost: front.test\r\n\r\n", "malformed"),
            ("get / http/1.1\r\nHost: front.test\r\n\r\n", "malformed"),
            ("GET http://front.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n", "other_name"),
            ("GET / HTTP/1.1\r\nHost: front.test\r\nHost: origin.test\r\n\r\n", "malformed"),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "malformed"),
            ("CONNECT front.test:443 HTTP/1.1\r\n\r\n", "malformed"),
        ] {
            let mut client = proxy.tunnel(&authority).await;
            for byte in said.as_bytes() {
                client.write_all(&[*byte]).await.unwrap();
            }
            let answer = head(&mut client).await;
            assert!(
                answer.contains(&format!("x-ringfence-denied: {code}\r\n")),
                "{said:?}: {answer}"
            );
        }
        assert_eq!(host.heard(), "");
    })
    .await;
}

#[tokio::test]
async fn a_web_socket_in_a_tunnel_passes() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web_socket().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let mut client = proxy.web_socket(&format!("origin.test:{}", host.port())).await;
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "ping");
    })
    .await;
}

#[tokio::test]
async fn a_refused_connection_is_reported_to_the_client() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let port = host.port();
        drop(host);
        let request = format!("CONNECT origin.test:{port} HTTP/1.1\r\nConnection: close\r\n\r\n");
        let answer = proxy.ask(request).await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert_eq!(explanation(&answer)["reason"], "unreachable");
    })
    .await;
}

#[tokio::test]
async fn a_slow_reader_loses_no_bytes() {
    in_time(async {
        let dns = DnsServer::loopback().await;
        let sent = noise(3_000_000);
        let hash = Sha256::digest(&sent);
        let host = TestServer::new(move |mut stream, _| {
            let sent = sent.clone();
            async move { stream.write_all(&sent).await.unwrap() }
        })
        .await;
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = socket.connect(proxy.address).await.unwrap();
        client
            .write_all(format!("CONNECT origin.test:{} HTTP/1.1\r\n\r\n", host.port()).as_bytes())
            .await
            .unwrap();
        head(&mut client).await;
        let mut received = Sha256::new();
        let mut part = [0; 3001];
        loop {
            match client.read(&mut part).await.unwrap() {
                0 => break,
                read => received.update(&part[..read]),
            }
        }
        assert_eq!(received.finalize(), hash);
    })
    .await;
}

#[tokio::test]
async fn a_transparent_client_is_carried_like_a_tunnel() {
    in_time(async {
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let (proxy, _) = ProxyBuilder::allowing(host.rules("origin.test")).proxy(&dns);
        let target = |name: &str| Target::from_parts(name, host.port()).unwrap();
        for (name, status) in [("origin.test", "200 OK"), ("front.test", "403 Forbidden")] {
            let (mut client, inside) = tokio::io::duplex(1024);
            let proxy = proxy.clone();
            let to = target("origin.test");
            let carried =
                tokio::spawn(
                    async move { proxy.carry_to(inside, &to, RequestKind::Transparent).await },
                );
            let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
            drop(client);
            carried.await.unwrap().unwrap();
        }
        let refusal = proxy
            .carry_to(tokio::io::duplex(1).0, &target("other.test"), RequestKind::Transparent)
            .await
            .unwrap_err();
        assert!(matches!(refusal, ConnectionRefusal::Denied(_)), "{refusal}");
    })
    .await;
}
