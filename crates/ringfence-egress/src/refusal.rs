//! Answers to a client whose request failed or was denied.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use fast_socks5::ReplyError;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use crate::{Denial, DenialReason, ResolveError, Target, UpstreamError};

/// Header that distinguishes a refusal by the proxy from a refusal by the origin.
const DENIED_HEADER: &str = "x-ringfence-denied";

/// Reason for which the proxy made no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionRefusal {
    /// The policy does not allow the target, or the target cannot be judged.
    #[error("{}", .0.message())]
    Denied(Box<Denial>),
    /// The host name could not be resolved.
    #[error("cannot reach `{target}`")]
    Unresolved {
        /// Target that the client asked for.
        target: Target,
        /// Error of the lookup.
        source: ResolveError,
    },
    /// No address of the target accepted a connection.
    #[error("cannot reach `{target}`")]
    Unreachable {
        /// Target that the client asked for.
        target: Target,
        /// Error of the last address that was tried.
        source: io::Error,
    },
    /// The target did not answer in time.
    #[error("`{target}` did not answer within {limit:?}")]
    Slow {
        /// Target that the client asked for.
        target: Target,
        /// Time within which the target had to answer.
        limit: Duration,
    },
    /// The upstream proxy did not connect to the target.
    #[error("cannot reach `{target}` through the upstream proxy")]
    Upstream {
        /// Target that the client asked for.
        target: Target,
        /// Error of the upstream proxy.
        source: UpstreamError,
    },
    /// The origin has no valid certificate for its name, or does not speak TLS.
    #[error("cannot open a TLS session with `{target}`")]
    Unverified {
        /// Origin that the proxy connected to.
        target: Target,
        /// Error of the TLS handshake.
        source: io::Error,
    },
    /// The origin did not answer in HTTP.
    #[error("the answer of `{target}` is not HTTP")]
    Garbled {
        /// Origin that the proxy connected to.
        target: Target,
        /// Error in the origin's answer.
        source: hyper::Error,
    },
    /// The origin changed the protocol although the client did not ask for a change.
    #[error("`{target}` changed the protocol, and the client did not ask for that")]
    Unasked {
        /// Origin that the proxy connected to.
        target: Target,
    },
    /// The number of open connections is at its limit, which this field states.
    #[error("{0} connections are open, which is the maximum; close one, or try again later")]
    Full(usize),
}

impl From<Denial> for ConnectionRefusal {
    fn from(denial: Denial) -> ConnectionRefusal {
        ConnectionRefusal::Denied(Box::new(denial))
    }
}

/// Body of a refusal, for programs and language models.
#[derive(Serialize)]
struct RefusalBody<'a> {
    error: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    reason: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl ConnectionRefusal {
    fn status(&self) -> StatusCode {
        match self {
            ConnectionRefusal::Denied(denial)
                if matches!(denial.reason, DenialReason::Malformed { .. }) =>
            {
                StatusCode::BAD_REQUEST
            }
            ConnectionRefusal::Denied(_) => StatusCode::FORBIDDEN,
            ConnectionRefusal::Slow { .. } => StatusCode::GATEWAY_TIMEOUT,
            ConnectionRefusal::Full(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// Returns the stable name of the reason.
    fn code(&self) -> &'static str {
        match self {
            ConnectionRefusal::Denied(denial) => denial.reason.code(),
            ConnectionRefusal::Unresolved { .. } => "unresolved",
            ConnectionRefusal::Unreachable { .. } => "unreachable",
            ConnectionRefusal::Slow { .. } => "slow",
            ConnectionRefusal::Upstream { .. } => "upstream",
            ConnectionRefusal::Unverified { .. } => "unverified",
            ConnectionRefusal::Garbled { .. } | ConnectionRefusal::Unasked { .. } => "garbled",
            ConnectionRefusal::Full(_) => "full",
        }
    }

    fn target(&self) -> Option<String> {
        match self {
            ConnectionRefusal::Denied(denial) => Some(denial.target.clone()),
            ConnectionRefusal::Unresolved { target, .. }
            | ConnectionRefusal::Unreachable { target, .. }
            | ConnectionRefusal::Slow { target, .. }
            | ConnectionRefusal::Upstream { target, .. }
            | ConnectionRefusal::Unverified { target, .. }
            | ConnectionRefusal::Garbled { target, .. }
            | ConnectionRefusal::Unasked { target } => Some(target.to_string()),
            ConnectionRefusal::Full(_) => None,
        }
    }

    fn body(&self) -> String {
        let (error, allow) = match self {
            ConnectionRefusal::Denied(denial) => ("denied", denial.policy.as_deref()),
            _ => ("failed", None),
        };
        // The client must not learn details of the host. The message names the step that failed,
        // and its causes state only what a lookup or a connection of the client's own would have
        // shown.
        let mut message = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            message.push_str(&format!(": {error}"));
            cause = error.source();
        }
        let hint = allow.map(|line| {
            format!(
                "only the user can allow this target, outside the sandbox: add {line} to [network] \
                 of the policy"
            )
        });
        let explanation =
            RefusalBody { error, target: self.target(), reason: self.code(), message, allow, hint };
        let mut body = serde_json::to_string(&explanation).expect("a struct of strings is JSON");
        body.push('\n');
        body
    }

    /// Returns the refusal as an HTTP response.
    pub(crate) fn response(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body().into()));
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self, ConnectionRefusal::Denied(_)) {
            response.headers_mut().insert(DENIED_HEADER, HeaderValue::from_static(self.code()));
        }
        response
    }

    /// Returns the refusal as the bytes of an HTTP response, for the times when hyper does not
    /// serve the connection: before hyper begins, and after hyper gave up.
    pub(crate) fn response_bytes(&self) -> Vec<u8> {
        let (status, body) = (self.status(), self.body());
        let denied = match self {
            ConnectionRefusal::Denied(_) => format!("{DENIED_HEADER}: {}\r\n", self.code()),
            _ => String::new(),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{denied}connection: close\r\n"
        );
        format!("{head}content-length: {length}\r\n\r\n{body}").into_bytes()
    }

    /// Returns the refusal as a SOCKS5 reply, RFC 1928, 6.
    pub(crate) fn socks_reply(&self) -> ReplyError {
        match self {
            ConnectionRefusal::Denied(_) => ReplyError::ConnectionNotAllowed,
            ConnectionRefusal::Unreachable { source, .. } => match source.kind() {
                io::ErrorKind::ConnectionRefused => ReplyError::ConnectionRefused,
                io::ErrorKind::NetworkUnreachable => ReplyError::NetworkUnreachable,
                _ => ReplyError::HostUnreachable,
            },
            ConnectionRefusal::Unresolved { .. } | ConnectionRefusal::Slow { .. } => {
                ReplyError::HostUnreachable
            }
            _ => ReplyError::GeneralFailure,
        }
    }
}
