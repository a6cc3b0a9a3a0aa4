//! Names of hosts, in the one form in which they are compared.

use std::fmt;
use std::str::FromStr;

use idna::AsciiDenyList;
use idna::uts46::{DnsLength, Hyphens, Uts46};

/// The name of a host, folded: lower case, other scripts as `xn--…`, no dot at the end, and nothing that a resolver
/// would read as an address. Two names are the same host to a resolver exactly when they are equal here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Box<str>);

impl HostName {
    /// The folded name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names above this one, the shortest first: of `a.b.example`, `example` and `b.example`.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.rmatch_indices('.').map(|(dot, _)| &self.0[dot + 1..])
    }

    /// Whether this name lies beneath `parent`, and is not `parent` itself.
    pub fn is_beneath(&self, parent: &HostName) -> bool {
        self.0.strip_suffix(parent.as_str()).is_some_and(|front| front.ends_with('.'))
    }

    /// Whether names beneath this one have owners of their own, who registered them or whom a company gave them.
    pub fn is_public_suffix(&self) -> bool {
        let is_suffix = |name: &str| psl::suffix(name.as_bytes()).is_some_and(|suffix| suffix == name);
        // The list has suffixes of the form `*.kawasaki.jp`: whether any name beneath is one, this one shows.
        is_suffix(&self.0) || is_suffix(&format!("any-name-at-all.{}", self.0))
    }
}

// So that a map of names can be asked with a part of another name.
impl std::borrow::Borrow<str> for HostName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text is no name of a host. The text may come from a sandbox, and is shown without what steers a terminal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostNameError {
    /// Two dots in a row, or one in front.
    #[error("`{}` has an empty label: write names with single dots between labels", .0.escape_debug())]
    EmptyLabel(String),
    /// A label or the name is too long.
    #[error("`{}` is too long: a label has at most 63 characters, a name at most 253", .0.escape_debug())]
    TooLong(String),
    /// A character that no host name has.
    #[error("`{}` has `{}`, which no host name has", .name.escape_debug(), .character.escape_debug())]
    Character {
        /// The whole name.
        name: String,
        /// Which.
        character: char,
    },
    /// Characters that stand for no name, or an `xn--` label that stands for none.
    #[error("`{}` is a name in no script: it has characters that names may not have, or a wrong `xn--` label", .0.escape_debug())]
    Script(String),
    /// A hyphen at the edge of a label.
    #[error("`{}` has a label that starts or ends with `-`", .0.escape_debug())]
    Hyphen(String),
    /// A resolver would read it as an address; it is given as folded.
    #[error("`{0}` ends in a number, so that a resolver reads it as an address")]
    Number(String),
}

/// A name that folds to 253 characters is not longer than this, unless somebody plays with characters that vanish.
const LONGEST_WRITTEN: usize = 1024;

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > LONGEST_WRITTEN {
            return Err(HostNameError::TooLong(text.chars().take(64).chain(['…']).collect()));
        }
        // Lengths, hyphens and ASCII are judged below, where the error can name what is wrong.
        let folded = Uts46::new()
            .to_ascii(text.as_bytes(), AsciiDenyList::EMPTY, Hyphens::Allow, DnsLength::Ignore)
            .map_err(|_| HostNameError::Script(text.to_owned()))?;
        let name = folded.strip_suffix('.').unwrap_or(&folded);
        for label in name.split('.') {
            if label.is_empty() {
                return Err(HostNameError::EmptyLabel(text.to_owned()));
            }
            if let Some(character) = label.chars().find(|character| !is_host_character(*character)) {
                return Err(HostNameError::Character { name: text.to_owned(), character });
            }
            if label.starts_with('-') || label.ends_with('-') {
                return Err(HostNameError::Hyphen(text.to_owned()));
            }
            if label.len() > 63 || name.len() > 253 {
                return Err(HostNameError::TooLong(text.to_owned()));
            }
        }
        // A resolver reads `10.1` and `0x7f.1` as addresses, so no name may end in a number.
        let last = name.rsplit('.').next().unwrap_or_default();
        if last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(HostNameError::Number(name.to_owned()));
        }
        Ok(HostName(name.into()))
    }
}

/// Letters, digits and hyphens, and the underscore that real names have.
fn is_host_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

crate::policy::text::serde_as_text!(HostName, "the name of a host, such as `example.org`");

#[cfg(test)]
mod tests;
