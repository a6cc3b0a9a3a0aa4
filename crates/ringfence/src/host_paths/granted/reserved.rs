//! Reserved places that grants are compared with: ringfence's own directories, and the sockets of
//! container engines.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ringfence_linux::Access;

use super::engine_sockets::engine_sockets;
use super::location::{FollowedPath, MountTable, PathNames};
use super::{GrantError, GrantUse};
use crate::Host;
use crate::backends::PrivateDirectory;

/// Directory of the workspaces of `ringfence serve`, relative to the state directory.
const SERVED_WORKSPACES: &str = "server/workspaces";

/// Use of a reserved place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReservedKind {
    /// The user's settings. Commands in the settings are run on the host, and variables in the
    /// settings may be secrets.
    Settings,
    /// The system's settings, which many hosts do not have.
    SystemSettings,
    /// The state directory: sandboxes with their sockets, keys, wrappers, and the data of a server.
    State,
    /// Cache of what the host was found to be able to do.
    Cache,
    /// Private directories of single runs.
    Temporary,
    /// Socket of a container engine. Code that reaches the socket has the rights of the engine's
    /// user on the host.
    EngineSocket,
}

/// Device and inode number of a file.
pub(super) type FileIdentity = (u64, u64);

/// Place that no grant may touch.
#[derive(Debug)]
pub(super) struct ReservedPath {
    pub(super) kind: ReservedKind,
    path: PathBuf,
    /// Names of the place itself, and of its parts that are kept elsewhere.
    names: PathNames,
    /// Links that lead to the place. Code that can change such a link can lead ringfence elsewhere.
    links: PathNames,
    /// Files of the place, which may also have other names.
    files: Vec<FileIdentity>,
}

impl ReservedPath {
    /// Returns all reserved places of a host.
    pub(super) fn all(host: &Host, locations: &MountTable) -> Vec<ReservedPath> {
        let user = [
            (ReservedKind::Settings, "XDG_CONFIG_HOME", ".config"),
            (ReservedKind::State, "XDG_STATE_HOME", ".local/state"),
            (ReservedKind::Cache, "XDG_CACHE_HOME", ".cache"),
        ];
        let mut places: Vec<(ReservedKind, PathBuf)> = Vec::new();
        for (kind, variable, fallback) in user {
            // Reserve both paths, because a later call may have the variable set or not.
            let named = host.own_directory(variable, fallback);
            let usual = host.home.as_ref().map(|home| home.join(fallback).join("ringfence"));
            places.extend(named.into_iter().chain(usual).map(|path| (kind, path)));
        }
        places.dedup();
        places.push((ReservedKind::SystemSettings, crate::settings::SYSTEM_DIRECTORY.into()));
        places.push((ReservedKind::Temporary, PrivateDirectory::base(host.user_id)));
        let sockets: BTreeSet<PathBuf> = engine_sockets(host).into_iter().collect();
        let sockets = sockets.into_iter().filter(|socket| is_socket(socket));
        places.extend(sockets.map(|socket| (ReservedKind::EngineSocket, socket)));
        places.into_iter().map(|(kind, path)| ReservedPath::at(kind, path, locations)).collect()
    }

    fn at(kind: ReservedKind, path: PathBuf, locations: &MountTable) -> ReservedPath {
        let FollowedPath { mut links, end } = FollowedPath::follow(&path);
        let mut parts = BTreeSet::from([path.clone(), end.clone()]);
        let has_files = matches!(
            kind,
            ReservedKind::Settings | ReservedKind::SystemSettings | ReservedKind::EngineSocket
        );
        let mut files: Vec<FileIdentity> = Vec::new();
        if kind == ReservedKind::EngineSocket {
            files.extend(file_identity(&end));
        }
        // Parts of the place may be links to elsewhere, such as a `config.toml` in a repository of
        // dotfiles.
        for part in fs_err::read_dir(&end).into_iter().flatten().flatten() {
            if part.file_type().is_ok_and(|kind| kind.is_symlink()) {
                let followed = FollowedPath::follow(&part.path());
                links.extend(followed.links);
                parts.insert(followed.end);
            }
            if has_files {
                files.extend(file_identity(&part.path()));
            }
        }
        let names = locations.names(parts.iter().map(PathBuf::as_path));
        let links = locations.names(links.iter().map(PathBuf::as_path));
        ReservedPath { kind, path, names, links, files }
    }

    /// Returns the resolved directory of the workspaces that a server makes.
    pub(super) fn workspaces(&self) -> PathBuf {
        FollowedPath::follow(&self.path.join(SERVED_WORKSPACES)).end
    }

    /// Tells whether a grant for this use must not touch the place.
    pub(super) fn forbids(&self, used: GrantUse) -> bool {
        match (self.kind, used) {
            (ReservedKind::Cache, GrantUse::Named(Access::Read)) => false,
            // A host without system settings may have `/etc` read, because it then contains none of
            // ringfence's secrets.
            (ReservedKind::SystemSettings, GrantUse::Named(Access::Read)) => self.path.exists(),
            _ => true,
        }
    }

    /// Tells whether a grant contains the place, a part of it or a link to it, or lies in it.
    pub(super) fn touches(&self, grant: &PathNames) -> bool {
        self.names.lies_in(grant) || self.links.lies_in(grant) || self.holds(grant)
    }

    /// Tells whether a grant lies in the place.
    pub(super) fn holds(&self, grant: &PathNames) -> bool {
        grant.lies_in(&self.names)
    }

    /// Tells whether a file belongs to the place under another name, as a hard link or as a socket
    /// that is mounted elsewhere.
    pub(super) fn has_file(&self, file: FileIdentity) -> bool {
        self.files.contains(&file)
    }

    pub(super) fn refusal(&self, path: PathBuf) -> GrantError {
        let own = self.path.clone();
        let what = match self.kind {
            ReservedKind::EngineSocket => return GrantError::EngineSocket { path, socket: own },
            ReservedKind::Settings | ReservedKind::SystemSettings => {
                "where ringfence's own settings are"
            }
            ReservedKind::State => "where ringfence keeps its sandboxes",
            ReservedKind::Cache => "where ringfence notes what this host can enforce",
            ReservedKind::Temporary => "where ringfence keeps the files of single runs",
        };
        GrantError::Own { path, own, what }
    }
}

fn is_socket(path: &Path) -> bool {
    fs_err::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Returns the identity of a file. Returns `None` for a directory, which has no second name.
pub(super) fn file_identity(path: &Path) -> Option<FileIdentity> {
    let metadata = fs_err::metadata(path).ok().filter(|metadata| !metadata.is_dir())?;
    Some((metadata.dev(), metadata.ino()))
}
