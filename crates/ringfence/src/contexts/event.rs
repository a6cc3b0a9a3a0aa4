//! What a cell says, in the words of its harness and in those of the library.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// What happens while a cell runs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// It runs, as the context's cell of that number; always first, unless the cell is not run at all.
    Begun {
        /// How many cells the context has run, with this one.
        count: u64,
    },
    /// It wrote to its standard output.
    Stdout(String),
    /// It wrote to its standard error.
    Stderr(String),
    /// A value is to be shown.
    Result(Shown),
    /// It failed, or was interrupted.
    Error(Raised),
    /// It is over; always last.
    Ended(Left),
}

/// A value, in every form in which it can be shown.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Shown {
    /// Whether it is what the cell's last expression came to, and not something that the cell displayed.
    pub is_main_result: bool,
    /// By media type: text, or base64 of bytes, or for JSON the value itself.
    #[serde(default)]
    pub formats: BTreeMap<String, Value>,
}

impl Shown {
    /// It as plain text, if it can be shown so.
    pub fn text(&self) -> Option<&str> {
        self.formats.get("text/plain")?.as_str()
    }
}

/// What a cell failed with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Raised {
    /// What kind of error it was: `ValueError`.
    #[serde(default)]
    pub name: String,
    /// What it says.
    #[serde(default)]
    pub value: String,
    /// Where it came from.
    #[serde(default)]
    pub traceback: String,
}

/// What was left out of what a cell said, because it was too much.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// Bytes of standard output.
    pub stdout: u64,
    /// Bytes of standard error.
    pub stderr: u64,
    /// Results.
    pub results: u64,
}

impl Left {
    /// Whether nothing was.
    pub fn is_nothing(&self) -> bool {
        *self == Left::default()
    }
}

/// What a harness says.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Message {
    Ready,
    Begun { cell: u64 },
    Result(Shown),
    Error(Raised),
    End { cell: u64 },
}

/// What kind of message one is whose parts cannot be read.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Result,
    #[serde(other)]
    Other,
}

impl Kind {
    /// The kind of a message, if that is sound JSON. Nothing else in it is looked at.
    pub(super) fn of(message: &[u8]) -> Option<Kind> {
        #[derive(Deserialize)]
        struct Message {
            r#type: Kind,
        }
        serde_json::from_slice(message).map(|Message { r#type }| r#type).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_cannot_be_read_is_known_for_one() {
        let nested = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for part in [nested.as_str(), "1e999", r#""\ud800""#] {
            let result = format!(r#"{{"is_main_result":true,"formats":{{"x":{part}}},"type":"result"}}"#);
            assert!(serde_json::from_str::<Message>(&result).is_err(), "{part}");
            assert_eq!(Kind::of(result.as_bytes()), Some(Kind::Result), "{part}");
            let error = format!(r#"{{"type":"error","name":{part}}}"#);
            assert_eq!(Kind::of(error.as_bytes()), Some(Kind::Other), "{part}");
        }
        for nonsense in ["nope", r#"{"type":"result","#, r#"{"type":"result"} {}"#, "[]", "{}"] {
            assert_eq!(Kind::of(nonsense.as_bytes()), None, "{nonsense}");
        }
    }
}
