//! Upstream proxy, which this host itself must use to reach the outside.
//!
//! The upstream proxy resolves names, because networks with such a proxy often cannot resolve
//! outside names themselves. Each name is judged as usual. A name that resolves on this host only
//! to addresses that are refused is refused. Every other name goes to the upstream as a name, and
//! the upstream is responsible for the address that it connects to.

use std::io;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Target;
use crate::connect::set_socket_options;

/// Longest head of an upstream's answer, in bytes.
const MAX_ANSWER_HEAD_BYTES: usize = 16 * 1024;

/// Upstream proxies of this host, and the targets that each of them is for.
#[derive(Debug)]
pub struct UpstreamProxies {
    matcher: Matcher,
}

/// Purpose of a connection. A host may name one proxy for each purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPurpose {
    /// HTTP requests that the upstream reads.
    Http,
    /// Bytes that the upstream does not read.
    Tunnel,
}

/// One upstream proxy, with its password.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamProxy {
    address: Target,
    authorization: Option<HeaderValue>,
}

/// Reason for which an upstream proxy cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The value of the variable does not name a proxy.
    #[error(
        "`{variable}` does not name a proxy: write `http://host:port`, or \
         `http://user:password@host:port` for a proxy that needs a password"
    )]
    Unreadable {
        /// Name of the variable. Its value is left out because it may hold a password.
        variable: &'static str,
    },
    /// The proxy uses a protocol that is not supported.
    #[error("`{variable}` names a proxy with the scheme `{scheme}`: only `http://` is supported")]
    Scheme {
        /// Name of the variable.
        variable: &'static str,
        /// Scheme of the proxy's URL.
        scheme: String,
    },
    /// The proxy could not be reached.
    #[error("cannot reach the upstream proxy")]
    Unreachable(#[source] io::Error),
    /// The proxy refused the request with this status.
    #[error("the upstream proxy answered `{0}`")]
    Refused(String),
    /// The proxy did not answer in HTTP.
    #[error("the answer of the upstream proxy is not HTTP")]
    Garbled,
}

impl UpstreamProxies {
    /// Names of the variables that are read. Each name is also read in lower case.
    pub const VARIABLES: [&str; 4] = ["ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

    /// Reads `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` in either case, as curl does.
    /// Returns `None` if no variable names a proxy, as on most hosts.
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<UpstreamProxies>, UpstreamError> {
        let said = |name: &str| {
            let text =
                variable(&name.to_ascii_lowercase()).or_else(|| variable(name)).unwrap_or_default();
            text.trim().to_owned()
        };
        let [all, http, https, no] = UpstreamProxies::VARIABLES.map(said);
        if all.is_empty() && http.is_empty() && https.is_empty() {
            return Ok(None);
        }
        for (variable, text) in
            [("ALL_PROXY", &all), ("HTTP_PROXY", &http), ("HTTPS_PROXY", &https)]
        {
            check_variable(variable, text)?;
        }
        let matcher = Matcher::builder().all(all).http(http).https(https).no(no).build();
        Ok(Some(UpstreamProxies { matcher }))
    }

    /// Returns the upstream proxy for `target`, or `None` if `target` is reached directly.
    pub(crate) fn proxy_for(
        &self,
        target: &Target,
        purpose: ConnectionPurpose,
    ) -> Option<UpstreamProxy> {
        let scheme = match purpose {
            ConnectionPurpose::Http => "http",
            ConnectionPurpose::Tunnel => "https",
        };
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(target.to_string())
            .path_and_query("/")
            .build()
            .ok()?;
        self.matcher.intercept(&uri).and_then(|intercept| UpstreamProxy::new(&intercept))
    }
}

/// Returns an error for a value that the matcher would silently take for no proxy.
fn check_variable(variable: &'static str, text: &str) -> Result<(), UpstreamError> {
    if text.is_empty() {
        return Ok(());
    }
    let anywhere = Uri::from_static("http://example.org/");
    let matcher = Matcher::builder().all(text).build();
    let intercept = matcher.intercept(&anywhere).ok_or(UpstreamError::Unreadable { variable })?;
    match intercept.uri().scheme_str() {
        Some("http") => {
            UpstreamProxy::new(&intercept).map(|_| ()).ok_or(UpstreamError::Unreadable { variable })
        }
        scheme => {
            Err(UpstreamError::Scheme { variable, scheme: scheme.unwrap_or_default().to_owned() })
        }
    }
}

impl UpstreamProxy {
    fn new(intercept: &Intercept) -> Option<UpstreamProxy> {
        let address =
            Target::from_authority(intercept.uri().authority()?.as_str(), Some(80)).ok()?;
        Some(UpstreamProxy { address, authorization: intercept.basic_auth().cloned() })
    }

    /// Returns the value of `Proxy-Authorization`, if the upstream needs a password.
    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Connects to the upstream itself. The upstream's address is not judged, because the host
    /// chose it.
    pub(crate) async fn dial(&self) -> Result<TcpStream, UpstreamError> {
        let stream = TcpStream::connect(self.address.to_string())
            .await
            .map_err(UpstreamError::Unreachable)?;
        set_socket_options(&stream);
        Ok(stream)
    }

    /// Asks the upstream for a tunnel to `target`.
    pub(crate) async fn open_tunnel(&self, target: &Target) -> Result<TcpStream, UpstreamError> {
        let mut stream = self.dial().await?;
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(authorization.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        stream.write_all(&request).await.map_err(UpstreamError::Unreachable)?;

        // Read one byte at a time, because the bytes after the head belong to the target.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= MAX_ANSWER_HEAD_BYTES {
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
        if status.starts_with('2') {
            Ok(stream)
        } else {
            Err(UpstreamError::Refused(status.to_owned()))
        }
    }
}
