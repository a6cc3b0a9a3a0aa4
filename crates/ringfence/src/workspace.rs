//! The workspace of a run, found and checked.

use std::io;
use std::path::PathBuf;

use ringfence_core::policy::{Policy, Workspace};
use ringfence_core::workspace::{Rules, WorkspaceRefusal, validate};

use ringfence_linux::Access;

use crate::Host;
use crate::backends::PrivateDirectory;
use crate::granted::{GrantError, GrantedPath, Grants};

/// A workspace that exists and that the rules allow, and the other paths that its policy gives to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedWorkspace {
    /// As it was given, made absolute.
    pub given: PathBuf,
    /// Where it really is on the host: no component is a symbolic link.
    pub source: PathBuf,
    /// Where it is inside.
    pub destination: PathBuf,
    /// The paths of `read` and `write`.
    pub(crate) granted: Vec<GrantedPath>,
}

/// A directory cannot be a workspace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// It is not there, or cannot be reached.
    #[error("cannot find the workspace `{path}`")]
    Missing {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a directory.
    #[error("cannot use `{path}` as a workspace: it is not a directory")]
    NotADirectory {
        /// Which.
        path: PathBuf,
    },
    /// Its path is not text, and a sandbox that stays is to have it.
    #[error("cannot keep a sandbox for the workspace `{path}`: its path is not UTF-8, and a guest takes no other")]
    NotText {
        /// Which.
        path: PathBuf,
    },
    /// It is nothing that a sandbox may have.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// A rule forbids it.
    #[error(transparent)]
    Refused {
        /// Which rule.
        #[from]
        source: WorkspaceRefusal,
    },
}

impl WorkspaceError {
    /// The next thing to do.
    pub fn hint(&self) -> String {
        match self {
            WorkspaceError::Missing { path, .. } => format!("create it: mkdir -p '{}'", path.display()),
            WorkspaceError::NotADirectory { .. } => "name the directory that holds it".to_owned(),
            WorkspaceError::NotText { .. } => {
                "rename the directory; or, for one command: ringfence run --backend native -- COMMAND".to_owned()
            }
            WorkspaceError::Grant(error) => error.hint(),
            WorkspaceError::Refused { source } => source.hint(),
        }
    }
}

/// Finds the workspace that `policy` names and checks it, as given and as resolved.
pub(crate) fn resolve(
    policy: &Policy,
    host: &Host,
    rules: &Rules,
    grants: &Grants,
) -> Result<ResolvedWorkspace, WorkspaceError> {
    let named = policy.filesystem.workspace.clone().unwrap_or_else(|| Workspace::at("."));
    let given = host.absolute(&named.source);
    let source = Host::resolve(&given).map_err(|source| WorkspaceError::Missing { path: given.clone(), source })?;
    if !source.is_dir() {
        return Err(WorkspaceError::NotADirectory { path: given });
    }
    // The rules are about directories of the user's; one that was made for a run is nobody else's.
    if !PrivateDirectory::holds(&source) {
        validate(&given, &source, rules)?;
    }
    // No exception of the user's opens ringfence's own directories.
    grants.check_workspace(&given, &source)?;
    let destination = named.destination.unwrap_or_else(|| source.clone());
    Ok(ResolvedWorkspace { given, source, destination, granted: Vec::new() })
}

impl ResolvedWorkspace {
    /// Fails unless its path is text, on both sides.
    pub(crate) fn require_text(&self) -> Result<(), WorkspaceError> {
        match [&self.source, &self.destination].into_iter().find(|path| path.to_str().is_none()) {
            Some(path) => Err(WorkspaceError::NotText { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// Tells whether the sandbox may write to a path of the host that has no links in it.
    pub(crate) fn may_write(&self, path: &std::path::Path) -> bool {
        let granted = self.granted.iter().filter(|granted| granted.access == Access::Write);
        granted.map(|granted| &granted.source).chain([&self.source]).any(|tree| path.starts_with(tree))
    }

    /// Where a command that is started at `directory` of the host starts inside; the workspace itself when
    /// that directory is not in it.
    pub(crate) fn directory_inside(&self, directory: &std::path::Path) -> PathBuf {
        match directory.strip_prefix(&self.source) {
            Ok(rest) if !rest.as_os_str().is_empty() => self.destination.join(rest),
            _ => self.destination.clone(),
        }
    }
}
