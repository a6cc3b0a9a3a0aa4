//! Tests of secrets that the proxy sends to hosts and hides from clients.

use std::io;
use std::sync::Arc;

use base64::Engine;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use ringfence_egress::{CertificateAuthority, Credential, Credentials, ProxyMode, UpstreamProxies};

use crate::fixture::{
    DnsServer, LOOPBACK, ProxyBuilder, RunningProxy, TestServer, explanation, head, in_time,
    refused,
};

const SECRET: &str = "s3cret-that-stays-outside";

/// Certificate authorities of a test.
struct CredentialFixture {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Authority of the proxy, which the sandbox trusts in addition to `issuer`.
    authority: Arc<CertificateAuthority>,
}

impl CredentialFixture {
    fn new() -> CredentialFixture {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        CredentialFixture { issuer, authority: Arc::new(CertificateAuthority::new().unwrap()) }
    }

    fn pem(&self) -> String {
        let text = base64::prelude::BASE64_STANDARD.encode(self.issuer.der());
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    }

    /// Returns credentials with [`SECRET`] for each of `hosts`.
    fn credentials(&self, hosts: &[String]) -> Option<Credentials> {
        let template = "Authorization: Bearer {secret}".parse().unwrap();
        let credential = |host: &String| {
            Credential::new(host.parse().unwrap(), &template, SECRET.as_bytes()).unwrap()
        };
        let list = hosts.iter().map(credential).collect();
        Some(Credentials::new(list, Arc::clone(&self.authority), self.pem().as_bytes()).unwrap())
    }

    /// Returns the configuration of a client that trusts the same authorities as a sandbox.
    fn client(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for pem in [self.pem(), self.authority.certificate_pem()] {
            roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        client.with_root_certificates(roots).with_no_client_auth()
    }

    /// Starts a host with a certificate for `name`. `change` may make the certificate invalid.
    async fn host(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TestServer {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        serve(certificate.der().clone(), &key).await
    }
}

async fn serve(certificate: CertificateDer<'static>, key: &KeyPair) -> TestServer {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let server = server.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(server));
    TestServer::new(move |stream, heard| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            let mut request = Vec::new();
            while let Ok(byte) = stream.read_u8().await {
                request.push(byte);
                if !request.ends_with(b"\r\n\r\n") {
                    continue;
                }
                let text = String::from_utf8(std::mem::take(&mut request)).unwrap();
                heard.lock().unwrap().extend_from_slice(text.as_bytes());
                if answer(&mut stream, &text).await.is_err() {
                    return;
                }
                if text.to_ascii_lowercase().contains("connection: close") {
                    let _ = stream.shutdown().await; // the client may be gone
                    return;
                }
            }
        }
    })
    .await
}

/// Answers TRACE with the request, and other methods by path: `/moved` with a redirect to another
/// host, `/echo` with the body, `/socket` with another protocol.
async fn answer(
    stream: &mut tokio_rustls::server::TlsStream<TcpStream>,
    request: &str,
) -> io::Result<()> {
    let path = request.split(' ').nth(1).unwrap();
    let length = request.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    match path {
        _ if request.starts_with("TRACE ") => {
            let length = request.len();
            stream
                .write_all(
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{request}")
                        .as_bytes(),
                )
                .await?;
        }
        "/moved" => {
            let answer = "HTTP/1.1 302 Found\r\nLocation: https://other.test/next\r\n\
                          Content-Length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).await?;
        }
        "/echo" => {
            let length: usize = length.unwrap().parse().unwrap();
            stream
                .write_all(
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes(),
                )
                .await?;
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await?;
            stream.write_all(&body).await?;
        }
        "/socket" => {
            let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: \
                          words\r\n\r\nfirst";
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await?;
            let mut word = [0; 4];
            stream.read_exact(&mut word).await?;
            stream.write_all(&word).await?;
        }
        _ => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await?,
    }
    stream.flush().await
}

async fn connect(
    proxy: &RunningProxy,
    world: &CredentialFixture,
    name: &str,
    port: u16,
) -> io::Result<TlsStream<TcpStream>> {
    let tunnel = proxy.tunnel(&format!("{name}:{port}")).await;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(world.client())).connect(name, tunnel).await
}

/// Sends a request in TLS whose headers end with `rest`, and returns the answer.
async fn ask(
    proxy: &RunningProxy,
    world: &CredentialFixture,
    name: &str,
    port: u16,
    line: &str,
    rest: &str,
) -> String {
    let mut stream = connect(proxy, world, name, port).await.unwrap();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close, authorization\r\n{rest}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await; // a host may close without a TLS alert
    String::from_utf8(answer).unwrap()
}

async fn get(
    proxy: &RunningProxy,
    world: &CredentialFixture,
    name: &str,
    port: u16,
    path: &str,
) -> String {
    ask(proxy, world, name, port, &format!("GET {path}"), "").await
}

/// Starts a host, and a proxy that has the secret for it.
async fn staged(world: &CredentialFixture) -> (DnsServer, TestServer, RunningProxy) {
    let (dns, host) = (DnsServer::loopback().await, world.host("api.test", |_| {}).await);
    let credentials = world.credentials(&host.rules("api.test")[..1]);
    let proxy = ProxyBuilder { credentials, ..ProxyBuilder::allowing(host.rules("api.test")) }
        .start(&dns)
        .await;
    (dns, host, proxy)
}

#[tokio::test]
async fn the_secret_replaces_the_header_that_the_client_sent() {
    in_time(async {
        let world = CredentialFixture::new();
        let (_dns, host, proxy) = staged(&world).await;
        for rest in ["", "Authorization: Bearer placeholder\r\nauthorization: placeholder\r\n"] {
            let answer = ask(&proxy, &world, "api.test", host.port(), "GET /", rest).await;
            assert!(answer.ends_with("hello") && !answer.contains(SECRET), "{answer}");
        }
        let heard = host.heard().to_ascii_lowercase();
        assert_eq!(
            heard.matches(&format!("authorization: bearer {SECRET}\r\n")).count(),
            2,
            "{heard}"
        );
        assert_eq!(heard.matches("authorization").count(), 2, "{heard}");
        assert!(!heard.contains("placeholder"), "{heard}");
        assert!(heard.contains(&format!("host: api.test:{}\r\n", host.port())), "{heard}");
    })
    .await;
}

#[tokio::test]
async fn other_hosts_never_get_the_secret_even_after_a_redirect() {
    in_time(async {
        let world = CredentialFixture::new();
        let (dns, api, other) = (
            DnsServer::loopback().await,
            world.host("api.test", |_| {}).await,
            world.host("other.test", |_| {}).await,
        );
        let rules = [api.rules("api.test"), other.rules("other.test")].concat();
        let credentials = world.credentials(&api.rules("api.test")[..1]);
        let proxy = ProxyBuilder { credentials, ..ProxyBuilder::allowing(rules) }.start(&dns).await;
        let moved = get(&proxy, &world, "api.test", api.port(), "/moved").await;
        assert!(
            moved.to_ascii_lowercase().contains("\r\nlocation: https://other.test/next\r\n"),
            "{moved}"
        );
        assert!(get(&proxy, &world, "other.test", other.port(), "/next").await.ends_with("hello"));
        assert!(api.heard().contains(SECRET));
        assert!(
            other.heard().starts_with("GET /next ") && !other.heard().contains(SECRET),
            "{}",
            other.heard()
        );
        // A request inside the tunnel that names another host is refused.
        let line = "GET https://other.test/";
        let answer = ask(&proxy, &world, "api.test", api.port(), line, "").await;
        refused(&answer, 403, "other_name");
    })
    .await;
}

#[tokio::test]
async fn the_secret_is_never_sent_without_tls() {
    in_time(async {
        let world = CredentialFixture::new();
        let (dns, host) = (DnsServer::loopback().await, TestServer::web().await);
        let (rules, authority) = (host.rules("api.test"), format!("api.test:{}", host.port()));
        let without = ProxyBuilder::allowing(&rules).start(&dns).await;
        crate::fixture::answered(&without.get(&authority).await);
        let before = host.heard();
        let credentials = world.credentials(&rules[..1]);
        let proxy =
            ProxyBuilder { credentials, ..ProxyBuilder::allowing(&rules) }.start(&dns).await;
        refused(&proxy.get(&authority).await, 403, "unencrypted");
        let mut tunnel = proxy.tunnel(&authority).await;
        let request = format!("GET / HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
        tunnel.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tunnel.read_to_string(&mut answer).await.unwrap();
        refused(&answer, 403, "unencrypted");
        assert_eq!(host.heard(), before);
    })
    .await;
}

#[tokio::test]
async fn a_host_without_a_valid_certificate_never_gets_the_secret() {
    in_time(async {
        let world = CredentialFixture::new();
        let key = KeyPair::generate().unwrap();
        let own =
            CertificateParams::new(["api.test".to_owned()]).unwrap().self_signed(&key).unwrap();
        let past = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
        let cases = [
            ("its own word", serve(own.der().clone(), &key).await),
            ("another name", world.host("other.test", |_| {}).await),
            ("a date that has passed", world.host("api.test", past).await),
            ("no TLS at all", TestServer::echo().await),
        ];
        for (what, host) in cases {
            let dns = DnsServer::loopback().await;
            let credentials = world.credentials(&host.rules("api.test")[..1]);
            let proxy =
                ProxyBuilder { credentials, ..ProxyBuilder::allowing(host.rules("api.test")) }
                    .start(&dns)
                    .await;
            let answer = get(&proxy, &world, "api.test", host.port(), "/").await;
            assert!(answer.starts_with("HTTP/1.1 502 "), "{what}: {answer}");
            assert_eq!(explanation(&answer)["reason"], "unverified", "{what}: {answer}");
            assert!(!host.heard().contains(SECRET), "{what}");
        }
    })
    .await;
}

#[tokio::test]
async fn bodies_and_upgraded_protocols_pass_unchanged() {
    in_time(async {
        let world = CredentialFixture::new();
        let (_dns, host, proxy) = staged(&world).await;
        let mut stream = connect(&proxy, &world, "api.test", host.port()).await.unwrap();
        let body: Vec<u8> = (0..300_000u32).map(|number| (number * 7 % 251) as u8).collect();
        // Send the request twice on one connection.
        for _ in 0..2 {
            let (name, length) = (format!("api.test:{}", host.port()), body.len());
            let request =
                format!("POST /echo HTTP/1.1\r\nHost: {name}\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let (mut reader, mut writer) = tokio::io::split(&mut stream);
            let read = async {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(reader.read_u8().await.unwrap());
                }
                let mut echo = vec![0; length];
                reader.read_exact(&mut echo).await.unwrap();
                echo
            };
            let write = async {
                writer.write_all(&body).await.unwrap();
                writer.flush().await.unwrap();
            };
            let (echo, ()) = tokio::join!(read, write);
            assert!(echo == body);
        }
        // The client keeps its connection. The proxy opens a new connection to the host for the
        // request after a body.
        assert_eq!(host.connections(), 2);

        let mut stream = connect(&proxy, &world, "api.test", host.port()).await.unwrap();
        let name = format!("api.test:{}", host.port());
        let request = format!(
            "GET /socket HTTP/1.1\r\nHost: {name}\r\nConnection: Upgrade\r\nUpgrade: words\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", head.escape_ascii());
        let mut word = [0; 5];
        stream.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"first");
        stream.write_all(b"last").await.unwrap();
        let mut word = [0; 4];
        stream.read_exact(&mut word).await.unwrap();
        assert_eq!(&word, b"last");
        assert_eq!(host.heard().matches(SECRET).count(), 3);
    })
    .await;
}

#[tokio::test]
async fn a_request_that_would_echo_the_secret_is_refused() {
    in_time(async {
        let world = CredentialFixture::new();
        let (_dns, host, proxy) = staged(&world).await;
        for (line, rest) in [
            ("TRACE /", ""),
            ("trace /", ""),
            ("TrAcE /", "Max-Forwards: 0\r\n"),
            ("TRACK /", ""),
            ("track /", ""),
            ("GET /", "X-HTTP-Method-Override: TRACE\r\n"),
            ("POST /", "x-http-method: track\r\n"),
            ("POST /", "X-Method-Override: GET\r\nX-Method-Override: \ttrace \r\n"),
            ("POST /", "X_HTTP_METHOD_OVERRIDE: TRACE\r\n"),
            ("POST /", "X-HTTP-Method_Override: GET, \"trace\"\r\n"),
            ("GET /", "X-Original-Method: TRACE\r\n"),
            ("POST /?_method=%54RACE", ""),
        ] {
            let before = proxy.codes().len();
            let answer = ask(&proxy, &world, "api.test", host.port(), line, rest).await;
            refused(&answer, 400, "malformed");
            assert_eq!(proxy.codes().len(), before + 1, "{line} {rest}");
            assert!(!host.heard().contains(SECRET), "{line} {rest}");
        }
        let overridden = "X-HTTP-Method-Override: PATCH\r\nMax-Forwards: 9\r\n";
        assert!(
            ask(&proxy, &world, "api.test", host.port(), "tracer /?method=PUT", overridden)
                .await
                .ends_with("hello")
        );
        assert!(host.heard().contains(SECRET));
    })
    .await;
}

/// Sends a request whose body begins a TRACE request, and then a second request, on one connection.
/// Returns all answers.
async fn ask_with_trace<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    method: &str,
    name: &str,
) -> String {
    let body = "TRACE / HTTP/1.1\r\nX-Rest: ";
    let length = body.len();
    let first =
        format!("{method} /one HTTP/1.1\r\nHost: {name}\r\nContent-Length: {length}\r\n\r\n{body}");
    let mut answers = String::new();
    for request in
        [first, format!("GET /two HTTP/1.1\r\nHost: {name}\r\nAuthorization: own\r\n\r\n")]
    {
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"hello") && !answer.ends_with(b"own\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        answers.push_str(&String::from_utf8(answer).unwrap());
    }
    answers
}

#[tokio::test]
async fn an_unread_body_cannot_make_the_host_echo_the_secret() {
    in_time(async {
        let world = CredentialFixture::new();
        let (_dns, host, proxy) = staged(&world).await;
        let name = format!("api.test:{}", host.port());
        // Without the proxy, the host takes the body for a request that the next request completes.
        let stream = TcpStream::connect(host.address).await.unwrap();
        let server = ServerName::try_from("api.test").unwrap();
        let mut stream =
            TlsConnector::from(Arc::new(world.client())).connect(server, stream).await.unwrap();
        let answers = ask_with_trace(&mut stream, "GET", &name).await;
        assert!(answers.contains("X-Rest: GET /two HTTP/1.1"), "{answers}");
        for method in ["GET", "DELETE", "POST", "PUT", "OPTIONS"] {
            host.heard.lock().unwrap().clear();
            let mut stream = connect(&proxy, &world, "api.test", host.port()).await.unwrap();
            let answers = ask_with_trace(&mut stream, method, &name).await;
            assert!(
                !answers.contains(SECRET) && !answers.contains("X-Rest"),
                "{method}: {answers}"
            );
            let heard = host.heard();
            assert!(heard.contains("GET /two ") && !heard.contains("TRACE"), "{method}: {heard}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_host_that_only_observe_mode_allows_never_gets_the_secret() {
    in_time(async {
        let world = CredentialFixture::new();
        let (dns, host) = (DnsServer::loopback().await, world.host("api.test", |_| {}).await);
        let [by_name, by_address] = host.rules("api.test");
        let observing = |allow: Vec<String>| ProxyBuilder {
            credentials: world.credentials(std::slice::from_ref(&by_name)),
            mode: ProxyMode::Observe,
            ..ProxyBuilder::allowing(allow)
        };
        let proxy = observing(vec![by_address.clone()]).start(&dns).await;
        assert!(get(&proxy, &world, "api.test", host.port(), "/").await.ends_with("hello"));
        assert!(
            host.heard().contains("GET / ") && !host.heard().contains(SECRET),
            "{}",
            host.heard()
        );
        let proxy = observing(vec![by_address, by_name.clone()]).start(&dns).await;
        assert!(get(&proxy, &world, "api.test", host.port(), "/").await.ends_with("hello"));
        assert!(host.heard().contains(SECRET));
    })
    .await;
}

#[tokio::test]
async fn an_upstream_proxy_carries_the_secret_only_inside_tls() {
    in_time(async {
        let world = CredentialFixture::new();
        let (dns, host) = (DnsServer::loopback().await, world.host("api.test", |_| {}).await);
        let port = host.port();
        let upstream = TestServer::new(move |mut stream: TcpStream, heard| async move {
            let request = head(&mut stream).await;
            heard.lock().unwrap().extend_from_slice(request.as_bytes());
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut server = TcpStream::connect((LOOPBACK, port)).await.unwrap();
            let mut first = vec![0; 4096];
            let read = stream.read(&mut first).await.unwrap();
            heard.lock().unwrap().extend_from_slice(&first[..read]);
            server.write_all(&first[..read]).await.unwrap();
            // Either side may end first.
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut server).await;
        })
        .await;
        let at = format!("http://127.0.0.1:{}", upstream.port());
        let variables = |name: &str| (name == "HTTPS_PROXY").then(|| at.clone());
        let stage = ProxyBuilder {
            credentials: world.credentials(&host.rules("api.test")[..1]),
            upstream: UpstreamProxies::from_variables(variables).unwrap(),
            ..ProxyBuilder::allowing(host.rules("api.test"))
        };
        let proxy = stage.start(&dns).await;
        assert!(get(&proxy, &world, "api.test", port, "/").await.ends_with("hello"));
        assert!(host.heard().contains(SECRET));
        assert!(
            upstream.heard().starts_with(&format!("CONNECT api.test:{port} ")),
            "{}",
            upstream.heard()
        );
        assert!(!upstream.heard().contains(SECRET));
    })
    .await;
}

#[tokio::test]
async fn debug_output_and_events_never_contain_the_secret() {
    in_time(async {
        let world = CredentialFixture::new();
        let credentials = world.credentials(&["api.test".to_owned()]).unwrap();
        assert!(!format!("{credentials:?}").contains(SECRET));
        let template = "X-Key: {secret}".parse().unwrap();
        let error =
            Credential::new("api.test".parse().unwrap(), &template, b"s3cret\r\nX: y").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");

        let (_dns, host, proxy) = staged(&world).await;
        for line in ["GET /", "TRACE /", "GET https://other.test/"] {
            let answer = ask(&proxy, &world, "api.test", host.port(), line, "").await;
            assert!(!answer.contains(SECRET), "{answer}");
        }
        assert!(host.heard().contains(SECRET));
        let told = format!("{:?} {:?}", proxy.denials(), proxy.allowed_connections());
        assert!(told.contains("api.test") && !told.contains(SECRET), "{told}");
    })
    .await;
}

#[tokio::test]
async fn new_rules_do_not_move_a_secret_to_another_host() {
    in_time(async {
        let (world, dns) = (CredentialFixture::new(), DnsServer::loopback().await);
        let (host, other) =
            (world.host("origin.test", |_| ()).await, world.host("other.test", |_| ()).await);
        let secret_of = [format!("origin.test:{}", host.port())];
        let credentials = world.credentials(&secret_of);
        let stage =
            ProxyBuilder { credentials, ..ProxyBuilder::allowing(host.rules("origin.test")) };
        let proxy = stage.start(&dns).await;
        let both = [host.rules("origin.test"), other.rules("other.test")].concat();
        proxy.set_rules(&both, &[]);
        for (host, name, is_shown) in [(&host, "origin.test", true), (&other, "other.test", false)]
        {
            ask(&proxy, &world, name, host.port(), "GET /", "").await;
            assert_eq!(host.heard().contains(SECRET), is_shown, "{name}: {}", host.heard());
        }
        // After the rules deny the host, a request on a kept connection does not reach the host.
        let mut kept = connect(&proxy, &world, "origin.test", host.port()).await.unwrap();
        let heard = host.heard().len();
        proxy.set_rules(&other.rules("other.test"), &[]);
        let request =
            format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", secret_of[0]);
        kept.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = kept.read_to_string(&mut answer).await; // the proxy may close without a TLS alert
        assert!(answer.contains("x-ringfence-denied: unlisted\r\n"), "{answer}");
        assert_eq!(host.heard().len(), heard);
    })
    .await;
}

#[tokio::test]
async fn a_tls_handshake_ends_when_its_host_becomes_denied() {
    in_time(async {
        let (world, dns) = (CredentialFixture::new(), DnsServer::loopback().await);
        let host = TestServer::new(|mut stream, heard| async move {
            let mut said = [0; 4096];
            while let Ok(read) = stream.read(&mut said).await {
                if read == 0 {
                    break;
                }
                heard.lock().unwrap().extend_from_slice(b"hello");
            }
            heard.lock().unwrap().extend_from_slice(b", left");
        })
        .await;
        let credentials = world.credentials(&[format!("origin.test:{}", host.port())]);
        let proxy =
            ProxyBuilder { credentials, ..ProxyBuilder::allowing(host.rules("origin.test")) }
                .start(&dns)
                .await;
        let _client = connect(&proxy, &world, "origin.test", host.port()).await.unwrap();
        while host.heard() != "hello" {
            tokio::task::yield_now().await;
        }
        proxy.set_rules(&[""; 0], &[]);
        while host.heard() != "hello, left" {
            tokio::task::yield_now().await;
        }
        assert_eq!(proxy.codes(), ["unlisted"]);
    })
    .await;
}
