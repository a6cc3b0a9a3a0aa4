//! The container engines that take part, each through its own command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_test_ledger::engine::{DOCKER_VARIABLE, PODMAN_VARIABLE, TINY_IMAGE};

use crate::workspace::{find_program, output_of};

/// How an engine is found and spoken to.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Its backend's name, which is its program's, too.
    pub(super) name: &'static str,
    /// What names its address: for our tests, and for everybody. Our backend reads the second.
    variables: [&'static str; 2],
    /// What precedes the address on its command line.
    flags: &'static [&'static str],
}

pub(super) const DOCKER: Kind = Kind { name: "docker", variables: [DOCKER_VARIABLE, "DOCKER_HOST"], flags: &["-H"] };
pub(super) const PODMAN: Kind =
    Kind { name: "podman", variables: [PODMAN_VARIABLE, "CONTAINER_HOST"], flags: &["--remote", "--url"] };

/// An engine with a container that idles, which is removed when this is dropped.
pub(super) struct Engine {
    kind: Kind,
    program: PathBuf,
    address: String,
    container: String,
}

impl Engine {
    /// Finds an engine and starts a container of it, or says why not.
    pub(super) fn find(kind: Kind) -> Result<Self, String> {
        let program = find_program(kind.name).ok_or_else(|| format!("{} is not installed", kind.name))?;
        let address = kind.variables.iter().find_map(|variable| std::env::var(variable).ok());
        let address = address.ok_or_else(|| format!("neither {} is set", kind.variables.join(" nor ")))?;
        let mut engine = Self { kind, program, address, container: String::new() };
        // It goes by itself when we are interrupted.
        let idle = ["run", "--detach", "--rm", "--network", "none", TINY_IMAGE, "sleep", "3600"];
        engine.container =
            output_of(&mut engine.command(&idle)).map_err(|error| format!("{error:#}"))?.trim().to_owned();
        Ok(engine)
    }

    /// What our backend for it is told: its name and the image, and where the engine is.
    pub(super) fn backend(&self) -> ([&str; 2], [(&str, &str); 1]) {
        ([self.kind.name, TINY_IMAGE], [(self.kind.variables[1], &self.address)])
    }

    /// Runs a command in the container that idles.
    pub(super) fn exec(&self, words: &[&str]) -> Vec<OsString> {
        self.words(&[&["exec", &self.container], words].concat())
    }

    /// Runs a command in a container of its own.
    pub(super) fn run(&self, words: &[&str]) -> Vec<OsString> {
        self.words(&[&["run", "--rm", "--network", "none", TINY_IMAGE], words].concat())
    }

    /// Copies a file of the host into the container that idles.
    pub(super) fn copy_in(&self, from: &Path, to: &str) -> Vec<OsString> {
        self.words(&["cp", &from.to_string_lossy(), &format!("{}:{to}", self.container)])
    }

    /// Copies a file out of it.
    pub(super) fn copy_out(&self, from: &str, to: &Path) -> Vec<OsString> {
        self.words(&["cp", &format!("{}:{from}", self.container), &to.to_string_lossy()])
    }

    fn words(&self, words: &[&str]) -> Vec<OsString> {
        let fixed = [OsString::from(&self.program)].into_iter().chain(self.kind.flags.iter().map(OsString::from));
        fixed.chain([OsString::from(&self.address)]).chain(words.iter().map(OsString::from)).collect()
    }

    fn command(&self, words: &[&str]) -> Command {
        let words = self.words(words);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.container.is_empty() {
            let _ = output_of(&mut self.command(&["rm", "--force", &self.container])); // the engine may be gone
        }
    }
}
