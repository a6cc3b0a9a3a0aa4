//! Paths to look at again after the run, because nothing can keep it from making or changing them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Paths of the host, and what was there before the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(OsString, Watch)>", into = "Vec<(OsString, Watch)>")]
pub(crate) struct Watched(BTreeMap<PathBuf, Watch>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Watch {
    before: Mark,
    part: Part,
}

/// What a path is to what is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Part {
    /// A directory above it, or what is there instead of one.
    Above,
    /// It itself.
    Itself,
}

/// What is at a path. Paths need not be text, and are kept as bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Mark {
    Nothing,
    Directory,
    /// A symbolic link: what it says, and where it ends.
    Link(OsString, Option<OsString>),
    Other,
}

impl Mark {
    fn of(path: &Path) -> Mark {
        match fs_err::symlink_metadata(path) {
            Err(_) => Mark::Nothing,
            Ok(metadata) if metadata.is_dir() => Mark::Directory,
            Ok(metadata) if metadata.is_symlink() => {
                let end = fs_err::canonicalize(path).ok();
                Mark::Link(fs_err::read_link(path).unwrap_or_default().into(), end.map(PathBuf::into_os_string))
            }
            Ok(_) => Mark::Other,
        }
    }
}

impl From<Vec<(OsString, Watch)>> for Watched {
    fn from(entries: Vec<(OsString, Watch)>) -> Watched {
        Watched(entries.into_iter().map(|(path, watch)| (path.into(), watch)).collect())
    }
}

impl From<Watched> for Vec<(OsString, Watch)> {
    fn from(watched: Watched) -> Self {
        watched.0.into_iter().map(|(path, watch)| (path.into_os_string(), watch)).collect()
    }
}

impl Watched {
    /// Watches `path` below `root`, and all that leads to it from there: a file in place of `.git` speaks for a
    /// repository as well as a directory does.
    pub(super) fn watch(&mut self, root: &Path, path: &Path) {
        let mut so_far = root.to_path_buf();
        let mut is_missing = false;
        for component in path.parent().unwrap_or(Path::new("")).components() {
            so_far.push(component);
            is_missing = *self.add(&so_far, Part::Above, Mark::of) == Mark::Nothing;
            if is_missing {
                break;
            }
        }
        // Nothing can be in what is not there.
        let look = if is_missing { |_: &Path| Mark::Nothing } else { Mark::of };
        self.add(&root.join(path), Part::Itself, look);
    }

    fn add(&mut self, path: &Path, part: Part, look: fn(&Path) -> Mark) -> &Mark {
        let known = self.0.entry(path.to_path_buf()).or_insert_with(|| Watch { before: look(path), part });
        known.part = known.part.max(part);
        &known.before
    }

    /// The paths at which there is something else now, as they are told: relative to the workspace when in it.
    pub(crate) fn planted(&self, workspace: &Path) -> Vec<String> {
        let planted = self.changed().map(|path| path.strip_prefix(workspace).unwrap_or(path));
        planted.map(|path| path.display().to_string()).collect()
    }

    /// The paths at which there is something else now.
    fn changed<'a>(&'a self) -> impl Iterator<Item = &'a Path> {
        let mut missing: Option<&Path> = None;
        let is_changed = move |(path, watch): (&'a PathBuf, &Watch)| {
            // Nothing can be in what is not there: paths come after what leads to them.
            if missing.is_some_and(|above| path.starts_with(above)) {
                return None;
            }
            let is_changed = match (&watch.before, Mark::of(path)) {
                (_, Mark::Nothing) => {
                    missing = Some(path);
                    false
                }
                // Of a directory that was made, only what is in it matters, and that is watched, too.
                (Mark::Nothing, Mark::Directory) => watch.part == Part::Itself,
                (before, after) => *before != after,
            };
            is_changed.then_some(path.as_path())
        };
        self.0.iter().filter_map(is_changed)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// What is reported of `.git/hooks` when `before` and then `after` happen in a directory.
    #[track_caller]
    fn check(before: impl FnOnce(&Path), after: impl FnOnce(&Path), expected: &[&str]) {
        let place = tempfile::tempdir().unwrap();
        let root = fs_err::canonicalize(place.path()).unwrap();
        before(&root);
        let mut watched = Watched::default();
        watched.watch(&root, Path::new(".git/hooks"));
        assert_eq!(watched.changed().count(), 0, "nothing happened yet");
        let written = serde_json::to_string(&watched).unwrap();
        assert_eq!(serde_json::from_str::<Watched>(&written).unwrap(), watched, "{written}");
        after(&root);
        let found: Vec<_> = watched.changed().map(|path| path.strip_prefix(&root).unwrap()).collect();
        assert_eq!(found, expected.iter().map(Path::new).collect::<Vec<_>>());
    }

    fn directory(name: &'static str) -> impl Fn(&Path) {
        move |root| fs_err::create_dir_all(root.join(name)).unwrap()
    }

    #[test]
    fn what_is_made_at_a_path_or_in_place_of_what_leads_to_it_is_reported() {
        check(|_| {}, directory(".git"), &[]);
        check(|_| {}, directory(".git/hooks"), &[".git/hooks"]);
        check(|_| {}, |root| fs_err::write(root.join(".git"), "gitdir: x").unwrap(), &[".git"]);
        check(|_| {}, |root| symlink("elsewhere", root.join(".git")).unwrap(), &[".git"]);
    }

    #[test]
    fn a_directory_that_is_replaced_by_a_file_is_reported() {
        let replace = |root: &Path| {
            fs_err::rename(root.join(".git"), root.join("old")).unwrap();
            fs_err::write(root.join(".git"), "gitdir: x").unwrap();
        };
        check(directory(".git"), replace, &[".git"]);
    }

    #[test]
    fn a_link_that_is_replaced_or_leads_elsewhere_is_reported() {
        let linked = |root: &Path| {
            directory("first/hooks")(root);
            directory("second/hooks")(root);
            symlink("first", root.join("step")).unwrap();
            symlink("step", root.join(".git")).unwrap();
        };
        let replace = |name: &'static str, make: fn(&Path)| {
            move |root: &Path| {
                fs_err::remove_file(root.join(name)).unwrap();
                make(&root.join(name));
            }
        };
        check(linked, replace(".git", |path| fs_err::write(path, "gitdir: x").unwrap()), &[".git"]);
        check(linked, replace(".git", |path| fs_err::create_dir_all(path.join("hooks")).unwrap()), &[".git"]);
        check(linked, replace(".git", |path| symlink("second", path).unwrap()), &[".git"]);
        check(linked, replace("step", |path| symlink("second", path).unwrap()), &[".git"]);
    }
}
