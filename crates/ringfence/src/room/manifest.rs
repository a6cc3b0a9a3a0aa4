//! What a room tells of its sandbox.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ringfence_core::policy::Limits;
use ringfence_core::{Backend, Clause, Policy};
use ringfence_linux::pause::ProcessTree;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::Name;
use crate::{ContainerSpec, Settings};

/// What is written down of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// What it is called.
    pub name: Name,
    /// What makes its policy hold.
    pub backend: Backend,
    /// Why that was chosen.
    pub chosen_because: String,
    /// When it was started, RFC 3339.
    pub started: String,
    /// When its lease ends.
    pub ends: Option<String>,
    /// The directory of the host that it works on.
    pub workspace: PathBuf,
    /// Where that is inside.
    pub workspace_inside: PathBuf,
    /// What holds, and by what.
    pub held: BTreeMap<Clause, String>,
    /// The network that it has: `closed`, `open`, `host`, `allow`, or `allow (NAME)` where it is one of its own.
    pub network: String,
    /// The hash of everything that was asked for.
    pub spec: String,
    /// The limits of all its processes together, and of one command's time and output.
    pub limits: Limits,
    /// Its policy, without the values of variables.
    #[serde(default)]
    pub policy: Policy,
    /// The hash of its policy.
    pub policy_sha256: String,
    /// Whether what it may reach was changed since it was started.
    #[serde(default)]
    pub is_changed: bool,
    /// What a container engine was told.
    pub container: Option<ContainerManifest>,
    /// Who keeps it.
    pub owner: Owner,
}

/// What is written down of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerManifest {
    /// Its name at the engine.
    pub name: String,
    /// What it was made from.
    pub image: String,
    /// What was asked for.
    pub spec: ContainerSpec,
    /// The user that commands run as, by name.
    pub user: String,
    /// Where the workspace is inside.
    pub workspace: PathBuf,
    /// The network that it has: `closed`, `open`, `host`, `allow`, or `allow (NAME)` where it is one of its own.
    pub network: String,
}

/// The process that keeps a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its process id.
    pub pid: i32,
    /// Whether it does nothing else, so that ending it is how the sandbox is stopped.
    pub is_monitor: bool,
    /// Whether a server started it, for one of its clients; not so where its ringfence did not write that down.
    #[serde(default)]
    pub is_for_server: bool,
    /// What tells it from a process that has its id later; nothing where its ringfence did not write that down.
    #[serde(default)]
    process: Option<ProcessTree>,
}

impl Owner {
    /// The calling process.
    pub(crate) fn own(settings: &Settings) -> Owner {
        let pid = std::process::id().cast_signed();
        let &Settings { is_monitor, is_for_server, .. } = settings;
        Owner { pid, is_monitor, is_for_server, process: ProcessTree::of(pid) }
    }

    /// A descriptor of it, pidfd_open(2); nothing when it has ended, or is not seen from here.
    pub(crate) fn open(&self) -> io::Result<Option<OwnedFd>> {
        let opened = Pid::from_raw(self.pid).map_or(Err(Errno::SRCH), |pid| pidfd_open(pid, PidfdFlags::empty()));
        match opened {
            // After this look it is the owner's, whoever has the id later.
            Ok(descriptor) => {
                let is_its = self.process.map_or(Ok(true), |process| process.is_there())?;
                Ok(Some(descriptor).filter(|_| is_its))
            }
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
