//! Answers, and refusals in the form that E2B's clients read: `{"code": status, "message": words}`.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;

/// Body of an answer: bytes of the server, or a stream from a sandbox.
pub(crate) type Body = UnsyncBoxBody<Bytes, hyper::Error>;
/// Answer to a request.
pub(crate) type Reply = Response<Body>;

/// Reason why a request is refused, with an HTTP status.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// Number of seconds after which the client may try again.
    pub(crate) retry_after: Option<u64>,
}

#[derive(Serialize)]
struct RefusalBody<'a> {
    code: u16,
    message: &'a str,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into(), retry_after: None }
    }

    /// Creates a refusal for an invalid request, or for options that the server does not support.
    pub(crate) fn wrong(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, message)
    }

    /// Creates a refusal for a request without valid credentials.
    pub(crate) fn unauthenticated(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::UNAUTHORIZED, message)
    }

    /// Creates a refusal for a sandbox that does not exist or belongs to another owner. The answer
    /// is the same in both cases, so that it does not reveal sandboxes of others.
    pub(crate) fn no_sandbox(id: &str) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, format!("sandbox `{id}` was not found"))
    }

    /// Creates a refusal for an operation that no backend of this server supports.
    pub(crate) fn unsupported(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_IMPLEMENTED, message)
    }

    /// Creates a refusal for a request over a limit.
    pub(crate) fn busy(message: impl Into<String>, retry_after: u64) -> Refusal {
        Refusal {
            retry_after: Some(retry_after),
            ..Refusal::new(StatusCode::TOO_MANY_REQUESTS, message)
        }
    }

    /// Creates a refusal for an error of the server, whose reason is in the log.
    pub(crate) fn failed(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        let words = RefusalBody { code: refusal.status.as_u16(), message: &refusal.message };
        let mut reply = json(refusal.status, &words);
        if let Some(seconds) = refusal.retry_after {
            reply.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        reply
    }
}

/// Creates an answer with a JSON body.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let text =
        serde_json::to_vec(value).expect("our answers have text for keys and no failing parts");
    let mut reply = bytes(status, text.into());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// Creates an answer with a text body, in the text format of Prometheus.
pub(crate) fn plain(text: String) -> Reply {
    let mut reply = bytes(StatusCode::OK, text.into());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
    reply
}

/// Creates an answer without a body.
pub(crate) fn bare(status: StatusCode) -> Reply {
    bytes(status, Bytes::new())
}

fn bytes(status: StatusCode, bytes: Bytes) -> Reply {
    let body = Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_what_clients_can_read() {
        let reply = Reply::from(Refusal::busy("enough", 7));
        assert_eq!(
            (reply.status().as_u16(), &reply.headers()[RETRY_AFTER]),
            (429, &HeaderValue::from(7))
        );
        let body = block_on(reply.into_body().collect()).unwrap().to_bytes();
        assert_eq!(body, r#"{"code":429,"message":"enough"}"#);
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }
}
