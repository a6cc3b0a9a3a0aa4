//! Standard output: the answer, as text or as JSON.

use std::io::{self, Write};

use serde::Serialize;

use crate::report::Failure;

/// What form the answer is wanted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

impl Form {
    /// The form that a `--json` flag asks for.
    pub(crate) fn asked(json: bool) -> Form {
        if json { Form::Json } else { Form::Text }
    }
}

/// Prints an answer as text.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    told(io::stdout().lock().write_all(text.as_bytes()))
}

/// Prints an answer as one line of JSON, without ever holding it whole.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = io::BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    let written = serde_json::to_writer(&mut out, value).map_err(io::Error::from);
    told(written.and_then(|()| writeln!(out)).and_then(|()| out.flush()))
}

/// A reader that went away is not an error.
fn told(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write the answer: {error}"), "look at where standard output goes"))
        }
        _ => Ok(()),
    }
}
