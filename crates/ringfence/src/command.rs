//! Commands that are run in sandboxes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::{Host, PrepareError};

/// A command to be run in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Path of the program, or a name that is looked up in the `PATH` inside the sandbox.
    pub program: OsString,
    /// Arguments of the program, without its name.
    pub arguments: Vec<OsString>,
    /// Directory in which the command starts, as a path on the host; by default the caller's own
    /// directory. If that directory is not in the workspace, the command starts in the workspace
    /// itself.
    pub directory: Option<PathBuf>,
}

impl Command {
    /// Returns a command without arguments.
    pub fn new(program: impl Into<OsString>) -> Command {
        Command { program: program.into(), arguments: Vec::new(), directory: None }
    }

    /// Returns a command that runs `line` with `sh -c`.
    pub fn shell(line: impl Into<OsString>) -> Command {
        Command::new("sh").argument("-c").argument(line)
    }

    /// Adds one argument.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Command {
        self.arguments.push(argument.into());
        self
    }

    /// Adds several arguments.
    #[must_use]
    pub fn arguments(
        mut self,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Command {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets the directory of the workspace in which the command starts.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Command {
        self.directory = Some(directory.into());
        self
    }

    /// Returns the program and its arguments as text, for records. Replaces invalid UTF-8.
    pub(crate) fn words(&self) -> Vec<String> {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// Returns the program and its arguments for a guest, and fails if one of them is not UTF-8,
    /// because the guest's protocol transfers only text.
    pub(crate) fn text(&self) -> Result<Vec<String>, PrepareError> {
        let words = std::iter::once(&self.program).chain(&self.arguments);
        let text = |word: &OsString| {
            word.to_str()
                .map(str::to_owned)
                .ok_or_else(|| PrepareError::NotText { word: word.display().to_string() })
        };
        words.map(text).collect()
    }

    /// Returns the directory in which the command starts, as a path on the host. `workspace` is the
    /// path of the workspace on the host.
    pub(crate) fn starting_directory(&self, host: &Host, workspace: &Path) -> PathBuf {
        let wanted = self
            .directory
            .as_ref()
            .map_or_else(|| host.directory.clone(), |path| host.absolute(path));
        match fs_err::canonicalize(&wanted) {
            Ok(resolved) if resolved.starts_with(workspace) => resolved,
            _ => workspace.to_path_buf(),
        }
    }
}
