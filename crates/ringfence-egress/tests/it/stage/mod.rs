//! Parts of each test: a proxy, a DNS server and hosts, all on loopback.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringfence_egress::{
    Credentials, Denial, Event, Limits, Mode, Passage, Proxy, Resolver, Rules, Settings, Upstream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

mod dns;

pub(crate) use dns::Dns;

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Runs a test, and fails it if it does not end in time.
pub(crate) async fn in_time<T>(test: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), test).await.expect("the test ends in time")
}

/// Settings that a proxy is started with.
pub(crate) struct Stage {
    pub(crate) allow: Vec<String>,
    pub(crate) deny: Vec<String>,
    pub(crate) mode: Mode,
    pub(crate) upstream: Option<Upstream>,
    pub(crate) limits: Limits,
    pub(crate) credentials: Option<Credentials>,
}

impl Default for Stage {
    fn default() -> Stage {
        let second = Duration::from_secs(1);
        let limits = Limits { lookup: 2 * second, connect: 2 * second, ..Limits::default() };
        Stage {
            allow: Vec::new(),
            deny: Vec::new(),
            mode: Mode::Enforce,
            upstream: None,
            limits,
            credentials: None,
        }
    }
}

impl Stage {
    pub(crate) fn allowing<R: ToString>(rules: impl IntoIterator<Item = R>) -> Stage {
        Stage {
            allow: rules.into_iter().map(|rule| rule.to_string()).collect(),
            ..Stage::default()
        }
    }

    /// Starts a proxy that asks `dns` for names.
    pub(crate) async fn start(self, dns: &Dns) -> Running {
        let listener = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (proxy, events) = self.proxy(dns);
        let served = proxy.clone();
        let server = tokio::spawn(async move { served.serve(listener).await });
        Running { address, proxy, events, server }
    }

    pub(crate) fn proxy(self, dns: &Dns) -> (Proxy, Arc<Mutex<Vec<Event>>>) {
        let rules = rules(&self.allow, &self.deny);
        let settings = Settings {
            mode: self.mode,
            upstream: self.upstream,
            limits: self.limits,
            resolver: Resolver::at(dns.address).unwrap(),
            credentials: self.credentials,
        };
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let told = Arc::clone(&events);
        (Proxy::new(rules, settings, move |event| told.lock().unwrap().push(event)), events)
    }
}

fn rules<R: ToString>(allow: &[R], deny: &[R]) -> Rules {
    let parsed = |rules: &[R]| {
        rules.iter().map(|rule| rule.to_string().parse().unwrap()).collect::<Vec<_>>()
    };
    Rules::new(&parsed(allow), &parsed(deny))
}

/// Running proxy, which ends when the test ends.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    proxy: Proxy,
    events: Arc<Mutex<Vec<Event>>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Running {
    pub(crate) async fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes, and returns all bytes that come back.
    pub(crate) async fn ask(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut client = self.client().await;
        client.write_all(bytes.as_ref()).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// Sends a request in absolute form whose answer ends the connection, and returns the answer.
    pub(crate) async fn get(&self, authority: &str) -> String {
        self.ask(format!(
            "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n"
        ))
        .await
    }

    /// Opens a tunnel with `CONNECT`.
    pub(crate) async fn tunnel(&self, authority: &str) -> TcpStream {
        let mut client = self.client().await;
        let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(head(&mut client).await, "HTTP/1.1 200 OK\r\n\r\n");
        client
    }

    /// Opens a tunnel with SOCKS5.
    pub(crate) async fn socks_tunnel(&self, name: &str, port: u16) -> TcpStream {
        let mut client = self.client().await;
        client.write_all(&[5, 1, 0]).await.unwrap();
        client.read_exact(&mut [0; 2]).await.unwrap();
        let length = u8::try_from(name.len()).unwrap();
        let request = [&[5, 1, 0, 3, length], name.as_bytes(), &port.to_be_bytes()].concat();
        client.write_all(&request).await.unwrap();
        let mut reply = [0; 10];
        client.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply[..2], [5, 0]);
        client
    }

    /// Opens a web socket in a tunnel.
    pub(crate) async fn web_socket(&self, authority: &str) -> TcpStream {
        let mut client = self.tunnel(authority).await;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
        client.write_all(request.as_bytes()).await.unwrap();
        assert!(head(&mut client).await.starts_with("HTTP/1.1 101 "));
        client
    }

    /// Replaces the rules of the proxy.
    pub(crate) fn set_rules<R: ToString>(&self, allow: &[R], deny: &[R]) {
        self.proxy.set_rules(rules(allow, deny));
    }

    pub(crate) fn denials(&self) -> Vec<Denial> {
        let denied = |event: &Event| match event {
            Event::Denied(denial) => Some(denial.clone()),
            _ => None,
        };
        self.events.lock().unwrap().iter().filter_map(denied).collect()
    }

    pub(crate) fn passages(&self) -> Vec<Passage> {
        let passed = |event: &Event| match event {
            Event::Allowed(passage) => Some(passage.clone()),
            _ => None,
        };
        self.events.lock().unwrap().iter().filter_map(passed).collect()
    }

    /// Returns the codes of all denials so far.
    pub(crate) fn codes(&self) -> Vec<&'static str> {
        self.denials().iter().map(|denial| denial.reason.code()).collect()
    }

    /// Ends the proxy as the death of its owner would, and returns its address.
    pub(crate) async fn end(mut self) -> SocketAddr {
        self.server.abort();
        let _ = (&mut self.server).await; // the task was cancelled
        self.address
    }
}

/// Reads up to the empty line that ends a head.
pub(crate) async fn head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

/// Host that handles each connection with a given function, and counts the connections.
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    /// Bytes that were read, for hosts that record them.
    pub(crate) heard: Arc<Mutex<Vec<u8>>>,
    pub(crate) connections: Arc<Mutex<usize>>,
    server: JoinHandle<()>,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Host {
    pub(crate) async fn new<F, T>(treat: F) -> Host
    where
        F: Fn(TcpStream, Arc<Mutex<Vec<u8>>>) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        Host::at((LOOPBACK, 0).into(), treat).await
    }

    pub(crate) async fn at<F, T>(address: SocketAddr, treat: F) -> Host
    where
        F: Fn(TcpStream, Arc<Mutex<Vec<u8>>>) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard: Arc<Mutex<Vec<u8>>> = Arc::default();
        let connections: Arc<Mutex<usize>> = Arc::default();
        let (ears, count) = (Arc::clone(&heard), Arc::clone(&connections));
        let server = tokio::spawn(async move {
            let mut tasks = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                *count.lock().unwrap() += 1;
                tasks.spawn(treat(stream, Arc::clone(&ears)));
            }
        });
        Host { address, heard, connections, server }
    }

    /// Starts a web server that answers each request without a body with `hello`, and records the
    /// heads.
    pub(crate) async fn web() -> Host {
        Host::new(serve_hello).await
    }

    /// Starts a host that accepts a web socket, and sends back its input, four bytes at a time.
    pub(crate) async fn web_socket() -> Host {
        Host::new(|mut stream, _| async move {
            head(&mut stream).await;
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            let mut said = [0; 4];
            while stream.read_exact(&mut said).await.is_ok() && stream.write_all(&said).await.is_ok() {}
        })
        .await
    }

    /// Starts a host that sends back its input until the end of the stream.
    pub(crate) async fn echo() -> Host {
        Host::new(|mut stream, heard| async move {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read) = stream.read(&mut buffer).await {
                if read == 0 {
                    break;
                }
                heard.lock().unwrap().extend_from_slice(&buffer[..read]);
                if stream.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
            let _ = stream.shutdown().await; // the other side may be gone
        })
        .await
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).into_owned()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    /// Returns the rules that allow `name`, a name of this host.
    pub(crate) fn rules(&self, name: &str) -> [String; 2] {
        [format!("{name}:{}", self.port()), self.address.to_string()]
    }
}

/// Answers requests without a body until the client ends.
pub(crate) async fn serve_hello(mut stream: TcpStream, heard: Arc<Mutex<Vec<u8>>>) {
    let mut request = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        request.push(byte);
        if request.ends_with(b"\r\n\r\n") {
            heard.lock().unwrap().append(&mut request);
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.is_err()
            {
                return;
            }
        }
    }
}

/// Returns the body of an answer, as JSON.
#[track_caller]
pub(crate) fn explanation(answer: &str) -> serde_json::Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer has a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {answer}"))
}

/// Checks that an answer is a refusal by the proxy with this status and code.
#[track_caller]
pub(crate) fn refused(answer: &str, status: u16, code: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    assert!(answer.contains(&format!("x-ringfence-denied: {code}\r\n")), "{answer}");
    assert_eq!(explanation(answer)["reason"], code, "{answer}");
}

/// Checks that an answer comes from [`Host::web`].
#[track_caller]
pub(crate) fn answered(answer: &str) {
    assert!(answer.starts_with("HTTP/1.") && answer[8..].starts_with(" 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("hello"), "{answer}");
}
