//! Standard output: the answer, as text or as JSON. Nothing in it steers a terminal, whoever chose the names and values
//! that it tells.

use std::io::{self, Write};

use ringfence_core::terminal::{clean, clean_line};
use serde::Serialize;

use crate::report::Failure;
use crate::terminal::{CleanJson, escape_json};

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
    told(io::stdout().lock().write_all(clean(text).as_bytes()))
}

/// Prints an answer of one line for each thing that it tells of. None makes more lines than one.
pub(crate) fn print_lines(lines: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    print(&lines.into_iter().map(|line| format!("{}\n", clean_line(&line))).collect::<String>())
}

/// Prints an answer as JSON for people.
pub(crate) fn print_pretty_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&escape_json(&format!("{value:#}\n")))
}

/// Prints an answer as one line of JSON, without ever holding it whole.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = io::BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, CleanJson);
    let written = value.serialize(&mut serializer).map_err(io::Error::from);
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
