//! Finds and checks the workspace of a run.

use std::io;
use std::path::PathBuf;

use ringfence_core::policy::{Policy, Workspace};
use ringfence_core::workspace::{WorkspaceRefusal, WorkspaceRules, validate};

use ringfence_linux::Access;

use crate::Host;
use crate::backends::PrivateDirectory;
use crate::host_paths::granted::{GrantError, GrantedPath, Grants};

/// A workspace that exists and that the rules allow, and the other paths that its policy gives to a
/// sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedWorkspace {
    /// The path as it was given, made absolute.
    pub given: PathBuf,
    /// Resolved path on the host, in which no component is a symbolic link.
    pub source: PathBuf,
    /// Path of the workspace inside the sandbox.
    pub destination: PathBuf,
    /// The paths that `read` and `write` of the policy name.
    pub(crate) granted: Vec<GrantedPath>,
}

/// Reason why a directory cannot be a workspace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// The directory does not exist, or cannot be reached.
    #[error("cannot find the workspace `{path}`")]
    Missing {
        /// The path that was given, made absolute.
        path: PathBuf,
        /// Error of resolving the path.
        source: io::Error,
    },
    /// The path is not a directory.
    #[error("cannot use `{path}` as a workspace: it is not a directory")]
    NotADirectory {
        /// The path that was given, made absolute.
        path: PathBuf,
    },
    /// The path is not UTF-8, and a sandbox that stays needs a path in UTF-8.
    #[error(
        "cannot keep a sandbox for the workspace `{path}`: its path is not UTF-8, and a guest \
         takes no other"
    )]
    NotText {
        /// The path that is not UTF-8.
        path: PathBuf,
    },
    /// No sandbox may be given this directory.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// A rule of the settings forbids the directory.
    #[error(transparent)]
    Refused {
        /// The rule that forbids the directory.
        #[from]
        source: WorkspaceRefusal,
    },
}

impl WorkspaceError {
    /// Returns the next step for the user.
    pub fn hint(&self) -> String {
        match self {
            WorkspaceError::Missing { path, .. } => {
                format!("create it: mkdir -p '{}'", path.display())
            }
            WorkspaceError::NotADirectory { .. } => "name the directory that holds it".to_owned(),
            WorkspaceError::NotText { .. } => {
                "rename the directory; or, for one command: ringfence run --backend native -- \
                 COMMAND"
                    .to_owned()
            }
            WorkspaceError::Grant(error) => error.hint(),
            WorkspaceError::Refused { source } => source.hint(),
        }
    }
}

/// Finds the workspace that `policy` names, and checks its given and its resolved path.
pub(crate) fn resolve(
    policy: &Policy,
    host: &Host,
    rules: &WorkspaceRules,
    grants: &Grants,
) -> Result<ResolvedWorkspace, WorkspaceError> {
    let named = policy.filesystem.workspace.clone().unwrap_or_else(|| Workspace::at("."));
    let given = host.absolute(&named.source);
    let source = Host::resolve(&given)
        .map_err(|source| WorkspaceError::Missing { path: given.clone(), source })?;
    if !source.is_dir() {
        return Err(WorkspaceError::NotADirectory { path: given });
    }
    // The rules are about directories of the user. A directory that was made for a run belongs to
    // nobody else.
    if !PrivateDirectory::holds(&source) {
        validate(&given, &source, rules)?;
    }
    // No exception in the user's settings allows ringfence's own directories.
    grants.check_workspace(&given, &source)?;
    let destination = named.destination.unwrap_or_else(|| source.clone());
    Ok(ResolvedWorkspace { given, source, destination, granted: Vec::new() })
}

impl ResolvedWorkspace {
    /// Fails unless the path of the workspace is UTF-8, on the host and inside.
    pub(crate) fn require_text(&self) -> Result<(), WorkspaceError> {
        match [&self.source, &self.destination].into_iter().find(|path| path.to_str().is_none()) {
            Some(path) => Err(WorkspaceError::NotText { path: path.clone() }),
            None => Ok(()),
        }
    }

    /// Tells whether a host path lies in a tree that the sandbox may write to. Parts of that tree
    /// may still be mounted read-only.
    pub(crate) fn is_in_writable_tree(&self, path: &std::path::Path) -> bool {
        let granted = self.granted.iter().filter(|granted| granted.access == Access::Write);
        granted
            .map(|granted| &granted.source)
            .chain([&self.source])
            .any(|tree| path.starts_with(tree))
    }

    /// Returns the directory in the sandbox that corresponds to `directory` on the host, or the
    /// workspace itself if `directory` is not in the workspace.
    pub(crate) fn directory_inside(&self, directory: &std::path::Path) -> PathBuf {
        match directory.strip_prefix(&self.source) {
            Ok(rest) if !rest.as_os_str().is_empty() => self.destination.join(rest),
            _ => self.destination.clone(),
        }
    }
}
