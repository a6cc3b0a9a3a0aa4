//! The manifest of a sandbox that stays, stored in its directory.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ringfence_core::policy::Limits;
use ringfence_core::{Backend, Clause, Policy, Support};
use ringfence_linux::pause::ProcessTree;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::Name;
use crate::{ContainerSpec, Settings};

/// Description of a sandbox that stays, which other processes read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name of the sandbox.
    pub name: Name,
    /// The backend that enforces the policy.
    pub backend: Backend,
    /// Reason why the backend was chosen.
    pub chosen_because: String,
    /// Time of the start (RFC 3339).
    pub started: String,
    /// Time at which the lease ends (RFC 3339); none without a lease.
    pub ends: Option<String>,
    /// The workspace, as a path on the host.
    pub workspace: PathBuf,
    /// The workspace, as a path in the sandbox.
    pub workspace_inside: PathBuf,
    /// The clauses of the policy, each with how well it is held and by what. A support that was
    /// read from a file has no remedy.
    #[serde(with = "held_as_text")]
    pub held: BTreeMap<Clause, Support>,
    /// The network of the sandbox.
    pub network: NetworkReach,
    /// Hash of everything that was asked for.
    #[serde(rename = "spec")]
    pub request_hash: String,
    /// The limits of all processes of the sandbox together, and of the time and output of one
    /// command.
    pub limits: Limits,
    /// The policy, without the values of variables.
    #[serde(default)]
    pub policy: Policy,
    /// SHA-256 hash of the policy.
    pub policy_sha256: String,
    /// True if the hosts that the sandbox may reach were changed since the start.
    #[serde(default)]
    pub is_changed: bool,
    /// Description of the container, if a container engine made the sandbox.
    pub container: Option<ContainerManifest>,
    /// The process that keeps the sandbox.
    pub owner: Owner,
}

/// Reach of a sandbox's network. Its text in a manifest is `closed`, `open`, `host`, `allow`, or
/// `allow (NAME)`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum NetworkReach {
    /// Nothing outside can be reached.
    Closed,
    /// Everything that the host reaches can be reached.
    Open,
    /// The sandbox has the host's own network, and so also reaches the host itself.
    Host,
    /// Only the hosts that the policy allows can be reached.
    Allowed {
        /// Name of the network that other containers can join, if the sandbox has one.
        network: Option<String>,
    },
}

impl fmt::Display for NetworkReach {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkReach::Closed => formatter.write_str("closed"),
            NetworkReach::Open => formatter.write_str("open"),
            NetworkReach::Host => formatter.write_str("host"),
            NetworkReach::Allowed { network: None } => formatter.write_str("allow"),
            NetworkReach::Allowed { network: Some(name) } => write!(formatter, "allow ({name})"),
        }
    }
}

impl From<NetworkReach> for String {
    fn from(reach: NetworkReach) -> String {
        reach.to_string()
    }
}

impl From<String> for NetworkReach {
    fn from(text: String) -> NetworkReach {
        match text.as_str() {
            "closed" => NetworkReach::Closed,
            "open" => NetworkReach::Open,
            "host" => NetworkReach::Host,
            _ => {
                let name = text.strip_prefix("allow (").and_then(|rest| rest.strip_suffix(')'));
                NetworkReach::Allowed { network: name.map(str::to_owned) }
            }
        }
    }
}

/// Writes supports as the text that users read.
mod held_as_text {
    use std::collections::BTreeMap;

    use ringfence_core::{Clause, Support};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        held: &BTreeMap<Clause, Support>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(held.iter().map(|(clause, support)| (clause, support.to_string())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Clause, Support>, D::Error> {
        let held = BTreeMap::<Clause, String>::deserialize(deserializer)?;
        Ok(held.into_iter().map(|(clause, text)| (clause, Support::from_text(&text))).collect())
    }
}

/// Description of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerManifest {
    /// Name of the container at its engine.
    pub name: String,
    /// The image from which the container was made.
    pub image: String,
    /// The options that were asked for.
    pub spec: ContainerSpec,
    /// Name of the user that runs the commands.
    pub user: String,
    /// The workspace, as a path in the container.
    pub workspace: PathBuf,
    /// The network of the container.
    pub network: NetworkReach,
}

/// The process that keeps a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Process id of the owner.
    pub pid: i32,
    /// True if the process does nothing but keep the sandbox, so that ending the process stops the
    /// sandbox.
    pub is_monitor: bool,
    /// True if a server started the process for one of its clients. False if an older ringfence,
    /// which did not store this, wrote the manifest.
    #[serde(default)]
    pub is_for_server: bool,
    /// Identity of the process, which distinguishes it from a later process with the same id. None
    /// if an older ringfence, which did not store this, wrote the manifest.
    #[serde(default)]
    process: Option<ProcessTree>,
}

impl Owner {
    /// Returns the calling process as an owner.
    pub(crate) fn own(settings: &Settings) -> Owner {
        let pid = std::process::id().cast_signed();
        let &Settings { is_monitor, is_for_server, .. } = settings;
        Owner { pid, is_monitor, is_for_server, process: ProcessTree::from_pid(pid) }
    }

    /// Opens a descriptor of the process, pidfd_open(2). Returns `None` if the process has ended,
    /// or is in a pid namespace that is not visible from here.
    pub(crate) fn open(&self) -> io::Result<Option<OwnedFd>> {
        let opened = Pid::from_raw(self.pid)
            .map_or(Err(Errno::SRCH), |pid| pidfd_open(pid, PidfdFlags::empty()));
        match opened {
            // The check after opening guarantees that the descriptor is of the owner, even if
            // another process gets the same id later.
            Ok(descriptor) => {
                let is_its = self.process.map_or(Ok(true), |process| process.is_alive())?;
                Ok(Some(descriptor).filter(|_| is_its))
            }
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
