//! A build of the crates and their tests with counters, in its own target directory.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cache::cache_key;
use crate::dist;
use crate::workspace::{Workspace, output_of, run as run_command};

/// Program that stands before the compiler, and adds the flags of coverage.
const WRAPPER_SOURCE: &str = include_str!("rustc_wrapper.c");
/// Part of every program, which chooses the file of the counters.
const PROFILE_PATH_SOURCE: &str = include_str!("profile_path.c");

/// Paths of the build with counters.
pub(super) struct Instrumentation {
    directory: PathBuf,
    host: String,
}

impl Instrumentation {
    /// Builds the wrapper of the compiler, which cargo uses for the crates of the workspace alone.
    pub(super) fn prepare(workspace: &Workspace) -> Result<Self> {
        let directory = workspace.target.join("coverage");
        let this = Self { directory, host: dist::host_triple()? };
        let profiles = this.profile_directory();
        fs_err::create_dir_all(&profiles)?;
        // Processes of the ordinary user of the tests write their counters here, too.
        fs_err::set_permissions(&profiles, PermissionsExt::from_mode(0o1777))?;

        this.discard_outdated_build()?;
        let object = this.directory.join("profile_path.o");
        let directory = ("PROFILE_DIRECTORY", profiles.as_path());
        this.compile(PROFILE_PATH_SOURCE, directory, &["-c", "-fPIC"], &object)?;
        let object = ("PROFILE_PATH_OBJECT", object.as_path());
        this.compile(WRAPPER_SOURCE, object, &[], &this.wrapper())?;
        Ok(this)
    }

    /// Deletes a build that was linked with other sources than those of today, which cargo does not
    /// notice.
    fn discard_outdated_build(&self) -> Result<()> {
        let key = cache_key(&(WRAPPER_SOURCE, PROFILE_PATH_SOURCE));
        let stamp = self.directory.join("sources-key");
        if fs_err::read_to_string(&stamp).ok().as_deref() == Some(key.as_str()) {
            return Ok(());
        }
        for build in ["build", "guest"] {
            match fs_err::remove_dir_all(self.directory.join(build)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        Ok(fs_err::write(stamp, key)?)
    }

    /// Compiles a C program in which a macro names a path.
    fn compile(
        &self,
        source: &str,
        (name, path): (&str, &Path),
        flags: &[&str],
        output: &Path,
    ) -> Result<()> {
        let file = self.directory.join("source.c");
        fs_err::write(&file, source)?;
        let mut command = Command::new("cc");
        command.args(flags).arg("-O1").arg(format!("-D{name}=\"{}\"", path.display()));
        output_of(command.arg(&file).arg("-o").arg(output))
            .map(drop)
            .context("cannot compile the programs that count\nhint: apt-get install gcc")
    }

    /// Builds the guest that the library embeds. The library's own build script would build it
    /// without counters.
    pub(super) fn build_guest(&self, workspace: &Workspace) -> Result<()> {
        let mut command = workspace.cargo(["build", "--package", "ringfence-guest"]);
        command.args(["--profile", "guest", "--target", &self.host]);
        command.arg("--target-dir").arg(self.directory.join("guest"));
        command.env("RUSTFLAGS", "-C target-feature=+crt-static");
        run_command(command.env("RUSTC_WORKSPACE_WRAPPER", self.wrapper()))
    }

    /// Builds the tests and the binaries of `packages`, and returns the paths of all programs that
    /// have counters.
    pub(super) fn build_tests(
        &self,
        workspace: &Workspace,
        packages: &[String],
    ) -> Result<Vec<PathBuf>> {
        let mut command = self.test_command(workspace, packages);
        command.args(["--no-run", "--message-format=json-render-diagnostics"]);
        println!("building the tests with counters in {}", self.directory.display());
        let output =
            command.stderr(std::process::Stdio::inherit()).output().context("cannot run cargo")?;
        ensure!(output.status.success(), "the tests with counters could not be built");
        let messages = String::from_utf8(output.stdout).context("cargo printed no text")?;
        let mut programs = executables(&messages);
        programs.extend([self.binary(), self.guest()]);
        programs.sort();
        programs.dedup();
        Ok(programs)
    }

    /// Returns the command that runs the tests of `packages`.
    pub(super) fn test_command(&self, workspace: &Workspace, packages: &[String]) -> Command {
        let mut command = workspace.cargo(["test", "--no-fail-fast", "--lib", "--bins", "--tests"]);
        for package in packages {
            command.args(["--package", package]);
        }
        command.arg("--target-dir").arg(self.directory.join("build"));
        command.env("RUSTC_WORKSPACE_WRAPPER", self.wrapper());
        command.env("BUILT_RINGFENCE_GUEST", self.guest());
        // The counters name lines by themselves.
        command.env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }

    /// Deletes the counters of earlier processes.
    pub(super) fn clear_profiles(&self) -> Result<()> {
        for profile in self.profiles()? {
            fs_err::remove_file(profile)?;
        }
        Ok(())
    }

    /// Lists the files of counters.
    pub(super) fn profiles(&self) -> Result<Vec<PathBuf>> {
        let entries = fs_err::read_dir(self.profile_directory())?;
        entries.map(|entry| Ok(entry?.path())).collect()
    }

    /// Returns the path of the counters of all programs together.
    pub(super) fn merged_profile(&self) -> PathBuf {
        self.directory.join("merged.profdata")
    }

    /// Returns the path of the `ringfence` binary.
    pub(super) fn binary(&self) -> PathBuf {
        self.directory.join("build/debug/ringfence")
    }

    fn guest(&self) -> PathBuf {
        self.directory.join("guest").join(&self.host).join("guest/ringfence-guest")
    }

    fn wrapper(&self) -> PathBuf {
        self.directory.join("rustc-wrapper")
    }

    fn profile_directory(&self) -> PathBuf {
        self.directory.join("profiles")
    }
}

/// Returns the programs that cargo's messages name, one message per line.
fn executables(messages: &str) -> Vec<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_the_messages_of_cargo() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":\"/target/deps/a-1\"}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\nnot JSON\n";
        assert_eq!(executables(messages), [PathBuf::from("/target/deps/a-1")]);
    }
}
