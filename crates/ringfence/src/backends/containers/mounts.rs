//! Mounts of a container: the workspace, the paths that the policy names, and the files that the
//! guest needs.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ringfence_linux::{Access, Entry, View};
use rustix::fs::{FlockOperation, fcntl_lock};

use super::error::ContainerFailure;
use super::identity::ContainerIdentity;
use super::{GUEST_INSIDE, HANDOVER_INSIDE, LEASH_INSIDE, OWN_INSIDE, SandboxPaths};
use crate::ResolvedWorkspace;
use crate::backends::mounted::{on_host, uncovered};
use crate::egress::LoadedCredentials;
use crate::host_paths::granted::GrantedPath;
use crate::view::{self, Guarded, ViewError};

/// Bind mount of a host path at a path in the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerBind {
    pub(super) source: PathBuf,
    pub(super) target: PathBuf,
    pub(super) access: Access,
    /// `true` if the source belongs to the caller. Owners of such files are translated where the
    /// identities differ.
    pub(super) is_callers: bool,
}

impl ContainerBind {
    /// Returns a read-only bind of one of ringfence's own files.
    pub(super) fn own_file(
        source: impl Into<PathBuf>,
        target: impl Into<PathBuf>,
    ) -> ContainerBind {
        ContainerBind {
            source: source.into(),
            target: target.into(),
            access: Access::Read,
            is_callers: false,
        }
    }
}

/// Ringfence's own files that are mounted in containers.
#[derive(Debug)]
pub(super) struct OwnFiles {
    pub(super) passwd: PathBuf,
    pub(super) groups: PathBuf,
    /// File that covers hidden files.
    cover: PathBuf,
    /// Directory that covers hidden directories.
    cover_directory: PathBuf,
    /// File with the seccomp filter.
    pub(super) filter: PathBuf,
    /// File that this process keeps locked as long as the container is wanted.
    pub(super) leash: PathBuf,
    /// Socket at which the guest receives its listening socket. This socket is created shortly
    /// before the container.
    pub(super) handover: PathBuf,
}

impl OwnFiles {
    /// Returns the paths of the files in their directory.
    fn in_directory(directory: &Path) -> OwnFiles {
        let at = |name: &str| directory.join(name);
        OwnFiles {
            passwd: at("passwd"),
            groups: at("group"),
            cover: at("cover"),
            cover_directory: at("cover.d"),
            filter: at("seccomp.json"),
            leash: at("leash"),
            handover: at("handover"),
        }
    }

    /// Writes all files but the handover socket.
    pub(super) fn write(
        paths: &SandboxPaths,
        identity: &ContainerIdentity,
        shell: &str,
        filter: &str,
    ) -> Result<OwnFiles, ContainerFailure> {
        let directory = paths.directory.join("container");
        let files = OwnFiles::in_directory(&directory);
        let write = || {
            fs_err::create_dir_all(&directory)?;
            for (path, contents, mode) in [
                (&files.passwd, identity.passwd(shell), 0o644),
                (&files.groups, identity.groups(), 0o644),
                (&files.filter, filter.to_owned(), 0o644),
                (&files.cover, String::new(), 0o000),
                (&files.leash, String::new(), 0o644),
            ] {
                fs_err::write(path, contents)?;
                fs_err::set_permissions(path, PermissionsExt::from_mode(mode))?;
            }
            fs_err::create_dir_all(&files.cover_directory)?;
            fs_err::set_permissions(&files.cover_directory, PermissionsExt::from_mode(0o000))
        };
        write().map_err(|source| ContainerFailure::Files {
            what: "write the files that the container is shown",
            source,
        })?;
        Ok(files)
    }

    /// Locks the leash for this process. When this process ends, in whatever way, the kernel
    /// releases the lock, and the first process of the container ends, too.
    ///
    /// The leash must not be opened again by this process, because closing any descriptor of the
    /// file releases the lock (fcntl_locking(2)).
    pub(super) fn hold_leash(&self) -> Result<fs_err::File, ContainerFailure> {
        let hold = || {
            let leash = fs_err::OpenOptions::new().write(true).open(&self.leash)?;
            fcntl_lock(&leash, FlockOperation::NonBlockingLockExclusive)?;
            Ok(leash)
        };
        hold().map_err(|source| ContainerFailure::Files {
            what: "lock the leash of the container",
            source,
        })
    }
}

/// Returns the part of the host's file system that a policy shows, in mount order: shallow before
/// deep, guards last.
pub(super) fn view(
    workspace: &ResolvedWorkspace,
    guarded: &Guarded,
) -> Result<View, ContainerFailure> {
    let mut binds: BTreeMap<PathBuf, Entry> = BTreeMap::new();
    for GrantedPath { given, source, access } in &workspace.granted {
        for path in [given, source] {
            if is_reserved(path) {
                return Err(ViewError::Reserved { path: path.to_path_buf() }.into());
            }
        }
        // The mount point would have to be created in the workspace, among the host's files.
        if given.starts_with(&workspace.destination) || workspace.destination.starts_with(given) {
            return Err(ContainerFailure::InWorkspace { path: given.clone() });
        }
        let (source, destination) = (source.clone(), given.clone());
        binds.insert(given.clone(), Entry::Bind { source, destination, access: *access });
    }
    if is_reserved(&workspace.destination) {
        return Err(ViewError::Reserved { path: workspace.destination.clone() }.into());
    }
    let (source, destination) = (workspace.source.clone(), workspace.destination.clone());
    binds.insert(destination.clone(), Entry::Bind { source, destination, access: Access::Write });
    let mut entries: Vec<Entry> = binds.into_values().collect();
    entries.extend(view::guards(guarded, &entries));
    Ok(uncovered(View { entries }))
}

/// Tells whether a path in the container is reserved for the container itself.
fn is_reserved(path: &Path) -> bool {
    let own = ["/proc", "/dev", "/sys", OWN_INSIDE, "/etc/passwd", "/etc/group"];
    path == Path::new("/")
        || path == Path::new("/etc")
        || own.iter().any(|own| path.starts_with(own))
}

/// Returns the mounts that make up a view, and the mounts that the guest needs.
pub(super) fn binds(view: &View, paths: &SandboxPaths, files: &OwnFiles) -> Vec<ContainerBind> {
    let callers = |source, target: &Path, access| ContainerBind {
        source,
        target: target.into(),
        access,
        is_callers: true,
    };
    let mut binds = Vec::new();
    for entry in &view.entries {
        match entry {
            Entry::Bind { source, destination, access } => {
                binds.push(callers(source.clone(), destination, *access));
            }
            Entry::Pin { path } => binds.push(callers(on_host(view, path), path, Access::Write)),
            Entry::Protect { path } => binds.push(callers(on_host(view, path), path, Access::Read)),
            Entry::Hide { path } => {
                let cover = if on_host(view, path).is_dir() {
                    &files.cover_directory
                } else {
                    &files.cover
                };
                binds.push(ContainerBind::own_file(cover, path));
            }
            Entry::Directory { .. }
            | Entry::Symlink { .. }
            | Entry::File { .. }
            | Entry::Scratch { .. } => {}
        }
    }
    // Engines make only the top mount of a tree read-only, so mounts below it must be listed, too.
    let mounted = mount_points();
    let below: Vec<ContainerBind> = binds
        .iter()
        .filter(|bind| bind.access == Access::Read && bind.is_callers)
        .flat_map(|top| {
            let inner = mounted
                .iter()
                .filter_map(|point| Some((point, point.strip_prefix(&top.source).ok()?)));
            inner.filter(|(_, rest)| !rest.as_os_str().is_empty()).map(|(point, rest)| {
                ContainerBind {
                    source: point.clone(),
                    target: top.target.join(rest),
                    ..top.clone()
                }
            })
        })
        .collect();
    for bind in below {
        if binds.iter().all(|known| known.target != bind.target) {
            binds.push(bind);
        }
    }
    binds.extend([
        ContainerBind::own_file(&paths.guest, GUEST_INSIDE),
        ContainerBind::own_file(&files.handover, HANDOVER_INSIDE),
        ContainerBind::own_file(&files.leash, LEASH_INSIDE),
        ContainerBind::own_file(&files.passwd, "/etc/passwd"),
        ContainerBind::own_file(&files.groups, "/etc/group"),
    ]);
    binds.sort_by_key(|bind| bind.target.components().count());
    binds
}

/// Writes the certificates that code inside must trust for the proxy, and returns the mounts for
/// them.
pub(super) fn write_certificates(
    paths: &SandboxPaths,
    credentials: &LoadedCredentials,
) -> Result<Vec<ContainerBind>, ContainerFailure> {
    let directory = paths.directory.join("container");
    let write = |(inside, contents): (&'static str, Vec<u8>)| {
        let target = PathBuf::from(inside);
        let source = directory.join(target.file_name().unwrap_or_default());
        fs_err::write(&source, contents)?;
        fs_err::set_permissions(&source, PermissionsExt::from_mode(0o644))?;
        Ok(ContainerBind::own_file(source, target))
    };
    let written = credentials.files().into_iter().map(write).collect::<std::io::Result<_>>();
    written.map_err(|source| ContainerFailure::Files {
        what: "write the certificates for the container",
        source,
    })
}

/// Returns the mount points of the host (proc(5)).
fn mount_points() -> Vec<PathBuf> {
    let table = fs_err::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let point = |line: &str| line.split(' ').nth(4).map(unescaped);
    table.lines().filter_map(point).map(PathBuf::from).collect()
}

/// Decodes a path of the mount table, in which white space and backslashes are octal.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Host;
    use crate::host_paths::granted::{Grants, MountTable};
    use crate::policy::Policy;

    fn host() -> Host {
        Host::new(BTreeMap::new(), "/".into())
    }

    fn workspace(source: &Path) -> ResolvedWorkspace {
        let (given, destination, granted) = (source.into(), "/workspace".into(), Vec::new());
        ResolvedWorkspace { given, source: source.into(), destination, granted }
    }

    fn granted(policy: &Policy, workspace: &ResolvedWorkspace) -> Vec<GrantedPath> {
        Grants::on(&host()).grant_paths(policy, &host(), workspace).unwrap()
    }

    fn paths(directory: &Path) -> SandboxPaths {
        SandboxPaths {
            name: "test".to_owned(),
            directory: directory.into(),
            channel: directory.join("channel"),
            guest: directory.join("guest"),
            base_directory: directory.into(),
        }
    }

    #[test]
    fn only_the_workspace_what_is_named_and_what_the_guest_needs_is_shown() {
        let root = tempfile::tempdir().unwrap();
        let root = fs_err::canonicalize(root.path()).unwrap();
        for directory in ["ws/.git/hooks", "models", "cache"] {
            fs_err::create_dir_all(root.join(directory)).unwrap();
        }
        fs_err::write(root.join("ws/.env"), "SECRET").unwrap();
        let mut workspace = workspace(&root.join("ws"));
        let policy = Policy::default().read(root.join("models")).write(root.join("cache"));
        workspace.granted = granted(&policy, &workspace);
        let policy = policy.hide(".env".parse().unwrap()).with_defaults();
        let guarded =
            Guarded::find(&policy, &workspace, &host(), &MountTable::default(), &[]).unwrap();
        let view = view(&workspace, &guarded).unwrap();
        let binds = binds(&view, &paths(&root), &OwnFiles::in_directory(&root));
        let find = |target: &str| binds.iter().find(|bind| bind.target == Path::new(target));
        let shown = |target: &str| find(target).map(|bind| (bind.source.clone(), bind.access));
        assert_eq!(shown("/workspace"), Some((root.join("ws"), Access::Write)));
        // The parent must be a mount point, too, or it could be renamed.
        assert_eq!(shown("/workspace/.git"), Some((root.join("ws/.git"), Access::Write)));
        assert_eq!(
            shown("/workspace/.git/hooks"),
            Some((root.join("ws/.git/hooks"), Access::Read))
        );
        assert_eq!(shown("/workspace/.env"), Some((root.join("cover"), Access::Read)));
        let models = root.join("models");
        assert_eq!(shown(models.to_str().unwrap()), Some((models.clone(), Access::Read)));
        let cache = root.join("cache");
        assert_eq!(shown(cache.to_str().unwrap()), Some((cache.clone(), Access::Write)));
        assert_eq!(shown(GUEST_INSIDE), Some((root.join("guest"), Access::Read)));
        assert_eq!(shown(HANDOVER_INSIDE), Some((root.join("handover"), Access::Read)));
        let writable: Vec<&PathBuf> = binds
            .iter()
            .filter(|bind| bind.access == Access::Write && !bind.is_callers)
            .map(|bind| &bind.source)
            .collect();
        assert!(writable.is_empty(), "nothing of ours can be written inside: {writable:?}");
        assert_eq!(shown(LEASH_INSIDE), Some((root.join("leash"), Access::Read)));
        assert_eq!(binds.len(), 11);
    }

    #[test]
    fn paths_that_are_the_containers_own_or_would_be_made_in_the_workspace_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let root = fs_err::canonicalize(root.path()).unwrap();
        let refuse = |policy: Policy, workspace: &ResolvedWorkspace| {
            let workspace =
                ResolvedWorkspace { granted: granted(&policy, workspace), ..workspace.clone() };
            view(&workspace, &Guarded::default()).unwrap_err().to_string()
        };
        let ordinary = workspace(&root);
        let proc = refuse(Policy::default().read("/proc/sys"), &ordinary);
        assert_eq!(proc, "cannot show `/proc/sys` of the host inside: the sandbox has its own");
        let above = ResolvedWorkspace { destination: root.join("inner"), ..ordinary.clone() };
        let inside = refuse(Policy::default().write(&root), &above);
        assert_eq!(
            inside,
            format!("cannot show `{}` inside: the workspace is there", root.display())
        );
        let own = ResolvedWorkspace { destination: "/run/ringfence/x".into(), ..ordinary };
        assert!(refuse(Policy::default(), &own).contains("the sandbox has its own"));
    }

    #[test]
    fn a_mount_tables_paths_are_read_back() {
        assert_eq!(unescaped("/a\\040b\\134c"), "/a b\\c");
        assert!(mount_points().contains(&PathBuf::from("/")));
    }
}
