//! Standard error and JSON without characters that control a terminal. All output of this program
//! itself goes through this module or through [`ringfence_core::terminal`]. The output of a command
//! that the program runs does not.

use std::io::{self, Write};

use ringfence_core::terminal::{clean_line, is_steering};

/// Standard error for log lines. Each log line is written at once and stays one line, whatever
/// characters its values contain.
#[derive(Debug, Default)]
pub(crate) struct CleanStderr;

impl Write for CleanStderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let (text, end) = text.strip_suffix('\n').map_or((&*text, ""), |text| (text, "\n"));
        io::stderr().write_all(format!("{}{end}", clean_line(text)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// JSON formatter that escapes all characters that control a terminal. The meaning of the JSON
/// stays the same. serde_json escapes C0 characters alone, so other control characters would reach
/// the terminal of the reader.
#[derive(Debug, Default)]
pub(crate) struct CleanJson;

impl serde_json::ser::Formatter for CleanJson {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, steering)) =
            rest.char_indices().find(|(_, character)| is_steering(*character))
        {
            writer.write_all(&rest.as_bytes()[..at])?;
            for unit in steering.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + steering.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// Escapes all characters that control a terminal in indented JSON.
pub(crate) fn escape_json(text: &str) -> String {
    let mut escaped = Vec::new();
    for line in text.split_inclusive('\n') {
        // Outside of strings, the only control characters of JSON text are line ends.
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        let written =
            serde_json::ser::Formatter::write_string_fragment(&mut CleanJson, &mut escaped, line);
        written.expect("memory takes what is written to it");
        escaped.extend_from_slice(end.as_bytes());
    }
    String::from_utf8(escaped).expect("text stays text")
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    #[test]
    fn json_says_the_same_with_nothing_in_it_that_steers_a_terminal() {
        let hostile: String = ('\0'..='\u{e0080}')
            .filter(|character| is_steering(*character))
            .chain("ä🙂\"\\".chars())
            .collect();
        let value = serde_json::json!({ &*hostile: [hostile] });
        let mut compact = Vec::new();
        value
            .serialize(&mut serde_json::Serializer::with_formatter(&mut compact, CleanJson))
            .unwrap();
        for text in [String::from_utf8(compact).unwrap(), escape_json(&format!("{value:#}\n"))] {
            assert!(!text.replace('\n', "").contains(is_steering), "{text:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }
}
