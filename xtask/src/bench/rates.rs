//! Measurement of throughput: bytes copied into and out of a sandbox, and commands that run
//! concurrently.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::report::list_absent;
use super::staying_sandboxes::{
    COMMAND, ConcurrentRun, ContenderMethod, CopyMethod, CopyPaths, StayingSandboxes,
};
use crate::table::{CellAlignment, table};

/// Length in bytes of the copied file.
pub(super) const BYTES: u64 = 1 << 30;
/// Numbers of commands that run concurrently.
pub(super) const AT_ONCE: [usize; 3] = [1, 8, 64];
/// Number of rounds of each measurement; the median is kept.
const ROUNDS: usize = 3;
/// Number of commands in one measurement where a command takes about a millisecond.
const QUICK_COMMANDS: usize = 640;
/// Least number of commands in one measurement where a command takes about a tenth of a second.
const MIN_SLOW_COMMANDS: usize = 8;

/// Rates of each contender, one per column, or the reason why the contender was not measured.
pub(super) type ContenderRates<const COLUMNS: usize> =
    Vec<(&'static str, Result<[f64; COLUMNS], String>)>;

/// Copies a file in and out by every way in turn. Returns megabytes per second.
pub(super) fn measure_copies(
    stays: &StayingSandboxes,
    directory: &Path,
) -> Result<ContenderRates<2>> {
    let places =
        CopyPaths { original: directory.join("original"), returned: directory.join("returned") };
    let piece: Vec<u8> =
        (0..1 << 20).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut file = fs_err::File::create(&places.original)?;
    for _ in 0..BYTES / piece.len() as u64 {
        std::io::Write::write_all(&mut file, &piece)?;
    }
    let rates = measure_in_turn(ROUNDS, stays.copying(&places), |copying| {
        let rate = |time: Duration| BYTES as f64 / 1e6 / time.as_secs_f64();
        let (inwards, outwards) = match copying {
            CopyMethod::Asked(driver) => {
                let CopyPaths { original, returned } = &places;
                let inwards = driver.ask(&format!("in {} copy", original.display()))?;
                (sum(&inwards), sum(&driver.ask(&format!("out copy {}", returned.display()))?))
            }
            CopyMethod::Spawned { inwards, outwards } => {
                (time_command(inwards)?, time_command(outwards)?)
            }
        };
        let length = fs_err::metadata(&places.returned)?.len();
        ensure!(length == BYTES, "a file of {BYTES} bytes came back with {length}");
        fs_err::remove_file(&places.returned)?;
        Ok([rate(inwards), rate(outwards)])
    });
    Ok(rates)
}

/// Runs many commands by every way in turn. Returns commands per second.
pub(super) fn measure_commands(stays: &StayingSandboxes) -> ContenderRates<3> {
    measure_in_turn(ROUNDS, stays.many(), |many| {
        let mut rates = [0.0; AT_ONCE.len()];
        for (rate, at_once) in rates.iter_mut().zip(AT_ONCE) {
            let (all, time) = match many {
                ConcurrentRun::Asked(driver) => (
                    QUICK_COMMANDS,
                    sum(&driver.ask(&format!("many {QUICK_COMMANDS} {at_once} {COMMAND}"))?),
                ),
                ConcurrentRun::Plain(words) => {
                    (QUICK_COMMANDS, spawn_many(words, QUICK_COMMANDS, at_once)?)
                }
                ConcurrentRun::Engine(words) => (
                    at_once.max(MIN_SLOW_COMMANDS),
                    spawn_many(words, at_once.max(MIN_SLOW_COMMANDS), at_once)?,
                ),
            };
            *rate = all as f64 / time.as_secs_f64();
        }
        Ok(rates)
    })
}

fn sum(times: &[Duration]) -> Duration {
    times.iter().sum()
}

/// Measures every way once per round, so that a slow moment of the machine affects all ways, and
/// returns the medians.
pub(super) fn measure_in_turn<T, const COLUMNS: usize>(
    rounds: usize,
    ways: Vec<ContenderMethod<T>>,
    mut measure: impl FnMut(&T) -> Result<[f64; COLUMNS]>,
) -> ContenderRates<COLUMNS> {
    let mut measured: Vec<ContenderMethod<Vec<[f64; COLUMNS]>>> = ways
        .iter()
        .map(|(name, way)| (*name, way.as_ref().map(|_| Vec::new()).map_err(Clone::clone)))
        .collect();
    for _ in 0..rounds {
        for ((_, way), (_, measured)) in ways.iter().zip(&mut measured) {
            let (Ok(way), Ok(rates)) = (way, &mut *measured) else { continue };
            match measure(way) {
                Ok(rate) => rates.push(rate),
                Err(error) => *measured = Err(format!("{error:#}")),
            }
        }
    }
    measured
        .into_iter()
        .map(|(name, measured)| (name, measured.map(|rates| medians(&rates))))
        .collect()
}

fn medians<const COLUMNS: usize>(rounds: &[[f64; COLUMNS]]) -> [f64; COLUMNS] {
    std::array::from_fn(|column| {
        let mut rates: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
        rates.sort_unstable_by(f64::total_cmp);
        rates[rates.len() / 2]
    })
}

fn time_command(words: &[OsString]) -> Result<Duration> {
    let start = Instant::now();
    run(words)?;
    Ok(start.elapsed())
}

fn run(words: &[OsString]) -> Result<()> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().with_context(|| format!("cannot run {:?}", words[0]))?;
    ensure!(status.success(), "{:?} ended with {status}", words[0]);
    Ok(())
}

fn spawn_many(words: &[OsString], all: usize, at_once: usize) -> Result<Duration> {
    let begun = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let worker = || -> Result<()> {
            while begun.fetch_add(1, Ordering::Relaxed) < all {
                run(words)?;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    Ok(start.elapsed())
}

pub(super) fn copies_as_text(copies: &ContenderRates<2>) -> String {
    let head = [
        ("1 GiB, MB/s", CellAlignment::Left),
        ("in", CellAlignment::Right),
        ("out", CellAlignment::Right),
    ];
    let rows = copies.iter().map(|(name, rates)| {
        let [inwards, outwards] = cells(rates);
        [(*name).to_owned(), inwards, outwards]
    });
    table(&head, &rows.collect::<Vec<_>>()) + &list_absent(copies)
}

pub(super) fn commands_as_text(commands: &ContenderRates<3>) -> String {
    let [few, some, many] = AT_ONCE.map(|at_once| format!("{at_once} at once"));
    let column = |name| (name, CellAlignment::Right);
    let head = [
        ("commands a second", CellAlignment::Left),
        column(few.as_str()),
        column(&some),
        column(&many),
    ];
    let rows = commands.iter().map(|(name, rates)| {
        let [few, some, many] = cells(rates);
        [(*name).to_owned(), few, some, many]
    });
    table(&head, &rows.collect::<Vec<_>>()) + &list_absent(commands)
}

/// Returns the cells of a contender's row. A rate that the contender cannot have (NaN) becomes a
/// dash.
pub(super) fn cells<const COLUMNS: usize>(
    rates: &Result<[f64; COLUMNS], String>,
) -> [String; COLUMNS] {
    let rates = rates.as_ref().unwrap_or(&[f64::NAN; COLUMNS]);
    rates.map(|rate| if rate.is_nan() { "–".to_owned() } else { format!("{rate:.0}") })
}

/// Returns the rates of all contenders as JSON, each under the name of its column.
pub(super) fn as_json<const COLUMNS: usize>(
    columns: [String; COLUMNS],
    rates: &ContenderRates<COLUMNS>,
) -> Value {
    let contender = |(name, rates): &(&'static str, Result<[f64; COLUMNS], String>)| match rates {
        Ok(rates) => {
            let rates = columns.iter().cloned().zip(rates.iter().map(|rate| json!(rate)));
            json!({ "name": name, "rates": serde_json::Map::from_iter(rates) })
        }
        Err(why) => json!({ "name": name, "absent": why }),
    };
    rates.iter().map(contender).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contender_has_its_medians_or_a_reason() {
        let ways = vec![("a", Ok(1.0)), ("b", Err("not there".to_owned())), ("c", Ok(-1.0))];
        let mut round = 0.0;
        let rates = measure_in_turn(3, ways, |way| {
            ensure!(*way > 0.0, "it broke");
            round += 1.0;
            Ok([round, -round])
        });
        let expected = vec![
            ("a", Ok([2.0, -2.0])),
            ("b", Err("not there".to_owned())),
            ("c", Err("it broke".to_owned())),
        ];
        assert_eq!(rates, expected);
    }

    #[test]
    fn a_command_that_fails_among_many_is_an_error() {
        assert!(spawn_many(&["true".into()], 4, 2).is_ok());
        assert!(spawn_many(&["false".into()], 4, 2).is_err());
    }
}
