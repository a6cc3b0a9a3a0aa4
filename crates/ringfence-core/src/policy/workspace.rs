//! The workspace setting of a policy: a directory on the host and its path inside the sandbox.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// Directory that is writable in the sandbox, in the form `SOURCE` or `SOURCE:DESTINATION`.
///
/// A colon within a path is written as `\:`, and a backslash as `\\`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// Path of the directory on the host.
    pub source: PathBuf,
    /// Absolute path of the directory inside the sandbox; the path on the host when absent.
    pub destination: Option<PathBuf>,
}

impl Workspace {
    /// Creates a workspace that has the same path on the host and inside the sandbox.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Workspace { source: path.into(), destination: None }
    }
}

impl fmt::Display for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(&self.source))?;
        match &self.destination {
            Some(destination) => write!(f, ":{}", escaped(destination)),
            None => Ok(()),
        }
    }
}

fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\\\").replace(':', "\\:")
}

/// Reason why a text does not name a workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// The source is empty.
    #[error("a workspace cannot be empty: write a directory such as `.`")]
    Empty,
    /// The text has more than one colon that is not escaped.
    #[error(
        "`{0}` has more than one `:`: write SOURCE:DESTINATION, and a colon within a path as `\\:`"
    )]
    TooManyParts(String),
    /// The destination is relative or empty.
    #[error(
        "the destination `{0}` is not absolute: write SOURCE:/DESTINATION, and a colon within a \
         path as `\\:`"
    )]
    RelativeDestination(String),
    /// The destination contains `..`.
    #[error("the destination `{0}` contains `..`: write the path it stands for")]
    ParentInDestination(String),
    /// The destination is `/`.
    #[error("the destination cannot be `/`: the workspace would hide everything else")]
    RootDestination,
}

impl FromStr for Workspace {
    type Err = WorkspaceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = split(text).into_iter();
        let source =
            parts.next().filter(|source| !source.is_empty()).ok_or(WorkspaceError::Empty)?;
        let destination = parts.next();
        if parts.next().is_some() {
            return Err(WorkspaceError::TooManyParts(text.to_owned()));
        }
        let destination = destination.map(check_destination).transpose()?;
        Ok(Workspace { source: source.into(), destination })
    }
}

/// Splits the text at each colon that no backslash escapes, and removes the escapes.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let escaped = if character == '\\' {
            characters.next_if(|next| matches!(next, ':' | '\\'))
        } else {
            None
        };
        match (character, escaped) {
            (':', _) => parts.push(String::new()),
            (_, literal) => {
                parts
                    .last_mut()
                    .expect("there is always a first part")
                    .push(literal.unwrap_or(character));
            }
        }
    }
    parts
}

fn check_destination(text: String) -> Result<PathBuf, WorkspaceError> {
    let path = PathBuf::from(&text);
    if !path.is_absolute() {
        return Err(WorkspaceError::RelativeDestination(text));
    }
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(WorkspaceError::ParentInDestination(text));
    }
    if path.parent().is_none() {
        return Err(WorkspaceError::RootDestination);
    }
    Ok(path)
}

crate::policy::text::serde_as_text!(Workspace, "a directory, as `SOURCE` or `SOURCE:DESTINATION`");

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, source: &str, destination: Option<&str>) {
        let workspace: Workspace = text.parse().unwrap();
        assert_eq!(workspace.source, Path::new(source));
        assert_eq!(workspace.destination.as_deref(), destination.map(Path::new));
        assert_eq!(workspace.to_string(), text);
    }

    #[track_caller]
    fn refuse(text: &str, message: &str) {
        assert_eq!(text.parse::<Workspace>().unwrap_err().to_string(), message);
    }

    #[test]
    fn a_workspace_is_a_source_and_perhaps_a_destination() {
        check(".", ".", None);
        check("/srv/app", "/srv/app", None);
        check("src:/work", "src", Some("/work"));
        check(r"/a\:b:/c\:d", "/a:b", Some("/c:d"));
        check(r"/a\\b", r"/a\b", None);
    }

    #[test]
    fn each_wrong_workspace_is_refused_with_its_own_message() {
        refuse("", "a workspace cannot be empty: write a directory such as `.`");
        refuse(":/work", "a workspace cannot be empty: write a directory such as `.`");
        refuse(
            "a:/b:/c",
            "`a:/b:/c` has more than one `:`: write SOURCE:DESTINATION, and a colon within a path \
             as `\\:`",
        );
        let relative =
            "is not absolute: write SOURCE:/DESTINATION, and a colon within a path as `\\:`";
        refuse("a:b", &format!("the destination `b` {relative}"));
        refuse("a:", &format!("the destination `` {relative}"));
        refuse(
            "a:/b/../c",
            "the destination `/b/../c` contains `..`: write the path it stands for",
        );
        refuse("a:/", "the destination cannot be `/`: the workspace would hide everything else");
    }
}
