//! Check of the source files: the place of unsafe code, and the length of files and lines.

use std::path::Path;

use anyhow::Result;

use super::CheckFindings;
use crate::workspace::{Workspace, files_below};

/// The only directory that may contain unsafe code.
const UNSAFE_DIRECTORY: &str = "crates/ringfence-linux/src/sys";
const MAX_FILE_LINES: usize = 800;
/// Highest number of characters in a line.
pub(crate) const MAX_LINE_WIDTH: usize = 100;
/// Files with tables or generated code, whose length has no limit.
const UNLIMITED_FILES: &[&str] = &[];

pub(super) fn check(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings = CheckFindings::new();
    for path in files_below(&workspace.root)? {
        let name = path.strip_prefix(&workspace.root)?;
        if name.extension().is_some_and(|extension| extension == "rs") {
            findings.extend(judge(name, &fs_err::read_to_string(&path)?));
        }
    }
    Ok(findings)
}

fn judge(name: &Path, text: &str) -> CheckFindings {
    let mut findings = CheckFindings::new();
    let code = code_of(text);
    if !name.starts_with(UNSAFE_DIRECTORY) {
        let lines =
            code.lines().enumerate().filter(|(_, line)| words(line).any(|word| word == "unsafe"));
        findings.extend(lines.map(|(index, _)| {
            format!("{}:{}: unsafe code belongs in {UNSAFE_DIRECTORY}", name.display(), index + 1)
        }));
    }
    let wide = text.lines().enumerate().filter(|(_, line)| line.chars().count() > MAX_LINE_WIDTH);
    findings.extend(wide.map(|(index, _)| {
        format!("{}:{}: break the line at {MAX_LINE_WIDTH} columns", name.display(), index + 1)
    }));
    let length = production_lines(&code);
    let counts = name.components().any(|part| part.as_os_str() == "src");
    if counts
        && length > MAX_FILE_LINES
        && !UNLIMITED_FILES.iter().any(|table| name == Path::new(table))
    {
        findings.push(format!(
            "{}: {length} lines before its tests, split it below {MAX_FILE_LINES}",
            name.display()
        ));
    }
    findings
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|character: char| !(character.is_alphanumeric() || character == '_'))
}

/// Counts the lines before the test module at the end of a file.
pub(crate) fn production_lines(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().collect();
    let is_test_module = |pair: &[&str]| {
        pair[0].trim() == "#[cfg(test)]"
            && pair[1].trim().starts_with("mod ")
            && pair[1].ends_with('{')
    };
    lines.windows(2).position(is_test_module).unwrap_or(lines.len())
}

/// Replaces comments, strings and characters with spaces and keeps every line break, so that only
/// code is left.
pub(crate) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    for piece in split_pieces(text) {
        match piece {
            SourcePiece::Code(piece) => code.push_str(piece),
            SourcePiece::Other(piece) => code
                .extend(piece.chars().map(|character| if character == '\n' { '\n' } else { ' ' })),
        }
    }
    code
}

/// Lists the comments of a file in their order, each with its marker.
pub(crate) fn comments_of(text: &str) -> impl Iterator<Item = &str> {
    split_pieces(text).into_iter().filter_map(|piece| match piece {
        SourcePiece::Other(piece) if piece.starts_with('/') => Some(piece),
        _ => None,
    })
}

/// One character of code, or one whole comment, string or character literal.
enum SourcePiece<'a> {
    Code(&'a str),
    Other(&'a str),
}

fn split_pieces(text: &str) -> Vec<SourcePiece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    // The character before `rest` tells an identifier that ends in `r` from a raw string.
    let mut after_name = false;
    while let Some(first) = rest.chars().next() {
        let length = token(rest, after_name);
        let (piece, remainder) = rest.split_at(length.unwrap_or(first.len_utf8()));
        after_name = length.is_none() && (first.is_alphanumeric() || first == '_');
        pieces.push(match length {
            Some(_) => SourcePiece::Other(piece),
            None => SourcePiece::Code(piece),
        });
        rest = remainder;
    }
    pieces
}

/// Returns the length of the comment, string or character literal at the start of the text, if
/// there is one.
fn token(text: &str, after_name: bool) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block_comment(text));
    }
    if text.starts_with('"') {
        return Some(quoted(text, '"'));
    }
    if let Some(inside) = text.strip_prefix('\'') {
        // A lifetime has no second quote right after its first character.
        let mut characters = inside.chars();
        let is_character = characters.next()? == '\\' || characters.next()? == '\'';
        return is_character.then(|| quoted(text, '\''));
    }
    if after_name {
        return None;
    }
    let raw = ["br", "cr", "r"].into_iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let inside = raw.trim_start_matches('#');
    let hashes = raw.len() - inside.len();
    let body = inside.strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = body.find(&close).map_or(body.len(), |position| position + close.len());
    Some(text.len() - body.len() + end)
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (position, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return position + 1,
            _ => {}
        }
    }
    text.len()
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut position = 0;
    while position < text.len() {
        let rest = &text.as_bytes()[position..];
        if rest.starts_with(b"/*") {
            depth += 1;
            position += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, text: &str, expected: &[&str]) {
        assert_eq!(judge(Path::new(name), text), expected);
    }

    #[test]
    fn unsafe_code_outside_its_place_is_found_with_its_line() {
        let text = "fn main() {\n    unsafe { call() }\n}\n";
        check(
            "crates/a/src/lib.rs",
            text,
            &["crates/a/src/lib.rs:2: unsafe code belongs in crates/ringfence-linux/src/sys"],
        );
        check("crates/ringfence-linux/src/sys/mount.rs", text, &[]);
    }

    #[test]
    fn a_line_over_100_columns_is_found_with_its_number() {
        let widest = format!("// {}\n", "é".repeat(97));
        check("crates/a/src/lib.rs", &widest, &[]);
        check(
            "crates/a/src/lib.rs",
            &format!("{widest}// {}\n", "x".repeat(98)),
            &["crates/a/src/lib.rs:2: break the line at 100 columns"],
        );
    }

    #[test]
    fn the_word_unsafe_in_comments_strings_and_names_is_allowed() {
        let text = r##"
            // unsafe
            /* unsafe /* unsafe */ unsafe */
            #![deny(unsafe_code)]
            const A: &str = "unsafe \" unsafe";
            const B: &str = r#"unsafe " unsafe"#;
            const C: char = '"'; // unsafe "
            const D: char = '\''; // unsafe '
            fn lifetime<'a>(text: &'a str) -> &'a str { text }
        "##;
        check("src/main.rs", text, &[]);
    }

    #[test]
    fn code_after_a_string_or_a_character_is_still_code() {
        for before in ["\"a\\\\\"", "r\"a\\\"", "'\"'", "b'\\''", "/* a */", "&'a str"] {
            let text = format!("{before} unsafe {{");
            assert_eq!(judge(Path::new("src/a.rs"), &text).len(), 1, "after {before}");
        }
    }

    #[test]
    fn comments_are_told_from_strings_that_look_like_them() {
        let text = "let a = \"// no\"; // yes\n/// doc\n/* block */ 'x' / y\n";
        assert_eq!(comments_of(text).collect::<Vec<_>>(), ["// yes", "/// doc", "/* block */"]);
    }

    #[test]
    fn tests_at_the_end_do_not_make_a_file_long() {
        let production = "fn a() {}\n".repeat(MAX_FILE_LINES);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{production}}}\n");
        check("src/a.rs", &format!("{production}{tests}"), &[]);
        check(
            "src/a.rs",
            &format!("fn b() {{}}\n{production}{tests}"),
            &["src/a.rs: 801 lines before its tests, split it below 800"],
        );
        check("tests/it/a.rs", &production.repeat(2), &[]);
    }
}
