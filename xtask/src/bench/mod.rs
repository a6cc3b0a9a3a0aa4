//! `cargo xtask bench`: ringfence beside its peers, interleaved in one run, as ratios.

mod chart;
mod contenders;
mod output;
mod report;
mod samples;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use self::contenders::{Contender, Programs};
use self::report::{Comparison, Report};
use self::samples::Samples;
use crate::arguments::Arguments;
use crate::dist;
use crate::workspace::{Workspace, run as run_command, spell_words};

const RUNS: usize = 200;
const QUICK_RUNS: usize = 20;
const WARM_UP_ROUNDS: usize = 3;

/// What every contender runs.
const COMMANDS: &[&[&str]] = &[&["/bin/true"], &["sh", "-c", "echo hi"]];

pub(crate) fn run(workspace: &Workspace, mut arguments: Arguments) -> Result<()> {
    let default = if arguments.flag("--quick") { QUICK_RUNS } else { RUNS };
    let runs = arguments.number("--runs")?.unwrap_or(default);
    arguments.end(&["--runs", "--quick"])?;

    let programs = Programs { ringfence: dist::build(workspace)?, library: build_library_program(workspace)? };
    // Every contender's view has the same small, writable working directory.
    let directory = tempfile::tempdir()?;
    std::env::set_current_dir(directory.path()).context("cannot enter the working directory of the runs")?;

    let comparisons = COMMANDS.iter().map(|command| compare(&programs, directory.path(), command, runs));
    let comparisons = comparisons.collect::<Result<Vec<_>>>()?;
    println!("measuring 1 GiB of output");
    let output = output::measure(&programs.ringfence).map_err(|error| format!("{error:#}"));
    let report = Report { runs, comparisons, output };
    std::env::set_current_dir(&workspace.root).context("cannot leave the working directory of the runs")?;

    print!("\n{}", report.as_text());
    let documents = workspace.root.join("docs/bench");
    fs_err::create_dir_all(&documents)?;
    fs_err::write(documents.join("latest.json"), format!("{:#}\n", report.as_json()))?;
    fs_err::write(documents.join("latest.svg"), chart::draw(&report.comparisons))?;
    println!("\nwritten: docs/bench/latest.json, docs/bench/latest.svg");
    Ok(())
}

/// Builds the program that times the library from inside a process that links it.
fn build_library_program(workspace: &Workspace) -> Result<Option<PathBuf>> {
    if !workspace.root.join("crates/ringfence/examples/bench_cold.rs").exists() {
        return Ok(None);
    }
    let host = dist::host_triple()?;
    run_command(&mut dist::static_release(workspace, &host, &["-p", "ringfence", "--example", "bench_cold"]))?;
    Ok(Some(workspace.target.join(host).join("release/examples/bench_cold")))
}

/// Runs a command through every contender in turn, round after round, so that a slow moment of the machine hits all.
fn compare(programs: &Programs, directory: &Path, command: &[&str], runs: usize) -> Result<Comparison> {
    let (contenders, equal_view) = contenders::line_up(programs, directory, command);
    let try_out = |contender: Contender| {
        let start = contender.start.and_then(|start| start.try_out().map(|()| start));
        (contender.name, start.map(|start| (start, Samples::default())))
    };
    let mut results: Vec<_> = contenders.into_iter().map(try_out).collect();
    let command = spell_words(command);
    println!("measuring `{command}` {runs} times");
    for round in 0..WARM_UP_ROUNDS + runs {
        // Each round begins with another contender: what runs after a heavy one pays for its clean-up.
        results.rotate_left(1);
        let measured = round.checked_sub(WARM_UP_ROUNDS);
        for (name, result) in &mut results {
            let Ok((start, samples)) = result else { continue };
            if measured.is_some_and(|round| !round.is_multiple_of(start.runs_at_once())) {
                continue;
            }
            let times = start.time().with_context(|| format!("cannot run {name}"))?;
            if measured.is_some() {
                samples.extend(times);
            }
        }
    }
    let turns = (WARM_UP_ROUNDS + runs) % results.len();
    results.rotate_right(turns);
    let results = results.into_iter().map(|(name, result)| (name, result.map(|(_, samples)| samples))).collect();
    Ok(Comparison { command, equal_view, results })
}
