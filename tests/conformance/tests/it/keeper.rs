//! Somebody who keeps sandboxes: a home and a program of their own, by which everything of theirs on the host is known.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfence::Backend;
use ringfence_test_ledger::engine::{DOCKER_VARIABLE, Engine, PODMAN_VARIABLE, TINY_IMAGE};
use ringfence_test_ledger::{User, binary};
use tempfile::TempDir;

use crate::remains::{self, Process};

/// How long a busy host may take for one thing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is looked at.
const MOMENT: Duration = Duration::from_millis(2);
/// What a sandbox has of its keeper: a variable that everything in it inherits.
const MARK: &str = "RINGFENCE_TEST_KEEPER";

/// Somebody who keeps sandboxes on one backend.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) backend: Backend,
    /// The ordinary user that everything is started as; root without one.
    user: Option<User>,
    home: TempDir,
    /// The processes that started sandboxes. What has no other sign of whose it is has their number in its name.
    makers: Mutex<BTreeSet<u32>>,
}

/// How a command went.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    /// All that it said.
    pub(crate) said: String,
}

impl Outcome {
    pub(crate) fn is_good(&self) -> bool {
        self.code == Some(0)
    }
}

impl Keeper {
    /// Root, on a backend.
    pub(crate) fn on(backend: Backend) -> Keeper {
        Keeper::started_as(None, backend)
    }

    /// Root and an ordinary user, each on a backend.
    pub(crate) fn each_on(backend: Backend) -> [Keeper; 2] {
        let user = User::for_tests().expect("the test requires one");
        [None, Some(user)].map(|user| Keeper::started_as(user, backend))
    }

    fn started_as(user: Option<User>, backend: Backend) -> Keeper {
        let home = TempDir::new_in("/var/tmp").expect("a temporary directory can be made");
        let keeper = Keeper { backend, user, home, makers: Mutex::default() };
        fs_err::create_dir(keeper.workspace()).expect("the home is ours");
        // A process that was never told of the home is known by its program. Another process copies it: of a file that
        // is open here for writing, every child that is just being started has a descriptor, and it cannot be run.
        let copied = Command::new("cp").arg(binary()).arg(keeper.program()).status();
        assert!(copied.is_ok_and(|status| status.success()), "the program can be copied");
        keeper.give(keeper.home());
        keeper.give(&keeper.workspace());
        keeper
    }

    /// Makes this keeper's user the owner of what the test has made.
    pub(crate) fn give(&self, path: &Path) {
        if let Some(user) = &self.user {
            chown(path, Some(user.uid), Some(user.gid)).expect("it is given by root");
        }
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.home().join("workspace")
    }

    /// This keeper's `ringfence`.
    pub(crate) fn program(&self) -> PathBuf {
        self.home().join("ringfence")
    }

    /// The directory of a sandbox.
    pub(crate) fn room(&self, name: &str) -> PathBuf {
        self.state().join("sandboxes").join(name)
    }

    /// The directory of a server.
    pub(crate) fn server(&self) -> PathBuf {
        self.state().join("server")
    }

    fn state(&self) -> PathBuf {
        self.home().join(".local/state/ringfence")
    }

    /// The engine of a backend that has one.
    fn engine(&self) -> Option<(Engine, &'static str)> {
        let (variable, told_by) = match self.backend {
            Backend::Docker => (DOCKER_VARIABLE, "DOCKER_HOST"),
            Backend::Podman => (PODMAN_VARIABLE, "CONTAINER_HOST"),
            _ => return None,
        };
        Some((Engine::named_by(variable).expect("the test requires it"), told_by))
    }

    /// The environment of all that this keeper starts.
    pub(crate) fn variables(&self) -> BTreeMap<OsString, OsString> {
        let path = std::env::var_os("PATH").expect("there is a PATH");
        let mut variables = BTreeMap::from([("PATH".into(), path), ("HOME".into(), self.home().into())]);
        if let Some((engine, told_by)) = self.engine() {
            variables.insert(told_by.into(), engine.address().into());
        }
        variables
    }

    /// What a sandbox's environment is to have, so that what runs in it can be told from all else on the host.
    pub(crate) fn mark(&self) -> (String, String) {
        (MARK.to_owned(), self.home().display().to_string())
    }

    /// A program that this keeper's user starts.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.user {
            Some(user) => user.command(program),
            None => Command::new(program),
        }
    }

    pub(crate) fn ringfence(&self, words: &[&str]) -> Command {
        let mut command = self.command(self.program());
        command.env_clear().envs(self.variables()).current_dir(self.workspace()).stdin(Stdio::null()).args(words);
        command
    }

    /// The words for a sandbox of this keeper's, with limits where they make control groups of ours.
    pub(crate) fn words(&self) -> Vec<String> {
        let ((mark, home), backend) = (self.mark(), self.backend.name());
        let kind: &[&str] = match self.backend {
            Backend::Docker | Backend::Podman => &["--image", TINY_IMAGE, "--pull", "never"],
            Backend::Native | Backend::Bwrap => &["--memory", "256M", "--allow-weaker", "memory"],
            _ => &[],
        };
        let words = ["--backend", backend, "--env", &format!("{mark}={home}")];
        words.iter().chain(kind).map(|word| (*word).to_owned()).collect()
    }

    /// `ringfence up NAME`.
    pub(crate) fn up(&self, name: &str) -> Command {
        let mut command = self.ringfence(&["up", name]);
        command.args(self.words());
        command
    }

    /// Runs a command of this keeper to its end.
    #[track_caller]
    pub(crate) fn run(&self, command: &mut Command) -> Outcome {
        // Not a pipe: whoever is left behind would keep it open.
        let said = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let append = || {
            let mut options = fs_err::OpenOptions::new();
            options.append(true).open(said.path()).expect("it is ours").into_file()
        };
        let mut child = command.stdout(append()).stderr(append()).spawn().expect("ringfence can be started");
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("it is ours") {
                break status;
            }
            self.note_children_of(child.id());
            if begun.elapsed() > PATIENCE {
                let _ = child.kill(); // it may end this very moment
                let said = fs_err::read_to_string(said.path()).unwrap_or_default();
                panic!("waited in vain for {command:?}: {said} {:#?}", self.processes());
            }
            std::thread::sleep(MOMENT);
        };
        Outcome { code: status.code(), said: fs_err::read_to_string(said.path()).unwrap_or_default() }
    }

    /// Notes that a process may start sandboxes.
    pub(crate) fn note(&self, process: u32) {
        self.makers.lock().unwrap_or_else(PoisonError::into_inner).insert(process);
    }

    /// Notes whom a command has started: its monitor, if it has one.
    pub(crate) fn note_children_of(&self, process: u32) {
        remains::children(process).into_iter().for_each(|child| self.note(child));
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub(crate) fn expect(&self, command: &mut Command) -> String {
        let outcome = self.run(command);
        assert!(outcome.is_good(), "{command:?}: {outcome:?}");
        outcome.said
    }

    /// This keeper's processes, but for the calling one.
    pub(crate) fn processes(&self) -> Vec<Process> {
        remains::processes(self.home())
    }

    /// Everything on the host that is there because of this keeper's sandboxes.
    pub(crate) fn remains(&self) -> Vec<String> {
        let mut found: Vec<String> = self.processes().iter().map(Process::to_string).collect();
        found.extend(remains::mounts(self.home()));
        let makers = self.makers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        found.extend(remains::private_directories(&makers));
        found.extend(remains::groups(&makers));
        // The count of records is kept as long as the records may be.
        let kept = ["guest", "known-records"].map(|name| self.state().join(name));
        let expected = [vec![self.program(), self.home().join(".cache/ringfence")], kept.to_vec()].concat();
        found.extend(remains::files(self.home(), &expected));
        found.extend(remains::half_written(&self.state().join("guest"), "ringfence-guest"));
        if let Some((engine, _)) = self.engine() {
            let label = format!("dev.ringfence.state={}", self.state().join("sandboxes").display());
            found.extend(engine.labelled(&label).expect("the engine answers"));
        }
        found
    }

    /// Waits until nothing is left.
    #[track_caller]
    pub(crate) fn expect_nothing_left(&self) {
        let begun = Instant::now();
        loop {
            let remains = self.remains();
            if remains.is_empty() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{} left these: {remains:#?}", self.backend);
            std::thread::sleep(MOMENT);
        }
    }
}

impl Drop for Keeper {
    /// A failed test leaves nothing behind, either.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.ringfence(&["stop", "--all"]).output(); // best effort
            if let Some((engine, _)) = self.engine() {
                let label = format!("dev.ringfence.state={}", self.state().join("sandboxes").display());
                let _ = engine.remove_labelled(&label); // see above
            }
        }
    }
}
