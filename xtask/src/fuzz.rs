//! `cargo xtask fuzz`: runs each fuzz target for a limited time. `cargo xtask check` only compiles
//! the targets.
//!
//! The coverage of libFuzzer needs a flag that the stable compiler accepts with
//! `RUSTC_BOOTSTRAP=1`. Without a sanitizer, nothing else of a nightly toolchain is needed.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::arguments::{ChoreArguments, nearest};
use crate::workspace::{Workspace, files_below, find_program, run as run_command};

/// Manifest of the fuzz targets.
const MANIFEST: &str = "fuzz/Cargo.toml";
/// Directory of the initial inputs, with one subdirectory per target.
const CORPUS: &str = "fuzz/corpus";
/// Version of cargo-fuzz to install where cargo-fuzz is missing.
const CARGO_FUZZ_VERSION: &str = "0.13.1";
/// Seconds that each target runs by default.
const DEFAULT_SECONDS: usize = 30;

pub(crate) fn run(workspace: &Workspace, mut arguments: ChoreArguments) -> Result<()> {
    let seconds = arguments.number("--seconds")?.unwrap_or(DEFAULT_SECONDS);
    let wanted = arguments.rest(&["--seconds"])?;
    let all = list_targets(workspace)?;
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        let nearest = nearest(unknown, all.iter().map(String::as_str));
        bail!("there is no fuzz target `{unknown}`\nhint: cargo xtask fuzz {nearest}");
    }
    let path = path_with_cargo_fuzz(workspace)?;
    let mut failed = Vec::new();
    for target in all.iter().filter(|name| wanted.is_empty() || wanted.contains(name)) {
        println!("── {target}, {seconds} s");
        let found = create_directory(workspace, &["corpus", target])?;
        let artifacts = create_directory(workspace, &["artifacts", target])?;
        let mut command =
            workspace.cargo(["fuzz", "run", "--sanitizer", "none", "--fuzz-dir", "fuzz"]);
        command.arg("--target-dir").arg(directory(workspace).join("build")).arg(target);
        // libFuzzer writes inputs that reach new code to the first directory, so the checked-in
        // corpus does not change.
        command.arg(found).arg(workspace.root.join(CORPUS).join(target));
        command.arg("--").arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.env("RUSTC_BOOTSTRAP", "1").env("PATH", &path);
        if let Err(error) = run_command(&mut command) {
            eprintln!("   FAILED: {error:#}");
            failed.push(target.as_str());
        }
    }
    if !failed.is_empty() {
        let artifacts = directory(workspace).join("artifacts");
        bail!("{} found something, see {}", failed.join(", "), artifacts.display());
    }
    Ok(())
}

/// Checks that every target compiles and has initial inputs.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    for target in list_targets(workspace)? {
        let corpus = workspace.root.join(CORPUS).join(&target);
        if !corpus.is_dir() || files_below(&corpus)?.is_empty() {
            bail!("the fuzz target `{target}` has no inputs to begin with in {}", corpus.display());
        }
    }
    let mut command = workspace.cargo([
        "check",
        "--locked",
        "--manifest-path",
        MANIFEST,
        "--bins",
        "--target-dir",
    ]);
    run_command(command.arg(directory(workspace)))
}

/// Returns the names of all targets, which are the names of their files.
fn list_targets(workspace: &Workspace) -> Result<Vec<String>> {
    let files = files_below(&workspace.root.join("fuzz/fuzz_targets"))?;
    let name = |file: PathBuf| file.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
    files
        .into_iter()
        .map(|file| name(file).context("a fuzz target has a name that is not text"))
        .collect()
}

/// Returns the directory of all files that fuzzing creates.
fn directory(workspace: &Workspace) -> PathBuf {
    workspace.target.join("fuzz")
}

/// Creates a subdirectory of the fuzzing directory and returns its path.
fn create_directory(workspace: &Workspace, parts: &[&str]) -> Result<PathBuf> {
    let path = parts.iter().fold(directory(workspace), |path, part| path.join(part));
    fs_err::create_dir_all(&path)?;
    Ok(path)
}

/// Installs cargo-fuzz below the target directory if it is missing, and returns a PATH that
/// contains it.
fn path_with_cargo_fuzz(workspace: &Workspace) -> Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if find_program("cargo-fuzz").is_some() {
        return Ok(path);
    }
    let tools = workspace.target.join("tools");
    if !tools.join("bin/cargo-fuzz").is_file() {
        let mut install = workspace.cargo([
            "install",
            "--locked",
            "--version",
            CARGO_FUZZ_VERSION,
            "cargo-fuzz",
            "--root",
        ]);
        run_command(install.arg(&tools))
            .context("cannot install cargo-fuzz\nhint: cargo install --locked cargo-fuzz")?;
    }
    let directories = std::iter::once(tools.join("bin")).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(directories)?)
}
