//! A directory on the host that belongs to one run and goes with it.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, mkdir};
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
        let base = PathBuf::from(format!("/tmp/ringfence-{user_id}"));
        match mkdir(&base, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // Somebody else may have made it first: it must be a real directory, ours, and closed to others.
        let stat = rustix::fs::lstat(&base)?;
        let is_directory = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory;
        if !is_directory || stat.st_uid != user_id || stat.st_mode & 0o077 != 0 {
            return Err(io::Error::other(format!("`{}` is not a private directory of user {user_id}", base.display())));
        }
        sweep(&base);
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = base.join(format!("{}-{count}", std::process::id()));
        mkdir(&path, Mode::RWXU)?;
        Ok(PrivateDirectory { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = fs_err::remove_dir_all(&self.path); // the next run sweeps what is left
    }
}

fn sweep(base: &Path) {
    let Ok(entries) = fs_err::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.split('-').next()?.parse().ok()).and_then(Pid::from_raw);
        if maker.is_some_and(|maker| test_kill_process(maker) == Err(rustix::io::Errno::SRCH)) {
            let _ = fs_err::remove_dir_all(entry.path()); // another ringfence may be sweeping, too
        }
    }
}
