//! Names of a host path inside a sandbox. There may be several, because the same directory may be
//! shown more than once.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_linux::{Access, Entry};

/// Tells whether a path equals `above` or lies in it, as [`Path::starts_with`] does.
///
/// `starts_with` spends most of its time splitting both paths into components, and a search needs
/// the answer thousands of times. Nearly all paths are in their shortest form, for which comparing
/// bytes is enough.
pub(super) fn lies_in(path: &Path, above: &Path) -> bool {
    let (bytes, prefix) = (path.as_os_str().as_bytes(), above.as_os_str().as_bytes());
    match bytes.strip_prefix(prefix) {
        Some([] | [b'/', ..]) => true,
        // A mismatch of the bytes is final only if both paths are in their shortest form.
        None if bytes.first() == prefix.first() && is_shortest(bytes) && is_shortest(prefix) => {
            false
        }
        _ => path.starts_with(above),
    }
}

/// Tells whether an absolute path has neither a `.` component nor a superfluous slash.
fn is_shortest(path: &[u8]) -> bool {
    let is_superfluous = |rest: &[u8]| matches!(rest, [] | [b'/', ..] | [b'.'] | [b'.', b'/', ..]);
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    path.first() == Some(&b'/') && !slashes.map(|(at, _)| &path[at + 1..]).any(is_superfluous)
}

/// Parts of the host's tree that a view shows.
pub(super) struct VisibleNames(Vec<VisiblePart>);

struct VisiblePart {
    /// Path on the host, in its shortest form, as is `destination`.
    source: PathBuf,
    destination: PathBuf,
    access: Access,
    /// Number of components of `destination`.
    depth: usize,
}

impl VisibleNames {
    /// Collects the names of a view that consists of these entries.
    pub(super) fn in_view<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> VisibleNames {
        let shown = entries.into_iter().filter_map(|entry| match entry {
            Entry::Bind { source, destination, access } => {
                let [source, destination] =
                    [source, destination].map(|path| path.components().collect::<PathBuf>());
                let depth = destination.components().count();
                Some(VisiblePart { source, destination, access: *access, depth })
            }
            _ => None,
        });
        VisibleNames(shown.collect())
    }

    /// Returns every name of a host path, and of the parts of it that are shown.
    pub(super) fn readable(&self, path: &Path) -> impl Iterator<Item = PathBuf> {
        self.names(path).map(|(_, inside)| inside)
    }

    /// Returns the names under which the path could be written.
    pub(super) fn writable(&self, path: &Path) -> impl Iterator<Item = PathBuf> {
        self.names(path)
            .filter(|(shown, _)| shown.access == Access::Write)
            .map(|(_, inside)| inside)
    }

    /// Returns the names under which the path could be renamed. A mount point cannot be renamed.
    pub(super) fn renamable(&self, path: &Path) -> impl Iterator<Item = PathBuf> {
        self.writable(path).filter(|inside| {
            !self.0.iter().any(|shown| shown.destination.as_os_str() == inside.as_os_str())
        })
    }

    fn names(&self, path: &Path) -> impl Iterator<Item = (&VisiblePart, PathBuf)> {
        let path: PathBuf = path.components().collect();
        self.0.iter().filter_map(move |shown| {
            let inside = match rest_below(&path, &shown.source) {
                Some(rest) if !rest.is_empty() => shown.destination.join(OsStr::from_bytes(rest)),
                Some(_) => shown.destination.clone(),
                None => rest_below(&shown.source, &path).map(|_| shown.destination.clone())?,
            };
            self.is_uncovered(shown, &inside).then_some((shown, inside))
        })
    }

    /// Tells whether no other mount covers a path of `shown`.
    fn is_uncovered(&self, shown: &VisiblePart, inside: &Path) -> bool {
        let above = self.0.iter().filter(|other| rest_below(inside, &other.destination).is_some());
        // The last of several mounts at one path covers the others.
        let top = above.max_by_key(|other| other.depth);
        top.is_some_and(|top| std::ptr::eq(top, shown))
    }
}

/// Returns the relative path from `above` to a path, if the path lies there. Both paths are in
/// their shortest form, so comparing bytes is enough.
fn rest_below<'p>(path: &'p Path, above: &Path) -> Option<&'p [u8]> {
    let rest = path.as_os_str().as_bytes().strip_prefix(above.as_os_str().as_bytes())?;
    match rest {
        [] => Some(rest),
        [b'/', rest @ ..] => Some(rest),
        // Only the root ends with a slash.
        _ => (above.as_os_str() == "/").then_some(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(source: &str, destination: &str, access: Access) -> Entry {
        Entry::Bind { source: source.into(), destination: destination.into(), access }
    }

    fn texts(paths: impl Iterator<Item = PathBuf>) -> Vec<String> {
        paths.map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn a_path_lies_in_a_directory_whose_components_it_begins_with() {
        let paths = [
            "/", "/a", "/a/", "/a/b", "/a/./b", "/a//b", "/a/b/c", "/ab", "/a/bc", "a/b", "/a/.",
            "/a/.b", "",
        ];
        for path in paths.map(Path::new) {
            for above in paths.map(Path::new) {
                assert_eq!(lies_in(path, above), path.starts_with(above), "{path:?} in {above:?}");
            }
        }
    }

    #[test]
    fn a_path_has_a_name_wherever_a_parent_is_shown() {
        let view = [
            bind("/p", "/p", Access::Read),
            bind("/p/ws", "/link", Access::Read),
            bind("/p/ws/a/b", "/b", Access::Read),
            bind("/p/ws", "/work", Access::Write),
        ];
        let names = VisibleNames::in_view(&view);
        assert_eq!(
            texts(names.readable(Path::new("/p/ws/a"))),
            ["/p/ws/a", "/link/a", "/b", "/work/a"]
        );
        assert_eq!(texts(names.writable(Path::new("/p/ws/a"))), ["/work/a"]);
        assert_eq!(texts(names.readable(Path::new("/p/ws"))), ["/p/ws", "/link", "/b", "/work"]);
        assert_eq!(texts(names.renamable(Path::new("/p/ws"))), [] as [&str; 0]);
        assert_eq!(texts(names.readable(Path::new("/elsewhere"))), [] as [&str; 0]);
    }

    #[test]
    fn a_path_has_no_name_where_something_else_is_mounted_over_it() {
        let view = [bind("/p", "/p", Access::Write), bind("/p/a/ws", "/p/a/ws", Access::Write)];
        let names = VisibleNames::in_view(&view);
        assert_eq!(texts(names.writable(Path::new("/p/a/ws/x"))), ["/p/a/ws/x"]);
        assert_eq!(texts(names.renamable(Path::new("/p/a"))), ["/p/a"]);
        let other = [bind("/p", "/p", Access::Write), bind("/other", "/p/ws", Access::Write)];
        assert_eq!(
            texts(VisibleNames::in_view(&other).writable(Path::new("/p/ws/x"))),
            [] as [&str; 0]
        );
    }
}
