//! Host names, folded to the form in which they are compared.

use std::fmt;
use std::str::FromStr;

use idna::AsciiDenyList;
use idna::uts46::{DnsLength, Hyphens, Uts46};

/// A host name in folded form.
///
/// A folded name is in lower case, has labels in other scripts as `xn--…`, has no dot at the end,
/// and is nothing that a resolver would read as an address. Two names are the same name to a
/// resolver exactly if their folded forms are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Box<str>);

impl HostName {
    /// Returns the folded name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the names above this name, the shortest first: `example` and `b.example` for
    /// `a.b.example`.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.rmatch_indices('.').map(|(dot, _)| &self.0[dot + 1..])
    }

    /// Returns `true` if this name lies beneath `parent` and is not `parent` itself.
    pub fn is_beneath(&self, parent: &HostName) -> bool {
        self.0.strip_suffix(parent.as_str()).is_some_and(|front| front.ends_with('.'))
    }

    /// Returns `true` if names beneath this name can have different owners.
    ///
    /// An owner registers such a name, or gets it from a company, as under `github.io`. Both
    /// sections of the public suffix list count.
    pub fn is_public_suffix(&self) -> bool {
        let is_suffix = |name: &str| suffix_section(name).is_some();
        // The list has entries such as `*.kawasaki.jp`. An invented name beneath this name shows
        // whether every name there is a suffix.
        is_suffix(&self.0) || is_suffix(&format!("any-name-at-all.{}", self.0))
    }
}

/// Returns the section of the public suffix list that has the suffix `name`. The section is `None`
/// for a suffix that only the list's default rule makes one. Returns `None` for other names.
///
/// The list is code, which each caller would compile again if this function were inlined.
#[inline(never)]
pub(super) fn suffix_section(name: &str) -> Option<Option<psl::Type>> {
    psl::suffix(name.as_bytes()).filter(|suffix| *suffix == name).map(|suffix| suffix.typ())
}

// Lets a map with `HostName` keys be searched with a part of another name.
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

/// Reason why a text is not a host name.
///
/// The text may come from a sandbox, so the messages escape the characters that steer a terminal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostNameError {
    /// The name is empty, starts with a dot, or has two dots in a row.
    #[error(
        "`{}` has an empty label: write names with single dots between labels",
        .0.escape_debug()
    )]
    EmptyLabel(String),
    /// A label has more than 63 characters, or the name more than 253, in folded form.
    #[error(
        "`{}` is too long: a label has at most 63 characters, a name at most 253",
        .0.escape_debug()
    )]
    TooLong(String),
    /// The folded name has a character that host names cannot have.
    #[error(
        "`{}` has `{}`, which no host name has",
        .name.escape_debug(), .character.escape_debug()
    )]
    Character {
        /// The whole name that was parsed.
        name: String,
        /// First character that is not allowed, in folded form.
        character: char,
    },
    /// The name has characters that names may not have, or an invalid `xn--` label.
    #[error(
        "`{}` is a name in no script: it has characters that names may not have, or a wrong \
         `xn--` label",
        .0.escape_debug()
    )]
    Script(String),
    /// A label starts or ends with a hyphen.
    #[error("`{}` has a label that starts or ends with `-`", .0.escape_debug())]
    Hyphen(String),
    /// The name ends in a number, so that a resolver would read it as an address. Holds the folded
    /// name.
    #[error("`{0}` ends in a number, so that a resolver reads it as an address")]
    Number(String),
}

/// Length in bytes above which a text is refused before it is folded.
///
/// A longer text can fold to a valid name only with many characters that folding removes.
const MAX_WRITTEN_BYTES: usize = 1024;

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_WRITTEN_BYTES {
            return Err(HostNameError::TooLong(text.chars().take(64).chain(['…']).collect()));
        }
        // Lengths, hyphens and ASCII characters are checked below, where the error can name the
        // fault.
        let folded = Uts46::new()
            .to_ascii(text.as_bytes(), AsciiDenyList::EMPTY, Hyphens::Allow, DnsLength::Ignore)
            .map_err(|_| HostNameError::Script(text.to_owned()))?;
        let name = folded.strip_suffix('.').unwrap_or(&folded);
        for label in name.split('.') {
            if label.is_empty() {
                return Err(HostNameError::EmptyLabel(text.to_owned()));
            }
            if let Some(character) = label.chars().find(|character| !is_host_character(*character))
            {
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

/// Returns `true` for letters, digits and hyphens, and for the underscore that some real names
/// have.
fn is_host_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

crate::policy::text::serde_as_text!(HostName, "the name of a host, such as `example.org`");

#[cfg(test)]
mod tests;
