//! Setups of attempts: the variant of the backend, and the user who makes the attempt.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use ringfence::Clause;
use ringfence_test_ledger::engine::{
    DEV_IMAGE, DOCKER_VARIABLE, Engine, PODMAN_VARIABLE, ROOTLESS_PODMAN_VARIABLE,
};
use ringfence_test_ledger::{User, binary};
use tempfile::TempDir;

use crate::SimulatedNetwork;
use crate::relay::EngineRelay;

/// A backend, in one of its ways to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendVariant {
    /// The native backend with namespaces.
    Native,
    /// The native backend where user namespaces are forbidden.
    NativeInPlace,
    /// The backend that runs bubblewrap.
    Bwrap,
    /// Docker, as root runs it.
    Docker,
    /// Podman, as root runs it.
    Podman,
    /// Podman, as the ordinary user of the tests runs it.
    RootlessPodman,
    /// No isolation at all, as the negative control.
    Local,
}

/// The user who runs ringfence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// The superuser, who may do everything.
    Root,
    /// A user without privileges.
    Ordinary,
}

/// A backend variant and a caller, with which attempts are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendSetup {
    /// Backend that isolates the attempt.
    pub variant: BackendVariant,
    /// User who makes the attempt.
    pub caller: Caller,
}

/// Clauses that a rootless engine can limit only if the host lets users write cgroups.
const LIMITS: [Clause; 3] = [Clause::Memory, Clause::Cpus, Clause::ProcessCount];
/// Variable of the caller that no policy passes.
const SECRET: (&str, &str) = ("CONFORMANCE_SECRET", "not for others");
/// Search path with the programs of every distribution.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Script that runs a command where no further user namespace can be created, with the user id that
/// it has outside. The first namespace sets the limit of namespaces below it; the second namespace
/// is the only one that the limit allows.
const WITHOUT_NAMESPACES: &str =
    "user=$(id -u) group=$(id -g) exec unshare --user --map-root-user sh -c '
    echo 1 > /proc/sys/user/max_user_namespaces &&
    exec unshare --user --map-user=\"$user\" --map-group=\"$group\" -- \"$@\"' sh \"$@\"";

impl BackendVariant {
    /// Every variant that has a column in the documentation, in the order of the columns.
    pub const DOCUMENTED: [BackendVariant; 6] = [
        BackendVariant::Native,
        BackendVariant::NativeInPlace,
        BackendVariant::Bwrap,
        BackendVariant::Docker,
        BackendVariant::Podman,
        BackendVariant::RootlessPodman,
    ];

    /// Returns the title of the variant's column in the documentation.
    pub fn title(self) -> &'static str {
        match self {
            BackendVariant::Native => "native",
            BackendVariant::NativeInPlace => "native, without user namespaces",
            BackendVariant::Bwrap => "bwrap",
            BackendVariant::Docker => "docker",
            BackendVariant::Podman => "podman",
            BackendVariant::RootlessPodman => "podman, rootless",
            BackendVariant::Local => "local",
        }
    }

    /// Returns the users who can call the variant. A rootless engine serves only its own user.
    pub fn callers(self) -> &'static [Caller] {
        match self {
            BackendVariant::RootlessPodman => &[Caller::Ordinary],
            // An engine of root would only learn who calls, and would do nothing else differently.
            BackendVariant::Podman => &[Caller::Root],
            _ => &[Caller::Root, Caller::Ordinary],
        }
    }

    /// Returns the engine of the tests, if the variant is an engine.
    pub fn engine(self) -> Option<Engine> {
        self.engine_variable().and_then(|variable| Engine::named_by(variable).ok())
    }

    /// Returns true if the variant needs no engine, or if the tests were given that engine.
    pub fn is_given(self) -> bool {
        self.engine_variable().is_none() || self.engine().is_some()
    }

    fn engine_variable(self) -> Option<&'static str> {
        match self {
            BackendVariant::Docker => Some(DOCKER_VARIABLE),
            BackendVariant::Podman => Some(PODMAN_VARIABLE),
            BackendVariant::RootlessPodman => Some(ROOTLESS_PODMAN_VARIABLE),
            BackendVariant::Native
            | BackendVariant::NativeInPlace
            | BackendVariant::Bwrap
            | BackendVariant::Local => None,
        }
    }

    /// Returns true if the host decides how well the variant enforces a clause, because cgroups of
    /// version 1 belong to root.
    pub fn depends_on_host(self, clause: Clause) -> bool {
        self == BackendVariant::RootlessPodman && LIMITS.contains(&clause)
    }

    fn backend(self) -> &'static str {
        match self {
            BackendVariant::Native | BackendVariant::NativeInPlace => "native",
            BackendVariant::Bwrap => "bwrap",
            BackendVariant::Docker => "docker",
            BackendVariant::Podman | BackendVariant::RootlessPodman => "podman",
            BackendVariant::Local => "local",
        }
    }

    /// Returns the clauses whose weakness must be accepted by name before the variant starts.
    fn weaknesses(self) -> &'static [Clause] {
        match self {
            BackendVariant::NativeInPlace => {
                &[Clause::Filesystem, Clause::Processes, Clause::Ipc, Clause::Cleanup]
            }
            BackendVariant::RootlessPodman => {
                &[Clause::Memory, Clause::Cpus, Clause::ProcessCount, Clause::Tmp]
            }
            BackendVariant::Native
            | BackendVariant::Bwrap
            | BackendVariant::Docker
            | BackendVariant::Podman
            | BackendVariant::Local => &[],
        }
    }
}

impl BackendSetup {
    /// Returns a setup for each caller of a variant.
    pub fn all_on(variant: BackendVariant) -> impl Iterator<Item = BackendSetup> {
        variant.callers().iter().map(move |caller| BackendSetup { variant, caller: *caller })
    }

    /// Returns the command `ringfence SUBCOMMAND --backend …` in a place, with an environment of
    /// the caller's own.
    pub fn ringfence(self, subcommand: &str, place: &CallerDirectory) -> Command {
        let mut command = match self.variant {
            BackendVariant::NativeInPlace => {
                let mut shell = self.command("sh", place);
                shell.args(["-c", WITHOUT_NAMESPACES, "sh"]).arg(binary());
                shell
            }
            _ => self.command(binary(), place),
        };
        command.args([subcommand, "--backend", self.variant.backend()]);
        if self.variant.engine().is_some() {
            command.args(["--image", DEV_IMAGE, "--pull", "never"]);
        }
        for weakness in self.variant.weaknesses() {
            command.args(["--allow-weaker", weakness.name()]);
        }
        command
    }

    /// Returns a command of the caller, in an environment that names the engine.
    pub fn command(self, program: impl AsRef<std::ffi::OsStr>, place: &CallerDirectory) -> Command {
        let mut command = match (place.world, &place.user) {
            (Some(world), user) => {
                world.command(user.as_ref(), program.as_ref().as_ref(), place.path())
            }
            (None, Some(user)) => user.command(program),
            (None, None) => Command::new(program),
        };
        let home = place.user.as_ref().map_or(Path::new("/root"), |user| &user.home);
        command.env_clear().env("PATH", PATH).env("HOME", home).env(SECRET.0, SECRET.1);
        // All tests share the cache, whatever home each has for its sandboxes, so that an engine is
        // probed only once.
        command.env("XDG_CACHE_HOME", home.join(".cache"));
        if let Some(engine) = self.variant.engine() {
            let address = match (self.variant, self.caller) {
                (BackendVariant::Docker | BackendVariant::Podman, Caller::Ordinary) => {
                    place.relay.get_or_init(|| EngineRelay::for_engine(&engine)).address()
                }
                _ => engine.address(),
            };
            command.env("DOCKER_HOST", &address).env("CONTAINER_HOST", &address);
        }
        command.current_dir(place.path()).stdin(Stdio::null());
        command
    }
}

/// A directory of the caller's own, used as a workspace.
#[derive(Debug)]
pub struct CallerDirectory {
    directory: TempDir,
    user: Option<User>,
    /// Relay to an engine of root, created when the caller first needs one.
    relay: OnceLock<EngineRelay>,
    /// Network in which commands run, if it is not the network of the tests.
    world: Option<&'static SimulatedNetwork>,
}

impl CallerDirectory {
    /// Creates a place for a caller.
    ///
    /// # Panics
    ///
    /// Panics if the directory cannot be created, or if there is no ordinary user to own it.
    pub fn for_caller(caller: Caller) -> CallerDirectory {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let user = match caller {
            Caller::Root => None,
            Caller::Ordinary => {
                Some(User::for_tests().expect("the test requires an ordinary user"))
            }
        };
        if let Some(user) = &user {
            std::os::unix::fs::chown(directory.path(), Some(user.uid), Some(user.gid))
                .expect("it is given to whoever it is, or by root");
        }
        CallerDirectory { directory, user, relay: OnceLock::new(), world: None }
    }

    /// Creates a place whose commands run on the host of a world.
    ///
    /// # Panics
    ///
    /// Panics as [`CallerDirectory::for_caller`] does.
    pub fn for_host_of(world: &'static SimulatedNetwork, caller: Caller) -> CallerDirectory {
        CallerDirectory { world: Some(world), ..CallerDirectory::for_caller(caller) }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}
