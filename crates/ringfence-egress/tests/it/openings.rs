//! Tests of the first bytes of tunnels to a host name: disguised TLS and HTTP, and ordinary
//! protocols.

use std::sync::Arc;

use rustls::crypto::ring::{default_provider, kx_group};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, rustls};

use ringfence_egress::{ClientLimits, RequestKind};

use crate::fixture::{DnsServer, ProxyBuilder, RunningProxy, TestServer, in_time};
use crate::tls::{configured, first_message};

/// Change cipher spec record, which clients send before their second hello.
const CHANGE_CIPHER_SPEC: [u8; 6] = [20, 3, 3, 0, 1, 1];
/// Warning alert that the client will send no more data, which a server may ignore.
const WARNING: [u8; 7] = [21, 3, 1, 0, 2, 1, 0];
/// Random value of a HelloRetryRequest, RFC 8446, 4.1.3.
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Returns the content of a message in records of `size` bytes.
fn in_records(message: &[u8], size: usize) -> Vec<u8> {
    let record = |content: &[u8]| {
        let length = u16::try_from(content.len()).unwrap();
        [&[22, 3, 3], &length.to_be_bytes()[..], content].concat()
    };
    message.chunks(size).flat_map(record).collect()
}

/// Returns a server hello with this random value, as one message.
fn server_hello(random: [u8; 32]) -> Vec<u8> {
    [&[2, 0, 0, 40, 3, 3][..], &random, &[0, 0x13, 1, 0, 0, 0]].concat()
}

/// Starts a host that answers the first bytes of a client with `answer`, in pieces of `size` bytes,
/// and records all bytes of the client.
async fn answering(answer: Vec<u8>, size: usize) -> TestServer {
    TestServer::new(move |mut stream, heard| {
        let answer = answer.clone();
        async move {
            stream.set_nodelay(true).unwrap();
            let mut buffer = vec![0; 64 * 1024];
            let mut has_answered = false;
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                heard.lock().unwrap().extend_from_slice(&buffer[..read]);
                for piece in answer.chunks(size).filter(|_| !has_answered) {
                    if stream.write_all(piece).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
                has_answered = true;
            }
        }
    })
    .await
}

/// Waits until a host has received `words`, or until the tunnel has ended. Returns whether the host
/// has received them.
async fn is_heard(host: &TestServer, tunnel: &mut TcpStream, words: &[u8]) -> bool {
    let is_there = || host.heard.lock().unwrap().windows(words.len()).any(|part| part == words);
    let mut rest = [0; 1024];
    loop {
        tokio::select! {
            read = tunnel.read(&mut rest) => if !matches!(read, Ok(1..)) {
                return is_there();
            },
            () = tokio::task::yield_now() => if is_there() {
                return true;
            },
        }
    }
}

async fn stage(host: &TestServer) -> (DnsServer, RunningProxy, String) {
    let dns = DnsServer::loopback().await;
    let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
    (dns, proxy, format!("origin.test:{}", host.port()))
}

/// Sends `opening` through a tunnel, and checks that the host receives no byte and that the owner
/// is told of one denial.
#[track_caller]
fn refused<'a>(
    proxy: &'a RunningProxy,
    host: &'a TestServer,
    authority: &'a str,
    opening: &'a [u8],
) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        let before = proxy.denials().len();
        let mut tunnel = proxy.tunnel(authority).await;
        let _ = tunnel.write_all(opening).await; // the proxy may refuse the opening before its end
        let _ = tunnel.shutdown().await;
        let _ = tunnel.read_to_end(&mut Vec::new()).await;
        let shown = opening[..opening.len().min(80)].escape_ascii();
        assert_eq!(host.heard(), "", "{caller}: {shown} was let through");
        assert_eq!(proxy.denials().len(), before + 1, "{caller}: the owner is not told of {shown}");
    }
}

/// Sends `opening` through a tunnel to an echo host, and checks that it comes back.
async fn passes(proxy: &RunningProxy, authority: &str, opening: &[u8]) {
    let mut tunnel = proxy.tunnel(authority).await;
    tunnel.write_all(opening).await.unwrap();
    let mut echo = vec![0; opening.len()];
    let read = tunnel.read_exact(&mut echo).await;
    assert!(read.is_ok() && echo == opening, "{} was not let through", opening.escape_ascii());
}

#[tokio::test]
async fn a_hello_after_another_record_reaches_no_host() {
    in_time(async {
        let host = TestServer::echo().await;
        let (_dns, proxy, authority) = stage(&host).await;
        let (client, _) = configured();
        let (own, front) =
            (first_message(&client, "origin.test"), first_message(&client, "front.test"));
        for before in [
            &WARNING[..],
            &WARNING.repeat(4),
            &[21, 3, 3, 0, 2, 1, 112],
            &CHANGE_CIPHER_SPEC,
            &[23, 3, 3, 0, 1, 0],
            &[24, 3, 3, 0, 4, 1, 0, 1, 7],
            &[99, 3, 1, 0, 1, 0],
            &[0, 3, 0, 0, 1, 0],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0, 4, 0, 0, 0, 0],
            &[21, 3, 0x7f, 0, 2, 1, 0],
        ] {
            refused(&proxy, &host, &authority, &[before, &front].concat()).await;
            refused(&proxy, &host, &authority, &[before, &own].concat()).await;
        }
        // Two hellos in one record, and a hello that is longer than a hello can be.
        let twice = in_records(&[&own[5..], &front[5..]].concat(), 1 << 14);
        refused(&proxy, &host, &authority, &twice).await;
        let long = in_records(&[&[1, 2, 0, 0][..], &[0; 0x20000]].concat(), 1 << 14);
        refused(&proxy, &host, &authority, &long).await;
        assert!(
            proxy.denials().iter().all(|denial| denial.via == RequestKind::Tls),
            "{:?}",
            proxy.denials()
        );
        passes(&proxy, &authority, &own).await;
    })
    .await;
}

#[tokio::test]
async fn an_ssl_or_ambiguous_hello_reaches_no_host() {
    in_time(async {
        let host = TestServer::echo().await;
        let (_dns, proxy, authority) = stage(&host).await;
        let (client, _) = configured();
        let own = first_message(&client, "origin.test");
        let ssl2 = [&[0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10][..], &[7; 0x25]].concat();
        let ssl2_alone = [&[0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10][..], &[7; 0x25]].concat();
        let ssl3 =
            [&[22, 3, 0, 0, 43, 1, 0, 0, 39, 3, 0][..], &[7; 32], &[0, 0, 2, 0, 10, 1, 0]].concat();
        for opening in [ssl2, ssl2_alone, ssl3] {
            refused(&proxy, &host, &authority, &opening).await;
        }
        for names in [
            &[&b"origin.test"[..], b"front.test"][..],
            &[b""],
            &[b"origin.test\0.front.test"],
            &[b"127.0.0.1"],
            &[b"origin.test "],
            &[b"front.test\0"],
        ] {
            let list: Vec<u8> = names.iter().flat_map(|name| named(0, name)).collect();
            refused(&proxy, &host, &authority, &with_names(&own, &[list])).await;
        }
        // A name of an unknown type before or after the real name, two lists, an empty list, and no
        // list.
        for lists in [
            vec![[named(1, b"front.test"), named(0, b"origin.test")].concat()],
            vec![[named(0, b"origin.test"), named(1, b"front.test")].concat()],
            vec![named(0, b"origin.test"), named(0, b"front.test")],
            vec![Vec::new()],
            Vec::new(),
        ] {
            refused(&proxy, &host, &authority, &with_names(&own, &lists)).await;
        }
        for name in [&b"origin.test"[..], b"ORIGIN.tesT"] {
            passes(&proxy, &authority, &with_names(&own, &[named(0, name)])).await;
        }
    })
    .await;
}

/// Returns an entry of a list of server names.
fn named(kind: u8, name: &[u8]) -> Vec<u8> {
    [&[kind], &u16::try_from(name.len()).unwrap().to_be_bytes()[..], name].concat()
}

/// Returns a hello in which these lists of server names replace the original list.
fn with_names(hello: &[u8], lists: &[Vec<u8>]) -> Vec<u8> {
    let number = |at: usize| usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    let listed = |content: &[u8]| {
        [&u16::try_from(content.len()).unwrap().to_be_bytes()[..], content].concat()
    };
    // The extensions follow the record header, the message header, the version, 32 random bytes,
    // and three lists that state their own length.
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + number(at);
    at += 1 + usize::from(hello[at]);
    let front = &hello[9..at];
    let mut extensions = Vec::new();
    for list in lists {
        extensions.extend_from_slice(&[&[0, 0][..], &listed(&listed(list))].concat());
    }
    at += 2;
    while at < hello.len() {
        let end = at + 4 + number(at + 2);
        if number(at) != 0 {
            extensions.extend_from_slice(&hello[at..end]);
        }
        at = end;
    }
    let body = [front, &listed(&extensions)].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    in_records(&[&[1], &length[1..], &body].concat(), 1 << 14)
}

#[tokio::test]
async fn a_second_hello_is_judged_like_the_first() {
    in_time(async {
        let (client, _) = configured();
        let own = first_message(&client, "origin.test");
        let front = first_message(&client, "front.test");
        let nameless = with_names(&own, &[]);
        let early_data = [&[23, 3, 3, 0, 9][..], b"too early"].concat();
        let retry = server_hello(RETRY_RANDOM);
        for (answer, size) in [
            (in_records(&retry, 100), 100),
            (in_records(&retry, 100), 1),
            (in_records(&retry, 9), 100),
            ([&[21, 3, 3, 0, 2, 1, 112], &in_records(&retry, 100)[..]].concat(), 7),
            ([in_records(&retry, 100), CHANGE_CIPHER_SPEC.to_vec()].concat(), 100),
        ] {
            let host = answering(answer, size).await;
            let (_dns, proxy, authority) = stage(&host).await;
            for (before, second, code) in [
                (&[][..], &front, "other_name"),
                (&CHANGE_CIPHER_SPEC, &front, "other_name"),
                (&early_data, &in_records(&front[5..], 50), "other_name"),
                (&WARNING, &front, "other_name"),
                (&CHANGE_CIPHER_SPEC, &nameless, "unnamed"),
                (&[99, 3, 3, 0, 1, 0], &front, "malformed"),
                (b"GET / HTTP/1.1\r\nHost: front.test\r\n\r\n", &front, "malformed"),
                (&[22, 3, 3, 0, 4, 20, 0, 0, 0], &front, "malformed"),
            ] {
                let said = [before, second].concat();
                // Send the second hello once after the host has asked, and once before the host can
                // ask.
                for is_early in [false, true] {
                    let before = proxy.codes().len();
                    host.heard.lock().unwrap().clear();
                    let mut tunnel = proxy.tunnel(&authority).await;
                    let first = if is_early { [&own[..], &said].concat() } else { own.clone() };
                    tunnel.write_all(&first).await.unwrap();
                    if !is_early {
                        tunnel.read_u8().await.unwrap();
                        // The proxy may refuse the hello before its end.
                        let _ = tunnel.write_all(&said).await;
                    }
                    assert!(
                        !is_heard(&host, &mut tunnel, b"front.test").await,
                        "{code}, early: {is_early}"
                    );
                    assert_eq!(
                        host.heard.lock().unwrap().len(),
                        own.len(),
                        "{code}, early: {is_early}"
                    );
                    assert_eq!(proxy.codes()[before..], [code], "early: {is_early}");
                }
            }
            // A second hello with the name of the first passes, together with the bytes before it.
            for before in [&[][..], &CHANGE_CIPHER_SPEC, &early_data, &WARNING] {
                for second in [own.clone(), in_records(&own[5..], 50)] {
                    host.heard.lock().unwrap().clear();
                    let mut tunnel = proxy.tunnel(&authority).await;
                    let said = [before, &second, b"\x17\x03\x03 and so on"].concat();
                    tunnel.write_all(&own).await.unwrap();
                    tunnel.read_u8().await.unwrap();
                    tunnel.write_all(&said).await.unwrap();
                    assert!(is_heard(&host, &mut tunnel, &said).await);
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn bytes_after_a_hello_are_carried_once_the_server_has_answered() {
    in_time(async {
        let (client, _) = configured();
        let own = first_message(&client, "origin.test");
        for answer in [in_records(&server_hello([7; 32]), 100), vec![21, 3, 3, 0, 2, 2, 40]] {
            let host = answering(answer, 3).await;
            let (_dns, proxy, authority) = stage(&host).await;
            let mut tunnel = proxy.tunnel(&authority).await;
            let early_data = [&[23, 3, 3, 0, 9][..], b"too early"].concat();
            tunnel.write_all(&[&own[..], &early_data].concat()).await.unwrap();
            assert!(is_heard(&host, &mut tunnel, &early_data).await);
            assert_eq!(proxy.codes(), [""; 0]);
        }
        // If the client ends its stream, the connection to the server ends too, even if the server
        // never answered.
        let host = TestServer::new(|mut stream, heard| async move {
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all).await;
            heard.lock().unwrap().extend_from_slice(b"ended");
        });
        let host = host.await;
        let (_dns, proxy, authority) = stage(&host).await;
        let mut tunnel = proxy.tunnel(&authority).await;
        tunnel.write_all(&own).await.unwrap();
        tunnel.shutdown().await.unwrap();
        assert!(is_heard(&host, &mut tunnel, b"ended").await);
    })
    .await;
}

#[tokio::test]
async fn tls_with_a_hello_retry_connects() {
    in_time(async {
        let (client, mut server) = configured();
        // The client first offers a key of another group, so the server asks for a key of its own
        // group.
        let provider = rustls::crypto::CryptoProvider {
            kx_groups: vec![kx_group::SECP384R1],
            ..default_provider()
        };
        let made = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        server = made.with_no_client_auth().with_cert_resolver(Arc::clone(&server.cert_resolver));
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let host = TestServer::new(move |stream, _| {
            let acceptor = acceptor.clone();
            async move {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let mut said = [0; 4];
                    stream.read_exact(&mut said).await.unwrap();
                    stream.write_all(&said).await.unwrap();
                    let _ = stream.shutdown().await; // the client may be gone
                }
            }
        })
        .await;
        let (_dns, proxy, authority) = stage(&host).await;
        let connected = connect(&proxy, &authority, client).await;
        assert_eq!(connected.as_deref().ok(), Some("ping"), "{connected:?}");
        assert_eq!(proxy.codes(), [""; 0]);
    })
    .await;
}

async fn connect(
    proxy: &RunningProxy,
    authority: &str,
    client: ClientConfig,
) -> std::io::Result<String> {
    let tunnel = proxy.tunnel(authority).await;
    let name = ServerName::try_from("origin.test").unwrap();
    let mut stream = TlsConnector::from(Arc::new(client)).connect(name, tunnel).await?;
    stream.write_all(b"ping").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (_, session) = stream.get_ref();
    assert_eq!(session.handshake_kind(), Some(rustls::HandshakeKind::FullWithHelloRetryRequest));
    Ok(answer)
}

#[tokio::test]
async fn a_disguised_request_for_another_host_is_refused() {
    in_time(async {
        let host = TestServer::web().await;
        let (_dns, proxy, authority) = stage(&host).await;
        let front = "Host: front.test\r\n\r\n";
        let long = "a".repeat(9 * 1024);
        let longer = "a".repeat(70 * 1024);
        let mut openings: Vec<Vec<u8>> = [
            format!("GET /{long} HTTP/1.1\r\n{front}"),
            format!("GET /{longer} HTTP/1.1\r\n{front}"),
            format!("{long} / HTTP/1.1\r\n{front}"),
            format!("{}GET / HTTP/1.1\r\n{front}", "\r\n".repeat(9 * 1024)),
            format!("{}GET / HTTP/1.1\r\n{front}", "\r\n".repeat(40 * 1024)),
            format!("{}GET / HTTP/1.1\r\n{front}", " ".repeat(9 * 1024)),
            "GET / HTTP/1.1\r\nHost: origin.test\r\n Host: front.test\r\n\r\n".to_owned(),
            "GET / HTTP/1.1\r\nHost: origin.test\r\nHost: front.test\r\n\r\n".to_owned(),
            "GET / HTTP/1.1\nHost: front.test\n\n".to_owned(),
            "GET http://front.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n".to_owned(),
            "GET http://front.test/\r\n\r\n".to_owned(),
            format!("GET / HTTX/1.1\r\n{front}"),
            format!("GET / \r\n{front}"),
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
            format!("PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\nGET / HTTP/1.1\r\n{front}"),
            "GET / HTTP/1.1".to_owned(),
            format!("GET a.html\r\nConnection: keep-alive\r\n{front}"),
            format!("GET ?a\r\n{front}"),
            format!("delete a\r\n{front}"),
            format!("BREW /pot\r\n{front}"),
            format!("OPTIONS sip:a@origin.test SIP/2.0\r\n{front}"),
            format!("@GET / HTTP/1.1\r\n{front}"),
            format!("\"POST / HTTP/1.1\r\n{front}"),
            format!("X1 /a\x01 HTTP/1.1\r\n{front}"),
            format!("A /a\x01 HTTP/1.1\r\n{front}"),
            format!("{{}} / HTTP/1.1\r\n{front}"),
            format!("0032git-upload-pack /x\0 HTTP/1.1\n{front}"),
            format!("FETCH up x\r\n{front}"),
            format!("FETCH up x\r\nA: b\r\n{front}"),
            format!("FETCH\0up\0x\r\n{front}"),
            format!("\"POST foo:///up x\r\n{front}"),
            format!("\"P foo:/up x\r\n{front}"),
            format!("{{\"a\":1}} ftp://z/up x\r\n{front}"),
            format!("\"POST /up?{longer} HTTP/1.1\r\n{front}"),
            format!("\"{longer} /up x\r\n{front}"),
            format!("\"POST /up x\r\nHost:{}front.test\r\n\r\n", " ".repeat(70 * 1024)),
            format!("FETCH up x\r\n{}{front}", " ".repeat(70 * 1024)),
        ]
        .map(String::into_bytes)
        .into();
        for blank in
            [" ", "\t", "\x0b", "\x0c", "\0", "\x01", "\x1c", "\x7f", "\r", "\n", " \0\r\n\t"]
        {
            openings.push(format!("{blank}GET / HTTP/1.1\r\n{front}").into_bytes());
            openings.push(format!("{blank}get / http/1.1\r\n{front}").into_bytes());
            openings.push(format!("{blank}BREW / HTTP/1.1\r\n{front}").into_bytes());
        }
        for blank in ["\t", "\x0b", "\x0c", "\r", "\x1c", "  ", "\0"] {
            openings.push(format!("GET{blank}/ HTTP/1.1\r\n{front}").into_bytes());
            openings.push(format!("GET /{blank}HTTP/1.1\r\n{front}").into_bytes());
        }
        for first in [&b"\xa0"[..], b"\x85", b"\xef\xbb\xbf", b"\xc2\xc3 ", b"F\xd6\xd6"] {
            openings.push([first, b"GET / HTTP/1.1\r\n", front.as_bytes()].concat());
        }
        for opening in &openings {
            refused(&proxy, &host, &authority, opening).await;
        }
        // The same request for the tunnel's own host passes, also after an empty line and with a
        // long target.
        for target in ["/", &format!("/{long}")] {
            let mut tunnel = proxy.tunnel(&authority).await;
            let request = format!(
                "\r\nGET {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"
            );
            tunnel.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            tunnel.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_undecided_opening_is_refused_in_time_and_reported() {
    in_time(async {
        let host = TestServer::echo().await;
        let dns = DnsServer::loopback().await;
        let limits = ClientLimits {
            greeting: std::time::Duration::from_millis(200),
            ..ClientLimits::default()
        };
        let proxy = ProxyBuilder { limits, ..ProxyBuilder::allowing(host.rules("origin.test")) }
            .start(&dns)
            .await;
        let authority = format!("origin.test:{}", host.port());
        for opening in
            [&b"GET / HTTP/1.1\rHost: front.test\r\r"[..], b"GE", b"\r\n", &[22, 3, 1, 0]]
        {
            let before = proxy.denials().len();
            let mut tunnel = proxy.tunnel(&authority).await;
            tunnel.write_all(opening).await.unwrap();
            let _ = tunnel.read_to_end(&mut Vec::new()).await;
            assert_eq!(proxy.codes()[before..], ["malformed"], "{}", opening.escape_ascii());
        }
        assert_eq!(host.heard(), "");
    })
    .await;
}

#[tokio::test]
async fn ordinary_protocols_pass_when_they_wait_for_an_answer() {
    in_time(async {
        let host = TestServer::echo().await;
        let (_dns, proxy, authority) = stage(&host).await;
        for opening in [
            &b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"[..],
            b"EHLO client.test\r\n",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"\0\0\0\x29\0\x03\0\0user\0somebody\0database\0data\0\0",
            b"002egit-upload-pack /project.git\0host=a.test\0",
            b"*1\r\n$4\r\nPING\r\n",
            b"PING\r\n",
            b"OPTIONS sip:a@origin.test SIP/2.0\r\nVia: SIP/2.0/TCP a.test\r\nCSeq: 1 \
              OPTIONS\r\n\r\n",
            b"get key\r\n",
            b"ruok",
            b"hrpc\x09\0\0",
            b"put 0 0 60 4\r\na: b\r\n",
            b"PASS *\r\nNICK :a\r\n",
            b"1700000000 host GET /index HTTP/1.1 200\n",
            b"get /key\r\n",
            b"GET /key\r\nquit\r\n",
            b"CONNECT {\"verbose\":false,\"url\":\"nats://a.test\"}\r\n",
            b"CONNECT\naccept-version:1.2\nhost:/\n\n\0",
            b"AMQP\0\0\x09\x01",
            b"a1 CAPABILITY\r\n",
            b"{\"method\": \"hello\"}",
            b"\x05\x01\0",
            b"\0binary",
            b"\xff\xfb\x18",
            b"\x01",
            b"\x20\0\0\x01\x85\xa6\xff\x09",
            b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0",
            b"0\x0c\x02\x01\x01`\x07\x02\x01\x03\x04\0\x80\0",
            b"\0\0\0\x23\0\x12\0\x03\0\0\0\x01\0\x05kafka",
            b"\x3a\0\0\0\x01\0\0\0\0\0\0\0\xd4\x07\0\0",
            b"\x12\x01\0\x2f\0\0\x01\0",
            b"\xff\xfd\x01",
            b"\x80\x01",
            b"\r\n",
            b"NICK ada\r\nUSER ada 0 * :Ada L\r\n",
            b"AUTH user pass\r\nPING\r\n",
            b"set key 0 0 3\r\nabc\r\n",
            b"BEGIN AUTH REQUEST\n/cvsroot\nuser\nA\nEND AUTH REQUEST\n",
            b"PING SPAMC/1.2\r\n\r\n",
            b"a.b.c 1 1700000000\na.b.d 1 1700000000\n",
            b"STOMP\r\naccept-version:1.2\r\nhost:origin.test\r\n\r\n\0",
            &[&b"{\"a\":\""[..], &[b'a'; 70 * 1024], b"\"}\n"].concat(),
            &[&b"\0\x01\x02 /\0"[..], &[200; 70 * 1024], b"\n"].concat(),
        ] {
            passes(&proxy, &authority, opening).await;
        }
        assert_eq!(proxy.codes(), [""; 0]);
    })
    .await;
}

/// Starts a host that takes the end of the stream for the end of a request, and discards the input
/// of a connection that is reset.
async fn acting_at_end() -> TestServer {
    TestServer::new(|mut stream, heard| async move {
        let mut said = Vec::new();
        let end: &[u8] =
            if stream.read_to_end(&mut said).await.is_ok() { &said } else { b"(reset)" };
        heard.lock().unwrap().extend_from_slice(end);
    })
    .await
}

/// Waits until a host of [`acting_at_end`] has seen the end of a connection, and returns its input.
async fn request_at_end(host: &TestServer) -> String {
    while host.heard().is_empty() {
        tokio::task::yield_now().await;
    }
    host.heard()
}

#[tokio::test]
async fn a_line_that_the_end_of_the_stream_completes_is_judged() {
    in_time(async {
        let host = acting_at_end().await;
        let (_dns, proxy, authority) = stage(&host).await;
        for (first, rest, passes) in [
            (&b"GET /up\r\n"[..], &b"Host: front.test"[..], false),
            (b"GET /up\r\n", b"A: b\r\nGET /other HTTP/1.1", false),
            (b"FETCH up x\r\n", b"A: b\r\nhost :front.test", false),
            (b"\"POST /up", b" HTTP/1.1", false),
            (b"\"POST", b" http://front.test/", false),
            (b"\r\n", b"\"POST /up HTTP/1.1", false),
            (b"\r\n", b"\r\n\0\r\nQUIT\n\x21\x11\0\x0c", false),
            (b"GET /up\r\n", b"A: origin.test", true),
            (b"FETCH up x\r\n", b"A: b\r\nhostname: origin.test", true),
            (b"\"POST /up", b" x", true),
            (b"\r\n", b"ada", true),
        ] {
            let shown = format!("{}{}", first.escape_ascii(), rest.escape_ascii());
            let told = proxy.codes().len();
            for mut tunnel in [
                proxy.tunnel(&authority).await,
                proxy.socks_tunnel("origin.test", host.port()).await,
            ] {
                host.heard.lock().unwrap().clear();
                tunnel.write_all(first).await.unwrap();
                // The proxy releases the first piece while the client waits.
                tokio::time::sleep(std::time::Duration::from_millis(400)).await;
                // The proxy may refuse the rest before its end.
                let _ = tunnel.write_all(rest).await;
                let _ = tunnel.shutdown().await;
                let expected = if passes { [first, rest].concat() } else { b"(reset)".to_vec() };
                assert_eq!(
                    request_at_end(&host).await,
                    String::from_utf8_lossy(&expected),
                    "{shown}"
                );
            }
            let codes: &[&str] = if passes { &[] } else { &["malformed"; 2] };
            assert_eq!(proxy.codes()[told..], *codes, "{shown}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_is_reset_when_its_tunnel_ends_within_a_line() {
    in_time(async {
        let host = acting_at_end().await;
        let (_dns, proxy, authority) = stage(&host).await;
        let mut tunnel = proxy.tunnel(&authority).await;
        tunnel.write_all(b"\"POST /up x\r\nA: b\r\nHost").await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        tunnel.write_all(b": front.test\r\n").await.unwrap();
        assert_eq!(request_at_end(&host).await, "(reset)");
        assert_eq!(proxy.codes(), ["malformed"]);

        host.heard.lock().unwrap().clear();
        let mut tunnel = proxy.tunnel(&authority).await;
        tunnel.write_all(b"\"POST /up x\r\nA: b").await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        tunnel.set_zero_linger().unwrap();
        drop(tunnel);
        assert_eq!(request_at_end(&host).await, "(reset)");

        host.heard.lock().unwrap().clear();
        let mut tunnel = proxy.tunnel(&authority).await;
        tunnel.write_all(b"\"POST /up x\r\nA: b").await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        proxy.set_rules(&[""; 0], &[]);
        assert_eq!(request_at_end(&host).await, "(reset)");
        assert_eq!(proxy.codes(), ["malformed", "unlisted"]);
    })
    .await;
}

#[tokio::test]
async fn a_line_that_passed_in_pieces_is_not_completed_to_a_request() {
    in_time(async {
        // The host reads lines, as an HTTP server does.
        let host = TestServer::new(|mut stream, heard| async move {
            let mut line = Vec::new();
            while let Ok(byte) = stream.read_u8().await {
                line.push(byte);
                if byte == b'\n' {
                    heard.lock().unwrap().append(&mut line);
                }
            }
        })
        .await;
        let (_dns, proxy, authority) = stage(&host).await;
        for (first, rest) in [
            (&b"@GET"[..], &b" / HTTP/1.1\r\nHost: front.test\r\n\r\n"[..]),
            (b"\xc2\xc3\xc4 /", b" HTTP/1.1\r\nHost: front.test\r\n\r\n"),
            (b"X1 /\x01", b" HTTP/1.1\r\nHost: front.test\r\n\r\n"),
            (b"\x01\x02\x03", b"GET / HTTP/1.1\r\nHost: front.test\r\n\r\n"),
            (b"\x01", b"GET / HTTP/1.1\r\nHost: front.test\r\n\r\n"),
            (b"002egit-upload-pack /x\0", b" HTTP/1.1\nHost: front.test\n\n"),
            (b"get key\r\n", b"Host: front.test\r\n\r\n"),
            (b"GET a.html\r\n", b"a b\r\nGET /full HTTP/1.1\r\nHost: front.test\r\n\r\n"),
            (b"GET a.html\r\n", b"Connection: keep-alive\r\nhost:\tfront.test\r\n\r\n"),
            (b"get /key\r\n", b"GET http://front.test/\r\n"),
            (b"\"POST /up x\r\n", b"Host: front.test\r\n\r\n"),
            (b"\xc3POST", b" /up X/1.1\r\nA: b\r\nHost: front.test\r\n\r\n"),
            (b"\"PO\tST\nx", b" /up x\r\nhost : front.test\r\n\r\n"),
            (b"ruok", b" /up HTTP/1.1\r\nHost: front.test\r\n\r\n"),
            (b"ruok", b" /up\r\nHost: front.test\r\n\r\n"),
            (b"PASS *\r\n", b"Host: front.test\r\n\r\n"),
            (b"put 0 0 60 4\r\n", b"Host: front.test\r\n\r\n"),
        ] {
            let shown = first.escape_ascii();
            let told = proxy.codes().len();
            let mut tunnel = proxy.tunnel(&authority).await;
            tunnel.write_all(first).await.unwrap();
            // The proxy releases the first piece while the client waits.
            tokio::time::sleep(std::time::Duration::from_millis(400)).await;
            let _ = tunnel.write_all(rest).await; // the proxy may refuse the rest before its end
            assert!(!is_heard(&host, &mut tunnel, b"front.test").await, "{shown}");
            assert_eq!(proxy.codes()[told..], ["malformed"], "{shown}");
            let heard = String::from_utf8_lossy(&std::mem::take(&mut *host.heard.lock().unwrap()))
                .into_owned();
            assert!(!heard.contains("HTTP/") && !heard.contains("front.test"), "{shown}: {heard}");
        }
        // The same first pieces pass with other text after them.
        for (first, rest) in [
            (&b"@RSYNCD"[..], &b": 31.0\n"[..]),
            (b"\x01", b"\x02\n"),
            (b"get key\r\n", b"set a 0 0 9\r\nHTTP/1.1 a\r\n"),
            (b"GET /key\r\n", b"get user:1\r\n"),
        ] {
            let mut tunnel = proxy.tunnel(&authority).await;
            tunnel.write_all(first).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(400)).await;
            tunnel.write_all(rest).await.unwrap();
            assert!(
                is_heard(&host, &mut tunnel, &[first, rest].concat()).await,
                "{}",
                first.escape_ascii()
            );
        }
    })
    .await;
}

#[tokio::test]
async fn text_like_requests_passes_once_the_server_has_spoken() {
    in_time(async {
        let host = mail().await;
        let (_dns, proxy, authority) = stage(&host).await;
        let mut tunnel = proxy.tunnel(&authority).await;
        for words in
            [&b"\0\0\0\x08\0\x03\0\0"[..], b"Q\0\0\0\x40INSERT a HTTP/1.1\nGET / HTTP/1.1\n"]
        {
            tunnel.write_all(words).await.unwrap();
            assert!(is_answered(&host, &mut tunnel, words).await);
        }
        let mut tunnel = proxy.tunnel(&authority).await;
        for words in
            [&b"get key\r\n"[..], b"set key 0 0 27\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n\r\n"]
        {
            tunnel.write_all(words).await.unwrap();
            assert!(is_answered(&host, &mut tunnel, words).await);
        }
        assert_eq!(proxy.codes(), [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_speaks_first_may_get_any_protocol_but_tls_for_another_host() {
    in_time(async {
        let host = TestServer::new(|mut stream, heard| async move {
            stream.write_all(b"220 mail.test ESMTP\r\n").await.unwrap();
            let mut buffer = vec![0; 4096];
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                heard.lock().unwrap().extend_from_slice(&buffer[..read]);
                let _ = stream.write_all(b"250 mail.test\r\n").await; // the client may be gone
            }
        })
        .await;
        let (_dns, proxy, authority) = stage(&host).await;
        let (client, _) = configured();
        let mut banner = [0; 21];
        for (opening, passes) in [
            (b"EHLO client.test\r\n".to_vec(), true),
            (first_message(&client, "front.test"), false),
        ] {
            let mut tunnel = proxy.tunnel(&authority).await;
            tunnel.read_exact(&mut banner).await.unwrap();
            assert_eq!(&banner, b"220 mail.test ESMTP\r\n");
            tunnel.write_all(&opening).await.unwrap();
            assert_eq!(is_heard(&host, &mut tunnel, &opening).await, passes);
        }
        assert_eq!(proxy.codes(), ["other_name"]);
    })
    .await;
}

#[tokio::test]
async fn a_protocol_that_upgrades_to_tls_must_name_its_own_host() {
    in_time(async {
        let (client, _) = configured();
        let own = first_message(&client, "origin.test");
        let front = first_message(&client, "front.test");
        let nameless = with_names(&own, &[]);
        let ssl_request = b"\0\0\0\x08\x04\xd2\x16\x2f".to_vec();
        for (hello, code) in [
            (own.clone(), None),
            (in_records(&own[5..], 1), None),
            (nameless, None),
            (front.clone(), Some("other_name")),
            (in_records(&front[5..], 1), Some("other_name")),
            (in_records(&front[5..], 1 << 14), Some("other_name")),
            (in_records(&[&[1, 0, 0, 9][..], &[0; 9]].concat(), 1 << 14), Some("malformed")),
        ] {
            // The server answers each read with one byte. The hello follows one short message, or a
            // long conversation that ends with STARTTLS.
            let host = TestServer::new(|mut stream, heard| async move {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    heard.lock().unwrap().extend_from_slice(&buffer[..read]);
                    if stream.write_all(b"S").await.is_err() {
                        return;
                    }
                }
            })
            .await;
            let (_dns, proxy, authority) = stage(&host).await;
            let long: Vec<Vec<u8>> =
                (0..30).map(|_| [&b"NOOP "[..], &[b'x'; 9000], b"\r\n"].concat()).collect();
            for before in
                [vec![ssl_request.clone()], [&long[..], &[b"STARTTLS\r\n".to_vec()]].concat()]
            {
                host.heard.lock().unwrap().clear();
                let told = proxy.codes().len();
                let mut tunnel = proxy.tunnel(&authority).await;
                for words in &before {
                    tunnel.write_all(words).await.unwrap();
                    assert!(is_answered(&host, &mut tunnel, words).await);
                }
                for piece in hello.chunks(3) {
                    // The proxy may refuse the hello before its end.
                    let _ = tunnel.write_all(piece).await;
                }
                assert_eq!(
                    is_heard(&host, &mut tunnel, &hello).await,
                    code.is_none(),
                    "{code:?} {:?} {}",
                    proxy.denials(),
                    hello.escape_ascii()
                );
                assert_eq!(proxy.codes()[told..], code.into_iter().collect::<Vec<_>>());
                assert!(!host.heard().contains("front.test"));
            }
        }
    })
    .await;
}

/// Starts a mail host that answers each read, and accepts any bytes.
async fn mail() -> TestServer {
    TestServer::new(|mut stream, heard| async move {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            heard.lock().unwrap().extend_from_slice(&buffer[..read]);
            if stream.write_all(b"+").await.is_err() {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_late_hello_is_judged_at_any_byte_of_the_stream() {
    in_time(async {
        let (client, _) = configured();
        let (own, front) =
            (first_message(&client, "origin.test"), first_message(&client, "front.test"));
        let minor = |hello: &[u8], minor: u8| [&hello[..2], &[minor], &hello[3..]].concat();
        let start = b"STARTTLS\r\n".to_vec();
        // The hello ends within an extension that is longer than all that follows. Without that
        // extension, random bytes of the next hello would be read as its lists, and some of them
        // as a name.
        let lists = b"\0\0\x02\x13\x01\x01\0\x3f\xc0\x5a\x5a\x3f\0";
        let endless =
            [&b"\x16\x03\x01\x40\0\x01\0\x3f\xf0\x03\x03"[..], &[b'r'; 32], lists].concat();
        let after = |before: &[u8], hello: &[u8]| [before, hello].concat();
        // Each conversation is a list of pieces. The client sends a piece after the answer to the
        // piece before.
        let conversations = |hello: &[u8]| {
            let mut conversations = vec![
                vec![start.clone(), hello.to_vec()],
                vec![after(&start, hello)],
                vec![after(&start, &hello[..1]), hello[1..].to_vec()],
                vec![start.clone(), after(b"\r\n", hello)],
                vec![b"\x20\0\0\x01\x85\xae\xff\x09".to_vec(), after(b"\x01\0\0\x02", hello)],
                // The hello is in a packet of TDS.
                vec![
                    b"\x12\x01\0\x2f\0\0\x01\0".to_vec(),
                    after(b"\x12\x01\x02\x08\0\0\0\0", hello),
                ],
                // The hello follows the start of a hello that never ends.
                vec![after(&[b"NOOP ", &endless[..], b"\r\nSTARTTLS\r\n"].concat(), hello)],
                // The hello follows a hello for the tunnel's own host.
                vec![start.clone(), own.clone(), after(&start, hello)],
                vec![start.clone(), own.clone(), start.clone(), hello.to_vec()],
            ];
            for record in [
                &[22, 3, 1, 0, 0][..],
                &[21, 3, 1, 0, 0],
                &WARNING,
                &CHANGE_CIPHER_SPEC,
                &[99, 3, 1, 0, 1, 0],
            ] {
                conversations.push(vec![start.clone(), after(record, hello)]);
            }
            for version in [0, 5, 0x7f, 0xff] {
                conversations.push(vec![start.clone(), minor(hello, version)]);
            }
            conversations
        };
        for (hello, passes) in [(&own, true), (&front, false)] {
            for conversation in conversations(hello) {
                let host = mail().await;
                let (_dns, proxy, authority) = stage(&host).await;
                let mut tunnel = proxy.tunnel(&authority).await;
                let (last, first) = conversation.split_last().unwrap();
                for words in first {
                    tunnel.write_all(words).await.unwrap();
                    assert!(is_answered(&host, &mut tunnel, words).await);
                }
                // The proxy may refuse the hello before its end.
                let _ = tunnel.write_all(last).await;
                let shown = last[..last.len().min(40)].escape_ascii();
                assert_eq!(is_heard(&host, &mut tunnel, last).await, passes, "{shown}");
                assert!(!host.heard().contains("front.test"), "{shown}");
                let codes: &[&str] = if passes { &[] } else { &["other_name"] };
                assert_eq!(proxy.codes(), codes, "{shown}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_late_hello_before_the_servers_answer_or_after_a_retry_is_judged() {
    in_time(async {
        let (client, _) = configured();
        let (own, front) =
            (first_message(&client, "origin.test"), first_message(&client, "front.test"));
        // A host that reads and sends nothing.
        let silent = || async {
            TestServer::new(|mut stream, heard| async move {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    heard.lock().unwrap().extend_from_slice(&buffer[..read]);
                }
            })
            .await
        };
        let retry = answering(
            [b"220 go\r\n".to_vec(), in_records(&server_hello(RETRY_RANDOM), 100)].concat(),
            100,
        );
        for (host, first) in [(silent().await, Vec::new()), (retry.await, own.clone())] {
            for (hello, passes) in [(&own, true), (&front, false)] {
                host.heard.lock().unwrap().clear();
                let (_dns, proxy, authority) = stage(&host).await;
                let mut tunnel = proxy.tunnel(&authority).await;
                let before = [b"STARTTLS\r\n", &first[..]].concat();
                tunnel.write_all(&before).await.unwrap();
                assert!(is_heard(&host, &mut tunnel, &before).await);
                tunnel.write_all(hello).await.unwrap();
                assert_eq!(
                    is_heard(&host, &mut tunnel, &[&before[..], hello].concat()).await,
                    passes
                );
                assert_eq!(proxy.codes().len(), usize::from(!passes));
            }
        }
    })
    .await;
}

/// Waits until a host has received `words`, and returns whether an answer has arrived.
async fn is_answered(host: &TestServer, tunnel: &mut TcpStream, words: &[u8]) -> bool {
    while !host.heard.lock().unwrap().ends_with(words) {
        tokio::task::yield_now().await;
    }
    tunnel.read_u8().await.is_ok()
}

#[tokio::test]
async fn a_tls_or_http_answer_to_another_protocol_is_not_passed_on() {
    in_time(async {
        for (answer, is_cut) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nfronts"[..], true),
            (&in_records(&server_hello([7; 32]), 100), true),
            (b"220 mail.test ESMTP\r\n", false),
            (b"S", false),
        ] {
            for size in [1, 100] {
                let host = answering(answer.to_vec(), size).await;
                let (_dns, proxy, authority) = stage(&host).await;
                let mut tunnel = proxy.tunnel(&authority).await;
                tunnel.write_all(b"\xff\x02\x03").await.unwrap();
                if is_cut {
                    let mut answered = Vec::new();
                    let _ = tunnel.read_to_end(&mut answered).await;
                    assert!(answered.len() < 5, "{}", answered.escape_ascii());
                    assert_eq!(proxy.codes(), ["malformed"]);
                    assert_eq!(proxy.denials()[0].via, RequestKind::Tunnel);
                } else {
                    let mut answered = vec![0; answer.len()];
                    tunnel.read_exact(&mut answered).await.unwrap();
                    assert_eq!((&answered[..], proxy.codes().len()), (answer, 0));
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn an_answer_without_tls_to_a_hello_is_not_passed_on() {
    in_time(async {
        let (client, _) = configured();
        let own = first_message(&client, "origin.test");
        for answer in [
            &b"HTTP/1.1 200 OK\r\n\r\n"[..],
            b"220 mail.test ESMTP\r\n",
            b"<html>",
            &[22, 9, 0],
            &[23, 3, 3],
        ] {
            for size in [1, 100] {
                let host = answering(answer.to_vec(), size).await;
                let (_dns, proxy, authority) = stage(&host).await;
                let mut tunnel = proxy.tunnel(&authority).await;
                tunnel
                    .write_all(&[&own[..], b"GET / HTTP/1.1\r\nHost: front.test\r\n\r\n"].concat())
                    .await
                    .unwrap();
                let mut answered = Vec::new();
                let _ = tunnel.read_to_end(&mut answered).await;
                assert!(answered.len() < 2, "{}", answered.escape_ascii());
                assert_eq!(proxy.codes(), ["malformed"]);
                assert_eq!(host.heard.lock().unwrap().len(), own.len(), "only the hello was heard");
            }
        }
        // In a tunnel to an address, the answer may be in any protocol.
        let host = answering(b"220 mail.test ESMTP\r\n".to_vec(), 100).await;
        let dns = DnsServer::loopback().await;
        let address = host.address.to_string();
        let proxy = ProxyBuilder::allowing([&address]).start(&dns).await;
        let mut tunnel = proxy.tunnel(&address).await;
        tunnel.write_all(&own).await.unwrap();
        assert_eq!(tunnel.read_u8().await.unwrap(), b'2');
    })
    .await;
}

#[tokio::test]
async fn a_denied_name_is_not_reached_at_an_allowed_address() {
    in_time(async {
        let host = TestServer::web().await;
        let dns = DnsServer::loopback().await;
        let (address, port) = (host.address.to_string(), host.port());
        let deny = vec![format!("front.test:{port}"), format!("*.wild.test:{port}")];
        let proxy = ProxyBuilder { deny, ..ProxyBuilder::allowing([&address]) }.start(&dns).await;
        let (client, _) = configured();
        let front = first_message(&client, "front.test");
        for name in ["front.test", "FRONT.test.", "a.wild.test"] {
            for opening in [
                format!("GET / HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n").into_bytes(),
                format!("GET http://{name}/ HTTP/1.1\r\nHost: {address}\r\n\r\n").into_bytes(),
                format!("GET http://{address}/ HTTP/1.1\r\nHost: {name}\r\n\r\n").into_bytes(),
                format!("\"POST /up x\r\nHost: {name}\r\n\r\n").into_bytes(),
                front.clone(),
                [b"STARTTLS\r\n", &front[..]].concat(),
                [b"\0\0\0\x08\x04\xd2\x16\x2f", &in_records(&front[5..], 60)[..]].concat(),
            ] {
                let told = proxy.codes().len();
                let mut tunnel = proxy.tunnel(&address).await;
                // The proxy may refuse the opening before its end.
                let _ = tunnel.write_all(&opening).await;
                let _ = tunnel.shutdown().await;
                let _ = tunnel.read_to_end(&mut Vec::new()).await;
                assert_eq!(host.heard(), "", "{}", opening.escape_ascii());
                let code = if opening.starts_with(b"\"") { "malformed" } else { "listed" };
                assert_eq!(proxy.codes()[told..], [code], "{}", opening.escape_ascii());
            }
        }
        // Other names at the address, and the address itself, are allowed, and the host receives
        // the name that the client sent.
        for name in ["origin.test", "127.0.0.1"] {
            let mut tunnel = proxy.tunnel(&address).await;
            let request =
                format!("GET / HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n");
            tunnel.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            tunnel.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(host.heard().contains(&format!("{name}:{port}\r\n")), "{}", host.heard());
        }
    })
    .await;
}

#[tokio::test]
async fn a_name_denied_on_another_port_does_not_affect_an_address() {
    in_time(async {
        let host = TestServer::echo().await;
        let dns = DnsServer::loopback().await;
        let address = host.address.to_string();
        let deny = vec!["front.test:1".to_owned(), "10.0.0.0/8".to_owned()];
        let proxy = ProxyBuilder { deny, ..ProxyBuilder::allowing([&address]) }.start(&dns).await;
        for opening in [
            &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
            b"GE",
            b"\r\n",
            b"DESCRIBE rtsp://a/ RTSP/1.0\r\n",
        ] {
            passes(&proxy, &address, opening).await;
        }
        assert_eq!(proxy.codes(), [""; 0]);
    })
    .await;
}
