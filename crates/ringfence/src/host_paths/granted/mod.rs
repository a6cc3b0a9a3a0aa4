//! Paths that no policy may give to a sandbox: ringfence's own files, and the sockets of container
//! engines.
//!
//! Code that can write ringfence's settings can have commands run on the host, and code that
//! reaches the sockets in the state directory controls every other sandbox. So each grant (the
//! workspace, and each path of `read` and `write`) is compared with these places in both
//! directions. A grant may neither lie in such a place nor contain one, under any name of either.

mod engine_sockets;
mod location;
mod reserved;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ringfence_core::Policy;
use ringfence_linux::Access;

use crate::backends::PrivateDirectory;
use crate::host_paths::workspace::ResolvedWorkspace;
use crate::{Host, ViewError};
use location::FollowedPath;
pub(crate) use location::MountTable;
use reserved::{ReservedKind, ReservedPath, file_identity};

/// Reason why a path cannot be given to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The path is, contains or lies in one of ringfence's own files or directories.
    #[error("cannot give `{path}` to a sandbox: it is, holds or lies in `{own}`, {what}")]
    Own {
        /// Path that was to be given.
        path: PathBuf,
        /// Directory or file of ringfence's.
        own: PathBuf,
        /// Ringfence's use of the directory or file.
        what: &'static str,
    },
    /// The path is or contains the socket of a container engine.
    #[error(
        "cannot show `{path}` inside: it is, or holds, the socket `{socket}` of a container engine"
    )]
    EngineSocket {
        /// Path that was to be given.
        path: PathBuf,
        /// Path of the socket.
        socket: PathBuf,
    },
    /// A link on the way to the path was changed while ringfence followed it.
    #[error("cannot give `{path}` to a sandbox: a link on the way to it was changed just now")]
    Changed {
        /// Path that was to be given.
        path: PathBuf,
    },
    /// A link on the way to the path lies where a sandbox can change it.
    #[error(
        "cannot give `{path}` to a sandbox: the link `{link}` on the way to it can be changed by \
         code in a sandbox"
    )]
    ChangeableLink {
        /// Path that was to be given.
        path: PathBuf,
        /// Path of the link.
        link: PathBuf,
    },
}

impl GrantError {
    /// Returns the next thing for the user to do.
    pub fn hint(&self) -> String {
        match self {
            GrantError::Own { .. } => {
                "name a directory that holds nothing of ringfence's, or keep ringfence's own \
                                       elsewhere: XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_CACHE_HOME"
                    .to_owned()
            }
            GrantError::EngineSocket { .. } => {
                "name paths beside it: code that reaches that socket has the rights of the \
                 engine's user on the host"
                    .to_owned()
            }
            GrantError::Changed { .. } => {
                "look for a sandbox that changes it, `ringfence ps`, then try again".to_owned()
            }
            GrantError::ChangeableLink { path, .. } => {
                let leads = Host::resolve(path).unwrap_or_else(|_| path.clone());
                format!("name the path that the link leads to, such as `{}`", leads.display())
            }
        }
    }
}

/// Returns the path that an absolute path leads to, without links. Components that do not exist are
/// taken as plain names.
pub(crate) fn without_links(path: &Path) -> PathBuf {
    FollowedPath::follow(path).end
}

/// Use that a sandbox makes of a granted path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GrantUse {
    Workspace,
    Named(Access),
}

/// Path of `read` or `write` that was followed once and checked.
///
/// Code in another sandbox may change links while a sandbox is started. Therefore `given` must not
/// be followed again: to mount this path, open `source` without following links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GrantedPath {
    /// Absolute form of the path that the policy names, which is also the path in the sandbox.
    pub(crate) given: PathBuf,
    /// Path on the host that `given` led to, without links.
    pub(crate) source: PathBuf,
    pub(crate) access: Access,
}

/// Reserved places that grants are compared with, as they are on the host at this moment.
#[derive(Debug)]
pub(crate) struct Grants {
    locations: MountTable,
    reserved: Vec<ReservedPath>,
}

impl Grants {
    /// Reads the reserved places and the mounts of the host.
    pub(crate) fn on(host: &Host) -> Grants {
        let locations = MountTable::read();
        let reserved = ReservedPath::all(host, &locations);
        Grants { locations, reserved }
    }

    /// Returns the mounts of the host, as they were when the reserved places were read.
    pub(crate) fn locations(&self) -> &MountTable {
        &self.locations
    }

    /// Refuses a workspace that is given as `given` and lies at `resolved`, if the workspace
    /// touches a reserved place.
    pub(crate) fn check_workspace(&self, given: &Path, resolved: &Path) -> Result<(), GrantError> {
        self.check(given, resolved, GrantUse::Workspace)
    }

    /// Refuses a path that a sandbox would get beside its workspace, if the path touches a reserved
    /// place.
    pub(crate) fn check_path(
        &self,
        given: &Path,
        resolved: &Path,
        access: Access,
    ) -> Result<(), GrantError> {
        self.check(given, resolved, GrantUse::Named(access))
    }

    /// Follows and checks the paths that `policy` names beside the workspace.
    pub(crate) fn grant_paths(
        &self,
        policy: &Policy,
        host: &Host,
        workspace: &ResolvedWorkspace,
    ) -> Result<Vec<GrantedPath>, ViewError> {
        let files = &policy.filesystem;
        let read = files.read.iter().flatten().map(|path| ("read", path, Access::Read));
        let write = files.write.iter().flatten().map(|path| ("write", path, Access::Write));
        let followed = FollowedPath::follow(&workspace.given);
        if followed.end != workspace.source {
            return Err(GrantError::Changed { path: workspace.given.clone() }.into());
        }
        let mut links = vec![(workspace.given.clone(), followed.links)];
        let mut granted = Vec::new();
        for (key, path, access) in read.chain(write) {
            let given = host.absolute(path);
            let followed = FollowedPath::follow_existing(&given)
                .map_err(|source| ViewError::Missing { path: given.clone(), key, source })?;
            self.check_path(&given, &followed.end, access)?;
            links.push((given.clone(), followed.links));
            granted.push(GrantedPath { given, source: followed.end, access });
        }
        let written = granted.iter().filter(|granted| granted.access == Access::Write);
        let writable: Vec<&PathBuf> =
            written.map(|granted| &granted.source).chain([&workspace.source]).collect();
        let is_changeable = |link: &PathBuf| writable.iter().any(|own| link.starts_with(own));
        for (path, links) in links {
            if let Some(link) = links.into_iter().find(is_changeable) {
                return Err(GrantError::ChangeableLink { path, link }.into());
            }
        }
        Ok(granted)
    }

    fn check(&self, given: &Path, resolved: &Path, used: GrantUse) -> Result<(), GrantError> {
        let names = self.locations.names(BTreeSet::from([given, resolved]));
        let file = file_identity(resolved);
        for reserved in self.reserved.iter().filter(|reserved| reserved.forbids(used)) {
            if file.is_some_and(|file| reserved.has_file(file)) || reserved.touches(&names) {
                if self.is_exempt(reserved, resolved, &names, used) {
                    continue;
                }
                return Err(reserved.refusal(given.to_path_buf()));
            }
        }
        Ok(())
    }

    /// Tells whether a grant lies in a place of ringfence's that was made to be given: the
    /// directory of one run of this process, or the workspace that `ringfence serve` made for one
    /// of its sandboxes.
    fn is_exempt(
        &self,
        reserved: &ReservedPath,
        resolved: &Path,
        names: &location::PathNames,
        used: GrantUse,
    ) -> bool {
        let lies_in_it = reserved.holds(names);
        lies_in_it
            && match reserved.kind {
                ReservedKind::Temporary => PrivateDirectory::holds(resolved),
                ReservedKind::State => {
                    used == GrantUse::Workspace && resolved.parent() == Some(&reserved.workspaces())
                }
                _ => false,
            }
    }
}
