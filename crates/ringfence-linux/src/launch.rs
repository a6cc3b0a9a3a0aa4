//! Starting a sandbox: a description in, a running first process out.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cgroup::Group;
use crate::gate;
use crate::init::{self, Inherited};
use crate::landlock::Rules;
use crate::seccomp::Sockets;
use crate::streams::StreamFile;
use crate::sys::process::{Side, clone3, fork};
use crate::view::View;

/// Everything a sandbox needs to start. It decides nothing: what is written here is done, or the launch fails.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launch {
    /// What is run.
    pub exec: Exec,
    /// What it is confined by.
    pub confinement: Confinement,
    /// Its relation to the caller's terminal.
    pub terminal: Terminal,
    /// How long it may take.
    pub time: Option<Duration>,
    /// What becomes of processes that outlive the command.
    pub survivors: Survivors,
    /// A directory on the host that was made for this run alone: the first process removes it at the end, even when
    /// its launcher was killed.
    pub private: Option<PathBuf>,
}

/// A command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exec {
    /// A path, or a name that is looked up in the `PATH` of `env`, inside.
    pub program: CString,
    /// Its arguments, the name it is called by first.
    pub argv: Vec<CString>,
    /// Its environment, as `NAME=value`.
    pub env: Vec<CString>,
    /// Where it starts, inside.
    pub directory: PathBuf,
}

/// What a command is confined by.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Confinement {
    /// Namespaces and a root of its own, Landlock and seccomp.
    Namespaces {
        /// What it sees.
        view: View,
        /// What it reaches.
        network: Network,
        /// What Landlock adds, at the ABI that was probed; 0 where the kernel has none.
        landlock_abi: u32,
        /// Standard streams that are opened again inside.
        streams: Vec<StreamFile>,
    },
    /// Landlock and seccomp on the host's own tree, where user namespaces are forbidden.
    Landlock {
        /// What can be reached.
        rules: Rules,
        /// Which sockets can be made.
        sockets: Sockets,
    },
    /// What the command itself puts around what it runs, as bubblewrap does; dumps of memory are not its to forbid.
    Delegated,
    /// Nothing: the command is supervised.
    Bare,
}

/// What a sandbox reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// What the host does: it has the host's own network.
    Host,
    /// Itself: it has a network namespace of its own, with nothing but `lo`.
    Private,
    /// Itself, and what the holder of its gate lets through.
    Gated(gate::Kind),
}

/// What becomes of processes that outlive the command that started them. When the command itself is ended, by order or
/// by its deadline, they are ended with it, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Survivors {
    /// They are ended.
    End,
    /// They are left alone for as long as the launching side keeps its end of the control socket.
    Leave,
}

/// How a command relates to the caller's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Terminal {
    /// Its group becomes the foreground group of the controlling terminal.
    Foreground,
    /// It keeps the session, as a group of its own.
    Background,
    /// It has a session of its own and no controlling terminal.
    Detached,
    /// It has a session of its own, whose controlling terminal is its standard input.
    Own,
}

/// The descriptors of a launch that are not in its description.
#[derive(Debug, Default)]
pub struct Files {
    /// Standard input, output and error; the caller's own where absent.
    pub stdio: [Option<OwnedFd>; 3],
    /// The controlling terminal, needed for [`Terminal::Foreground`].
    pub terminal: Option<OwnedFd>,
    /// Whom the gate is sent to, needed for [`Network::Gated`].
    pub gate: Option<OwnedFd>,
    /// Descriptors that the command gets besides, each under a number from 3 to [`Files::HIGHEST`].
    pub passed: Vec<(i32, OwnedFd)>,
}

impl Files {
    /// The highest number that a passed descriptor can have; those above are the first process's own.
    pub const HIGHEST: i32 = 199;
}

/// The cgroups that a first process is born in, or moves itself to.
#[derive(Debug, Default)]
pub struct Birthplace<'a> {
    /// A cgroup v2 directory.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// `tasks` files of cgroup v1, open for writing.
    pub tasks: &'a [OwnedFd],
}

impl<'a> Birthplace<'a> {
    /// Those of a group; none without one.
    pub fn of(group: Option<&'a Group>) -> Birthplace<'a> {
        group.map_or_else(Birthplace::default, |group| Birthplace { cgroup: group.clone_into(), tasks: group.tasks() })
    }
}

/// A sandbox's first process.
#[derive(Debug)]
pub struct Launched {
    /// Becomes readable when it ends.
    pub pidfd: OwnedFd,
    /// Its id on this side.
    pub pid: i32,
}

/// The first process could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// clone3(2) failed.
    #[error("cannot create a process in new namespaces")]
    Clone {
        /// Why.
        source: io::Error,
    },
    /// The launcher process could not be asked.
    #[error("cannot ask the launcher process for a sandbox")]
    Ask {
        /// Why.
        source: io::Error,
    },
}

impl Confinement {
    fn clone_flags(&self) -> u64 {
        let Confinement::Namespaces { network, .. } = self else { return 0 };
        // The cgroup namespace is entered by the first process itself, once it is in its cgroup.
        let mut flags =
            libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        if *network != Network::Host {
            flags |= libc::CLONE_NEWNET;
        }
        flags as u64
    }
}

/// Starts the first process of a sandbox. It reports on the peer of `control`, and ends when that peer closes.
///
/// The calling process must be small and have one thread: it is forked. That is what the command line and the
/// launcher process are, and what a library's caller is not.
pub fn launch(
    launch: &Launch,
    files: &Files,
    birthplace: &Birthplace<'_>,
    control: &OwnedFd,
) -> Result<Launched, LaunchError> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let side = match (launch.confinement.clone_flags(), birthplace.cgroup) {
        // Works in a sandbox, too, where clone3(2) does not.
        (0, None) => fork(),
        (flags, cgroup) => clone3(flags, cgroup),
    };
    match side.map_err(|source| LaunchError::Clone { source })? {
        Side::Parent { pidfd, pid } => Ok(Launched { pidfd, pid }),
        Side::Child => init::run(launch, Inherited { files, birthplace, control: control.as_fd(), user, group }),
    }
}
