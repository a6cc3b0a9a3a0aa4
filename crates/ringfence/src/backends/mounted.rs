//! Expected mounts of a program that mounts by path. Inodes are recorded before the program runs,
//! and compared afterwards with the mounts that the program made.

use std::io;
use std::path::{Path, PathBuf};

use ringfence_linux::inside::{FileIdentity, MountExpectation};
use ringfence_linux::{Entry, View};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

/// Returns a view without the mounts that later entries cover entirely. Nobody could use or check
/// such mounts.
pub(super) fn uncovered(view: View) -> View {
    let is_uncovered = |(index, entry): (usize, &Entry)| {
        !view.entries[index + 1..].iter().any(|later| covers(later, entry)) || !is_mount(entry)
    };
    let entries = view.entries.iter().enumerate().filter(|numbered| is_uncovered(*numbered));
    View { entries: entries.map(|(_, entry)| entry.clone()).collect() }
}

fn is_mount(entry: &Entry) -> bool {
    !matches!(entry, Entry::Directory { .. } | Entry::Symlink { .. } | Entry::File { .. })
}

fn covers(later: &Entry, entry: &Entry) -> bool {
    match (later, entry) {
        (Entry::Bind { .. } | Entry::Scratch { .. } | Entry::Hide { .. }, _) => {
            destination(entry).starts_with(destination(later))
        }
        // Both mount the same path, and `Protect` forbids more.
        (Entry::Protect { path }, Entry::Pin { path: pinned }) => path == pinned,
        _ => false,
    }
}

fn destination(entry: &Entry) -> &Path {
    match entry {
        Entry::Bind { destination, .. } => destination,
        Entry::Directory { path }
        | Entry::Symlink { path, .. }
        | Entry::File { path, .. }
        | Entry::Scratch { path, .. }
        | Entry::Pin { path }
        | Entry::Protect { path }
        | Entry::Hide { path } => path,
    }
}

/// Returns what must be found inside once a view is built. Refuses a source that was replaced by a
/// symbolic link.
pub(super) fn expectations(view: &View) -> io::Result<Vec<MountExpectation>> {
    let mut expected = Vec::new();
    for entry in &view.entries {
        match entry {
            Entry::Bind { source, destination, .. } => {
                // The destination may lie behind a symbolic link of the view, as with a merged
                // `/usr`.
                expected.push(MountExpectation::Bound {
                    path: destination.clone(),
                    identity: identity(source)?,
                });
            }
            Entry::Pin { path } | Entry::Protect { path } => {
                expected.push(MountExpectation::Mounted {
                    path: path.clone(),
                    identity: identity(&on_host(view, path))?,
                });
            }
            Entry::Hide { path } => expected.push(MountExpectation::Hidden { path: path.clone() }),
            Entry::Directory { .. }
            | Entry::Symlink { .. }
            | Entry::File { .. }
            | Entry::Scratch { .. } => {}
        }
    }
    Ok(expected)
}

fn identity(path: &Path) -> io::Result<FileIdentity> {
    let opened = openat2(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    );
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()));
    FileIdentity::from_file(&opened.map_err(|error| failed(error.into()))?).map_err(failed)
}

/// Returns the host path of a path in the sandbox, by the deepest mount above it.
pub(super) fn on_host(view: &View, inside: &Path) -> PathBuf {
    let mounts = view.entries.iter().filter_map(|entry| match entry {
        Entry::Bind { source, destination, .. } => {
            inside.strip_prefix(destination).ok().map(|rest| (source, destination, rest))
        }
        _ => None,
    });
    let deepest = mounts.max_by_key(|(_, destination, _)| destination.components().count());
    match deepest {
        None => inside.into(),
        // The mount is the file itself: joining it with an empty path would append a slash, and the
        // result would be no file.
        Some((source, _, rest)) if rest.as_os_str().is_empty() => source.into(),
        Some((source, _, rest)) => source.join(rest),
    }
}

#[cfg(test)]
mod tests {
    use ringfence_linux::Access;

    use super::*;

    fn bind(source: &Path, destination: &str) -> Entry {
        Entry::Bind {
            source: source.into(),
            destination: destination.into(),
            access: Access::Write,
        }
    }

    #[test]
    fn a_source_that_became_a_link_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let root = fs_err::canonicalize(root.path()).unwrap();
        fs_err::create_dir(root.join(".git")).unwrap();
        fs_err::create_dir(root.join("secret")).unwrap();
        let view = View {
            entries: vec![bind(&root, "/workspace"), Entry::Pin { path: "/workspace/.git".into() }],
        };
        assert_eq!(expectations(&view).unwrap().len(), 2);
        fs_err::remove_dir(root.join(".git")).unwrap();
        std::os::unix::fs::symlink("secret", root.join(".git")).unwrap();
        let error = expectations(&view).unwrap_err().to_string();
        assert!(error.contains(".git"), "{error}");
    }

    #[test]
    fn a_path_is_mounted_once_however_many_entries_guard_it() {
        let pin = |path: &str| Entry::Pin { path: path.into() };
        let protect = |path: &str| Entry::Protect { path: path.into() };
        let hide = |path: &str| Entry::Hide { path: path.into() };
        let entries = [
            pin("/w/a"),
            pin("/w/b"),
            pin("/w/c/d"),
            protect("/w/a"),
            protect("/w/b/e"),
            hide("/w/c"),
        ];
        let view =
            View { entries: [bind(Path::new("/"), "/w")].into_iter().chain(entries).collect() };
        let kept = uncovered(view).entries;
        let expected = [
            bind(Path::new("/"), "/w"),
            pin("/w/b"),
            protect("/w/a"),
            protect("/w/b/e"),
            hide("/w/c"),
        ];
        assert_eq!(kept, expected);
    }
}
