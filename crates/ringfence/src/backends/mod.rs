//! Backends. Each backend reports what it can enforce on this host, and turns a plan into a launch.

mod apparmor;
mod bare;
mod bwrap;
#[cfg(feature = "containers")]
mod containers;
mod facets;
#[cfg(any(feature = "containers", feature = "kubernetes"))]
mod guest_variables;
mod instance;
#[cfg(feature = "kubernetes")]
mod kubernetes;
pub(crate) mod limits;
mod mounted;
mod native;
mod private;
pub(crate) mod probe_cache;
mod process_tree;
#[cfg(test)]
mod remote_trial;
mod version;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use ringfence_core::settings::KubernetesConfig;
use ringfence_core::{Backend as Name, Capabilities, Clause, Fault, Plan, Policy};
use ringfence_linux::{Confinement, Exec, Launcher};

use crate::caller::streams::CallerStreams;
use crate::egress::{GateHolder, LoadedCredentials};
use crate::engine::Core;
use crate::host_paths::granted::Grants;
use crate::host_paths::workspace::ResolvedWorkspace;
use crate::run::plan::PlannedRun;
use crate::sandbox::StartError;
use crate::sandbox::directory::SandboxDir;
use crate::view::{Guarded, ViewError};
use crate::{Command, ContainerSpec, Host};

pub(crate) use facets::{
    ImageStore, KeptSandbox, PauseControl, PortRoute, SandboxFacets, WorkspaceSource,
};
#[cfg(any(feature = "containers", feature = "kubernetes"))]
use guest_variables::named_variables;
pub use instance::StopError;
pub(crate) use instance::{HostView, SandboxInstance};
#[cfg(feature = "kubernetes")]
pub use kubernetes::{ClusterManifest, sweep_cluster};
pub(crate) use private::PrivateDirectory;
pub use private::remove_untrusted;

/// Way to enforce a policy. Everything that differs between backends is behind this trait: no code
/// outside this module asks which backend made a sandbox.
pub(crate) trait Backend: Sync {
    /// Returns what the backend can enforce on this host. Only the clauses in `request` need an
    /// answer, because some are costly to find out.
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<Capabilities, Unavailable>;

    /// Returns a policy with this backend's additions where `policy` says nothing.
    fn complete(&self, policy: &Policy, _container: &ContainerSpec) -> Policy {
        policy.clone()
    }

    /// Tells whether the backend separates commands from the host by itself.
    fn isolates(&self) -> bool {
        true
    }

    /// Returns known problems of the programs that the backend relies on.
    fn warnings(&self, _host: &Host, _policy: &Policy) -> Vec<String> {
        Vec::new()
    }

    /// Tells whether the backend may be probed although nobody named it. A probe that makes
    /// something on another machine needs to be asked for.
    fn may_be_probed_unasked(&self) -> bool {
        true
    }

    /// Starts a sandbox with a guest for a plan that the backend agreed to. On failure, everything
    /// that was created is removed.
    fn start<'a>(
        &'a self,
        request: BackendStart<'a>,
    ) -> BoxFuture<'a, Result<StartedSandbox, StartError>>;

    /// Returns the facets of a sandbox that this or another process keeps.
    fn attach(&self, sandbox: KeptSandbox<'_>) -> io::Result<SandboxFacets>;

    /// Removes the remains of sandboxes whose owners were killed. `directories` is the directory
    /// of the directories of all sandboxes.
    fn sweep<'a>(&'a self, _host: &'a Host, _directories: &'a Path) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Removes what a killed owner left outside the directory of its sandbox.
    fn remove_remains(&self, _directory: &Path) {}

    /// Returns the ability to run a command as a process tree of ours, without a guest. For other
    /// backends, a sandbox is started for each command.
    fn process_launch(&self) -> Option<&dyn ProcessLaunch> {
        None
    }

    /// Returns the images of the backend, if its sandboxes are made from images.
    fn images(&self) -> Option<&dyn ImageStore> {
        None
    }
}

/// Ability of a backend to run a command as a process tree of ours.
pub(crate) trait ProcessLaunch: Sync {
    /// Turns a plan that the backend agreed to into a description of the launch.
    fn prepare(
        &self,
        inputs: &LaunchInputs<'_>,
        command: &Command,
    ) -> Result<Preparation, PrepareError>;

    /// Tells whether paths inside equal those of the host, wherever the policy would have the
    /// workspace.
    fn shares_paths(&self, plan: &Plan) -> bool;
}

/// Request to a backend to start a sandbox.
pub(crate) struct BackendStart<'a> {
    pub(crate) core: &'a Core,
    pub(crate) context: PlannedRun,
    /// Settings that only a container engine uses.
    pub(crate) container: &'a ContainerSpec,
    pub(crate) sandbox_dir: &'a SandboxDir,
}

/// A sandbox that a backend has started.
#[derive(Debug)]
pub(crate) struct StartedSandbox {
    pub(crate) instance: Box<dyn SandboxInstance>,
    /// Holder of the gate of the sandbox's network, or listener to its proxy, unless the instance
    /// contains it.
    pub(crate) egress: Option<GateHolder>,
    /// Variables that the guest has yet to receive for its commands.
    pub(crate) variables: BTreeMap<String, String>,
}

/// Request to a backend to tell its capabilities.
pub(crate) struct ProbeRequest<'a> {
    pub(crate) host: &'a Host,
    pub(crate) launcher: &'a Launcher,
    pub(crate) policy: &'a Policy,
    pub(crate) clauses: BTreeSet<Clause>,
    pub(crate) container: &'a ContainerSpec,
    /// Settings that only the backend for clusters uses.
    pub(crate) kubernetes: &'a KubernetesConfig,
    pub(crate) freshness: Freshness,
}

/// Freshness that an answer must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// A result for the same kernel, binary and user may be reused.
    Remembered,
    /// Everything is tried now.
    Now,
}

/// Reason why a backend does not work on this host at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// Description of what was tried, and of the result.
    pub why: String,
    /// Change that would make the backend work.
    pub fix: String,
}

/// Opens `/dev/null` as the standard streams of a trial, because a trial must not depend on the
/// caller's streams.
fn null_streams() -> io::Result<[OwnedFd; 3]> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
    Ok([null.try_clone()?, null.try_clone()?, null])
}

/// Everything that a backend needs to know to prepare a launch.
pub(crate) struct LaunchInputs<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) host: &'a Host,
    pub(crate) launcher: &'a Launcher,
    pub(crate) workspace: &'a ResolvedWorkspace,
    /// Checks of paths that must not be given to a sandbox.
    pub(crate) grants: &'a Grants,
    pub(crate) guarded: &'a Guarded,
    /// Programs of ringfence's that are shown inside, at the paths that they have on the host.
    pub(crate) shown: &'a [PathBuf],
    /// Credentials that the egress proxy shows to hosts outside, for which the proxy is trusted
    /// inside.
    pub(crate) credentials: Option<&'a LoadedCredentials>,
    /// Standard streams of the caller, as far as they are files outside.
    pub(crate) streams: &'a CallerStreams,
}

/// Description of a launch, and the resources that must live as long as it does.
#[derive(Debug)]
pub(crate) struct Preparation {
    pub(crate) exec: Exec,
    pub(crate) confinement: Confinement,
    /// Descriptors that the launched program itself reads, with their numbers.
    pub(crate) passed: Vec<(i32, OwnedFd)>,
    /// Socket from which the sandbox's gate is received, if there is a gate.
    pub(crate) gate: Option<OwnedFd>,
    /// Socket to which the first process sends the gate, if the first process creates it.
    pub(crate) holder: Option<OwnedFd>,
    /// Arguments of the launched program, if that is not the command itself.
    pub(crate) described: Vec<String>,
    /// Need for a cgroup to end the whole tree.
    pub(crate) group: GroupNeed,
    /// Number of processes that run for the command's sake and are not its own.
    pub(crate) own_processes: u32,
    /// Directory on the host that is removed with the run.
    pub(crate) private: Option<PrivateDirectory>,
}

/// Need for a cgroup to end every process of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupNeed {
    /// No need: the end of a pid namespace ends all its processes.
    None,
    /// A cgroup is used if possible. Without a cgroup, a subreaper ends the tree as well as it can.
    IfPossible,
    /// A cgroup is required, because the plan promises that the tree ends with its cgroup.
    Required,
}

impl GroupNeed {
    /// Returns the need of a run without a pid namespace.
    pub(crate) fn for_tree(plan: &Plan) -> GroupNeed {
        match plan.held.get(&Clause::Cleanup) {
            Some(support) if support.is_enforced() => GroupNeed::Required,
            _ => GroupNeed::IfPossible,
        }
    }
}

/// Error in the preparation of a launch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The view of the command could not be built.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A word of the command, a variable or a path contains a NUL byte.
    #[error("cannot pass {what} to a program: it has a NUL byte in it")]
    Nul {
        /// Description of the value, such as "an argument".
        what: String,
    },
    /// A word of the command is not UTF-8, which the guest requires.
    #[error("cannot pass `{word}` to the guest of a sandbox: it is not UTF-8")]
    NotText {
        /// Word in question, with invalid bytes replaced.
        word: String,
    },
    /// Something on the host could not be created or read.
    #[error("cannot prepare {what}")]
    Host {
        /// Description of what was being prepared.
        what: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The command does not exist. The error occurs before the sandbox is started.
    #[error("cannot find the command `{program}` inside the sandbox")]
    NotFound {
        /// Name or path of the command.
        program: String,
    },
    /// The command exists and cannot be executed. The error occurs before the sandbox is started.
    #[error("cannot execute `{program}` inside the sandbox")]
    NotExecutable {
        /// Name or path of the command.
        program: String,
    },
}

/// The backends that this version has, in the order in which they are examined.
pub(crate) const BACKENDS: &[(Name, &dyn Backend)] = &[
    (Name::Native, &native::NativeBackend),
    (Name::Bwrap, &bwrap::BwrapBackend),
    #[cfg(feature = "containers")]
    (Name::Podman, &containers::PODMAN),
    #[cfg(feature = "containers")]
    (Name::Docker, &containers::DOCKER),
    #[cfg(feature = "kubernetes")]
    (Name::Kubernetes, &kubernetes::KubernetesBackend),
    (Name::Outer, &bare::OUTER),
    (Name::Local, &bare::LOCAL),
    #[cfg(test)]
    (Name::E2b, &remote_trial::RemoteTrial),
];

/// Backend that is tried first. If no backend can be used, its refusal is the most useful one.
pub(crate) const PREFERRED: Name = Name::Native;

/// Returns the backend of that name, if this version has it.
pub(crate) fn get(name: Name) -> Result<&'static dyn Backend, Unavailable> {
    let found = BACKENDS.iter().find(|(available, _)| *available == name);
    found.map(|(_, backend)| *backend).ok_or_else(|| absent_backend(name))
}

/// Runs a future to completion on a separate thread, because the caller may be in a runtime, which
/// must not be blocked.
#[cfg(any(feature = "containers", feature = "kubernetes"))]
pub(crate) fn block_on<F: Future<Output: Send> + Send>(future: F) -> F::Output {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime
                .expect("a host that lacks descriptors for this can start nothing at all")
                .block_on(future)
        });
        waiting.join().expect("it panics only where its caller would")
    })
}

/// Returns the reason why this program has no backend of that name.
fn absent_backend(name: Name) -> Unavailable {
    match name {
        Name::Docker | Name::Podman => Unavailable {
            why: format!("this program was built without the `{name}` backend"),
            fix: "build the library `ringfence` with its cargo feature `containers`".to_owned(),
        },
        Name::Kubernetes => Unavailable {
            why: "this program was built without the `kubernetes` backend".to_owned(),
            fix: "build the library `ringfence` with its cargo feature `kubernetes`".to_owned(),
        },
        _ => Unavailable {
            why: format!("this version of ringfence has no `{name}` backend"),
            fix: "choose one of native, bwrap, docker, podman, kubernetes, outer, local".to_owned(),
        },
    }
}

/// Error in the creation or use of a container.
#[derive(Debug, thiserror::Error)]
#[error("{summary}")]
pub struct ContainerError {
    /// Description of what was tried, on what, and of the result.
    pub summary: String,
    /// Party that has to act on the error.
    pub fault: Fault,
    /// Next commands for the user to type.
    pub hints: Vec<String>,
    /// Cause of the error, if there is one.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Builds the description of an exec from words in the form that the kernel takes.
pub(crate) fn exec(
    command: &Command,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    directory: PathBuf,
) -> Result<Exec, PrepareError> {
    use std::os::unix::ffi::OsStringExt;
    let word = |word: OsString, what: &str| {
        std::ffi::CString::new(word.into_vec())
            .map_err(|_| PrepareError::Nul { what: what.to_owned() })
    };
    let program = word(command.program.clone(), "the command's name")?;
    let mut argv = vec![program.clone()];
    for argument in &command.arguments {
        argv.push(word(argument.clone(), "an argument")?);
    }
    let mut env = Vec::new();
    for (name, value) in variables {
        let what = format!("the variable `{}`", name.display());
        let mut variable = name;
        variable.push("=");
        variable.push(value);
        env.push(word(variable, &what)?);
    }
    Ok(Exec { program, argv, env, directory })
}
