//! Matching of one file name against a pattern, by characters.

use std::path::Path;

use globset::GlobMatcher;

use super::glob_tokens::GlobToken;

/// A pattern for the names in one directory.
///
/// `globset` matches bytes, so its `?` does not match `é`. A name that is not ASCII is therefore
/// also matched by characters. A byte that is not part of a character then counts as one character.
#[derive(Debug, Clone)]
pub struct NameMatcher {
    bytes: GlobMatcher,
    /// Tokens of the pattern, one list for each combination of alternatives in braces.
    alternatives: Vec<Vec<GlobToken>>,
}

impl NameMatcher {
    /// Creates a matcher for names that match `bytes` or one of `alternatives`. The alternatives
    /// contain no braces.
    pub(super) fn new(bytes: GlobMatcher, alternatives: Vec<Vec<GlobToken>>) -> NameMatcher {
        NameMatcher { bytes, alternatives }
    }

    /// Returns `true` if a name matches the pattern.
    pub fn is_match(&self, name: &Path) -> bool {
        if self.bytes.is_match(name) {
            return true;
        }
        let name = name.as_os_str().as_encoded_bytes();
        !name.is_ascii() && {
            let characters = characters_of(name);
            self.alternatives.iter().any(|tokens| is_text_match(tokens, &characters))
        }
    }
}

/// Returns the characters of a name, and `None` for each byte that is not part of a character.
fn characters_of(name: &[u8]) -> Vec<Option<char>> {
    let mut characters = Vec::new();
    for chunk in name.utf8_chunks() {
        characters.extend(chunk.valid().chars().map(Some));
        characters.extend(chunk.invalid().iter().map(|_| None));
    }
    characters
}

/// Returns `true` if `text` matches `tokens` as a whole.
///
/// The function follows all ways to match at the same time. The time is therefore proportional to
/// the length of the pattern times the length of the text, for every pattern.
fn is_text_match(tokens: &[GlobToken], text: &[Option<char>]) -> bool {
    // `matched[n]` is true if the text read so far matches the first `n` tokens.
    let mut matched = vec![false; tokens.len() + 1];
    matched[0] = true;
    skip_any_text(tokens, &mut matched);
    for character in text {
        let mut next = vec![false; tokens.len() + 1];
        for (at, token) in tokens.iter().enumerate().filter(|(at, _)| matched[*at]) {
            match token {
                GlobToken::AnyText => next[at] = true,
                token if matches_character(token, *character) => next[at + 1] = true,
                _ => {}
            }
        }
        skip_any_text(tokens, &mut next);
        matched = next;
    }
    matched[tokens.len()]
}

/// Marks the token after each reached `*` as reached too, because `*` can match the empty text.
fn skip_any_text(tokens: &[GlobToken], matched: &mut [bool]) {
    for (at, token) in tokens.iter().enumerate() {
        if matched[at] && matches!(token, GlobToken::AnyText) {
            matched[at + 1] = true;
        }
    }
}

fn matches_character(token: &GlobToken, character: Option<char>) -> bool {
    match token {
        GlobToken::Character(expected) => character == Some(*expected),
        GlobToken::AnyCharacter | GlobToken::AnyText => true,
        GlobToken::Class(class) => class.matches(character),
        // A component without braces contains none of these tokens.
        GlobToken::Separator | GlobToken::AnyDepth { .. } | GlobToken::Alternatives(_) => false,
    }
}
