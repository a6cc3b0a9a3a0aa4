//! Failures of calls: an error code of the Connect protocol, and a message for people.

use serde::{Deserialize, Serialize};

/// Error code of the Connect protocol. Each code has one HTTP status, which [`Code::status`]
/// returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The caller cancelled the call or disconnected.
    Canceled,
    /// The cause of the failure is not known.
    Unknown,
    /// The request is malformed or makes no sense.
    InvalidArgument,
    /// The call took longer than its deadline.
    DeadlineExceeded,
    /// The named process, file or watcher does not exist.
    NotFound,
    /// The file or directory to create exists already.
    AlreadyExists,
    /// The caller is not allowed to do what the request asks for.
    PermissionDenied,
    /// A limit is reached, such as a number of commands, a message size or the space on a disk.
    ResourceExhausted,
    /// The named object is not in the state that the call needs.
    FailedPrecondition,
    /// Another call interrupted the call.
    Aborted,
    /// A number in the request is out of bounds.
    OutOfRange,
    /// The service has no such method.
    Unimplemented,
    /// The guest itself failed.
    Internal,
    /// The guest cannot be reached or cannot serve the call at the moment.
    Unavailable,
    /// Data was lost and cannot be recovered.
    DataLoss,
    /// The caller did not prove its identity, or names a user that does not exist.
    Unauthenticated,
}

impl Code {
    /// Returns the HTTP status of a unary call that fails with this code.
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

/// Failure of a call, in the form that is sent to the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Error code of the failure.
    pub code: Code,
    /// Description of the failure for people; empty if the sender gave none.
    #[serde(default)]
    pub message: String,
}

impl Failure {
    /// Creates a failure with the given code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
}

/// Last message of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOfStream {
    /// Failure that ended the stream; absent if the stream ended normally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}
