//! Starting a sandbox: turns a description into a running first process.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::gate;
use crate::init::{self, InheritedState};
use crate::landlock::Rules;
use crate::seccomp::AllowedSockets;
use crate::streams::StreamFile;
use crate::sys::process::{CloneSide, clone3, fork};
use crate::view::View;

/// Everything that a sandbox needs to start.
///
/// A launch decides nothing: every field is carried out, or the launch fails.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launch {
    /// Command that is run.
    pub exec: Exec,
    /// Confinement of the command.
    pub confinement: Confinement,
    /// Relation of the command to the caller's terminal.
    pub terminal: TerminalMode,
    /// Time limit of the command; absent if there is none.
    pub time: Option<Duration>,
    /// Treatment of processes that outlive the command.
    pub survivors: Survivors,
    /// Directory on the host that was created for this run alone. The first process removes it at
    /// the end, even if its launcher was killed.
    pub private: Option<PathBuf>,
}

/// A program, its arguments, its environment and its directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exec {
    /// Path, or name that is looked up in the `PATH` of `env`, inside the sandbox.
    pub program: CString,
    /// Arguments, including `argv[0]`.
    pub argv: Vec<CString>,
    /// Environment variables, as `NAME=value`.
    pub env: Vec<CString>,
    /// Directory in which the command starts, inside the sandbox.
    pub directory: PathBuf,
}

/// The mechanisms that confine a command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Confinement {
    /// Namespaces, a root of its own, Landlock and seccomp.
    Namespaces {
        /// Files that the command sees.
        view: View,
        /// Network that the command can reach.
        network: SandboxNetwork,
        /// Landlock ABI that was probed, for additional rules; 0 if the kernel has none.
        landlock_abi: u32,
        /// Standard streams that are opened again inside.
        streams: Vec<StreamFile>,
    },
    /// Landlock and seccomp on the host's own tree, for hosts that forbid user namespaces.
    Landlock {
        /// Paths that the command may access.
        rules: Rules,
        /// Sockets that the command may create.
        sockets: AllowedSockets,
    },
    /// Confinement that the command itself sets up, as bubblewrap does for the program that it
    /// runs. Core dumps are forbidden here, because the command does not do that.
    Delegated,
    /// No confinement: the command is only supervised.
    Bare,
}

/// The network that a sandbox can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxNetwork {
    /// The host's own network.
    Host,
    /// A network namespace of its own that has only the interface `lo`.
    Private,
    /// A network namespace of its own, and the connections that the holder of its gate permits.
    Gated(gate::GateKind),
}

/// Treatment of processes that outlive the command that started them.
///
/// When the command itself is ended, by an order or by its deadline, these processes are always
/// ended too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Survivors {
    /// Survivors are ended.
    End,
    /// Survivors are left alone while the launching side keeps its end of the control socket open.
    Leave,
}

/// Relation of a command to the caller's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminalMode {
    /// The command's group becomes the foreground group of the controlling terminal.
    Foreground,
    /// The command stays in the session, in a process group of its own.
    Background,
    /// The command has a session of its own and no controlling terminal.
    Detached,
    /// The command has a session of its own, whose controlling terminal is its standard input.
    Own,
}

/// Descriptors of a launch that are not in its description.
#[derive(Debug, Default)]
pub struct LaunchFiles {
    /// Standard input, output and error; the caller's own where absent.
    pub stdio: [Option<OwnedFd>; 3],
    /// Controlling terminal, needed for [`TerminalMode::Foreground`].
    pub terminal: Option<OwnedFd>,
    /// Socket to which the gate is sent, needed for [`SandboxNetwork::Gated`].
    pub gate: Option<OwnedFd>,
    /// Additional descriptors of the command, each with a number from 3 to
    /// [`LaunchFiles::HIGHEST_BACKEND_DESCRIPTOR`].
    pub passed: Vec<(i32, OwnedFd)>,
}

impl LaunchFiles {
    /// Highest number of a descriptor that the caller passes to its command. Numbers above it, up
    /// to [`LaunchFiles::HIGHEST_BACKEND_DESCRIPTOR`], are for the program of a backend.
    pub const HIGHEST_CALLER_DESCRIPTOR: i32 = 99;
    /// Highest number of any passed descriptor. Numbers above it belong to the first process.
    pub const HIGHEST_BACKEND_DESCRIPTOR: i32 = 199;
}

/// The cgroups in which a first process is created, or which it joins itself.
#[derive(Debug, Default)]
pub struct StartCgroups<'a> {
    /// Directory of a cgroup v2, in which the first process is created.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// `tasks` files of cgroup v1, open for writing. The first process joins these cgroups itself.
    pub tasks: &'a [OwnedFd],
}

impl<'a> StartCgroups<'a> {
    /// Returns the cgroups of `group`, or none if there is no group.
    pub fn for_group(group: Option<&'a Cgroup>) -> StartCgroups<'a> {
        group.map_or_else(StartCgroups::default, |group| StartCgroups {
            cgroup: group.clone_directory(),
            tasks: group.tasks(),
        })
    }
}

/// The first process of a sandbox.
#[derive(Debug)]
pub struct LaunchedProcess {
    /// Pidfd, which becomes readable when the process ends.
    pub pidfd: OwnedFd,
    /// Process id outside the sandbox.
    pub pid: i32,
}

/// Error of creating the first process.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// clone3(2) or clone(2) failed.
    #[error("cannot create a process in new namespaces")]
    Clone {
        /// Error of the system call.
        source: io::Error,
    },
    /// The request to the launcher process failed.
    #[error("cannot ask the launcher process for a sandbox")]
    Ask {
        /// Error of the exchange with the launcher process.
        source: io::Error,
    },
}

impl Confinement {
    fn clone_flags(&self) -> u64 {
        let Confinement::Namespaces { network, .. } = self else { return 0 };
        // The first process enters the cgroup namespace itself, after it has joined its cgroup.
        let mut flags = libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS;
        if *network != SandboxNetwork::Host {
            flags |= libc::CLONE_NEWNET;
        }
        flags as u64
    }
}

/// Starts the first process of a sandbox. The first process sends reports to the peer of `control`,
/// and ends when that peer closes.
///
/// The calling process is forked, so it must be small and have one thread. The command line and the
/// launcher process meet this condition; a library's caller does not.
pub fn launch(
    launch: &Launch,
    files: &LaunchFiles,
    start_cgroups: &StartCgroups<'_>,
    control: &OwnedFd,
) -> Result<LaunchedProcess, LaunchError> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let side = match (launch.confinement.clone_flags(), start_cgroups.cgroup) {
        // `fork` also works inside a sandbox, whose seccomp filter refuses clone3(2).
        (0, None) => fork(),
        (flags, cgroup) => clone3(flags, cgroup),
    };
    match side.map_err(|source| LaunchError::Clone { source })? {
        CloneSide::Parent { pidfd, pid } => Ok(LaunchedProcess { pidfd, pid }),
        CloneSide::Child => init::run(
            launch,
            InheritedState { files, start_cgroups, control: control.as_fd(), user, group },
        ),
    }
}
