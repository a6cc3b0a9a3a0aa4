//! Tests of TLS in tunnels, and of the server name that the client sends.

use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, ClientConnection, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, rustls};

use ringfence_egress::{ProxyMode, RequestKind};

use crate::fixture::{DnsServer, ProxyBuilder, RunningProxy, TestServer, in_time};

/// Returns a client configuration and a server configuration. The server has a certificate for both
/// names and for the address, and the client trusts it.
pub(crate) fn configured() -> (ClientConfig, ServerConfig) {
    let names = ["origin.test", "front.test", "127.0.0.1"].map(String::from);
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    (
        client.with_root_certificates(roots).with_no_client_auth(),
        server.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap(),
    )
}

/// Starts a host that sends `hello` in TLS.
async fn tls_host(server: ServerConfig) -> TestServer {
    let acceptor = TlsAcceptor::from(Arc::new(server));
    TestServer::new(move |stream, heard| {
        let acceptor = acceptor.clone();
        async move {
            let mut first = [0; 1];
            if stream.peek(&mut first).await.unwrap_or(0) > 0 {
                heard.lock().unwrap().push(first[0]);
            }
            if let Ok(mut stream) = acceptor.accept(stream).await {
                stream.write_all(b"hello").await.unwrap();
                let _ = stream.shutdown().await; // the client may be gone
            }
        }
    })
    .await
}

/// Opens a tunnel to `authority`, connects with TLS to `name`, and returns the text that arrives.
async fn hello(
    proxy: &RunningProxy,
    client: &ClientConfig,
    authority: &str,
    name: &str,
) -> std::io::Result<String> {
    let tunnel = proxy.tunnel(authority).await;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = TlsConnector::from(Arc::new(client.clone())).connect(name, tunnel).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[track_caller]
fn denied(outcome: std::io::Result<String>) {
    let error = outcome.unwrap_err();
    let alert = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    assert_eq!(
        alert,
        Some(&rustls::Error::AlertReceived(AlertDescription::AccessDenied)),
        "{error}"
    );
}

#[tokio::test]
async fn tls_for_another_host_than_the_tunnels_is_refused() {
    in_time(async {
        let (client, server) = configured();
        let (dns, host) = (DnsServer::loopback().await, tls_host(server).await);
        // Both names are allowed, so the denial has only one cause: the two names differ.
        let rules = [host.rules("origin.test"), host.rules("front.test")].concat();
        let proxy = ProxyBuilder::allowing(rules).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        assert_eq!(hello(&proxy, &client, &authority, "origin.test").await.unwrap(), "hello");
        assert_eq!(hello(&proxy, &client, &authority, "ORIGIN.test").await.unwrap(), "hello");
        let before = host.heard();
        denied(hello(&proxy, &client, &authority, "front.test").await);
        assert_eq!(host.heard(), before);
        let [denial] = &proxy.denials()[..] else { panic!("one denial") };
        assert_eq!(
            (denial.reason.code(), denial.via, denial.target.as_str()),
            ("other_name", RequestKind::Tls, &authority[..])
        );
    })
    .await;
}

#[tokio::test]
async fn tls_without_a_server_name_passes_only_to_an_address() {
    in_time(async {
        let (mut client, server) = configured();
        let (dns, host) = (DnsServer::loopback().await, tls_host(server).await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        client.enable_sni = false;
        denied(
            hello(&proxy, &client, &format!("origin.test:{}", host.port()), "origin.test").await,
        );
        assert_eq!(proxy.codes(), ["unnamed"]);
        let address = host.address.to_string();
        assert_eq!(hello(&proxy, &client, &address, "127.0.0.1").await.unwrap(), "hello");
        // A rule that allows an address allows every name there, except names that are denied.
        client.enable_sni = true;
        assert_eq!(hello(&proxy, &client, &address, "front.test").await.unwrap(), "hello");
        let deny = vec![format!("front.test:{}", host.port())];
        let proxy = ProxyBuilder { deny, ..ProxyBuilder::allowing(host.rules("origin.test")) }
            .start(&dns)
            .await;
        denied(hello(&proxy, &client, &address, "front.test").await);
        assert_eq!(proxy.codes(), ["listed"]);
    })
    .await;
}

#[tokio::test]
async fn observe_mode_passes_and_reports_another_tls_name() {
    in_time(async {
        let (client, server) = configured();
        let (dns, host) = (DnsServer::loopback().await, tls_host(server).await);
        let stage = ProxyBuilder {
            mode: ProxyMode::Observe,
            ..ProxyBuilder::allowing(host.rules("origin.test"))
        };
        let proxy = stage.start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        assert_eq!(hello(&proxy, &client, &authority, "front.test").await.unwrap(), "hello");
        let told: Vec<String> =
            proxy.allowed_connections().into_iter().map(|passage| passage.target).collect();
        assert_eq!(told, [authority, format!("front.test:{}", host.port())]);
    })
    .await;
}

/// Returns the first message of a client for `name`, as one record.
pub(crate) fn first_message(client: &ClientConfig, name: &str) -> Vec<u8> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = ClientConnection::new(Arc::new(client.clone()), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

/// Returns `message` in records of `size` bytes.
fn in_records(message: &[u8], size: usize) -> Vec<u8> {
    let records = message[5..].chunks(size).map(|part| {
        let length = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&message[..3], &length, part].concat()
    });
    records.collect::<Vec<_>>().concat()
}

/// Returns `message` with an extension for encrypted hellos (ECH) at its end, as clients without
/// ECH send it (GREASE).
fn with_grease(message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    // An outer hello, a cipher, the number of a configuration, a key of 32 bytes, and 144 arbitrary
    // bytes.
    let content = [&[0, 0, 1, 0, 1, 7, 0, 32][..], &[0x5a; 32], &[0, 144], &[0xa5; 144]].concat();
    let length = u16::try_from(content.len()).unwrap();
    let extension = [&[0xfe, 0x0d][..], &length.to_be_bytes(), &content].concat();
    // The extensions follow the record header, the message header, the version, 32 random bytes,
    // and three lists that state their own length.
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(message[at]);
    at += 2 + usize::from(u16::from_be_bytes([message[at], message[at + 1]]));
    at += 1 + usize::from(message[at]);
    for place in [3, 7, at] {
        let longer = u16::from_be_bytes([message[place], message[place + 1]]) + 4 + length;
        message[place..place + 2].copy_from_slice(&longer.to_be_bytes());
    }
    // A pre-shared key would have to stay the last extension, but a new client has none.
    message.extend_from_slice(&extension);
    message
}

async fn echoed(tunnel: &mut TcpStream, bytes: &[u8]) -> bool {
    for part in bytes.chunks(7) {
        if tunnel.write_all(part).await.is_err() {
            return false;
        }
    }
    let mut echo = vec![0; bytes.len()];
    tunnel.read_exact(&mut echo).await.is_ok() && echo == bytes
}

#[tokio::test]
async fn a_hello_in_pieces_in_records_or_with_grease_is_read() {
    in_time(async {
        let (client, _) = configured();
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        for (name, passes) in [("origin.test", true), ("front.test", false)] {
            let message = first_message(&client, name);
            for bytes in [
                message.clone(),
                in_records(&message, 50),
                in_records(&message, 1),
                with_grease(&message),
            ] {
                let mut tunnel = proxy.tunnel(&authority).await;
                assert_eq!(
                    echoed(&mut tunnel, &bytes).await,
                    passes,
                    "{name}, {} bytes",
                    bytes.len()
                );
            }
        }
        assert_eq!(proxy.codes(), ["other_name"; 4]);
    })
    .await;
}

#[tokio::test]
async fn bytes_that_only_begin_like_tls_are_refused() {
    in_time(async {
        let (client, _) = configured();
        let (dns, host) = (DnsServer::loopback().await, TestServer::echo().await);
        let proxy = ProxyBuilder::allowing(host.rules("origin.test")).start(&dns).await;
        let authority = format!("origin.test:{}", host.port());
        let message = first_message(&client, "origin.test");
        // A message of a server, many empty records, and a hello whose lengths exceed its content.
        let mut wrong_kind = message.clone();
        wrong_kind[5] = 2;
        let empty = [22, 3, 1, 0, 0].repeat(100);
        let garbage = [&[22, 3, 1, 0, 60, 1, 0, 0, 56], &[0xff; 56][..]].concat();
        for bytes in [wrong_kind, empty, garbage] {
            let mut tunnel = proxy.tunnel(&authority).await;
            assert!(!echoed(&mut tunnel, &bytes).await, "{bytes:?}");
        }
        assert_eq!(host.heard(), "");
        assert!(proxy.codes().iter().all(|code| *code == "malformed"), "{:?}", proxy.denials());
    })
    .await;
}
