//! `cargo xtask bench --against REVISION`: compares this build with the build of another revision,
//! in the repositories that are most expensive to start in.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::compare;
use super::contenders::{Contender, PLAIN, RunMethod};
use super::report::{BenchGoal, goals_as_text};
use crate::dist;
use crate::workspace::{Workspace, output_of, run as run_command};

const THIS_BUILD: &str = "this build";
const OTHER_BUILD: &str = "other build";
/// Limit of the ratio between the times of this build and of the other build.
const MAX_TIME_RATIO: f64 = 1.05;

const FILES: usize = 10_000;
const FILES_PER_DIRECTORY: usize = 100;
const SUBMODULES: usize = 20;
const CONFIG_LINES: usize = 200;

/// Builds `revision`, then measures `ringfence run` of both builds alternately.
pub(super) fn measure(workspace: &Workspace, revision: &str, runs: usize) -> Result<()> {
    let other = build(workspace, revision)?;
    let ours = dist::build(workspace)?;
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let (empty, repository) = (directory.path().join("empty"), directory.path().join("repository"));
    fs_err::create_dir(&empty)?;
    println!(
        "making a repository with {FILES} files, {SUBMODULES} submodules and {CONFIG_LINES} lines \
         of configuration"
    );
    make_repository(&repository)?;

    let mut goals = Vec::new();
    for (place, name) in [(&empty, "an empty directory"), (&repository, "the repository")] {
        std::env::set_current_dir(place)
            .context("cannot enter the working directory of the runs")?;
        let contenders = vec![
            Contender { name: PLAIN, start: Ok(RunMethod::Spawn(vec!["/bin/true".into()])) },
            Contender { name: THIS_BUILD, start: Ok(native(&ours)) },
            Contender { name: OTHER_BUILD, start: Ok(native(&other)) },
        ];
        let comparison =
            compare(format!("/bin/true in {name}"), OTHER_BUILD, None, contenders, runs)?;
        print!("\n{}", comparison.as_text());
        let ratio = comparison.ratio(THIS_BUILD, OTHER_BUILD);
        goals.push(BenchGoal::below(
            MAX_TIME_RATIO,
            format!("in {name}: below {MAX_TIME_RATIO}× of {revision}"),
            ratio,
            "×",
        ));
    }
    std::env::set_current_dir(&workspace.root)
        .context("cannot leave the working directory of the runs")?;
    print!("{}", goals_as_text(goals));
    Ok(())
}

fn native(program: &Path) -> RunMethod {
    let flags = ["run", "--backend", "native", "--", "/bin/true"];
    RunMethod::Spawn(std::iter::once(program.into()).chain(flags.map(Into::into)).collect())
}

/// Builds another revision as `cargo xtask dist` does, in its own work tree, and returns the path
/// of the program.
fn build(workspace: &Workspace, revision: &str) -> Result<PathBuf> {
    let commit = git(
        &workspace.root,
        &["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")],
    )
    .with_context(|| format!("`{revision}` is no commit of this repository"))?;
    let place = workspace.target.join("bench").join(commit.trim());
    let (sources, program) = (place.join("sources"), place.join("ringfence"));
    if program.is_file() {
        return Ok(program);
    }
    if !sources.is_dir() {
        let sources = sources.to_str().context("the path of the target directory is not text")?;
        git(&workspace.root, &["worktree", "prune"])?;
        git(&workspace.root, &["worktree", "add", "--detach", sources, commit.trim()])?;
    }
    let host = dist::host_triple()?;
    // The target directory is separate because cargo confuses a crate of one checkout with the same
    // crate of another checkout.
    let target = place.join("target");
    let mut command = dist::static_dist(workspace, &host, &["-p", "ringfence-cli"]);
    // Give the profile to cargo as well: commits from before it existed had it as `release`.
    if !fs_err::read_to_string(sources.join("Cargo.toml"))?.contains("[profile.dist]") {
        command.args(["--config", "profile.dist.inherits='release'"]);
    }
    run_command(command.current_dir(&sources).env("CARGO_TARGET_DIR", &target))?;
    fs_err::copy(target.join(host).join("dist/ringfence"), &program)?;
    fs_err::remove_dir_all(&target)?;
    git(&workspace.root, &["worktree", "remove", "--force", sources.to_str().unwrap_or_default()])?;
    Ok(program)
}

fn make_repository(repository: &Path) -> Result<()> {
    let source = repository.with_extension("source");
    make_commit(&source, |directory| Ok(fs_err::write(directory.join("file"), "content\n")?))?;
    make_commit(repository, |directory| {
        for number in 0..FILES {
            let parent = directory.join(format!("directory-{}", number / FILES_PER_DIRECTORY));
            fs_err::create_dir_all(&parent)?;
            fs_err::write(parent.join(format!("file-{number}")), "content\n")?;
        }
        Ok(())
    })?;
    let source = source.to_str().context("the path of a temporary directory is not text")?;
    for number in 0..SUBMODULES {
        let path = format!("modules/module-{number}");
        git(
            repository,
            &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", source, &path],
        )?;
    }
    git(repository, &["commit", "--quiet", "--message", "submodules"])?;
    let config = repository.join(".git/config");
    let mut text = fs_err::read_to_string(&config)?;
    for number in 0.. {
        let missing = CONFIG_LINES.saturating_sub(text.lines().count());
        if missing == 0 {
            break;
        }
        let lines = format!(
            "[branch \"topic-{number}\"]\n\tremote = origin\n\tmerge = refs/heads/topic-{number}\n"
        );
        text.extend(lines.split_inclusive('\n').take(missing));
    }
    ensure!(text.lines().count() == CONFIG_LINES, "git itself wrote more lines of configuration");
    fs_err::write(&config, text)?;
    git(repository, &["status"]).map(drop)
}

fn make_commit(directory: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    fs_err::create_dir(directory)?;
    git(directory, &["init", "--quiet"])?;
    git(directory, &["config", "user.name", "bench"])?;
    git(directory, &["config", "user.email", "bench@localhost"])?;
    fill(directory)?;
    git(directory, &["add", "."])?;
    git(directory, &["commit", "--quiet", "--message", "files"]).map(drop)
}

fn git(directory: &Path, words: &[&str]) -> Result<String> {
    output_of(Command::new("git").args(words).current_dir(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_has_the_stated_number_of_files() {
        let directory = tempfile::tempdir().unwrap();
        let repository = directory.path().join("repository");
        make_repository(&repository).unwrap();
        let files = git(&repository, &["ls-files"]).unwrap();
        assert_eq!(files.lines().count(), FILES + SUBMODULES + 1, "with .gitmodules");
        let links = git(&repository, &["submodule", "status"]).unwrap();
        assert_eq!(links.lines().count(), SUBMODULES);
        let config = fs_err::read_to_string(repository.join(".git/config")).unwrap();
        assert_eq!(config.lines().count(), CONFIG_LINES);
        assert_eq!(git(&repository, &["status", "--porcelain"]).unwrap(), "");
    }
}
