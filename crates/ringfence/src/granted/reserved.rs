//! The places that are compared with grants: ringfence's own directories, and where container engines listen.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ringfence_linux::Access;

use super::location::{Locations, Names, Trail};
use super::{GrantError, Use};
use crate::Host;
use crate::backends::PrivateDirectory;
use crate::backends::engine::engine_sockets;

/// The workspaces of `ringfence serve`, below the state directory.
const SERVED_WORKSPACES: &str = "server/workspaces";

/// The use that a reserved place has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReservedKind {
    /// The user's settings: commands that they name are run on the host, and variables that they set may be secrets.
    Settings,
    /// The system's settings, which many a host does not have.
    SystemSettings,
    /// Sandboxes with their sockets, keys, wrappers, and all that a server keeps.
    State,
    /// What a host was found to be able to do.
    Cache,
    /// Directories of single runs.
    Temporary,
    /// Whoever reaches it is the engine's user on the host.
    EngineSocket,
}

/// A file, by device and inode.
pub(super) type FileIdentity = (u64, u64);

/// A place that no grant may touch.
#[derive(Debug)]
pub(super) struct Reserved {
    pub(super) kind: ReservedKind,
    path: PathBuf,
    /// The place itself, and the parts of it that are kept elsewhere.
    names: Names,
    /// The links that lead there: whoever can change one of them leads ringfence elsewhere.
    links: Names,
    /// Files, by device and inode, that may have other names.
    files: Vec<FileIdentity>,
}

impl Reserved {
    /// All of a host.
    pub(super) fn all(host: &Host, locations: &Locations) -> Vec<Reserved> {
        let user = [
            (ReservedKind::Settings, "XDG_CONFIG_HOME", ".config"),
            (ReservedKind::State, "XDG_STATE_HOME", ".local/state"),
            (ReservedKind::Cache, "XDG_CACHE_HOME", ".cache"),
        ];
        let mut places: Vec<(ReservedKind, PathBuf)> = Vec::new();
        for (kind, variable, fallback) in user {
            // A later call may have the variable, or may not: both are ringfence's.
            let named = host.own_directory(variable, fallback);
            let usual = host.home.as_ref().map(|home| home.join(fallback).join("ringfence"));
            places.extend(named.into_iter().chain(usual).map(|path| (kind, path)));
        }
        places.dedup();
        places.push((ReservedKind::SystemSettings, crate::settings::SYSTEM_DIRECTORY.into()));
        places.push((ReservedKind::Temporary, PrivateDirectory::base(host.user_id)));
        let sockets = engine_sockets(host).into_iter().filter(|socket| is_socket(socket));
        places.extend(sockets.map(|socket| (ReservedKind::EngineSocket, socket)));
        places.into_iter().map(|(kind, path)| Reserved::at(kind, path, locations)).collect()
    }

    fn at(kind: ReservedKind, path: PathBuf, locations: &Locations) -> Reserved {
        let Trail { mut links, end } = Trail::of(&path);
        let mut parts = BTreeSet::from([path.clone(), end.clone()]);
        let has_files =
            matches!(kind, ReservedKind::Settings | ReservedKind::SystemSettings | ReservedKind::EngineSocket);
        let mut files: Vec<FileIdentity> = Vec::new();
        if kind == ReservedKind::EngineSocket {
            files.extend(file_identity(&end));
        }
        // A part of it may be kept elsewhere: a `config.toml` that is a link into a repository of dotfiles.
        for part in fs_err::read_dir(&end).into_iter().flatten().flatten() {
            if part.file_type().is_ok_and(|kind| kind.is_symlink()) {
                let trail = Trail::of(&part.path());
                links.extend(trail.links);
                parts.insert(trail.end);
            }
            if has_files {
                files.extend(file_identity(&part.path()));
            }
        }
        let names = locations.names(parts.iter().map(PathBuf::as_path));
        let links = locations.names(links.iter().map(PathBuf::as_path));
        Reserved { kind, path, names, links, files }
    }

    /// The directory of the workspaces that a server makes, resolved.
    pub(super) fn workspaces(&self) -> PathBuf {
        Trail::of(&self.path.join(SERVED_WORKSPACES)).end
    }

    /// Whether a grant for this use may not touch it.
    pub(super) fn forbids(&self, used: Use) -> bool {
        match (self.kind, used) {
            (ReservedKind::Cache, Use::Named(Access::Read)) => false,
            // `/etc` holds little that is secret on a host without it.
            (ReservedKind::SystemSettings, Use::Named(Access::Read)) => self.path.exists(),
            _ => true,
        }
    }

    /// Whether a grant holds it, a part of it or a link to it, or lies in it.
    pub(super) fn touches(&self, grant: &Names) -> bool {
        self.names.lie_in(grant) || self.links.lie_in(grant) || self.holds(grant)
    }

    /// Whether a grant lies in it.
    pub(super) fn holds(&self, grant: &Names) -> bool {
        grant.lie_in(&self.names)
    }

    /// Whether a file is one of its own under another name: a hard link, or a socket that is mounted elsewhere.
    pub(super) fn has_file(&self, file: FileIdentity) -> bool {
        self.files.contains(&file)
    }

    pub(super) fn refusal(&self, path: PathBuf) -> GrantError {
        let own = self.path.clone();
        let what = match self.kind {
            ReservedKind::EngineSocket => return GrantError::EngineSocket { path, socket: own },
            ReservedKind::Settings | ReservedKind::SystemSettings => "where ringfence's own settings are",
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

/// Reads the identity of a file; a directory has no second name, and none is told.
pub(super) fn file_identity(path: &Path) -> Option<FileIdentity> {
    let metadata = fs_err::metadata(path).ok().filter(|metadata| !metadata.is_dir())?;
    Some((metadata.dev(), metadata.ino()))
}
