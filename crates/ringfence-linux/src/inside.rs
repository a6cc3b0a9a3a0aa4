//! The last steps inside a sandbox that another program built. Our program, started there, checks
//! the mounts, adds Landlock rules, and executes the command.
//!
//! A program that builds a tree by path, as bubblewrap does, has a race with processes that rename
//! files on these paths: it follows a symbolic link that has replaced a directory, and creates a
//! mount point at the link's target. So a mount at a place where code in a sandbox could have put a
//! link is made here, by descriptor. The finished tree no longer changes, so it is checked here:
//! the command is run only if every mount is the requested one.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::init::{SetupError, StepContext};
use crate::landlock::{self, Rules};
use crate::launch::Exec;
use crate::seccomp::AllowedSockets;
use crate::streams::StreamFile;
use crate::sys::process;
use crate::sys::signal::restore_default;
use crate::view::Entry;
use crate::{confine, exec, gate, launcher, mounts, shares, streams};

/// First argument of a program that is started for the last steps. The second argument is the
/// number of a descriptor from which an [`InsideSteps`] can be read.
pub const NAME: &str = "ringfence-inside";

/// The last steps inside a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InsideSteps {
    /// Limits that only the root of the user namespace can set; present if this program is started
    /// as that root.
    pub root: Option<NamespaceRoot>,
    /// Mounts below the root that the other program built, in this order. Only the root of the user
    /// namespace can make them.
    pub mounts: Vec<Entry>,
    /// Mounts that must exist.
    pub expected: Vec<MountExpectation>,
    /// Standard streams that are opened again inside.
    pub streams: Vec<StreamFile>,
    /// Way out of the network that is to be created. The gate is created before the mounts are
    /// made.
    pub gate: Option<GateDescriptors>,
    /// Landlock rules that are added, unless their ABI is 0.
    pub rules: Rules,
    /// Highest descriptor number that belongs to the command; higher descriptors are closed.
    pub highest_descriptor: i32,
    /// Command, and the directory in which it starts.
    pub exec: Exec,
}

/// A way out of the network, given by the descriptors that are needed to create it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct GateDescriptors {
    /// Descriptor of the socket to which the gate is sent.
    pub holder: i32,
    /// Descriptor of the tunnel device, if a tunnel is to be created: the device has no path
    /// inside. Only the root of the user namespace that owns the network can create a tunnel with
    /// it.
    pub tunnel: Option<i32>,
}

/// The root of the user namespace that owns the mounts and the network.
///
/// The process has no seccomp filter yet, so that it can become the user that runs the command, in
/// a user namespace of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NamespaceRoot {
    /// User id that the process gets.
    pub user: u32,
    /// Group id that the process gets.
    pub group: u32,
    /// Mount points of file systems in memory, each with the number of inodes that it may have.
    pub scratch: Vec<(PathBuf, u64)>,
}

/// A mount that must be found inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountExpectation {
    /// A mount of one file or directory of the host, at a path that may lead through a symbolic
    /// link.
    Bound {
        /// Path inside the sandbox.
        path: PathBuf,
        /// Identity of the file or directory that must be mounted there.
        identity: FileIdentity,
    },
    /// A mount of one file or directory of the host, at exactly that path.
    Mounted {
        /// Path inside the sandbox; its last component must not be a symbolic link.
        path: PathBuf,
        /// Identity of the file or directory that must be mounted there.
        identity: FileIdentity,
    },
    /// A mount that nobody may open.
    Hidden {
        /// Path inside the sandbox.
        path: PathBuf,
    },
}

/// The device, as major and minor number, and the inode that distinguish a file from every other
/// file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    device: (u32, u32),
    inode: u64,
}

/// The properties of a file or directory that are compared with an [`MountExpectation`].
struct FoundFile {
    identity: FileIdentity,
    permissions: u16,
    is_mount: bool,
}

/// The reason for which the command is not run.
#[derive(Debug, thiserror::Error)]
enum InsideError {
    #[error("cannot run the command: `{path}` was exchanged while the sandbox was being built")]
    Exchanged { path: PathBuf },
    #[error("cannot {step}")]
    Setup { step: String, source: io::Error },
    #[error("cannot find the command `{program}` inside the sandbox")]
    NotFound { program: String },
    #[error("cannot execute `{program}` inside the sandbox")]
    NotExecutable { program: String, source: io::Error },
}

impl InsideSteps {
    /// Writes the value to a file in memory, from which the program inside reads it.
    pub fn write_to_memory(&self) -> io::Result<OwnedFd> {
        launcher::create_memory_file(&postcard::to_stdvec(self).map_err(io::Error::other)?)
    }

    fn read(number: Option<OsString>) -> io::Result<InsideSteps> {
        let number = number
            .as_ref()
            .and_then(|number| number.to_str())
            .and_then(|number| number.parse().ok());
        let file = process::duplicate(number.ok_or(Errno::INVAL)?)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(
            &mut fs_err::File::from_parts(file.into(), "the description"),
            &mut bytes,
        )?;
        postcard::from_bytes(&bytes).map_err(io::Error::other)
    }

    fn enter(self) -> Result<(), InsideError> {
        if let Some(root) = &self.root {
            root.set_limits()?;
        }
        if let Some(GateDescriptors { holder, tunnel }) = self.gate {
            let holder = process::duplicate(holder).step("find who is to hold the gate")?;
            let opened = match tunnel {
                Some(number) => {
                    let device = PathBuf::from(format!("/proc/self/fd/{number}"));
                    gate::open_with(gate::GateKind::Transparent, holder, &device)
                }
                None => gate::open(gate::GateKind::Proxy, holder),
            };
            opened.step("open the gate of the sandbox's network")?;
        }
        if !self.mounts.is_empty() {
            mounts::mount_entries(&self.mounts)?;
            // The directory in which this program was started is now hidden by a new mount.
            rustix::process::chdir(&self.exec.directory).step("enter the command's directory")?;
        }
        self.expected.iter().try_for_each(MountExpectation::check)?;
        // No process of ours is left at the end of the command to restore the caller's file offset.
        drop(streams::reopen_streams(&self.streams)?);
        if let Some(root) = &self.root {
            root.become_user()?;
        }
        if self.rules.abi > 0 {
            let kept = keep_descriptors(self.highest_descriptor)
                .step("duplicate the command's descriptors")?;
            landlock::restrict(&self.rules, &kept).step("restrict the process with Landlock")?;
        }
        process::close_range(self.highest_descriptor.unsigned_abs() + 1, u32::MAX)
            .step("close descriptors")?;
        restore_default(libc::SIGPIPE); // Rust's runtime ignores SIGPIPE
        let source = io::Error::from_raw_os_error(exec::exec(&self.exec));
        let program = self.exec.program.to_string_lossy().into_owned();
        Err(match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                InsideError::NotFound { program }
            }
            _ => InsideError::NotExecutable { program, source },
        })
    }
}

impl NamespaceRoot {
    fn set_limits(&self) -> Result<(), SetupError> {
        for (path, inodes) in &self.scratch {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())
                .and_then(|root| mounts::limit_inodes(root, *inodes))
                .step(format_args!("limit the files of `{}`", path.display()))?;
        }
        mounts::restrict_devices()?;
        // The settings in the mounted `/proc` can no longer be written.
        let proc = mounts::detached_proc().step("make a proc")?;
        shares::limit_watchers(proc).step("limit the watchers of files")
    }

    fn become_user(&self) -> Result<(), SetupError> {
        process::enter_new_user_namespace().step("enter a user namespace of the command's own")?;
        confine::map_root_to(self.user, self.group).step("map the user and group ids")?;
        shares::limit_queues().step("limit signals and message queues")?;
        confine::drop_capabilities()?;
        confine::install_filter(AllowedSockets::Private)
    }
}

/// Function that makes an error message safe for a terminal.
pub type MessageCleaner = fn(&str) -> Cow<'_, str>;

/// Runs the last steps inside a sandbox if this process was started for them. Does not return in
/// that case.
///
/// A program calls this function first in `main`, before it starts a thread. If the steps fail,
/// `clean` cleans the error, because code in a sandbox may have chosen the paths that the error
/// names.
pub fn run_if_asked(clean: MessageCleaner) {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == NAME) {
        run(words.next(), clean);
    }
}

/// Executes the command that the descriptor `number` describes, or prints the error and exits.
fn run(number: Option<OsString>, clean: MessageCleaner) -> ! {
    let entered = InsideSteps::read(number)
        .step("read what is to be run")
        .map_err(InsideError::from)
        .and_then(InsideSteps::enter);
    let code = match entered {
        Ok(()) => 0, // never reached: the command has replaced this program
        Err(error) => error.print(clean),
    };
    process::exit_now(code)
}

/// Duplicates the command's descriptors other than its standard streams.
fn keep_descriptors(highest: i32) -> io::Result<Vec<(i32, OwnedFd)>> {
    // All open numbers are found first, because a duplicate takes a free number in the same range.
    let open: Vec<i32> =
        (3..=highest).filter(|number| process::duplicate(*number).is_ok()).collect();
    open.into_iter().map(|number| Ok((number, process::duplicate(number)?))).collect()
}

impl FileIdentity {
    /// Returns the identity of an open file.
    pub fn from_file(file: &OwnedFd) -> io::Result<FileIdentity> {
        FoundFile::stat(file, Path::new(""), AtFlags::EMPTY_PATH).map(|found| found.identity)
    }
}

impl FoundFile {
    fn stat(
        directory: impl std::os::fd::AsFd,
        path: &Path,
        flags: AtFlags,
    ) -> io::Result<FoundFile> {
        let stat = statx(directory, path, flags, StatxFlags::BASIC_STATS)?;
        Ok(FoundFile {
            identity: FileIdentity {
                device: (stat.stx_dev_major, stat.stx_dev_minor),
                inode: stat.stx_ino,
            },
            permissions: stat.stx_mode & 0o777,
            is_mount: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        })
    }
}

impl MountExpectation {
    fn path(&self) -> &Path {
        match self {
            MountExpectation::Bound { path, .. }
            | MountExpectation::Mounted { path, .. }
            | MountExpectation::Hidden { path } => path,
        }
    }

    /// Returns true if the found mount meets the expectation.
    ///
    /// The right file alone is not enough. Through another path, a process can rename a directory
    /// on which the wrong file is mounted, together with its mount, and put the right directory in
    /// its place. Then the right directory is there, but it is not a mount.
    fn is_met_by(&self, found: &FoundFile) -> bool {
        found.is_mount
            && match self {
                MountExpectation::Bound { identity, .. }
                | MountExpectation::Mounted { identity, .. } => found.identity == *identity,
                MountExpectation::Hidden { .. } => found.permissions == 0,
            }
    }

    fn check(&self) -> Result<(), InsideError> {
        let follows = matches!(self, MountExpectation::Bound { .. });
        let flags = if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        match FoundFile::stat(CWD, self.path(), flags) {
            Ok(found) if self.is_met_by(&found) => Ok(()),
            Ok(_) | Err(_) => Err(InsideError::Exchanged { path: self.path().into() }),
        }
    }
}

impl From<SetupError> for InsideError {
    fn from(SetupError { step, source }: SetupError) -> InsideError {
        InsideError::Setup { step, source }
    }
}

impl InsideError {
    /// Prints the error on the command's standard error, and returns the exit code.
    fn print(&self, clean: MessageCleaner) -> i32 {
        let cause =
            std::error::Error::source(self).map(|source| format!(": {source}")).unwrap_or_default();
        let error = format!("{self}{cause}");
        let message =
            format!("ringfence: error: {}\nhint: {}\n", clean(&error), clean(&self.hint()));
        // No other reader could receive the message.
        let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
        match self {
            InsideError::Exchanged { .. } | InsideError::Setup { .. } => 125,
            InsideError::NotExecutable { .. } => 126,
            InsideError::NotFound { .. } => 127,
        }
    }

    fn hint(&self) -> String {
        match self {
            InsideError::Exchanged { .. } => {
                "another program, or another run, renames it: run again when that has ended"
                    .to_owned()
            }
            InsideError::Setup { .. } => {
                "`ringfence doctor` tries again what works on this host".to_owned()
            }
            InsideError::NotFound { .. } => {
                "`ringfence run -- sh -c 'echo $PATH'` shows where commands are looked for"
                    .to_owned()
            }
            InsideError::NotExecutable { program, .. } => format!("chmod +x '{program}'"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{RenameFlags, renameat_with};

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn mounted(path: &Path) -> MountExpectation {
        MountExpectation::Mounted {
            path: path.into(),
            identity: FileIdentity::from_file(&open(path)).unwrap(),
        }
    }

    #[test]
    fn a_mount_that_is_the_expected_one_is_accepted() {
        assert!(mounted(Path::new("/proc")).check().is_ok());
    }

    #[test]
    fn the_right_directory_that_is_no_mount_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = mounted(directory.path()).check().unwrap_err();
        assert!(matches!(error, InsideError::Exchanged { path } if path == directory.path()));
    }

    #[test]
    fn another_mount_is_refused() {
        let MountExpectation::Mounted { identity, .. } = mounted(Path::new("/proc")) else {
            unreachable!()
        };
        let expectation = MountExpectation::Mounted { path: "/dev".into(), identity };
        assert!(matches!(expectation.check(), Err(InsideError::Exchanged { .. })));
    }

    #[test]
    fn an_exchanged_directory_is_not_the_one_that_was_opened() {
        let root = tempfile::tempdir().unwrap();
        let (repository, other) = (root.path().join(".git"), root.path().join("other"));
        fs_err::create_dir(&repository).unwrap();
        fs_err::create_dir(&other).unwrap();
        let expectation = mounted(&repository);
        let found = || FoundFile {
            is_mount: true,
            ..FoundFile::stat(CWD, &repository, AtFlags::SYMLINK_NOFOLLOW).unwrap()
        };
        assert!(expectation.is_met_by(&found()));
        renameat_with(CWD, &repository, CWD, &other, RenameFlags::EXCHANGE).unwrap();
        assert!(!expectation.is_met_by(&found()));
    }

    #[test]
    fn a_hidden_path_that_can_be_opened_is_refused() {
        assert!(matches!(
            MountExpectation::Hidden { path: "/proc".into() }.check(),
            Err(InsideError::Exchanged { path }) if path == Path::new("/proc")
        ));
        assert!(MountExpectation::Hidden { path: "/nothing".into() }.check().is_err());
    }
}
