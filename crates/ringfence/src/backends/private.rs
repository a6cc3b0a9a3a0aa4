//! A directory on the host that belongs to one run and goes with it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FileType, Mode, mkdir};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A private directory, removed with its contents when dropped. One that a killed ringfence left is removed
/// by the next.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Makes one below `/tmp/ringfence-<user>`, and removes those whose makers are gone.
    pub(crate) fn create(user_id: u32) -> io::Result<PrivateDirectory> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = PathBuf::from(format!("/tmp/ringfence-{user_id}"));
        let path = base.join(format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        loop {
            make_base(&base, user_id)?;
            sweep(&base);
            match mkdir(&path, Mode::RWXU) {
                Ok(()) => return Ok(PrivateDirectory { path }),
                Err(Errno::NOENT) => {} // another ringfence ended and took the empty base along
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = fs_err::remove_dir_all(&self.path); // the next run sweeps what is left
        if let Some(base) = self.path.parent() {
            let _ = rustix::fs::rmdir(base); // others may be in it
        }
    }
}

/// Makes the directory that all of a user's are in. Somebody else may have made it first: it must be a real
/// directory, the user's own, and closed to others.
fn make_base(base: &Path, user_id: u32) -> io::Result<()> {
    match mkdir(base, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let stat = rustix::fs::lstat(base)?;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if is_directory && stat.st_uid == user_id && stat.st_mode & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!("`{}` is not a private directory of user {user_id}", base.display())))
}

fn sweep(base: &Path) {
    let Ok(entries) = fs_err::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.split('-').next()?.parse().ok()).and_then(Pid::from_raw);
        if maker.is_some_and(|maker| test_kill_process(maker) == Err(Errno::SRCH)) {
            let _ = fs_err::remove_dir_all(entry.path()); // another ringfence may be sweeping, too
        }
    }
}
