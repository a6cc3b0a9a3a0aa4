//! Standard output of the program: the answer of a command, as text or as JSON. The functions here
//! escape control characters, because names and values in an answer can come from hostile code and
//! must not control the terminal.

use std::io::{self, Write};

use ringfence_core::terminal::{clean, clean_line};
use serde::Serialize;

use crate::report::Failure;
use crate::terminal::{CleanJson, escape_json};

/// Output format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

impl Form {
    /// Returns the format that the `--json` flag selects.
    pub(crate) fn from_flag(json: bool) -> Form {
        if json { Form::Json } else { Form::Text }
    }
}

/// Prints an answer as text.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    check_written(io::stdout().lock().write_all(clean(text).as_bytes()))
}

/// Prints an answer of one line per item. Line breaks inside an item are escaped, so that an item
/// never takes more than one line.
pub(crate) fn print_lines(lines: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    print(&lines.into_iter().map(|line| format!("{}\n", clean_line(&line))).collect::<String>())
}

/// Prints an answer as indented JSON for human readers.
pub(crate) fn print_pretty_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&escape_json(&format!("{value:#}\n")))
}

/// Prints an answer as one line of JSON. Serializes straight to standard output and never holds the
/// whole text in memory.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut out = io::BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, CleanJson);
    let written = value.serialize(&mut serializer).map_err(io::Error::from);
    check_written(written.and_then(|()| writeln!(out)).and_then(|()| out.flush()))
}

/// Turns the result of a write to standard output into a failure. A broken pipe is not a failure,
/// because the reader may stop reading early.
fn check_written(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(
            format!("cannot write the answer: {error}"),
            "check the file or program that receives standard output",
        )),
        _ => Ok(()),
    }
}
