//! The proxy that this host itself must go through.
//!
//! Where there is one, it resolves names: networks that have such a proxy often resolve no outside name themselves. So
//! a name is judged as ever, it is refused if it resolves here and only to addresses that are refused, and otherwise
//! goes to the upstream as a name. Which address the upstream then connects to is the upstream's to answer for.

use std::io;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Target;
use crate::connect::prepare;

/// The longest head of an upstream's answer.
const LONGEST_ANSWER: usize = 16 * 1024;

/// Which targets are reached through which proxy.
#[derive(Debug)]
pub struct Upstream {
    matcher: Matcher,
}

/// What a connection is for; hosts may name a proxy for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Requests that the upstream reads.
    Http,
    /// Bytes that it does not.
    Tunnel,
}

/// One upstream proxy.
#[derive(Debug, Clone)]
pub(crate) struct Hop {
    address: Target,
    authorization: Option<HeaderValue>,
}

/// Why an upstream cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The variable's value is no proxy.
    #[error("`{variable}` does not name a proxy: write `http://host:port`, with `user:password@` in front if it asks")]
    Unreadable {
        /// Which variable; its value may hold a password.
        variable: &'static str,
    },
    /// It is reached in a way that is not spoken here.
    #[error("`{variable}` names a proxy that is reached by {scheme}: only `http://` is supported")]
    Scheme {
        /// Which variable.
        variable: &'static str,
        /// The way.
        scheme: String,
    },
    /// It could not be reached.
    #[error("cannot reach the upstream proxy")]
    Unreachable(#[source] io::Error),
    /// It said no.
    #[error("the upstream proxy answered `{0}`")]
    Refused(String),
    /// It said something else.
    #[error("the upstream proxy did not answer in HTTP")]
    Garbled,
}

impl Upstream {
    /// The variables that are read, each also in lower case.
    pub const VARIABLES: [&str; 4] = ["ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

    /// Reads `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` in either case, as curl does; nothing is said by
    /// most hosts.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Upstream>, UpstreamError> {
        let said = |name: &str| {
            let text = variable(&name.to_ascii_lowercase()).or_else(|| variable(name)).unwrap_or_default();
            text.trim().to_owned()
        };
        let [all, http, https, no] = Upstream::VARIABLES.map(said);
        if all.is_empty() && http.is_empty() && https.is_empty() {
            return Ok(None);
        }
        for (variable, text) in [("ALL_PROXY", &all), ("HTTP_PROXY", &http), ("HTTPS_PROXY", &https)] {
            check(variable, text)?;
        }
        let matcher = Matcher::builder().all(all).http(http).https(https).no(no).build();
        Ok(Some(Upstream { matcher }))
    }

    /// The proxy that `target` is reached through, if it is through one.
    pub(crate) fn hop(&self, target: &Target, purpose: Purpose) -> Option<Hop> {
        let scheme = match purpose {
            Purpose::Http => "http",
            Purpose::Tunnel => "https",
        };
        let uri = Uri::builder().scheme(scheme).authority(target.to_string()).path_and_query("/").build().ok()?;
        self.matcher.intercept(&uri).and_then(|intercept| Hop::new(&intercept))
    }
}

/// Refuses what the matcher would silently take for no proxy at all.
fn check(variable: &'static str, text: &str) -> Result<(), UpstreamError> {
    if text.is_empty() {
        return Ok(());
    }
    let anywhere = Uri::from_static("http://example.org/");
    let matcher = Matcher::builder().all(text).build();
    let intercept = matcher.intercept(&anywhere).ok_or(UpstreamError::Unreadable { variable })?;
    match intercept.uri().scheme_str() {
        Some("http") => Hop::new(&intercept).map(|_| ()).ok_or(UpstreamError::Unreadable { variable }),
        scheme => Err(UpstreamError::Scheme { variable, scheme: scheme.unwrap_or_default().to_owned() }),
    }
}

impl Hop {
    fn new(intercept: &Intercept) -> Option<Hop> {
        let address = Target::from_authority(intercept.uri().authority()?.as_str(), Some(80)).ok()?;
        Some(Hop { address, authorization: intercept.basic_auth().cloned() })
    }

    /// What the upstream wants to be told, if it wants a password.
    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Connects to the upstream itself. The host chose it, so its address is not judged.
    pub(crate) async fn dial(&self) -> Result<TcpStream, UpstreamError> {
        let stream = TcpStream::connect(self.address.to_string()).await.map_err(UpstreamError::Unreachable)?;
        prepare(&stream);
        Ok(stream)
    }

    /// Asks the upstream for a tunnel to `target`.
    pub(crate) async fn tunnel(&self, target: &Target) -> Result<TcpStream, UpstreamError> {
        let mut stream = self.dial().await?;
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(authorization.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        stream.write_all(&request).await.map_err(UpstreamError::Unreachable)?;

        // One byte at a time: what follows the head is the target's own.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= LONGEST_ANSWER {
                return Err(UpstreamError::Garbled);
            }
            head.push(stream.read_u8().await.map_err(UpstreamError::Unreachable)?);
        }
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| UpstreamError::Garbled)?;
        let (version, status) = line.split_once(' ').ok_or(UpstreamError::Garbled)?;
        if !version.starts_with("HTTP/1.") {
            return Err(UpstreamError::Garbled);
        }
        if status.starts_with('2') { Ok(stream) } else { Err(UpstreamError::Refused(status.to_owned())) }
    }
}
