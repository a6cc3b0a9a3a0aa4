//! Names of sandboxes.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Longest name of a sandbox, because it is part of a container's name and of a host name for ssh.
const MAX_NAME_LENGTH: usize = 48;

/// Name of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Error for a text that cannot be the name of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` cannot be a sandbox's name: it is made of a-z, 0-9, `-`, `_` and `.`, begins with a \
     letter or digit, and is {MAX_NAME_LENGTH} long at most"
)]
pub struct NameError {
    given: String,
}

impl Name {
    /// Checks that `given` can be the name of a sandbox, and returns it as a name.
    pub fn new(given: &str) -> Result<Name, NameError> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let begins_well = given.bytes().next().is_some_and(is_plain);
        if begins_well
            && given.len() <= MAX_NAME_LENGTH
            && given.bytes().all(|byte| is_plain(byte) || b"-_.".contains(&byte))
        {
            Ok(Name(given.to_owned()))
        } else {
            Err(NameError { given: given.to_owned() })
        }
    }

    /// Derives a name for a directory's sandbox from the last component of its path. Replaces the
    /// characters that a name cannot have.
    pub fn for_directory(directory: &Path) -> Name {
        let last = directory
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = last.chars().map(plain).collect();
        let name: String =
            name.trim_start_matches(['-', '_', '.']).chars().take(MAX_NAME_LENGTH).collect();
        Name::new(&name).unwrap_or_else(|_| Name("sandbox".to_owned()))
    }

    /// Returns a random name that no other sandbox has.
    pub(crate) fn unique() -> Name {
        Name(format!("run-{}", crate::run::identity()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(given: String) -> Result<Name, NameError> {
        Name::new(&given)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_plain() {
        for good in ["a", "my-project", "0.9_x"] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "..", "A", "a/b", "a b", "ä", &"a".repeat(49)] {
            assert!(Name::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_directorys_name_is_made_plain() {
        let name = |path: &str| Name::for_directory(Path::new(path)).as_str().to_owned();
        assert_eq!(name("/home/u/My Project"), "my-project");
        assert_eq!(name("/home/u/.hidden"), "hidden");
        assert_eq!(name("/"), "sandbox");
        assert_eq!(name("/x/日本"), "sandbox");
    }
}
