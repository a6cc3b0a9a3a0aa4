//! Measures how long code takes: `bench_code PYTHON` keeps interpreters of that program and answers
//! each line of its standard input with a line of nanoseconds.
//!
//! | line             | measured                                                               |
//! |------------------|------------------------------------------------------------------------|
//! | `warm RUNS CODE` | code in an interpreter that waits, each of `RUNS` runs separately      |
//! | `cold RUNS CODE` | code in an interpreter that is started for it, each run separately     |
//!
//! Each run begins and ends with the full number of waiting interpreters. So the time that it takes
//! to start the next interpreter is part of no measurement, neither here nor of another program
//! that is measured in turn with this one.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the figures are its answer, or why there are none"
)]

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ringfence::{Engine, Host, Interpreters, Language, Policy, Settings};

/// Name of the language that the given Python program runs.
const LANGUAGE: &str = "python";

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

fn time() -> Result<(), Box<dyn Error>> {
    let program = std::env::args().nth(1).ok_or("which Python?")?;
    let settings = Settings::new(Host::for_this_process()?);
    let mut code = settings.code.clone();
    code.languages.insert(LANGUAGE.to_owned(), Language::new([program.clone()], ".py")?);
    let engine = Engine::new(settings.with_code(code))?;
    let mut policy = Policy::default();
    // A virtual environment may lie outside the directories that a sandbox sees by default.
    if let Some(environment) =
        std::path::Path::new(&program).ancestors().nth(2).filter(|path| path.is_absolute())
    {
        policy = policy.read(environment);
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(answer(&engine, &policy))
}

async fn answer(engine: &Engine, policy: &Policy) -> Result<(), Box<dyn Error>> {
    let interpreters = engine.interpreters(policy, LANGUAGE)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut words = line.splitn(3, ' ');
        let (Some(how), Some(runs), Some(code)) = (words.next(), words.next(), words.next()) else {
            return Err(format!("`{line}` is nothing that can be timed").into());
        };
        let mut figures = Vec::new();
        for _ in 0..runs.parse()? {
            figures
                .push(once(engine, policy, &interpreters, how, code).await?.as_nanos().to_string());
        }
        println!("{}", figures.join(" "));
    }
    Ok(())
}

async fn once(
    engine: &Engine,
    policy: &Policy,
    interpreters: &Interpreters,
    how: &str,
    code: &str,
) -> Result<Duration, Box<dyn Error>> {
    interpreters.ready().await;
    let start = Instant::now();
    let result = match how {
        "warm" => interpreters.execute_code(code, None).await?,
        _ => engine.execute_code(policy, code, LANGUAGE, None).await?,
    };
    let time = start.elapsed();
    interpreters.ready().await;
    if !result.ok || result.meta.warm != (how == "warm") {
        return Err(
            format!("the code did not run {how}: {result:?} {:?}", interpreters.trouble()).into()
        );
    }
    Ok(time)
}
