//! Cache of kernels and root file systems in target/kernels, named after their inputs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::test::engines::remove_left_behind;
use crate::workspace::{Workspace, find_program, output_of, run as run_command};

/// Prefix of the name of a work directory. The id of the process that uses the directory follows.
const UNFINISHED_PREFIX: &str = "unfinished-";

pub(super) struct ImageCache {
    directory: PathBuf,
    sources: PathBuf,
}

impl ImageCache {
    /// Opens the cache and removes the work directories of interrupted runs.
    pub(super) fn open(workspace: &Workspace) -> Result<Self> {
        let directory = workspace.target.join("kernels");
        fs_err::create_dir_all(&directory)?;
        remove_left_behind(&directory, UNFINISHED_PREFIX)?;
        Ok(Self { directory, sources: workspace.root.join("tests/kernels") })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the directory of the files that images are made from and that machines run.
    pub(super) fn sources(&self) -> &Path {
        &self.sources
    }

    /// Creates a work directory, which is deleted with its files when the value is dropped.
    pub(super) fn work_directory(&self) -> Result<tempfile::TempDir> {
        let prefix = format!("{UNFINISHED_PREFIX}{}-", std::process::id());
        Ok(tempfile::Builder::new().prefix(&prefix).tempdir_in(&self.directory)?)
    }

    /// Returns the file `PREFIX KEY SUFFIX` of the cache, or has `make` create it in a work
    /// directory. Afterwards, removes outdated files, which have the same prefix and another key.
    pub(super) fn provide(
        &self,
        prefix: &str,
        key: &str,
        suffix: &str,
        make: impl FnOnce(&Path) -> Result<PathBuf>,
    ) -> Result<PathBuf> {
        let path = self.directory.join(format!("{prefix}{key}{suffix}"));
        if path.exists() {
            return Ok(path);
        }
        let work = self.work_directory()?;
        let made = make(work.path())?;
        for entry in fs_err::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
                remove(&entry.path())?;
            }
        }
        fs_err::rename(made, &path)?;
        Ok(path)
    }
}

fn remove(path: &Path) -> Result<()> {
    if path.is_dir() {
        fs_err::remove_dir_all(path)?;
    } else {
        fs_err::remove_file(path)?;
    }
    Ok(())
}

/// Makes an ext4 image of a directory, with `spare_megabytes` of free space.
pub(super) fn make_ext4(tree: &Path, image: &Path, spare_megabytes: u64) -> Result<()> {
    let usage = output_of(Command::new("du").args(["--summarize", "--block-size=1M"]).arg(tree))?;
    let used: u64 = usage
        .split_whitespace()
        .next()
        .and_then(|size| size.parse().ok())
        .context("du names no size")?;
    let mke2fs = find_program("mke2fs").context("there is no mke2fs")?;
    let mut command = Command::new(mke2fs);
    command
        .args(["-q", "-t", "ext4", "-O", "^has_journal", "-E", "lazy_itable_init=1", "-d"])
        .arg(tree)
        .arg(image);
    // In a tree of small files, metadata takes up to a quarter more space.
    run_command(command.arg(format!("{}M", used + used / 4 + spare_megabytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(directory: &Path) -> ImageCache {
        ImageCache { directory: directory.to_owned(), sources: PathBuf::new() }
    }

    fn make(text: &'static str) -> impl FnOnce(&Path) -> Result<PathBuf> {
        move |work| {
            let path = work.join("made");
            fs_err::write(&path, text)?;
            Ok(path)
        }
    }

    #[test]
    fn an_image_is_made_once_and_replaced_when_its_key_changes() {
        let directory = tempfile::tempdir().unwrap();
        let cache = cache(directory.path());
        let first = cache.provide("root-a-", "1", ".ext4", make("first")).unwrap();
        let again = cache.provide("root-a-", "1", ".ext4", make("again")).unwrap();
        assert_eq!(first, again);
        assert_eq!(fs_err::read_to_string(&first).unwrap(), "first");

        let other = cache.provide("root-b-", "1", ".ext4", make("other")).unwrap();
        let changed = cache.provide("root-a-", "2", ".ext4", make("changed")).unwrap();
        assert!(!first.exists());
        assert!(other.exists() && changed.exists());
    }

    #[test]
    fn a_failure_leaves_no_image_and_no_work_directory() {
        let directory = tempfile::tempdir().unwrap();
        let failed = cache(directory.path()).provide("root-a-", "1", "", |work| {
            fs_err::write(work.join("half"), "")?;
            anyhow::bail!("the disk is full")
        });
        assert!(failed.is_err());
        assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 0);
    }
}
