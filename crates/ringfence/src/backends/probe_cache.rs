//! Caches successful probes: one file ("mark") for each thing that was tried and worked, by kernel,
//! binary and user.
//!
//! Only success is cached. A probe that failed is repeated, so that a repaired host is noticed at
//! once. A mark is valid only while the kernel settings that control namespaces are the same. If a
//! mark is wrong nevertheless, the launch fails with an error, because the launch does everything
//! for real, and the mark is deleted.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Host;

/// Start of the name of a mark.
const MARK_PREFIX: &str = "works-";
/// Number of marks at which all of them are deleted.
const MAX_MARKS: usize = 16;
/// The settings with which an administrator allows or forbids user namespaces. A kernel may lack
/// some of them.
const NAMESPACE_SETTINGS: [&str; 3] = [
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
];

/// The thing that was tried.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) enum ProbeSubject<'a> {
    /// Namespaces, made by our own launcher.
    Namespaces,
    /// Bubblewrap, at this path.
    Bwrap(&'a Path),
    /// A container engine.
    Engine {
        /// Socket on which the engine listens.
        socket: &'a Path,
        /// Version of the engine, as text.
        version: &'a str,
    },
    /// The version information that a container engine reports.
    Version {
        /// Socket on which the engine listens.
        socket: &'a Path,
        /// Description of itself that the engine sends with every answer.
        greeting: &'a str,
    },
    /// The network of a namespace of a Kubernetes cluster.
    Cluster {
        /// Address of the API server.
        server: &'a str,
        /// Namespace in which the pods run.
        namespace: &'a str,
        /// RuntimeClass of the pods.
        runtime_class: &'a str,
    },
}

/// The mark of one subject, which may not exist.
#[derive(Debug)]
pub(crate) struct ProbeCache {
    mark: Option<PathBuf>,
}

impl ProbeCache {
    /// Finds the mark of `subject`. On a host without a cache directory, nothing is cached.
    pub(crate) fn for_subject(host: &Host, subject: ProbeSubject<'_>) -> ProbeCache {
        let directory = host.own_directory("XDG_CACHE_HOME", ".cache");
        ProbeCache {
            mark: directory
                .zip(mark_name(host, subject))
                .map(|(directory, key)| directory.join(key)),
        }
    }

    /// Tells whether the mark exists.
    pub(crate) fn has_mark(&self) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.exists())
    }

    /// Returns the note in the mark, if the mark exists.
    pub(crate) fn note(&self) -> Option<String> {
        fs_err::read_to_string(self.mark.as_ref()?).ok()
    }

    /// Writes the mark without a note.
    pub(crate) fn store(&self) {
        self.store_note("");
    }

    /// Deletes the mark, because the subject did not work this time.
    pub(crate) fn forget(&self) {
        if let Some(mark) = &self.mark {
            let _ = fs_err::remove_file(mark); // there is no mark, or another ringfence deleted it
        }
    }

    /// Writes the mark with a note.
    pub(crate) fn store_note(&self, note: &str) {
        let Some(mark) = &self.mark else { return };
        let directory = mark.parent().unwrap_or(mark);
        limit_marks(directory);
        // A failure is harmless: without a mark, the next run only tries again.
        let _ = fs_err::create_dir_all(directory).and_then(|()| fs_err::write(mark, note));
    }
}

/// Deletes all marks when there are many, because most of them are about binaries and kernels that
/// are gone.
fn limit_marks(directory: &Path) {
    let Ok(entries) = fs_err::read_dir(directory) else { return };
    let is_mark = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(MARK_PREFIX.as_bytes()))
    };
    let marks: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_mark).collect();
    if marks.len() >= MAX_MARKS {
        for mark in marks {
            let _ = fs_err::remove_file(mark); // another ringfence may have deleted the mark
        }
    }
}

fn mark_name(host: &Host, subject: ProbeSubject<'_>) -> Option<String> {
    let mut hasher = DefaultHasher::new();
    let kernel = rustix::system::uname();
    (kernel.release().to_bytes(), kernel.version().to_bytes(), host.user_id).hash(&mut hasher);
    // Two containers on one kernel may differ like two hosts. The numbers of their namespaces
    // distinguish them.
    fs_err::read_link("/proc/self/ns/user").ok()?.hash(&mut hasher);
    fs_err::read_link("/proc/self/ns/mnt").ok()?.hash(&mut hasher);
    file_identity(Path::new("/proc/self/exe"))?.hash(&mut hasher);
    if let ProbeSubject::Namespaces | ProbeSubject::Bwrap(_) = subject {
        NAMESPACE_SETTINGS.map(|setting| fs_err::read(setting).ok()).hash(&mut hasher);
    }
    if let ProbeSubject::Bwrap(file)
    | ProbeSubject::Engine { socket: file, .. }
    | ProbeSubject::Version { socket: file, .. } = subject
    {
        file_identity(file)?.hash(&mut hasher);
    }
    subject.hash(&mut hasher);
    Some(format!("{MARK_PREFIX}{:016x}", hasher.finish()))
}

/// Returns numbers that identify a file and its current content.
pub(crate) fn file_identity(path: &Path) -> Option<(u64, u64, i64, u64)> {
    let metadata = fs_err::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.mtime(), metadata.size()))
}
