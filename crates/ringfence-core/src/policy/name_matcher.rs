//! Matching of one file name against a pattern, by characters.

use std::path::Path;

use globset::GlobMatcher;

/// A pattern for the names in one directory.
///
/// `globset` matches bytes, so that its `?` does not match `é`. A name that is UTF-8 is therefore
/// matched by characters as well.
#[derive(Debug, Clone)]
pub struct NameMatcher {
    bytes: GlobMatcher,
    /// Tokens of the pattern, one list for each combination of alternatives in braces.
    alternatives: Vec<Vec<NameToken>>,
}

#[derive(Debug, Clone)]
enum NameToken {
    Character(char),
    AnyCharacter,
    AnyText,
    Class { is_negated: bool, ranges: Vec<(char, char)> },
}

impl NameMatcher {
    /// Creates a matcher for names that match `bytes` or one of `alternatives`.
    ///
    /// `alternatives` are patterns without braces.
    pub(super) fn new(bytes: GlobMatcher, alternatives: &[String]) -> NameMatcher {
        NameMatcher { bytes, alternatives: alternatives.iter().map(|text| tokens_of(text)).collect() }
    }

    /// Returns `true` if a name matches the pattern.
    pub fn is_match(&self, name: &Path) -> bool {
        if self.bytes.is_match(name) {
            return true;
        }
        let text = name.to_str().filter(|text| !text.is_ascii());
        text.is_some_and(|text| self.alternatives.iter().any(|tokens| is_text_match(tokens, text)))
    }
}

fn tokens_of(pattern: &str) -> Vec<NameToken> {
    let mut tokens = Vec::new();
    let mut characters = pattern.chars().peekable();
    while let Some(character) = characters.next() {
        tokens.push(match character {
            '?' => NameToken::AnyCharacter,
            '*' => NameToken::AnyText,
            '\\' => NameToken::Character(characters.next().unwrap_or('\\')),
            '[' => {
                let is_negated = characters.next_if(|next| matches!(next, '!' | '^')).is_some();
                let mut members: Vec<char> = Vec::new();
                // A `]` that comes first is a member of the class and does not end it.
                while let Some(member) = characters.next_if(|next| *next != ']' || members.is_empty()) {
                    members.push(member);
                }
                characters.next();
                NameToken::Class { is_negated, ranges: ranges_of(&members) }
            }
            other => NameToken::Character(other),
        });
    }
    tokens
}

fn ranges_of(members: &[char]) -> Vec<(char, char)> {
    let mut ranges = Vec::new();
    let mut rest = members;
    while let Some((first, after)) = rest.split_first() {
        rest = match after {
            ['-', last, after @ ..] => {
                ranges.push((*first, *last));
                after
            }
            _ => {
                ranges.push((*first, *first));
                after
            }
        };
    }
    ranges
}

/// Returns `true` if `text` matches `tokens` as a whole.
///
/// The function follows all ways to match at the same time. The time is therefore proportional to
/// the length of the pattern times the length of the text, for every pattern.
fn is_text_match(tokens: &[NameToken], text: &str) -> bool {
    // `matched[n]` is true if the text read so far matches the first `n` tokens.
    let mut matched = vec![false; tokens.len() + 1];
    matched[0] = true;
    skip_any_text(tokens, &mut matched);
    for character in text.chars() {
        let mut next = vec![false; tokens.len() + 1];
        for (at, token) in tokens.iter().enumerate().filter(|(at, _)| matched[*at]) {
            match token {
                NameToken::AnyText => next[at] = true,
                token if token.matches(character) => next[at + 1] = true,
                _ => {}
            }
        }
        skip_any_text(tokens, &mut next);
        matched = next;
    }
    matched[tokens.len()]
}

/// Marks the token after each reached `*` as reached too, because `*` can match the empty text.
fn skip_any_text(tokens: &[NameToken], matched: &mut [bool]) {
    for (at, token) in tokens.iter().enumerate() {
        if matched[at] && matches!(token, NameToken::AnyText) {
            matched[at + 1] = true;
        }
    }
}

impl NameToken {
    fn matches(&self, character: char) -> bool {
        match self {
            NameToken::Character(expected) => character == *expected,
            NameToken::AnyCharacter | NameToken::AnyText => true,
            NameToken::Class { is_negated, ranges } => {
                let is_member = ranges.iter().any(|(first, last)| (*first..=*last).contains(&character));
                is_member != *is_negated
            }
        }
    }
}
