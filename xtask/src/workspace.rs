//! The workspace as cargo describes it, and the programs that chores run in it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The checkout that the chores work on.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Directory of cargo's build output.
    pub(crate) target: PathBuf,
    /// Packages of the workspace, as `cargo metadata` lists them.
    pub(crate) packages: Vec<Value>,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        let manifest =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in no workspace")?;
        let mut command = cargo(manifest, ["metadata", "--format-version=1", "--no-deps"]);
        let metadata: Value = serde_json::from_str(&output_of(&mut command)?)
            .context("cannot read cargo's metadata")?;
        let path = |key: &str| {
            metadata[key]
                .as_str()
                .map(PathBuf::from)
                .with_context(|| format!("cargo's metadata has no `{key}`"))
        };
        let packages =
            metadata["packages"].as_array().context("cargo's metadata has no packages")?.clone();
        Ok(Self { root: path("workspace_root")?, target: path("target_directory")?, packages })
    }

    /// Returns a cargo command that runs at the root of the workspace.
    pub(crate) fn cargo<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        cargo(&self.root, arguments)
    }

    /// Builds every target of every package in one build. A build of a single package enables fewer
    /// features of its dependencies, which would then be built again for the other packages.
    pub(crate) fn build_everything(&self) -> Result<()> {
        run(&mut self.cargo(["build", "--workspace", "--all-targets"]))
    }
}

/// Returns a cargo command that runs in a directory.
pub(crate) fn cargo<S: AsRef<OsStr>>(
    directory: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(directory);
    command
}

/// Formats a command as a person would type it.
pub(crate) fn format_command(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    format_words(std::iter::once(program).chain(command.get_args()))
}

/// Joins words as a shell would read them, but quotes only words with spaces.
pub(crate) fn format_words(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let quote = |word: String| if word.contains(' ') { format!("'{word}'") } else { word };
    let words = words.into_iter().map(|word| quote(word.as_ref().to_string_lossy().into_owned()));
    words.collect::<Vec<_>>().join(" ")
}

/// Runs a command that prints its own output, and fails if the command fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", format_command(command));
    let status =
        command.status().with_context(|| format!("cannot run `{}`", format_command(command)))?;
    ensure!(status.success(), "`{}` ended with {status}", format_command(command));
    Ok(())
}

/// Runs a command and returns its standard output.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("cannot run `{}`", format_command(command)))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` ended with {}: {}", format_command(command), output.status, words.trim());
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("`{}` printed what is not text", format_command(command)))
}

/// Finds a program on PATH, or in /usr/sbin or /sbin, which `su` leaves out of root's PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.map(|directory| directory.join(name)).find(|candidate| candidate.is_file())
}

/// Lists every file below a directory, in a stable order, without the directories `target`, `dist`
/// and `.git`.
pub(crate) fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs_err::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = entry.file_name();
            if kind.is_dir() && !matches!(name.to_str(), Some("target" | "dist" | ".git")) {
                pending.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_are_quoted() {
        assert_eq!(format_words(["sh", "-c", "echo hi"]), "sh -c 'echo hi'");
        assert_eq!(format_command(Command::new("/usr/bin/cargo").arg("fmt")), "cargo fmt");
    }

    #[test]
    fn files_are_listed_in_order_without_build_output() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.rs", "a/c.rs", "target/d.rs", ".git/e"] {
            let path = directory.path().join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, "").unwrap();
        }
        assert_eq!(
            files_below(directory.path()).unwrap(),
            ["a/c.rs", "b.rs"].map(|name| directory.path().join(name))
        );
    }
}
