//! A user who keeps sandboxes, with a home and a copy of the program that identify everything of
//! the user on the host.

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

use crate::remains::{self, HostProcess};

/// Time limit for each wait on a busy host.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Variable that every process in a keeper's sandbox inherits.
const MARK: &str = "RINGFENCE_TEST_KEEPER";

/// A user who keeps sandboxes on one backend.
#[derive(Debug)]
pub(crate) struct SandboxKeeper {
    pub(crate) backend: Backend,
    /// Ordinary user who starts everything, or `None` for root.
    user: Option<User>,
    home: TempDir,
    /// Processes that started sandboxes. Resources without any other mark have the id of such a
    /// process in their name.
    makers: Mutex<BTreeSet<u32>>,
}

/// Result of a command that has ended.
#[derive(Debug)]
pub(crate) struct CommandOutcome {
    pub(crate) code: Option<i32>,
    /// Everything that the command printed.
    pub(crate) said: String,
}

impl CommandOutcome {
    pub(crate) fn is_good(&self) -> bool {
        self.code == Some(0)
    }
}

impl SandboxKeeper {
    /// Creates a keeper that is root.
    pub(crate) fn for_root(backend: Backend) -> SandboxKeeper {
        SandboxKeeper::for_user(None, backend)
    }

    /// Creates two keepers, one that is root and one that is an ordinary user.
    pub(crate) fn for_each_user(backend: Backend) -> [SandboxKeeper; 2] {
        let user = User::for_tests().expect("the test requires one");
        [None, Some(user)].map(|user| SandboxKeeper::for_user(user, backend))
    }

    fn for_user(user: Option<User>, backend: Backend) -> SandboxKeeper {
        let home = TempDir::new_in("/var/tmp").expect("a temporary directory can be made");
        let keeper = SandboxKeeper { backend, user, home, makers: Mutex::default() };
        fs_err::create_dir(keeper.workspace()).expect("the home is ours");
        // A copy of the program identifies processes that were never told of the home. Another
        // process makes the copy: if this process opened the file for writing, children that are
        // just being started would inherit the descriptor, and the file could not be executed.
        let copied = Command::new("cp").arg(binary()).arg(keeper.program()).status();
        assert!(copied.is_ok_and(|status| status.success()), "the program can be copied");
        keeper.give(keeper.home());
        keeper.give(&keeper.workspace());
        keeper
    }

    /// Makes the keeper's user the owner of a file that the test has made.
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

    /// Returns the path of the keeper's `ringfence`.
    pub(crate) fn program(&self) -> PathBuf {
        self.home().join("ringfence")
    }

    /// Returns the room of a sandbox.
    pub(crate) fn room(&self, name: &str) -> PathBuf {
        self.state().join("sandboxes").join(name)
    }

    /// Returns the directory of a server.
    pub(crate) fn server(&self) -> PathBuf {
        self.state().join("server")
    }

    fn state(&self) -> PathBuf {
        self.home().join(".local/state/ringfence")
    }

    /// Returns the engine of the backend, if it has one, and the variable that names its address.
    fn engine(&self) -> Option<(Engine, &'static str)> {
        let (variable, told_by) = match self.backend {
            Backend::Docker => (DOCKER_VARIABLE, "DOCKER_HOST"),
            Backend::Podman => (PODMAN_VARIABLE, "CONTAINER_HOST"),
            _ => return None,
        };
        Some((Engine::named_by(variable).expect("the test requires it"), told_by))
    }

    /// Returns the environment of every process that the keeper starts.
    pub(crate) fn variables(&self) -> BTreeMap<OsString, OsString> {
        let path = std::env::var_os("PATH").expect("there is a PATH");
        let mut variables =
            BTreeMap::from([("PATH".into(), path), ("HOME".into(), self.home().into())]);
        if let Some((engine, told_by)) = self.engine() {
            variables.insert(told_by.into(), engine.address().into());
        }
        variables
    }

    /// Returns a variable for a sandbox's environment, which identifies the processes in the
    /// sandbox.
    pub(crate) fn mark(&self) -> (String, String) {
        (MARK.to_owned(), self.home().display().to_string())
    }

    /// Returns a command that the keeper's user runs.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.user {
            Some(user) => user.command(program),
            None => Command::new(program),
        }
    }

    pub(crate) fn ringfence(&self, words: &[&str]) -> Command {
        let mut command = self.command(self.program());
        command
            .env_clear()
            .envs(self.variables())
            .current_dir(self.workspace())
            .stdin(Stdio::null())
            .args(words);
        command
    }

    /// Returns the flags for a sandbox of the keeper. They include limits on the backends where
    /// limits make control groups of ringfence.
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

    /// Returns the command `ringfence up NAME`.
    pub(crate) fn up(&self, name: &str) -> Command {
        let mut command = self.ringfence(&["up", name]);
        command.args(self.words());
        command
    }

    /// Runs a command of the keeper to its end.
    #[track_caller]
    pub(crate) fn run(&self, command: &mut Command) -> CommandOutcome {
        // The output goes to a file, because a process that is left behind would keep a pipe open.
        let said = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let append = || {
            let mut options = fs_err::OpenOptions::new();
            options.append(true).open(said.path()).expect("it is ours").into_file()
        };
        let mut child =
            command.stdout(append()).stderr(append()).spawn().expect("ringfence can be started");
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("it is ours") {
                break status;
            }
            self.note_children_of(child.id());
            if begun.elapsed() > WAIT_TIMEOUT {
                let _ = child.kill(); // the process may end at this very moment
                let said = fs_err::read_to_string(said.path()).unwrap_or_default();
                panic!("waited in vain for {command:?}: {said} {:#?}", self.processes());
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        CommandOutcome {
            code: status.code(),
            said: fs_err::read_to_string(said.path()).unwrap_or_default(),
        }
    }

    /// Notes that a process may start sandboxes.
    pub(crate) fn note(&self, process: u32) {
        self.makers.lock().unwrap_or_else(PoisonError::into_inner).insert(process);
    }

    /// Notes the children of a command, which include its monitor if it has one.
    pub(crate) fn note_children_of(&self, process: u32) {
        remains::children(process).into_iter().for_each(|child| self.note(child));
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn expect(&self, command: &mut Command) -> String {
        let outcome = self.run(command);
        assert!(outcome.is_good(), "{command:?}: {outcome:?}");
        outcome.said
    }

    /// Returns the keeper's processes without the calling process.
    pub(crate) fn processes(&self) -> Vec<HostProcess> {
        remains::processes(self.home())
    }

    /// Returns everything on the host that exists because of the keeper's sandboxes.
    pub(crate) fn remains(&self) -> Vec<String> {
        let mut found: Vec<String> = self.processes().iter().map(HostProcess::to_string).collect();
        found.extend(remains::mounts(self.home()));
        let makers = self.makers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        found.extend(remains::private_directories(&makers));
        found.extend(remains::groups(&makers));
        // The count of records is kept as long as the records may be.
        let kept = ["guest", "known-records"].map(|name| self.state().join(name));
        let expected =
            [vec![self.program(), self.home().join(".cache/ringfence")], kept.to_vec()].concat();
        found.extend(remains::files(self.home(), &expected));
        found.extend(remains::half_written(&self.state().join("guest"), "ringfence-guest"));
        if let Some((engine, _)) = self.engine() {
            let label = format!("dev.ringfence.state={}", self.state().join("sandboxes").display());
            found.extend(engine.labelled(&label).expect("the engine answers"));
        }
        found
    }

    /// Waits until nothing is left of the keeper's sandboxes.
    #[track_caller]
    pub(crate) fn expect_nothing_left(&self) {
        let begun = Instant::now();
        loop {
            let remains = self.remains();
            if remains.is_empty() {
                return;
            }
            assert!(begun.elapsed() < WAIT_TIMEOUT, "{} left these: {remains:#?}", self.backend);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for SandboxKeeper {
    /// Cleans up after a failed test, which must leave nothing behind, either.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.ringfence(&["stop", "--all"]).output(); // best effort
            if let Some((engine, _)) = self.engine() {
                let label =
                    format!("dev.ringfence.state={}", self.state().join("sandboxes").display());
                let _ = engine.remove_labelled(&label); // best effort
            }
        }
    }
}
