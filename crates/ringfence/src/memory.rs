//! What worked before: a mark on the host for each thing that was tried and held, by kernel, binary and user.
//!
//! Only success is remembered. What failed is tried again, so that a repaired host is noticed at once. A mark serves
//! only while the kernel settings that decide about namespaces are the same. A mark that is wrong all the same makes
//! the launch fail loudly, because the launch does everything for real, and is forgotten then.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Host;

/// What the name of a mark begins with.
const PREFIX: &str = "works-";
/// How many marks are kept.
const MOST: usize = 16;
/// The settings with which an administrator allows or forbids user namespaces. Kernels lack some of them.
const NAMESPACE_SETTINGS: [&str; 3] = [
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
];

/// What was tried.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) enum Subject<'a> {
    /// Namespaces, by our own launcher.
    Namespaces,
    /// Bubblewrap, at this path.
    Bwrap(&'a Path),
    /// A container engine.
    Engine {
        /// Where it listens.
        socket: &'a Path,
        /// Which it is.
        version: &'a str,
    },
    /// What a container engine says of itself.
    Version {
        /// Where it listens.
        socket: &'a Path,
        /// How it greets.
        greeting: &'a str,
    },
}

/// One thing that may be remembered.
#[derive(Debug)]
pub(crate) struct Memory {
    mark: Option<PathBuf>,
}

impl Memory {
    /// Finds what is remembered of `subject`. A host without a place for it remembers nothing.
    pub(crate) fn of(host: &Host, subject: Subject<'_>) -> Memory {
        let directory = host.own_directory("XDG_CACHE_HOME", ".cache");
        Memory { mark: directory.zip(key(host, subject)).map(|(directory, key)| directory.join(key)) }
    }

    pub(crate) fn recalls(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.exists())
    }

    /// What was written down with it.
    pub(crate) fn note(&self) -> Option<String> {
        fs_err::read_to_string(self.mark.as_ref()?).ok()
    }

    pub(crate) fn keep(&self) {
        self.keep_note("");
    }

    /// Forgets it, because it did not work this time.
    pub(crate) fn forget(&self) {
        if let Some(mark) = &self.mark {
            let _ = fs_err::remove_file(mark); // nothing to forget, or another ringfence forgot it
        }
    }

    /// Remembers it, and what there is to say of it.
    pub(crate) fn keep_note(&self, note: &str) {
        let Some(mark) = &self.mark else { return };
        let directory = mark.parent().unwrap_or(mark);
        forget_some(directory);
        let _ = fs_err::create_dir_all(directory).and_then(|()| fs_err::write(mark, note)); // it is only tried again
    }
}

/// Forgets everything when there is much of it: most of it is about binaries and kernels that are gone.
fn forget_some(directory: &Path) {
    let Ok(entries) = fs_err::read_dir(directory) else { return };
    let is_mark =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    let marks: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_mark).collect();
    if marks.len() >= MOST {
        for mark in marks {
            let _ = fs_err::remove_file(mark); // another ringfence may be forgetting, too
        }
    }
}

fn key(host: &Host, subject: Subject<'_>) -> Option<String> {
    let mut hasher = DefaultHasher::new();
    let kernel = rustix::system::uname();
    (kernel.release().to_bytes(), kernel.version().to_bytes(), host.user_id).hash(&mut hasher);
    // Two containers on one kernel may be two hosts: namespaces, by their numbers, tell them apart.
    fs_err::read_link("/proc/self/ns/user").ok()?.hash(&mut hasher);
    fs_err::read_link("/proc/self/ns/mnt").ok()?.hash(&mut hasher);
    identity(Path::new("/proc/self/exe"))?.hash(&mut hasher);
    if let Subject::Namespaces | Subject::Bwrap(_) = subject {
        NAMESPACE_SETTINGS.map(|setting| fs_err::read(setting).ok()).hash(&mut hasher);
    }
    if let Subject::Bwrap(file) | Subject::Engine { socket: file, .. } | Subject::Version { socket: file, .. } = subject
    {
        identity(file)?.hash(&mut hasher);
    }
    subject.hash(&mut hasher);
    Some(format!("{PREFIX}{:016x}", hasher.finish()))
}

/// A file, as it is now.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64, i64, u64)> {
    let metadata = fs_err::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.mtime(), metadata.size()))
}
