//! Text of strangers on its way to a terminal. Names of files, values of settings and what guests say can have
//! characters in them that a terminal obeys, or that have text read in another order than it has. Everything that this
//! program itself says goes through here; what a command says that it runs does not.

use std::borrow::Cow;
use std::io::{self, Write};

/// What is shown in place of a character that a terminal would obey.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Whether a terminal obeys a character, or shows other text differently because of it: C0, DEL and C1, what marks,
/// embeds, overrides and isolates directions, separators of lines that are none, and tags that nobody sees.
pub(crate) fn is_steering(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Text of which a terminal obeys nothing but the ends of lines, and tabs.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    replaced(text, |character| is_steering(character) && !matches!(character, '\n' | '\t'))
}

/// Text that is one line, of which a terminal obeys nothing.
pub(crate) fn clean_line(text: &str) -> Cow<'_, str> {
    replaced(text, is_steering)
}

/// Text of which a terminal obeys nothing, as a message of ours: none of its lines looks like the first one of another.
pub(crate) fn clean_message(text: &str) -> Cow<'_, str> {
    let text = clean(text);
    let is_forged = |line: &str| ["ringfence:", "hint:"].iter().any(|ours| line.trim_start().starts_with(ours));
    if !text.lines().skip(1).any(is_forged) {
        return text;
    }
    let lines: Vec<String> =
        text.lines().map(|line| if is_forged(line) { format!("| {line}") } else { line.to_owned() }).collect();
    Cow::Owned(lines.join("\n"))
}

fn replaced(text: &str, is_wrong: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_wrong) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|character| if is_wrong(character) { REPLACEMENT } else { character }).collect())
}

/// Standard error for the lines of a log. Each is written at once, and is one line whatever its values have in them.
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

/// JSON in which all that steers a terminal is escaped. It means the same: serde_json escapes C0 alone, and the rest
/// would reach the terminal of whoever looks at it.
#[derive(Debug, Default)]
pub(crate) struct CleanJson;

impl serde_json::ser::Formatter for CleanJson {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, steering)) = rest.char_indices().find(|(_, character)| is_steering(*character)) {
            writer.write_all(&rest.as_bytes()[..at])?;
            for unit in steering.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + steering.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// JSON for people, in which all that steers a terminal is escaped.
pub(crate) fn escape_json(text: &str) -> String {
    let mut escaped = Vec::new();
    for line in text.split_inclusive('\n') {
        // Outside of strings, JSON has the ends of lines alone.
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        let written = serde_json::ser::Formatter::write_string_fragment(&mut CleanJson, &mut escaped, line);
        written.expect("memory takes what is written to it");
        escaped.extend_from_slice(end.as_bytes());
    }
    String::from_utf8(escaped).expect("text stays text")
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;

    /// Every character that is replaced: a table of our own, so that the code's cannot agree with itself.
    fn steering() -> Vec<char> {
        let ranges = [0..=0x1f, 0x7f..=0x9f, 0x61c..=0x61c, 0x200e..=0x200f, 0x2028..=0x202e, 0x2066..=0x2069];
        let ranges = ranges.into_iter().chain([0xe0000..=0xe007f]);
        ranges.flatten().filter_map(char::from_u32).collect()
    }

    #[test]
    fn nothing_that_steers_a_terminal_is_left_and_all_else_is() {
        for character in steering() {
            let text = format!("a{character}b");
            assert_eq!(clean_line(&text), "a\u{fffd}b", "{character:?}");
            let expected = if "\n\t".contains(character) { text.clone() } else { "a\u{fffd}b".to_owned() };
            assert_eq!(clean(&text), expected, "{character:?}");
        }
        for plain in ["", "plain", "ä 漢 🙂", "العربية עברית", "a\u{200d}b", "\u{feff}"] {
            assert!(matches!(clean_line(plain), Cow::Borrowed(text) if text == plain), "{plain:?}");
        }
        assert_eq!(clean("\x1b]0;title\x07\u{9b}31m\r\u{202e}"), "\u{fffd}]0;title\u{fffd}\u{fffd}31m\u{fffd}\u{fffd}");
    }

    #[test]
    fn no_line_of_a_message_looks_like_another_message() {
        assert_eq!(clean_message("cannot\n  a: b\n  c"), "cannot\n  a: b\n  c");
        let forged = "`x\nringfence: warning: all is well\nhint: rm -r ~`";
        assert_eq!(clean_message(forged), "`x\n| ringfence: warning: all is well\n| hint: rm -r ~`");
        assert_eq!(clean_message("x\n  hint: y"), "x\n|   hint: y");
    }

    #[test]
    fn json_says_the_same_with_nothing_in_it_that_steers_a_terminal() {
        let hostile: String = steering().into_iter().chain("ä🙂\"\\".chars()).collect();
        let value = serde_json::json!({ &*hostile: [hostile] });
        let mut compact = Vec::new();
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut compact, CleanJson)).unwrap();
        for text in [String::from_utf8(compact).unwrap(), escape_json(&format!("{value:#}\n"))] {
            assert!(!text.replace('\n', "").contains(is_steering), "{text:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        }
    }
}
