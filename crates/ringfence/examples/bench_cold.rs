//! Measures runs of the library: `bench_cold RUNS PROGRAM [ARGUMENTS…]` prints the nanoseconds of
//! each run on a line.
//!
//! Each run is cold: nothing of its sandbox exists before it. The engine and its launcher exist
//! already, as they do in a service.
#![expect(clippy::print_stdout, reason = "the figures are its answer")]

use std::time::Instant;

use ringfence::{Command, Engine, Host, Policy, Settings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    ringfence::launcher::serve_if_asked();
    let mut arguments = std::env::args_os().skip(1);
    let runs: usize =
        arguments.next().and_then(|runs| runs.to_str()?.parse().ok()).ok_or("how many runs?")?;
    let command = Command::new(arguments.next().ok_or("which program?")?).arguments(arguments);
    let engine = Engine::new(Settings::new(Host::for_this_process()?))?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    for _ in 0..runs {
        let start = Instant::now();
        let result = runtime.block_on(engine.run(&Policy::default(), &command))?;
        let time = start.elapsed();
        if !result.ok {
            return Err(format!("the command failed: {}", result.stderr).into());
        }
        println!("{}", time.as_nanos());
    }
    Ok(())
}
