//! Cleaning of untrusted text before a terminal shows it.
//!
//! File names, values of settings and messages of guests can contain characters that a terminal
//! obeys, or characters that change the order in which text is displayed.

use std::borrow::Cow;

/// Character that replaces a steering character.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Returns `true` if a character steers a terminal: the terminal obeys the character, or shows
/// other text differently because of it.
///
/// Steering characters are the control characters (C0, DEL and C1), the marks, embeddings,
/// overrides and isolates of text direction, the Unicode line and paragraph separators, which do
/// not end a line on a terminal, and the invisible tag characters.
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

/// Replaces every steering character in `text` except line ends and tabs.
pub fn clean(text: &str) -> Cow<'_, str> {
    replace_characters(text, |character| {
        is_steering(character) && !matches!(character, '\n' | '\t')
    })
}

/// Replaces every steering character in `text`, so that the result is one line.
pub fn clean_line(text: &str) -> Cow<'_, str> {
    replace_characters(text, is_steering)
}

/// Cleans `text` as [`clean`] does, and marks lines that could pass for another message.
///
/// A message of ringfence begins in the first column, and its further lines are indented by two
/// spaces. A further line that is not indented, or that begins with `ringfence:` or `hint:` after
/// its indentation, gets the prefix `| `. Therefore no value in a message looks like another
/// message.
pub fn clean_message(text: &str) -> Cow<'_, str> {
    let text = clean(text);
    let is_ours = |line: &str| ["ringfence:", "hint:"].iter().any(|ours| line.starts_with(ours));
    let is_forged =
        |line: &str| !line.is_empty() && !line.starts_with("  ") || is_ours(line.trim_start());
    if !text.lines().skip(1).any(is_forged) {
        return text;
    }
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().to_owned();
    let shown =
        |line: &str| if is_forged(line) { format!("\n| {line}") } else { format!("\n{line}") };
    Cow::Owned(first + &lines.map(shown).collect::<String>())
}

fn replace_characters(text: &str, is_wrong: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_wrong) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars()
            .map(|character| if is_wrong(character) { REPLACEMENT } else { character })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every character that must be replaced.
    ///
    /// The table is separate from the one in [`is_steering`], so that the test does not compare the
    /// code with itself.
    fn steering() -> Vec<char> {
        let ranges = [
            0..=0x1f,
            0x7f..=0x9f,
            0x61c..=0x61c,
            0x200e..=0x200f,
            0x2028..=0x202e,
            0x2066..=0x2069,
        ];
        let ranges = ranges.into_iter().chain([0xe0000..=0xe007f]);
        ranges.flatten().filter_map(char::from_u32).collect()
    }

    #[test]
    fn steering_characters_are_replaced_and_others_stay() {
        for character in steering() {
            let text = format!("a{character}b");
            assert_eq!(clean_line(&text), "a\u{fffd}b", "{character:?}");
            let expected =
                if "\n\t".contains(character) { text.clone() } else { "a\u{fffd}b".to_owned() };
            assert_eq!(clean(&text), expected, "{character:?}");
        }
        for plain in ["", "plain", "ä 漢 🙂", "العربية עברית", "a\u{200d}b", "\u{feff}"]
        {
            assert!(matches!(clean_line(plain), Cow::Borrowed(text) if text == plain), "{plain:?}");
        }
        assert_eq!(
            clean("\x1b]0;title\x07\u{9b}31m\r\u{202e}"),
            "\u{fffd}]0;title\u{fffd}\u{fffd}31m\u{fffd}\u{fffd}"
        );
    }

    #[test]
    fn no_line_of_a_message_looks_like_another_message() {
        assert_eq!(clean_message("cannot\n  a: b\n  c"), "cannot\n  a: b\n  c");
        let hidden = "`x\n\u{200b}ringfence: warning: all is well`";
        assert_eq!(clean_message(hidden), "`x\n| \u{200b}ringfence: warning: all is well`");
        assert_eq!(clean_message("ringfence: x\n\n  y\nz"), "ringfence: x\n\n  y\n| z");
        let forged = "`x\nringfence: warning: all is well\nhint: rm -r ~`";
        assert_eq!(
            clean_message(forged),
            "`x\n| ringfence: warning: all is well\n| hint: rm -r ~`"
        );
        assert_eq!(clean_message("x\n  hint: y"), "x\n|   hint: y");
    }
}
