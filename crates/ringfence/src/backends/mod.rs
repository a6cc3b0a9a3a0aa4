//! The backends: each says what it can hold here, and turns a plan into a launch.

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

/// A way to make a policy hold.
pub(crate) trait Backend: Sync {
    /// What it can hold here. Only the clauses in `question` need an answer: some are costly to find out.
    fn capabilities(&self, question: &Question<'_>) -> Result<Capabilities, Unavailable>;

    /// A policy with what this backend adds where it says nothing.
    fn complete(&self, policy: &Policy, _container: &ContainerSpec) -> Policy {
        policy.clone()
    }
}

/// A backend whose sandboxes are process trees of ours.
pub(crate) trait Processes: Backend {
    /// Turns a plan that it agreed to into what is to be launched.
    fn prepare(&self, site: &Site<'_>, command: &Command) -> Result<Preparation, PrepareError>;

    /// Whether paths inside are those of the host, wherever the policy would have the workspace.
    fn shares_paths(&self, plan: &Plan) -> bool;
}

/// A backend whose sandboxes are made by another program, with our guest as their first process.
pub(crate) trait Containers: Backend {
    /// Makes a sandbox for a plan that it agreed to. Whatever it makes is gone again when it fails.
    fn start<'a>(
        &'a self,
        site: &'a Site<'a>,
        room: &'a Room,
    ) -> BoxFuture<'a, Result<Box<dyn Instance>, ContainerError>>;

    /// Removes what sandboxes left whose owners were killed. `rooms` is where rooms are.
    fn sweep<'a>(&'a self, host: &'a Host, rooms: &'a Path) -> BoxFuture<'a, ()>;
}

/// How a backend makes its sandboxes.
#[derive(Clone, Copy)]
pub(crate) enum Means {
    /// By our own launcher.
    Processes(&'static dyn Processes),
    /// By a container engine.
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

/// What a backend is asked.
pub(crate) struct Question<'a> {
    pub(crate) host: &'a Host,
    pub(crate) launcher: &'a Launcher,
    pub(crate) policy: &'a Policy,
    pub(crate) clauses: BTreeSet<Clause>,
    pub(crate) container: &'a ContainerSpec,
    pub(crate) freshness: Freshness,
}

/// Whether an answer from an earlier run may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// What worked for this kernel, binary and user is taken to work.
    Remembered,
    /// Everything is tried now.
    Now,
}

/// A backend does not work here at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// What was tried, and what came of it.
    pub why: String,
    /// What would make it work.
    pub fix: String,
}

/// What a launch is prepared for.
pub(crate) struct Site<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) host: &'a Host,
    pub(crate) launcher: &'a Launcher,
    pub(crate) workspace: &'a ResolvedWorkspace,
    /// The places that no sandbox is given.
    pub(crate) grants: &'a Grants,
    pub(crate) guarded: &'a Guarded,
    /// What only a container engine is told.
    pub(crate) container: &'a ContainerSpec,
    /// Programs of ours that are shown inside, at the paths that they have on the host.
    pub(crate) shown: &'a [PathBuf],
    /// What its proxy shows to hosts outside, for which it is trusted inside.
    pub(crate) sealed: Option<&'a Sealed>,
    /// The caller's standard streams, as far as they are files outside.
    pub(crate) streams: &'a CallerStreams,
}

/// A launch, and what must live as long as it does.
#[derive(Debug)]
pub(crate) struct Preparation {
    pub(crate) exec: Exec,
    pub(crate) confinement: Confinement,
    /// Descriptors that the launched program reads itself, under these numbers.
    pub(crate) passed: Vec<(i32, OwnedFd)>,
    /// Where the sandbox's gate comes from, if it has one.
    pub(crate) gate: Option<OwnedFd>,
    /// Whom the first process sends it to, where that makes it.
    pub(crate) holder: Option<OwnedFd>,
    /// The words that the launched program is given, where it is not the command itself.
    pub(crate) described: Vec<String>,
    /// Whether a control group is needed to end the whole tree.
    pub(crate) group: GroupNeed,
    /// How many processes are there for the command's sake, and are not its own.
    pub(crate) own_processes: u32,
    /// A directory on the host that goes with the run.
    pub(crate) private: Option<PrivateDirectory>,
}

/// Whether a control group is needed to end every process of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupNeed {
    /// No: the end of a pid namespace is the end of its processes.
    None,
    /// A subreaper ends the tree as well as it can; a group, where one can be had, does it better.
    IfPossible,
    /// Yes: the plan says that the tree ends with its group.
    Required,
}

impl GroupNeed {
    /// The need of a run without a pid namespace.
    pub(crate) fn for_tree(plan: &Plan) -> GroupNeed {
        match plan.held.get(&Clause::Cleanup) {
            Some(support) if support.is_enforced() => GroupNeed::Required,
            _ => GroupNeed::IfPossible,
        }
    }
}

/// A launch could not be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// What the command is to see could not be worked out.
    #[error(transparent)]
    View(#[from] ViewError),
    /// A word of the command, a variable or a path has a NUL byte in it.
    #[error("cannot pass {what} to a program: it has a NUL byte in it")]
    Nul {
        /// Which.
        what: String,
    },
    /// A word of the command is not text, and the guest takes nothing else.
    #[error("cannot pass `{word}` to the guest of a sandbox: it is not UTF-8")]
    NotText {
        /// Which.
        word: String,
    },
    /// Something on the host's side could not be made.
    #[error("cannot prepare {what}")]
    Host {
        /// What.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// The command is not there; found before the sandbox was started.
    #[error("cannot find the command `{program}` inside the sandbox")]
    NotFound {
        /// Which.
        program: String,
    },
    /// The command is there and cannot be executed; found before the sandbox was started.
    #[error("cannot execute `{program}` inside the sandbox")]
    NotExecutable {
        /// Which.
        program: String,
    },
}

/// The backend of that name, when this version has it.
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

/// A container could not be made.
#[derive(Debug, thiserror::Error)]
#[error("{summary}")]
pub struct ContainerError {
    /// What was tried, on what, and what came of it.
    pub summary: String,
    /// Whose move it is.
    pub fault: Fault,
    /// The next things to type.
    pub hints: Vec<String>,
    /// Why.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The words of an exec as the kernel takes them.
pub(crate) fn exec(
    command: &Command,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    directory: PathBuf,
) -> Result<Exec, PrepareError> {
    use std::os::unix::ffi::OsStringExt;
    let word = |word: OsString, what: &str| {
        std::ffi::CString::new(word.into_vec()).map_err(|_| PrepareError::Nul { what: what.to_owned() })
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
