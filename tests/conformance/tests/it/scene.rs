//! A user who works with one engine, with a home, a workspace and a named sandbox.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use conformance::Caller;
use ringfence_test_ledger::engine::{
    DEV_IMAGE, DOCKER_VARIABLE, PODMAN_VARIABLE, ROOTLESS_PODMAN_VARIABLE,
};
use ringfence_test_ledger::{User, binary};
use tempfile::TempDir;

/// Time limit for each wait on a busy host.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// The engines of the tests, and the user who works with each.
pub(crate) const DOCKER: Engine = Engine {
    backend: "docker",
    given_by: DOCKER_VARIABLE,
    told_by: "DOCKER_HOST",
    caller: Caller::Root,
};
pub(crate) const PODMAN: Engine = Engine {
    backend: "podman",
    given_by: PODMAN_VARIABLE,
    told_by: "CONTAINER_HOST",
    caller: Caller::Root,
};
pub(crate) const ROOTLESS_PODMAN: Engine =
    Engine { given_by: ROOTLESS_PODMAN_VARIABLE, caller: Caller::Ordinary, ..PODMAN };
/// Flags for the clauses that a rootless engine may be unable to enforce.
const LIMITS: [&str; 6] =
    ["--allow-weaker", "memory", "--allow-weaker", "cpus", "--allow-weaker", "process-count"];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Engine {
    pub(crate) backend: &'static str,
    /// Variable that gives the tests the engine's address.
    given_by: &'static str,
    /// Variable from which ringfence takes the address.
    told_by: &'static str,
    caller: Caller,
}

pub(crate) struct EngineScene {
    pub(crate) engine: Engine,
    pub(crate) name: String,
    home: TempDir,
    workspace: TempDir,
    user: Option<User>,
    agent: Option<Child>,
}

impl EngineScene {
    pub(crate) fn new(engine: Engine, name: &str) -> EngineScene {
        let user = match engine.caller {
            Caller::Root => None,
            Caller::Ordinary => Some(User::for_tests().expect("the test requires one")),
        };
        let directory = || {
            let directory = tempfile::tempdir().expect("a temporary directory can be made");
            give(directory.path(), user.as_ref());
            directory
        };
        let name = format!("{name}-{}-{}", engine.backend, std::process::id());
        EngineScene { engine, name, home: directory(), workspace: directory(), user, agent: None }
    }

    /// Creates a scene with an SSH key, which an ssh-agent holds.
    pub(crate) fn with_key(engine: Engine, name: &str) -> EngineScene {
        let mut scene = EngineScene::new(engine, name);
        for directory in [".ssh", ".ssh/config.d"] {
            fs_err::create_dir(scene.path(directory)).expect("the home is ours");
            give(&scene.path(directory), scene.user.as_ref());
        }
        let socket = scene.path("agent");
        let agent = scene
            .command("ssh-agent")
            .arg("-D")
            .arg("-a")
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn();
        scene.agent = Some(agent.expect("ssh-agent can be started"));
        wait_until("the agent listens", || socket.exists());
        let key = scene.path("key");
        expect_success(
            scene.command("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key),
        );
        expect_success(scene.command("ssh-add").arg("-q").arg(&key));
        scene
    }

    /// Creates a scene with a key and a development container that is up.
    pub(crate) fn up(engine: Engine, name: &str, flags: &[&str]) -> EngineScene {
        let scene = EngineScene::with_key(engine, name);
        scene.start(DEV_IMAGE, flags);
        scene
    }

    pub(crate) fn start(&self, image: &str, flags: &[&str]) {
        let mut up = self.ringfence(&["up", &self.name, "--container", "--pull", "never"]);
        up.args(["--backend", self.engine.backend, "--image", image]).args(flags);
        if self.user.is_some() {
            up.args(LIMITS);
        }
        expect_success(&mut up);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match &self.user {
            Some(user) => user.command(program),
            None => Command::new(program),
        };
        let variable = |name: &str| std::env::var(name).expect("the test requires it");
        // All scenes share a cache, so that an engine is probed only once.
        let cache = self.user.as_ref().map_or(Path::new("/root"), |user| &user.home).join(".cache");
        command
            .env_clear()
            .env("PATH", variable("PATH"))
            .env("HOME", self.home.path())
            .env("XDG_CACHE_HOME", cache);
        command
            .env("SSH_AUTH_SOCK", self.path("agent"))
            .env(self.engine.told_by, variable(self.engine.given_by));
        command.current_dir(self.workspace.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn ringfence(&self, words: &[&str]) -> Command {
        let mut command = self.command(binary());
        command.args(words);
        command
    }
}

impl Drop for EngineScene {
    fn drop(&mut self) {
        let _ = self.ringfence(&["stop", &self.name]).output(); // the sandbox may not have come up
        if let Some(agent) = &mut self.agent {
            let _ = agent.kill(); // the agent may have ended
            let _ = agent.wait(); // the agent may have ended
        }
    }
}

/// Gives a file of root to the user of the scene.
fn give(path: &Path, user: Option<&User>) {
    if let Some(user) = user {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid))
            .expect("it is ours, or root's to give");
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
pub(crate) fn expect_success(command: &mut Command) -> String {
    let output = command.output().expect("the program can be started");
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8(output.stdout).expect("it speaks UTF-8")
}

pub(crate) fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}
