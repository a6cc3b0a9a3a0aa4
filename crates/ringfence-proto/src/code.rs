//! How a call fails: a code by name, and words for people.

use serde::{Deserialize, Serialize};

/// What kind of failure it was. Each has one HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The caller went away.
    Canceled,
    /// Nobody knows.
    Unknown,
    /// The request makes no sense.
    InvalidArgument,
    /// It took too long.
    DeadlineExceeded,
    /// What was named is not there.
    NotFound,
    /// What was to be made is there.
    AlreadyExists,
    /// The caller may not.
    PermissionDenied,
    /// There is no more of it.
    ResourceExhausted,
    /// It is not in the state that this needs.
    FailedPrecondition,
    /// It was interrupted by another call.
    Aborted,
    /// A number is out of bounds.
    OutOfRange,
    /// There is no such method.
    Unimplemented,
    /// The guest failed.
    Internal,
    /// The guest is not there now.
    Unavailable,
    /// Something was lost for good.
    DataLoss,
    /// The caller did not say who it is.
    Unauthenticated,
}

impl Code {
    /// The HTTP status of a unary call that failed so.
    pub fn status(self) -> u16 {
        match self {
            Code::Canceled => 499,
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
            Code::Unauthenticated => 401,
            Code::PermissionDenied => 403,
            Code::NotFound => 404,
            Code::AlreadyExists | Code::Aborted => 409,
            Code::ResourceExhausted => 429,
            Code::Unknown | Code::Internal | Code::DataLoss => 500,
            Code::Unimplemented => 501,
            Code::Unavailable => 503,
            Code::DeadlineExceeded => 504,
        }
    }
}

/// A failed call, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind.
    pub code: Code,
    /// In words.
    #[serde(default)]
    pub message: String,
}

impl Failure {
    /// A failure of that kind.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
}

/// The last message of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOfStream {
    /// Why it ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}
