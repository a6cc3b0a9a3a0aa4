//! What a client is told when it does not get what it asked for.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use fast_socks5::ReplyError;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use crate::{Denial, Reason, ResolveError, Target, UpstreamError};

/// The header that tells a refusal of the proxy from one of the origin.
const DENIED: &str = "x-ringfence-denied";

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The policy does not let it through, or it cannot be judged.
    #[error("{}", .0.message())]
    Denied(Box<Denial>),
    /// The name has no address.
    #[error("cannot reach `{target}`")]
    Unresolved {
        /// Where to.
        target: Target,
        /// Why not.
        source: ResolveError,
    },
    /// No address of it answers.
    #[error("cannot reach `{target}`")]
    Unreachable {
        /// Where to.
        target: Target,
        /// What the last address said.
        source: io::Error,
    },
    /// It took too long.
    #[error("`{target}` did not answer within {limit:?}")]
    Slow {
        /// Where to.
        target: Target,
        /// How long it had.
        limit: Duration,
    },
    /// The upstream proxy does not lead there.
    #[error("cannot reach `{target}` through the upstream proxy")]
    Upstream {
        /// Where to.
        target: Target,
        /// What it said.
        source: UpstreamError,
    },
    /// The origin does not prove to be who it is called, or does not speak TLS.
    #[error("cannot speak TLS with `{target}`")]
    Unverified {
        /// Who.
        target: Target,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The origin answered something that is not HTTP.
    #[error("`{target}` did not answer in HTTP")]
    Garbled {
        /// Who.
        target: Target,
        /// What was wrong with it.
        source: hyper::Error,
    },
    /// The origin changes the protocol though nobody asked.
    #[error("`{target}` changed the protocol unasked")]
    Unasked {
        /// Who.
        target: Target,
    },
    /// As many connections are open as may be.
    #[error("{0} connections are open, which is as many as there may be")]
    Full(usize),
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Refusal {
        Refusal::Denied(Box::new(denial))
    }
}

/// The body of a refusal, for programs and models.
#[derive(Serialize)]
struct Explanation<'a> {
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

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Refusal::Denied(denial) if matches!(denial.reason, Reason::Malformed { .. }) => StatusCode::BAD_REQUEST,
            Refusal::Denied(_) => StatusCode::FORBIDDEN,
            Refusal::Slow { .. } => StatusCode::GATEWAY_TIMEOUT,
            Refusal::Full(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// The stable name of the reason.
    fn code(&self) -> &'static str {
        match self {
            Refusal::Denied(denial) => denial.reason.code(),
            Refusal::Unresolved { .. } => "unresolved",
            Refusal::Unreachable { .. } => "unreachable",
            Refusal::Slow { .. } => "slow",
            Refusal::Upstream { .. } => "upstream",
            Refusal::Unverified { .. } => "unverified",
            Refusal::Garbled { .. } | Refusal::Unasked { .. } => "garbled",
            Refusal::Full(_) => "full",
        }
    }

    fn target(&self) -> Option<String> {
        match self {
            Refusal::Denied(denial) => Some(denial.target.clone()),
            Refusal::Unresolved { target, .. }
            | Refusal::Unreachable { target, .. }
            | Refusal::Slow { target, .. }
            | Refusal::Upstream { target, .. }
            | Refusal::Unverified { target, .. }
            | Refusal::Garbled { target, .. }
            | Refusal::Unasked { target } => Some(target.to_string()),
            Refusal::Full(_) => None,
        }
    }

    fn body(&self) -> String {
        let (error, allow) = match self {
            Refusal::Denied(denial) => ("denied", denial.policy.as_deref()),
            _ => ("failed", None),
        };
        // The client is no part of the host: it is told which step failed, and of the causes only what a name or a
        // connection of its own would have told it.
        let mut message = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            message.push_str(&format!(": {error}"));
            cause = error.source();
        }
        let hint = allow.map(|line| format!("add {line} to [network] of the policy, outside the sandbox"));
        let explanation = Explanation { error, target: self.target(), reason: self.code(), message, allow, hint };
        let mut body = serde_json::to_string(&explanation).expect("a struct of strings is JSON");
        body.push('\n');
        body
    }

    /// The answer in HTTP.
    pub(crate) fn response(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body().into()));
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self, Refusal::Denied(_)) {
            response.headers_mut().insert(DENIED, HeaderValue::from_static(self.code()));
        }
        response
    }

    /// The same answer where hyper does not speak: before it begins, and after it gave up.
    pub(crate) fn last_words(&self) -> Vec<u8> {
        let (status, body) = (self.status(), self.body());
        let denied = match self {
            Refusal::Denied(_) => format!("{DENIED}: {}\r\n", self.code()),
            _ => String::new(),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{denied}connection: close\r\n");
        format!("{head}content-length: {length}\r\n\r\n{body}").into_bytes()
    }

    /// The answer in SOCKS5, RFC 1928, 6.
    pub(crate) fn reply(&self) -> ReplyError {
        match self {
            Refusal::Denied(_) => ReplyError::ConnectionNotAllowed,
            Refusal::Unreachable { source, .. } => match source.kind() {
                io::ErrorKind::ConnectionRefused => ReplyError::ConnectionRefused,
                io::ErrorKind::NetworkUnreachable => ReplyError::NetworkUnreachable,
                _ => ReplyError::HostUnreachable,
            },
            Refusal::Unresolved { .. } | Refusal::Slow { .. } => ReplyError::HostUnreachable,
            _ => ReplyError::GeneralFailure,
        }
    }
}
