//! Under which names inside a path of the host can be reached: the same directory may be shown more than once.

use std::path::{Path, PathBuf};

use ringfence_linux::{Access, Entry};

/// The parts of the host's tree that a view shows.
pub(super) struct Names<'a>(Vec<Shown<'a>>);

#[derive(Clone, Copy)]
struct Shown<'a> {
    source: &'a Path,
    destination: &'a Path,
    access: Access,
}

impl<'a> Names<'a> {
    /// Of a view that consists of these entries.
    pub(super) fn in_view(entries: impl IntoIterator<Item = &'a Entry>) -> Names<'a> {
        let shown = entries.into_iter().filter_map(|entry| match entry {
            Entry::Bind { source, destination, access } => Some(Shown { source, destination, access: *access }),
            _ => None,
        });
        Names(shown.collect())
    }

    /// Every name of a path of the host, or of the parts of it that are shown.
    pub(super) fn readable(&self, path: &Path) -> impl Iterator<Item = PathBuf> {
        self.names(path).map(|(_, inside)| inside)
    }

    /// Those under which it could be written.
    pub(super) fn writable(&self, path: &Path) -> impl Iterator<Item = PathBuf> {
        self.names(path).filter(|(shown, _)| shown.access == Access::Write).map(|(_, inside)| inside)
    }

    /// Those under which it could be renamed: what is mounted itself cannot.
    pub(super) fn renamable(&self, path: &Path) -> impl Iterator<Item = PathBuf> {
        self.writable(path).filter(|inside| !self.0.iter().any(|shown| shown.destination == inside))
    }

    fn names(&self, path: &Path) -> impl Iterator<Item = (Shown<'a>, PathBuf)> {
        self.0.iter().filter_map(move |shown| {
            let inside = match path.strip_prefix(shown.source) {
                Ok(rest) if !rest.as_os_str().is_empty() => shown.destination.join(rest),
                Ok(_) => shown.destination.to_path_buf(),
                Err(_) if shown.source.starts_with(path) => shown.destination.to_path_buf(),
                Err(_) => return None,
            };
            self.is_uncovered(shown, &inside).then_some((*shown, inside))
        })
    }

    /// Whether nothing else is mounted over a path of `shown`.
    fn is_uncovered(&self, shown: &Shown, inside: &Path) -> bool {
        let above = self.0.iter().filter(|other| inside.starts_with(other.destination));
        // The last of those at one place covers the others.
        let top = above.max_by_key(|other| other.destination.components().count());
        top.is_some_and(|top| std::ptr::eq(top, shown))
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
    fn a_path_has_a_name_wherever_what_is_above_it_is_shown() {
        let view = [
            bind("/p", "/p", Access::Read),
            bind("/p/ws", "/link", Access::Read),
            bind("/p/ws/a/b", "/b", Access::Read),
            bind("/p/ws", "/work", Access::Write),
        ];
        let names = Names::in_view(&view);
        assert_eq!(texts(names.readable(Path::new("/p/ws/a"))), ["/p/ws/a", "/link/a", "/b", "/work/a"]);
        assert_eq!(texts(names.writable(Path::new("/p/ws/a"))), ["/work/a"]);
        assert_eq!(texts(names.readable(Path::new("/p/ws"))), ["/p/ws", "/link", "/b", "/work"]);
        assert_eq!(texts(names.renamable(Path::new("/p/ws"))), [] as [&str; 0]);
        assert_eq!(texts(names.readable(Path::new("/elsewhere"))), [] as [&str; 0]);
    }

    #[test]
    fn a_path_has_no_name_where_something_else_is_mounted_over_it() {
        let view = [bind("/p", "/p", Access::Write), bind("/p/a/ws", "/p/a/ws", Access::Write)];
        let names = Names::in_view(&view);
        assert_eq!(texts(names.writable(Path::new("/p/a/ws/x"))), ["/p/a/ws/x"]);
        assert_eq!(texts(names.renamable(Path::new("/p/a"))), ["/p/a"]);
        let other = [bind("/p", "/p", Access::Write), bind("/other", "/p/ws", Access::Write)];
        assert_eq!(texts(Names::in_view(&other).writable(Path::new("/p/ws/x"))), [] as [&str; 0]);
    }
}
