//! Tokens of a pattern, read as `globset` reads them.
//!
//! A search applies a pattern directory by directory, so the pattern has to be split at its
//! slashes. One tokenizer decides which slashes, commas and braces are part of a name and which are
//! syntax. A pattern is refused if its split form could have another meaning than the whole
//! pattern.

/// Maximum depth of nested braces. `globset` panics on a pattern with hundreds of levels.
const MAX_BRACE_DEPTH: usize = 16;
/// Maximum number of alternatives in one expansion of braces, because each group multiplies the
/// number of alternatives.
const MAX_ALTERNATIVES: usize = 1024;
/// Maximum number of tokens in one expansion of braces, because each group multiplies the tokens.
const MAX_EXPANDED_TOKENS: usize = 1 << 16;

const SLASH_IN_CLASS: &str = "a class in `[]` cannot contain `/`, also not within a range such as \
    `[+-9]`: write the slash outside the class";
const UNCLOSED_CLASS: &str = "a `[` is never closed: write `[[]` for the character itself";
const UNCLOSED_BRACES: &str = "a `{` is never closed: write `\\{` for the character itself";
const UNOPENED_BRACES: &str = "a `}` has no `{` before it: write `\\}` for the character itself";
const DANGLING_ESCAPE: &str =
    "a `\\` at the end of a name has nothing to escape: write `\\\\` for the character itself";
const DEEP_BRACES: &str =
    "braces are nested more than 16 deep: write one rule for each alternative";
const MANY_ALTERNATIVES: &str = "its braces have too many combinations: write several rules";
const UNCLEAR_DOUBLE_STAR: &str = "`**` must stand between two slashes in every alternative, and \
    the slashes on the same side of a brace as `**`: write one rule for each alternative";
const EMPTY_COMPONENT: &str = "an alternative has nothing before, between or after its slashes: \
    write the slash inside the braces, as in `conf{,/sub}/key`";
const DOT_COMPONENT: &str = "an alternative has `.` between its slashes: leave it out";

/// Reason why a pattern is refused, with a hint.
pub(super) type PatternRefusal = &'static str;

/// Unit of syntax in a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GlobToken {
    Character(char),
    /// `?`, which matches one character.
    AnyCharacter,
    /// `*`, which matches any text within a name. Two of these tokens in a row stand for a `**`
    /// that is not a whole component, as in `a**`.
    AnyText,
    Class(CharacterClass),
    /// `/`, whether or not it is escaped.
    Separator,
    /// `**` for any number of directories. `is_end` is true if `globset` reads the `**` as
    /// everything beneath a directory.
    AnyDepth {
        is_end: bool,
    },
    /// `{…,…}`, with the tokens of each alternative.
    Alternatives(Vec<Vec<GlobToken>>),
}

/// Class of characters such as `[a-z]` or `[!.]`. No class matches a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CharacterClass {
    /// Text of the class in the pattern.
    text: String,
    is_negated: bool,
    ranges: Vec<(char, char)>,
}

impl CharacterClass {
    /// Returns `true` if the class matches a character. `None` stands for a byte that is not part
    /// of a character.
    pub(super) fn matches(&self, character: Option<char>) -> bool {
        let is_member = |character| {
            self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&character))
        };
        character.is_some_and(is_member) != self.is_negated
    }
}

/// Parses a pattern, and returns the components of each of its alternatives.
///
/// If no braces contain a slash, braces stay within their component. Otherwise all braces are
/// expanded.
pub(super) fn split_pattern(text: &str) -> Result<Vec<Vec<Vec<GlobToken>>>, PatternRefusal> {
    let mut parser = GlobParser { text, at: 0 };
    let tokens = parser.parse_sequence(0)?;
    let alternatives =
        if has_separator_in_braces(&tokens) { expand_braces(&tokens)? } else { vec![tokens] };
    let mut split = Vec::new();
    for alternative in alternatives {
        let components: Vec<Vec<GlobToken>> = alternative
            .split(|token| *token == GlobToken::Separator)
            .map(<[GlobToken]>::to_vec)
            .collect();
        for (at, component) in components.iter().enumerate() {
            check_component(component, at + 1 == components.len())?;
        }
        split.push(components);
    }
    Ok(split)
}

/// Refuses a component that no name can match, or that has another meaning in the whole pattern.
fn check_component(component: &[GlobToken], is_last: bool) -> Result<(), PatternRefusal> {
    for tokens in expand_braces(component)? {
        match tokens.as_slice() {
            [] => return Err(EMPTY_COMPONENT),
            [GlobToken::Character('.')] => return Err(DOT_COMPONENT),
            [GlobToken::AnyText, GlobToken::AnyText] => return Err(UNCLEAR_DOUBLE_STAR),
            [GlobToken::AnyDepth { is_end }] if !is_end || is_last => {}
            tokens if tokens.iter().any(|token| matches!(token, GlobToken::AnyDepth { .. })) => {
                return Err(UNCLEAR_DOUBLE_STAR);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns `true` if a component, or one of its alternatives, is `..`.
pub(super) fn names_parent(component: &[GlobToken]) -> bool {
    let dot = GlobToken::Character('.');
    let is_parent = |tokens: &Vec<GlobToken>| *tokens == [dot.clone(), dot.clone()];
    expand_braces(component).is_ok_and(|expanded| expanded.iter().any(is_parent))
}

fn has_separator_in_braces(tokens: &[GlobToken]) -> bool {
    let has_separator = |branch: &Vec<GlobToken>| {
        branch.contains(&GlobToken::Separator) || has_separator_in_braces(branch)
    };
    tokens.iter().any(|token| match token {
        GlobToken::Alternatives(branches) => branches.iter().any(has_separator),
        _ => false,
    })
}

/// Returns one list of tokens for each combination of alternatives in braces.
pub(super) fn expand_braces(tokens: &[GlobToken]) -> Result<Vec<Vec<GlobToken>>, PatternRefusal> {
    let mut expanded: Vec<Vec<GlobToken>> = vec![Vec::new()];
    for token in tokens {
        let GlobToken::Alternatives(branches) = token else {
            expanded.iter_mut().for_each(|tokens| tokens.push(token.clone()));
            continue;
        };
        let mut choices: Vec<Vec<GlobToken>> = Vec::new();
        for branch in branches {
            choices.extend(expand_braces(branch)?);
        }
        let size = |lists: &[Vec<GlobToken>]| lists.iter().map(Vec::len).sum::<usize>();
        let combined_size = size(&expanded) * choices.len() + size(&choices) * expanded.len();
        if expanded.len() * choices.len() > MAX_ALTERNATIVES || combined_size > MAX_EXPANDED_TOKENS
        {
            return Err(MANY_ALTERNATIVES);
        }
        let combine = |start: &Vec<GlobToken>| {
            let start = start.clone();
            choices
                .iter()
                .map(move |choice| [start.as_slice(), choice].concat())
                .collect::<Vec<_>>()
        };
        expanded = expanded.iter().flat_map(combine).collect();
    }
    Ok(expanded)
}

/// Returns a text that `globset` reads as `tokens`.
pub(super) fn token_text(tokens: &[GlobToken]) -> String {
    let mut text = String::new();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            GlobToken::Character(character) => {
                if "\\*?[]{},".contains(*character) {
                    text.push('\\');
                }
                text.push(*character);
            }
            GlobToken::AnyCharacter => text.push('?'),
            // Leave out the second of two `*`, because `globset` would give `**` a meaning of its
            // own.
            GlobToken::AnyText if at > 0 && tokens[at - 1] == GlobToken::AnyText => {}
            GlobToken::AnyText => text.push('*'),
            GlobToken::Class(class) => text.push_str(&class.text),
            GlobToken::Separator => text.push('/'),
            GlobToken::AnyDepth { .. } => text.push_str("**"),
            GlobToken::Alternatives(branches) => {
                let branches: Vec<String> =
                    branches.iter().map(|branch| token_text(branch)).collect();
                text.push_str(&format!("{{{}}}", branches.join(",")));
            }
        }
    }
    text
}

struct GlobParser<'t> {
    text: &'t str,
    /// Number of bytes that were read so far.
    at: usize,
}

impl GlobParser<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += character.len_utf8();
        Some(character)
    }

    /// Parses tokens up to the end of the text or, inside braces, up to the next `,` or `}` of the
    /// group.
    fn parse_sequence(&mut self, depth: usize) -> Result<Vec<GlobToken>, PatternRefusal> {
        let mut tokens = Vec::new();
        while let Some(character) = self.peek() {
            if depth > 0 && matches!(character, ',' | '}') {
                return Ok(tokens);
            }
            let start = self.at;
            self.next();
            match character {
                '/' => tokens.push(GlobToken::Separator),
                '?' => tokens.push(GlobToken::AnyCharacter),
                '*' if self.peek() == Some('*') => {
                    self.next();
                    let read = self.read_double_star(start, &tokens, depth)?;
                    tokens.extend(read);
                }
                '*' => tokens.push(GlobToken::AnyText),
                '[' => tokens.push(self.parse_class(start)?),
                '{' => tokens.push(self.parse_alternatives(depth + 1)?),
                '}' => return Err(UNOPENED_BRACES),
                '\\' => match self.next() {
                    None => return Err(DANGLING_ESCAPE),
                    Some('/') => tokens.push(GlobToken::Separator),
                    Some(escaped) => tokens.push(GlobToken::Character(escaped)),
                },
                other => tokens.push(GlobToken::Character(other)),
            }
        }
        if depth > 0 { Err(UNCLOSED_BRACES) } else { Ok(tokens) }
    }

    fn parse_alternatives(&mut self, depth: usize) -> Result<GlobToken, PatternRefusal> {
        if depth > MAX_BRACE_DEPTH {
            return Err(DEEP_BRACES);
        }
        let mut branches = Vec::new();
        loop {
            branches.push(self.parse_sequence(depth)?);
            if self.next() == Some('}') {
                return Ok(GlobToken::Alternatives(branches));
            }
        }
    }

    /// Returns the tokens for the `**` that begins at `start`, as `globset` reads it. `before`
    /// holds the tokens before the `**` in the same alternative.
    ///
    /// `globset` looks at the characters on both sides of the `**`, not at the alternatives that
    /// result. `globset` takes an escaped comma for the beginning of an alternative. `globset` also
    /// reads `**/**` as `**/` if `**/**` is a whole alternative. Patterns with either ambiguity are
    /// refused.
    fn read_double_star(
        &self,
        start: usize,
        before: &[GlobToken],
        depth: usize,
    ) -> Result<Vec<GlobToken>, PatternRefusal> {
        let previous = self.text[..start].chars().next_back();
        let next = self.peek();
        let is_end = next.is_none() || depth > 0 && matches!(next, Some(',' | '}'));
        let is_after_depth = matches!(before.first(), Some(GlobToken::AnyDepth { .. }))
            && before
                .iter()
                .all(|token| matches!(token, GlobToken::AnyDepth { .. } | GlobToken::Separator));
        let is_any_depth = match previous {
            _ if before.is_empty() => matches!(next, None | Some('/')),
            Some('/') if depth > 0 && is_end && is_after_depth => return Err(UNCLEAR_DOUBLE_STAR),
            Some('/') => is_end || next == Some('/'),
            Some(',' | '{') if depth > 0 => return Err(UNCLEAR_DOUBLE_STAR),
            _ => false,
        };
        let as_text = vec![GlobToken::AnyText, GlobToken::AnyText];
        Ok(if is_any_depth { vec![GlobToken::AnyDepth { is_end }] } else { as_text })
    }

    /// Parses a class. A class has no escapes, and a `]` or `-` that comes first is a member.
    fn parse_class(&mut self, start: usize) -> Result<GlobToken, PatternRefusal> {
        let is_negated = matches!(self.peek(), Some('!' | '^'));
        if is_negated {
            self.next();
        }
        let mut ranges: Vec<(char, char)> = Vec::new();
        let mut is_in_range = false;
        loop {
            match self.next().ok_or(UNCLOSED_CLASS)? {
                ']' if !ranges.is_empty() => break,
                '-' if !ranges.is_empty() && !is_in_range => is_in_range = true,
                member => match ranges.last_mut().filter(|_| is_in_range) {
                    Some(range) => {
                        range.1 = member;
                        is_in_range = false;
                    }
                    None => ranges.push((member, member)),
                },
            }
        }
        if is_in_range {
            ranges.push(('-', '-'));
        }
        if ranges.iter().any(|(first, last)| (*first..=*last).contains(&'/')) {
            return Err(SLASH_IN_CLASS);
        }
        Ok(match ranges.as_slice() {
            [(first, last)] if first == last && !is_negated => GlobToken::Character(*first),
            _ => GlobToken::Class(CharacterClass {
                text: self.text[start..self.at].to_owned(),
                is_negated,
                ranges,
            }),
        })
    }
}
