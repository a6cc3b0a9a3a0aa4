//! Backends. Each backend reports what it can enforce on this host, and turns a plan into a launch.

mod apparmor;
mod bare;
pub(crate) mod bwrap;
pub(crate) mod engine;
pub(crate) mod limits;
mod mounted;
mod native;
mod private;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use ringfence_core::{Backend as Name, Capabilities, Clause, Fault, Plan, Policy};
use ringfence_linux::{Confinement, Exec, Launcher};

use crate::egress::Sealed;
use crate::granted::Grants;
use crate::instance::Instance;
use crate::room::Room;
use crate::streams::CallerStreams;
use crate::view::{Guarded, ViewError};
use crate::workspace::ResolvedWorkspace;
use crate::{Command, ContainerSpec, Host};

pub(crate) use private::PrivateDirectory;
pub use private::remove_untrusted;

/// Way to enforce a policy.
pub(crate) trait Backend: Sync {
    /// Returns what the backend can enforce on this host. Only the clauses in `question` need an
    /// answer, because some are costly to find out.
    fn capabilities(&self, question: &Question<'_>) -> Result<Capabilities, Unavailable>;

    /// Returns a policy with this backend's additions where `policy` says nothing.
    fn complete(&self, policy: &Policy, _container: &ContainerSpec) -> Policy {
        policy.clone()
    }
}

/// Backend whose sandboxes are process trees of ringfence's.
pub(crate) trait Processes: Backend {
    /// Turns a plan that the backend agreed to into a description of the launch.
    fn prepare(&self, site: &Site<'_>, command: &Command) -> Result<Preparation, PrepareError>;

    /// Tells whether paths inside equal those of the host, wherever the policy would have the
    /// workspace.
    fn shares_paths(&self, plan: &Plan) -> bool;
}

/// Backend whose sandboxes are created by another program, with our guest as their first process.
pub(crate) trait Containers: Backend {
    /// Creates a sandbox for a plan that the backend agreed to. On failure, everything that was
    /// created is removed.
    fn start<'a>(
        &'a self,
        site: &'a Site<'a>,
        room: &'a Room,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, ContainerError>>;

    /// Removes the remains of sandboxes whose owners were killed. `rooms` is the directory of the
    /// rooms.
    fn sweep<'a>(&'a self, host: &'a Host, rooms: &'a Path) -> BoxFuture<'a, ()>;
}

/// Means by which a backend creates its sandboxes.
#[derive(Clone, Copy)]
pub(crate) enum Means {
    /// Sandboxes that ringfence's own launcher creates.
    Processes(&'static dyn Processes),
    /// Sandboxes that a container engine creates.
    Containers(&'static dyn Containers),
}

impl Means {
    pub(crate) fn backend(self) -> &'static dyn Backend {
        match self {
            Means::Processes(backend) => backend,
            Means::Containers(backend) => backend,
        }
    }
}

/// Question to a backend about its capabilities.
pub(crate) struct Question<'a> {
    pub(crate) host: &'a Host,
    pub(crate) launcher: &'a Launcher,
    pub(crate) policy: &'a Policy,
    pub(crate) clauses: BTreeSet<Clause>,
    pub(crate) container: &'a ContainerSpec,
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
pub(crate) struct Site<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) host: &'a Host,
    pub(crate) launcher: &'a Launcher,
    pub(crate) workspace: &'a ResolvedWorkspace,
    /// Checks of paths that must not be given to a sandbox.
    pub(crate) grants: &'a Grants,
    pub(crate) guarded: &'a Guarded,
    /// Settings that only a container engine uses.
    pub(crate) container: &'a ContainerSpec,
    /// Programs of ringfence's that are shown inside, at the paths that they have on the host.
    pub(crate) shown: &'a [PathBuf],
    /// Credentials that the egress proxy shows to hosts outside, for which the proxy is trusted
    /// inside.
    pub(crate) sealed: Option<&'a Sealed>,
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

/// Returns the backend of that name, if this version has it.
pub(crate) fn get(name: Name) -> Result<Means, Unavailable> {
    match name {
        Name::Native => Ok(Means::Processes(&native::Native)),
        Name::Bwrap => Ok(Means::Processes(&bwrap::Bwrap)),
        Name::Outer => Ok(Means::Processes(&bare::OUTER)),
        Name::Local => Ok(Means::Processes(&bare::LOCAL)),
        Name::Docker => Ok(Means::Containers(&engine::DOCKER)),
        Name::Podman => Ok(Means::Containers(&engine::PODMAN)),
        Name::Kubernetes | Name::E2b => Err(Unavailable {
            why: format!("this version of ringfence has no `{name}` backend"),
            fix: "choose one of native, bwrap, docker, podman, outer, local".to_owned(),
        }),
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
