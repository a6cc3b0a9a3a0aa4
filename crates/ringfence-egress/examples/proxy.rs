//! A proxy on its own: to try rules by hand, and to measure.
//!
//! ```text
//! cargo run -p ringfence-egress --example proxy -- --listen 127.0.0.1:3128 --allow example.org --events
//! curl -x http://127.0.0.1:3128 https://example.org/
//! curl -x socks5h://127.0.0.1:3128 http://example.net/
//! ```

use std::io::Write;
use std::net::SocketAddr;

use ringfence_egress::{
    Event, HostRule, Limits, Listener, Mode, Proxy, Resolver, Rules, Settings, Upstream,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, UnixListener};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "proxy --listen ADDRESS:PORT|PATH [--allow RULE]... [--deny RULE]... [--resolver ADDRESS:PORT] [--observe] [--events]";

#[derive(Default)]
struct Options {
    listen: Option<String>,
    allow: Vec<HostRule>,
    deny: Vec<HostRule>,
    resolver: Option<SocketAddr>,
    mode: Mode,
    events: bool,
}

impl Options {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Options, Failure> {
        let mut options = Options::default();
        while let Some(word) = words.next() {
            let mut value =
                || words.next().ok_or_else(|| format!("`{word}` needs a value: {USAGE}"));
            match word.as_str() {
                "--listen" => options.listen = Some(value()?),
                "--allow" => options.allow.push(value()?.parse()?),
                "--deny" => options.deny.push(value()?.parse()?),
                "--resolver" => options.resolver = Some(value()?.parse()?),
                "--observe" => options.mode = Mode::Observe,
                "--events" => options.events = true,
                _ => return Err(format!("unknown word `{word}`: {USAGE}").into()),
            }
        }
        Ok(options)
    }
}

/// On one thread, as the proxy of a sandbox runs.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let options = Options::read(std::env::args().skip(1))?;
    let place = options.listen.ok_or(USAGE)?;
    let listener: Listener = match place.parse::<SocketAddr>() {
        Ok(address) => TcpListener::bind(address).await?.into(),
        Err(_) => UnixListener::bind(&place)?.into(),
    };
    // Each connection has two descriptors.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;

    let rules = Rules::new(&options.allow, &options.deny);
    let settings = Settings {
        mode: options.mode,
        upstream: Upstream::from_variables(|name| std::env::var(name).ok())?,
        limits: Limits::default(),
        resolver: options.resolver.map_or_else(|| Ok(Resolver::system()), Resolver::at)?,
        credentials: None,
    };
    let print = move |event: Event| {
        if options.events {
            let line = serde_json::to_string(&event).expect("an event is JSON");
            let _ = writeln!(std::io::stderr(), "{line}"); // nobody listens
        }
    };
    Ok(Proxy::new(rules, settings, print).serve(listener).await?)
}
