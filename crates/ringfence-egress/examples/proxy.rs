//! A proxy on its own: to try rules by hand, and to measure.
//!
//! ```text
//! cargo run -p ringfence-egress --example proxy -- \
//!     --listen 127.0.0.1:3128 --allow example.org --events
//! curl -x http://127.0.0.1:3128 https://example.org/
//! curl -x socks5h://127.0.0.1:3128 http://example.net/
//! ```

use std::io::Write;
use std::net::SocketAddr;

use ringfence_egress::{
    ClientLimits, EgressEvent, HostRule, Proxy, ProxyListener, ProxyMode, ProxySettings, Resolver,
    Rules, UpstreamProxies,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, UnixListener};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "proxy --listen ADDRESS:PORT|PATH [--allow RULE]... [--deny RULE]... \
                     [--resolver ADDRESS:PORT] [--observe] [--events]";

#[derive(Default)]
struct ProxyOptions {
    listen: Option<String>,
    allow: Vec<HostRule>,
    deny: Vec<HostRule>,
    resolver: Option<SocketAddr>,
    mode: ProxyMode,
    events: bool,
}

impl ProxyOptions {
    fn read(mut words: impl Iterator<Item = String>) -> Result<ProxyOptions, AnyError> {
        let mut options = ProxyOptions::default();
        while let Some(word) = words.next() {
            let mut value =
                || words.next().ok_or_else(|| format!("`{word}` needs a value: {USAGE}"));
            match word.as_str() {
                "--listen" => options.listen = Some(value()?),
                "--allow" => options.allow.push(value()?.parse()?),
                "--deny" => options.deny.push(value()?.parse()?),
                "--resolver" => options.resolver = Some(value()?.parse()?),
                "--observe" => options.mode = ProxyMode::Observe,
                "--events" => options.events = true,
                _ => return Err(format!("unknown word `{word}`: {USAGE}").into()),
            }
        }
        Ok(options)
    }
}

/// On one thread, as the proxy of a sandbox runs.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let options = ProxyOptions::read(std::env::args().skip(1))?;
    let place = options.listen.ok_or(USAGE)?;
    let listener: ProxyListener = match place.parse::<SocketAddr>() {
        Ok(address) => TcpListener::bind(address).await?.into(),
        Err(_) => UnixListener::bind(&place)?.into(),
    };
    // Each connection has two descriptors.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;

    let rules = Rules::new(&options.allow, &options.deny);
    let settings = ProxySettings {
        mode: options.mode,
        upstream: UpstreamProxies::from_variables(|name| std::env::var(name).ok())?,
        limits: ClientLimits::default(),
        resolver: options
            .resolver
            .map_or_else(|| Ok(Resolver::for_system()), Resolver::for_server)?,
        credentials: None,
    };
    let print = move |event: EgressEvent| {
        if options.events {
            let line = serde_json::to_string(&event).expect("an event is JSON");
            let _ = writeln!(std::io::stderr(), "{line}"); // nobody listens
        }
    };
    Ok(Proxy::new(rules, settings, print).serve(listener).await?)
}
