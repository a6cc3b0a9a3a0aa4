//! `cargo xtask bench`: measures ringfence and its peers, interleaved in one run, and reports
//! ratios.

mod chart;
mod code;
mod contenders;
mod driver;
mod egress;
mod engines;
mod output;
mod rates;
mod report;
mod revisions;
mod samples;
mod server;
mod staying_sandboxes;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use self::code::{BWRAP, CODE, WarmInterpreters};
use self::contenders::{AS_USUAL, Contender, EQUAL_BWRAP, PLAIN, RingfencePrograms};
use self::report::{BenchReport, TimeComparison};
use self::samples::TimeSamples;
use self::server::ServerBench;
use self::staying_sandboxes::{COMMAND, DOCKER_EXEC, DOCKER_RUN, StayingSandboxes};
use crate::arguments::ChoreArguments;
use crate::dist;
use crate::test::engines::EngineEnvironment;
use crate::test::packages::{self, PackagePurpose};
use crate::test::python::{self, E2B, PANDAS};
use crate::workspace::{Workspace, format_words, run as run_command};

const RUNS: usize = 200;
const QUICK_RUNS: usize = 20;
const WARM_UP_ROUNDS: usize = 3;
/// Number of runs for which one start of a sandbox that stays is measured. Starts are fewer because
/// a container takes a second to start.
const RUNS_PER_START: usize = 10;

/// The commands that every contender runs.
const COMMANDS: &[&[&str]] = &[&["/bin/true"], &["sh", "-c", "echo hi"]];

pub(crate) fn run(workspace: &Workspace, mut arguments: ChoreArguments) -> Result<()> {
    let default = if arguments.flag("--quick") { QUICK_RUNS } else { RUNS };
    let runs = arguments.number("--runs")?.unwrap_or(default);
    let against = arguments.value("--against", "a revision")?;
    let is_egress_alone = arguments.flag("--egress");
    let (install, with_engines) =
        (!arguments.flag("--no-install"), !arguments.flag("--no-engines"));
    arguments.end(&[
        "--runs",
        "--quick",
        "--against",
        "--egress",
        "--no-install",
        "--no-engines",
    ])?;
    if let Some(revision) = against {
        return revisions::measure(workspace, &revision, runs);
    }
    packages::provide(PackagePurpose::Bench, install, with_engines && !is_egress_alone)?;
    if is_egress_alone {
        return measure_egress(workspace, &build_egress(workspace)?);
    }

    let programs = RingfencePrograms {
        ringfence: dist::build(workspace)?,
        library: build_example(workspace, "ringfence", "bench_cold")?,
        session: build_example(workspace, "ringfence", "bench_session")?,
        code: build_example(workspace, "ringfence", "bench_code")?,
    };
    let egress_programs = build_egress(workspace)?;
    let python =
        python::provide(PANDAS, &workspace.target, install).unwrap_or_else(|| "python3".into());
    let sdk = python::provide(E2B, &workspace.target, install);
    if with_engines && let Some(engine_environment) = EngineEnvironment::prepare()? {
        return beside_engines(workspace, &engine_environment);
    }
    // The view of every contender has the same small, writable working directory.
    let directory = tempfile::tempdir_in("/var/tmp")?;
    std::env::set_current_dir(directory.path())
        .context("cannot enter the working directory of the runs")?;

    let cold =
        COMMANDS.iter().map(|command| compare_cold(&programs, directory.path(), command, runs));
    let mut comparisons = cold.collect::<Result<Vec<_>>>()?;
    let interpreters = WarmInterpreters::start(&programs.code, &python);
    for (code, _) in CODE {
        let contenders = interpreters.line_up(code);
        comparisons.push(compare(format!("python3: {code}"), BWRAP, None, contenders, runs)?);
    }
    drop(interpreters);
    println!("measuring 1 GiB of output");
    let output = output::measure(&programs.ringfence).map_err(|error| format!("{error:#}"));
    println!("starting sandboxes that stay");
    let stays = StayingSandboxes::start(&programs.session);
    comparisons.push(compare(
        format!("{COMMAND}, all is up"),
        DOCKER_EXEC,
        None,
        stays.warm(),
        runs,
    )?);
    let starts = runs.div_ceil(RUNS_PER_START);
    comparisons.push(compare(
        format!("{COMMAND}, from nothing"),
        AS_USUAL,
        None,
        stays.up(),
        starts,
    )?);
    println!("starting a server");
    let served = ServerBench::start(&programs.ringfence, sdk.as_deref());
    comparisons.push(compare(
        format!("{COMMAND}, through a server"),
        DOCKER_RUN,
        None,
        served.up(&stays),
        starts,
    )?);
    comparisons.push(compare(
        format!("{COMMAND}, a server's is up"),
        PLAIN,
        None,
        served.exec(),
        runs,
    )?);
    drop(served);
    println!("measuring 1 GiB in and out");
    let copies = rates::measure_copies(&stays, directory.path())?;
    println!("measuring commands at once");
    let commands = rates::measure_commands(&stays);
    drop(stays);
    let report = BenchReport { runs, comparisons, output, copies, commands };
    std::env::set_current_dir(&workspace.root)
        .context("cannot leave the working directory of the runs")?;

    print!("\n{}", report.as_text());
    let documents = workspace.root.join("docs/bench");
    fs_err::create_dir_all(&documents)?;
    fs_err::write(documents.join("latest.json"), format!("{:#}\n", report.as_json()))?;
    fs_err::write(documents.join("latest.svg"), chart::draw(&report.comparisons))?;
    println!("\nwritten: docs/bench/latest.json, docs/bench/latest.svg\n");
    measure_egress(workspace, &egress_programs)
}

/// Measures the proxy and those of its peers that are installed.
fn measure_egress(workspace: &Workspace, programs: &egress::EgressPrograms) -> Result<()> {
    println!("measuring the proxy");
    let rates = egress::measure(programs)?;
    print!("\n{}\n{}", egress::as_text(&rates), report::goals_as_text(egress::goals(&rates)));
    fs_err::write(
        workspace.root.join("docs/bench/egress.json"),
        format!("{:#}\n", egress::as_json(&rates)),
    )?;
    println!("\nwritten: docs/bench/egress.json");
    Ok(())
}

/// Builds an example program that links a library and times the library from inside its process.
fn build_example(workspace: &Workspace, package: &str, name: &str) -> Result<PathBuf> {
    let host = dist::host_triple()?;
    run_command(&mut dist::static_dist(workspace, &host, &["-p", package, "--example", name]))?;
    Ok(workspace.target.join(host).join("dist/examples").join(name))
}

fn build_egress(workspace: &Workspace) -> Result<egress::EgressPrograms> {
    Ok(egress::EgressPrograms {
        load: build_example(workspace, "ringfence-egress", "bench_proxy")?,
        proxy: build_example(workspace, "ringfence-egress", "proxy")?,
    })
}

/// Starts engines, then measures in the place where the engines run. Nothing can be downloaded
/// there, so everything must be built before.
fn beside_engines(workspace: &Workspace, engine_environment: &EngineEnvironment) -> Result<()> {
    let engines = engine_environment.start_engines(None, &workspace.target.join("test-images"))?;
    let mut again = Command::new(std::env::current_exe().context("cannot find this program")?);
    again
        .args(std::env::args_os().skip(1))
        .args(["--no-install", "--no-engines"])
        .envs(engines.variables());
    run_command(&mut engine_environment.beside_the_engines(&again))
}

/// Compares the ways to run a command from a cold start, with no part of its sandbox prepared.
fn compare_cold(
    programs: &RingfencePrograms,
    directory: &Path,
    command: &[&str],
    runs: usize,
) -> Result<TimeComparison> {
    let (contenders, equal_view) = contenders::line_up(programs, directory, command);
    let note = format!("{EQUAL_BWRAP}: {equal_view}");
    compare(format_words(command), EQUAL_BWRAP, Some(note), contenders, runs)
}

/// Runs every contender once per round, so that a slow moment of the machine affects all
/// contenders.
fn compare(
    title: String,
    yardstick: &'static str,
    note: Option<String>,
    contenders: Vec<Contender>,
    runs: usize,
) -> Result<TimeComparison> {
    let try_out = |contender: Contender| {
        let start = contender.start.and_then(|start| start.run_once().map(|()| start));
        (contender.name, start.map(|start| (start, TimeSamples::default())))
    };
    let mut results: Vec<_> = contenders.into_iter().map(try_out).collect();
    println!("measuring `{title}` {runs} times");
    for round in 0..WARM_UP_ROUNDS + runs {
        // Each round begins with another contender, because a run after a heavy contender pays for
        // the clean-up of that contender.
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
    let results = results
        .into_iter()
        .map(|(name, result)| (name, result.map(|(_, samples)| samples)))
        .collect();
    Ok(TimeComparison { title, yardstick, note, results })
}
