//! Measures operations of a sandbox that stays: `bench_session BACKEND [IMAGE]` starts a sandbox in
//! the working directory and answers each line of its standard input with a line of nanoseconds.
//!
//! | line                      | measured                                                       |
//! |---------------------------|----------------------------------------------------------------|
//! | `exec RUNS WORDS…`        | a command, each of `RUNS` runs separately                      |
//! | `many ALL AT_ONCE WORDS…` | `ALL` runs of a command together, `AT_ONCE` of them at a time  |
//! | `in FROM TO`              | the copy of a file from the host into the workspace            |
//! | `out FROM TO`             | the copy of a file from the workspace to the host              |
//! | `start WORDS…`            | another sandbox, from start to the end of its first command    |
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the figures are its answer, or why there are none"
)]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringfence::{BackendChoice, Engine, Exec, Host, Policy, Sandbox, Settings, StartRequest};
use tokio::task::JoinSet;

type BenchError = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    ringfence::launcher::serve_if_asked();
    match time() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", ringfence::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn time() -> Result<(), BenchError> {
    let mut arguments = std::env::args().skip(1);
    let choice: BackendChoice = arguments.next().ok_or("which backend?")?.parse()?;
    let mut spec = StartRequest::new(Policy::default().backend(choice));
    spec.container.image = arguments.next();
    let engine = Engine::new(Settings::new(Host::for_this_process()?))?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(answer(&engine, &spec))
}

async fn answer(engine: &Engine, spec: &StartRequest) -> Result<(), BenchError> {
    let sandbox = engine.start(spec.clone()).await?;
    // Blocking reads are fine: the client waits for each answer, so nothing else runs meanwhile,
    // and a thread that reads would only disturb the measurement.
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let times = match words.as_slice() {
            ["exec", runs, words @ ..] => {
                one_by_one(&sandbox, runs.parse()?, &exec(words)?).await?
            }
            ["many", all, at_once, words @ ..] => {
                vec![many(&sandbox, all.parse()?, at_once.parse()?, &exec(words)?).await?]
            }
            ["in", from, to] => {
                let start = Instant::now();
                sandbox.files().upload(Path::new(from), &inside(&sandbox, to), |_| ()).await?;
                vec![start.elapsed()]
            }
            ["out", from, to] => {
                let start = Instant::now();
                sandbox.files().download(&inside(&sandbox, from), Path::new(to), |_| ()).await?;
                vec![start.elapsed()]
            }
            ["start", words @ ..] => {
                let start = Instant::now();
                let sandbox = engine.start(spec.clone()).await?;
                run(&sandbox, &exec(words)?).await?;
                let time = start.elapsed();
                sandbox.stop().await?;
                vec![time]
            }
            _ => return Err(format!("`{line}` is nothing that can be timed").into()),
        };
        let figures: Vec<String> = times.iter().map(|time| time.as_nanos().to_string()).collect();
        println!("{}", figures.join(" "));
    }
    sandbox.stop().await?;
    Ok(())
}

/// Returns the path that the workspace file `name` has in the sandbox.
fn inside(sandbox: &Sandbox, name: &str) -> String {
    sandbox.manifest().workspace_inside.join(name).display().to_string()
}

fn exec(words: &[&str]) -> Result<Exec, &'static str> {
    let (program, arguments) = words.split_first().ok_or("which program?")?;
    Ok(Exec::new(*program).arguments(arguments.iter().copied()))
}

async fn run(sandbox: &Sandbox, exec: &Exec) -> Result<(), BenchError> {
    let ended = sandbox.exec(exec).await?.wait().await?;
    if ended.ok() { Ok(()) } else { Err(format!("the command failed: {ended:?}").into()) }
}

async fn one_by_one(
    sandbox: &Sandbox,
    runs: usize,
    exec: &Exec,
) -> Result<Vec<Duration>, BenchError> {
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let start = Instant::now();
        run(sandbox, exec).await?;
        times.push(start.elapsed());
    }
    Ok(times)
}

async fn many(
    sandbox: &Sandbox,
    all: usize,
    at_once: usize,
    exec: &Exec,
) -> Result<Duration, BenchError> {
    let begun = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for _ in 0..at_once {
        let (sandbox, exec, begun) = (sandbox.clone(), exec.clone(), Arc::clone(&begun));
        tasks.spawn(async move {
            while begun.fetch_add(1, Ordering::Relaxed) < all {
                run(&sandbox, &exec).await?;
            }
            Ok::<_, BenchError>(())
        });
    }
    while let Some(finished) = tasks.join_next().await {
        finished??;
    }
    Ok(start.elapsed())
}
