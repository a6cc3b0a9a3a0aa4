//! Paths on the host. A sandbox can plant links in its workspace, so no link is followed below the
//! workspace.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_core::workspace::remove_dots;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use crate::Host;

/// The host's file system, of which the sandbox can write a part.
#[derive(Debug, Clone, Default)]
pub(in crate::session) struct HostFiles {
    /// Workspace of the sandbox, as a path without links.
    workspace: Option<Arc<Path>>,
}

impl HostFiles {
    pub(in crate::session) fn with_workspace(workspace: &Path) -> HostFiles {
        HostFiles { workspace: Some(workspace.into()) }
    }

    /// Opens the file or directory at a path.
    pub(super) fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        // A path through the workspace may lead out again. Then `..` is removed by name, because a
        // planted link would otherwise decide where `..` leads.
        let path = if self.shared(&std::path::absolute(path)?).is_some() {
            remove_dots(&std::path::absolute(path)?)
        } else {
            path.to_owned()
        };
        let Some((workspace, rest)) = self.shared(&path) else {
            return Ok(openat(CWD, &path, flags, Mode::empty())?);
        };
        let directory = openat(
            CWD,
            workspace,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let within =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(directory, rest, flags, Mode::empty(), within)?)
    }

    /// Returns the workspace and the part of an absolute path below it, even if the path reaches
    /// the workspace through links.
    fn shared(&self, path: &Path) -> Option<(&Path, PathBuf)> {
        let workspace = self.workspace.as_deref()?;
        let is_workspace = |part: &&Path| Host::resolve(part).is_ok_and(|real| real == workspace);
        let top = path.ancestors().filter(|part| part.is_absolute()).find(is_workspace)?;
        let rest = path.strip_prefix(top).ok()?;
        Some((workspace, if rest.as_os_str().is_empty() { ".".into() } else { rest.into() }))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn links_of_the_workspace_are_not_followed_and_those_of_others_are() {
        let place = tempfile::tempdir().unwrap();
        let place = fs_err::canonicalize(place.path()).unwrap();
        let (workspace, elsewhere) = (place.join("ws"), place.join("elsewhere"));
        fs_err::create_dir_all(workspace.join("own")).unwrap();
        fs_err::create_dir(&elsewhere).unwrap();
        fs_err::write(elsewhere.join("secret"), "").unwrap();
        fs_err::write(workspace.join("own/file"), "").unwrap();
        symlink(&elsewhere, workspace.join("planted")).unwrap();
        symlink(&workspace, place.join("way")).unwrap();
        let open = |host_files: &HostFiles, path: &str| {
            let opened = host_files.open(&place.join(path), OFlags::PATH);
            opened.map(drop).map_err(|error| Errno::from_io_error(&error))
        };
        let with = HostFiles::with_workspace(&workspace);
        for path in
            ["ws/planted/secret", "way/planted/secret", "ws/planted/", "ws/own/../planted/secret"]
        {
            assert_eq!(open(&HostFiles::default(), path), Ok(()), "{path}");
            assert_eq!(open(&with, path), Err(Some(Errno::LOOP)), "{path}");
        }
        for path in [
            "ws",
            "ws/.",
            "ws/own/file",
            "way/own/file",
            "way",
            "elsewhere/secret",
            "ws/../elsewhere/secret",
        ] {
            assert_eq!(open(&with, path), Ok(()), "{path}");
        }
        // The path does not lead to the siblings of the link's target.
        assert_eq!(open(&with, "ws/planted/../own/file"), Ok(()));
        assert_eq!(open(&HostFiles::default(), "ws/planted/../own/file"), Err(Some(Errno::NOENT)));
    }
}
