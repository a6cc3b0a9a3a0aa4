//! What is run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::{Host, PrepareError};

/// A command to be run in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// A path, or a name that is looked up in the `PATH` inside.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Where it starts, on the host; the caller's own directory when that is in the workspace, else the
    /// workspace.
    pub directory: Option<PathBuf>,
}

impl Command {
    /// A command without arguments.
    pub fn new(program: impl Into<OsString>) -> Command {
        Command { program: program.into(), arguments: Vec::new(), directory: None }
    }

    /// A line for `sh -c`.
    pub fn shell(line: impl Into<OsString>) -> Command {
        Command::new("sh").argument("-c").argument(line)
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Command {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Command {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Starts it in a directory of the workspace.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Command {
        self.directory = Some(directory.into());
        self
    }

    /// The command and its arguments as text, for records.
    pub(crate) fn words(&self) -> Vec<String> {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// The command and its arguments, for a guest: its protocol has no other words than text.
    pub(crate) fn text(&self) -> Result<Vec<String>, PrepareError> {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        let text = |word: &OsString| {
            word.to_str().map(str::to_owned).ok_or_else(|| PrepareError::NotText { word: word.display().to_string() })
        };
        words.map(text).collect()
    }

    /// Where it starts, on the host, when `workspace` is its workspace there.
    pub(crate) fn starting_directory(&self, host: &Host, workspace: &Path) -> PathBuf {
        let wanted = self.directory.as_ref().map_or_else(|| host.directory.clone(), |path| host.absolute(path));
        match fs_err::canonicalize(&wanted) {
            Ok(resolved) if resolved.starts_with(workspace) => resolved,
            _ => workspace.to_path_buf(),
        }
    }
}
