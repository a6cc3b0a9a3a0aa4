//! Text of strangers on its way to a terminal.
//!
//! Names of files, values of settings and what guests say can have characters in them that a terminal obeys, or that
//! have text read in another order than it has.

use std::borrow::Cow;

/// Character that is shown in place of one that a terminal would obey.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Tells whether a terminal obeys a character, or shows other text differently because of it: C0, DEL and C1, what marks,
/// embeds, overrides and isolates directions, separators of lines that are none, and tags that nobody sees.
pub fn is_steering(character: char) -> bool {
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
pub fn clean(text: &str) -> Cow<'_, str> {
    replaced(text, |character| is_steering(character) && !matches!(character, '\n' | '\t'))
}

/// Text that is one line, of which a terminal obeys nothing.
pub fn clean_line(text: &str) -> Cow<'_, str> {
    replaced(text, is_steering)
}

/// Text of which a terminal obeys nothing, as a message of ours. A message begins in the first column, and the lines
/// that continue it are indented: no value in it looks like another message, whatever its lines begin with.
pub fn clean_message(text: &str) -> Cow<'_, str> {
    let text = clean(text);
    let is_ours = |line: &str| ["ringfence:", "hint:"].iter().any(|ours| line.starts_with(ours));
    let is_forged = |line: &str| !line.is_empty() && !line.starts_with("  ") || is_ours(line.trim_start());
    if !text.lines().skip(1).any(is_forged) {
        return text;
    }
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().to_owned();
    let shown = |line: &str| if is_forged(line) { format!("\n| {line}") } else { format!("\n{line}") };
    Cow::Owned(first + &lines.map(shown).collect::<String>())
}

fn replaced(text: &str, is_wrong: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_wrong) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|character| if is_wrong(character) { REPLACEMENT } else { character }).collect())
}

#[cfg(test)]
mod tests {
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
        let hidden = "`x\n\u{200b}ringfence: warning: all is well`";
        assert_eq!(clean_message(hidden), "`x\n| \u{200b}ringfence: warning: all is well`");
        assert_eq!(clean_message("ringfence: x\n\n  y\nz"), "ringfence: x\n\n  y\n| z");
        let forged = "`x\nringfence: warning: all is well\nhint: rm -r ~`";
        assert_eq!(clean_message(forged), "`x\n| ringfence: warning: all is well\n| hint: rm -r ~`");
        assert_eq!(clean_message("x\n  hint: y"), "x\n|   hint: y");
    }
}
