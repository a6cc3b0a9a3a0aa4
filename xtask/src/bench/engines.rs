//! The container engines that take part, each through its own command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_test_ledger::engine::{DOCKER_VARIABLE, PODMAN_VARIABLE, TINY_IMAGE};

use crate::workspace::{find_program, output_of};

/// The names by which an engine is found and called.
#[derive(Clone, Copy)]
pub(super) struct EngineNames {
    /// Name of the backend, which is also the name of the program.
    pub(super) name: &'static str,
    /// Variables that hold the engine's address: the first is for our tests, the second is the
    /// usual one. Our backend reads the second.
    variables: [&'static str; 2],
    /// Flags that precede the address on the engine's command line.
    flags: &'static [&'static str],
}

pub(super) const DOCKER: EngineNames =
    EngineNames { name: "docker", variables: [DOCKER_VARIABLE, "DOCKER_HOST"], flags: &["-H"] };
pub(super) const PODMAN: EngineNames = EngineNames {
    name: "podman",
    variables: [PODMAN_VARIABLE, "CONTAINER_HOST"],
    flags: &["--remote", "--url"],
};

/// An engine with an idle container. The container is removed when the engine is dropped.
pub(super) struct IdleEngine {
    kind: EngineNames,
    program: PathBuf,
    address: String,
    container: String,
}

impl IdleEngine {
    /// Finds an engine and starts an idle container on it, or returns the reason why that fails.
    pub(super) fn find(kind: EngineNames) -> Result<Self, String> {
        let program =
            find_program(kind.name).ok_or_else(|| format!("{} is not installed", kind.name))?;
        let address = kind.variables.iter().find_map(|variable| std::env::var(variable).ok());
        let address =
            address.ok_or_else(|| format!("neither {} is set", kind.variables.join(" nor ")))?;
        let mut engine = Self { kind, program, address, container: String::new() };
        // The container removes itself (`--rm`) when its sleep ends, even if this process is
        // interrupted.
        let idle = ["run", "--detach", "--rm", "--network", "none", TINY_IMAGE, "sleep", "3600"];
        engine.container = output_of(&mut engine.command(&idle))
            .map_err(|error| format!("{error:#}"))?
            .trim()
            .to_owned();
        Ok(engine)
    }

    /// Returns the arguments and variables for our backend: its name, the image, and the address of
    /// the engine.
    pub(super) fn backend(&self) -> ([&str; 2], [(&str, &str); 1]) {
        ([self.kind.name, TINY_IMAGE], [(self.kind.variables[1], &self.address)])
    }

    /// Returns the command line that runs a command in the idle container.
    pub(super) fn exec(&self, words: &[&str]) -> Vec<OsString> {
        self.words(&[&["exec", &self.container], words].concat())
    }

    /// Returns the command line that runs a command in a new container.
    pub(super) fn run(&self, words: &[&str]) -> Vec<OsString> {
        self.words(&[&["run", "--rm", "--network", "none", TINY_IMAGE], words].concat())
    }

    /// Returns the command line that copies a file of the host into the idle container.
    pub(super) fn copy_in(&self, from: &Path, to: &str) -> Vec<OsString> {
        self.words(&["cp", &from.to_string_lossy(), &format!("{}:{to}", self.container)])
    }

    /// Returns the command line that copies a file out of the idle container.
    pub(super) fn copy_out(&self, from: &str, to: &Path) -> Vec<OsString> {
        self.words(&["cp", &format!("{}:{from}", self.container), &to.to_string_lossy()])
    }

    fn words(&self, words: &[&str]) -> Vec<OsString> {
        let fixed = [OsString::from(&self.program)]
            .into_iter()
            .chain(self.kind.flags.iter().map(OsString::from));
        fixed
            .chain([OsString::from(&self.address)])
            .chain(words.iter().map(OsString::from))
            .collect()
    }

    fn command(&self, words: &[&str]) -> Command {
        let words = self.words(words);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }
}

impl Drop for IdleEngine {
    fn drop(&mut self) {
        if !self.container.is_empty() {
            // The engine may be gone.
            let _ = output_of(&mut self.command(&["rm", "--force", &self.container]));
        }
    }
}
