//! Events of a cell, and the messages in which its harness reports them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// Event of a running cell.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CellEvent {
    /// The cell runs. This event is always first, unless the cell is not run at all.
    Begun {
        /// Number of cells that the context has run, including this one.
        count: u64,
    },
    /// The cell wrote to its standard output.
    Stdout(String),
    /// The cell wrote to its standard error.
    Stderr(String),
    /// The cell showed a value.
    Result(ShownValue),
    /// The cell failed, or was interrupted.
    Error(RaisedError),
    /// The cell is over. This event is always last.
    Ended(OmittedOutput),
}

/// A value, in every form in which it can be shown.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct ShownValue {
    /// True if the value is that of the cell's last expression, and false if the cell displayed it.
    pub is_main_result: bool,
    /// Forms of the value by media type: text, or base64 of bytes, or for JSON the value itself.
    #[serde(default)]
    pub formats: BTreeMap<String, Value>,
}

impl ShownValue {
    /// Returns the value as plain text, if it has that form.
    pub fn text(&self) -> Option<&str> {
        self.formats.get("text/plain")?.as_str()
    }
}

/// Error that a cell failed with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct RaisedError {
    /// Kind of the error, such as `ValueError`.
    #[serde(default)]
    pub name: String,
    /// Message of the error.
    #[serde(default)]
    pub value: String,
    /// Traceback of the error, as text.
    #[serde(default)]
    pub traceback: String,
}

/// Amount of a cell's output and results that was left out because it exceeded a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OmittedOutput {
    /// Bytes of standard output.
    pub stdout: u64,
    /// Bytes of standard error.
    pub stderr: u64,
    /// Number of results.
    pub results: u64,
}

impl OmittedOutput {
    /// Returns true if nothing was left out.
    pub fn is_nothing(&self) -> bool {
        *self == OmittedOutput::default()
    }
}

/// Message of a harness.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum HarnessMessage {
    Ready,
    Begun { cell: u64 },
    Result(ShownValue),
    Error(RaisedError),
    End { cell: u64 },
}

/// Kind of a message whose other fields cannot be read.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MessageKind {
    Result,
    #[serde(other)]
    Other,
}

impl MessageKind {
    /// Returns the kind of a message, if the message is valid JSON. No other field is examined.
    pub(super) fn parse(message: &[u8]) -> Option<MessageKind> {
        #[derive(Deserialize)]
        struct TypedMessage {
            r#type: MessageKind,
        }
        serde_json::from_slice(message).map(|TypedMessage { r#type }| r#type).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_message_is_recognised_as_a_result() {
        let nested = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for part in [nested.as_str(), "1e999", r#""\ud800""#] {
            let result =
                format!(r#"{{"is_main_result":true,"formats":{{"x":{part}}},"type":"result"}}"#);
            assert!(serde_json::from_str::<HarnessMessage>(&result).is_err(), "{part}");
            assert_eq!(MessageKind::parse(result.as_bytes()), Some(MessageKind::Result), "{part}");
            let error = format!(r#"{{"type":"error","name":{part}}}"#);
            assert_eq!(MessageKind::parse(error.as_bytes()), Some(MessageKind::Other), "{part}");
        }
        for nonsense in ["nope", r#"{"type":"result","#, r#"{"type":"result"} {}"#, "[]", "{}"] {
            assert_eq!(MessageKind::parse(nonsense.as_bytes()), None, "{nonsense}");
        }
    }
}
