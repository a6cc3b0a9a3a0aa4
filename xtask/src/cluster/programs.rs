//! The built programs of the cluster, in a cache that all checkouts of the machine share.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::go::GoToolchain;
use super::recipes::{ClusterPart, build_part};
use crate::cache::cache_key;
use crate::workspace::{Workspace, files_below};

/// Environment variable that holds the directory of the cache.
const CACHE_VARIABLE: &str = "RINGFENCE_CLUSTER_CACHE";
/// File in the directory of a cluster that names its programs.
const PROGRAMS_FILE: &str = "programs";
const DEFAULT_CACHE: &str = "/var/cache/ringfence-cluster";

/// Returns the directory in which programs of the cluster are kept between runs.
pub(super) fn cache_directory() -> PathBuf {
    std::env::var_os(CACHE_VARIABLE).map_or_else(|| DEFAULT_CACHE.into(), PathBuf::from)
}

/// Directories of the built programs, in the order of PATH.
#[derive(Debug, Clone)]
pub(crate) struct ClusterPrograms(Vec<PathBuf>);

impl ClusterPrograms {
    /// Returns the programs of the required parts and of `optional`, and builds those that are not
    /// in the cache. Go is installed if it is missing and `install` is set.
    pub(super) fn provide(
        workspace: &Workspace,
        optional: &[ClusterPart],
        install: bool,
    ) -> Result<Self> {
        let cache = cache_directory();
        fs_err::create_dir_all(&cache)?;
        // Two runs would build the same parts, and one would remove the caches of the other.
        let lock = fs_err::File::create(cache.join("lock"))?;
        lock.file().lock().with_context(|| format!("cannot lock {}", cache.display()))?;
        let mut go = None;
        let mut directories = Vec::new();
        for part in ClusterPart::REQUIRED.iter().chain(optional).copied() {
            let module = workspace.root.join("tests/cluster").join(part.module());
            let directory = cache.join(format!("{}-{}", part.name(), source_key(part, &module)?));
            if !directory.exists() {
                let go = match &mut go {
                    Some(go) => go,
                    none => none.insert(GoToolchain::find(&cache.join("go"), install)?),
                };
                build(part, go, &module, &directory)?;
            }
            directories.push(directory);
        }
        if let Some(go) = go {
            go.remove_caches()?;
        }
        Ok(Self(directories))
    }

    /// Returns the programs of a cluster that runs.
    pub(super) fn of_running(directory: &Path) -> Result<Self> {
        let path = fs_err::read_to_string(directory.join(PROGRAMS_FILE))?;
        Ok(Self(std::env::split_paths(&path).collect()))
    }

    /// Records the programs in the directory of the cluster that they start.
    pub(super) fn record(&self, directory: &Path) -> Result<()> {
        Ok(fs_err::write(directory.join(PROGRAMS_FILE), self.search_path()?)?)
    }

    /// Returns a value of PATH that finds these programs before those of the machine.
    pub(super) fn search_path(&self) -> Result<String> {
        let path = std::env::join_paths(&self.0)?;
        path.into_string().ok().context("the path of the cache is not text")
    }

    pub(super) fn find(&self, program: &str) -> Option<PathBuf> {
        self.0.iter().map(|directory| directory.join(program)).find(|path| path.exists())
    }
}

fn build(part: ClusterPart, go: &GoToolchain, module: &Path, directory: &Path) -> Result<()> {
    let expected = if part == ClusterPart::Kubernetes { ", 5 to 8 minutes" } else { "" };
    println!("building {} for the cluster of the tests{expected}", part.name());
    let begun = Instant::now();
    let unfinished = directory.with_extension("unfinished");
    if unfinished.exists() {
        fs_err::remove_dir_all(&unfinished)?; // of a build that was interrupted
    }
    fs_err::create_dir(&unfinished)?;
    build_part(part, go, module, &unfinished)?;
    fs_err::rename(&unfinished, directory)?;
    println!("built {} in {:.0} s", part.name(), begun.elapsed().as_secs_f64());
    Ok(())
}

/// Hashes the sources of a part, and the recipes.
fn source_key(part: ClusterPart, module: &Path) -> Result<String> {
    let mut sources = Vec::new();
    for file in files_below(module)? {
        sources.push((file.strip_prefix(module)?.to_owned(), fs_err::read(&file)?));
    }
    Ok(cache_key(&(part.name(), include_str!("recipes.rs"), sources)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_source_has_another_key() {
        let module = tempfile::tempdir().unwrap();
        let key = |content: &str| {
            fs_err::write(module.path().join("go.mod"), content).unwrap();
            source_key(ClusterPart::Tool, module.path()).unwrap()
        };
        assert_eq!(key("module a"), key("module a"));
        assert_ne!(key("module a"), key("module b"));
    }
}
