//! Report of the measurements: as tables, as JSON, and compared with the goals.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::code::{self, BWRAP, CODE};
use super::contenders::{AS_USUAL, EQUAL_BWRAP, LIBRARY, NATIVE, PLAIN};
use super::output::{BYTES, DrainResult};
use super::rates::{self, AT_ONCE, ContenderRates};
use super::samples::TimeSamples;
use super::server::{POOLED, UNPOOLED};
use super::staying_sandboxes::{
    DOCKER_EXEC, DOCKER_RUN, UP_NATIVE, WARM_DOCKER, WARM_NATIVE, WARM_PODMAN,
};
use crate::table::{CellAlignment, table};

/// Times of one command with every contender.
pub(super) struct TimeComparison {
    pub(super) title: String,
    /// Contender that all others are compared with, besides a plain spawn.
    pub(super) yardstick: &'static str,
    pub(super) note: Option<String>,
    /// Times of each contender, or the reason why the contender did not take part.
    pub(super) results: Vec<(&'static str, Result<TimeSamples, String>)>,
}

impl TimeComparison {
    /// Returns the median time of a contender that took part.
    pub(super) fn median(&self, name: &str) -> Option<Duration> {
        self.results
            .iter()
            .find(|(contender, _)| *contender == name)?
            .1
            .as_ref()
            .ok()?
            .percentile(50)
    }

    /// Formats a table with the times of every contender.
    pub(super) fn as_text(&self) -> String {
        let yardstick = self.yardstick;
        let faster = format!("faster than {yardstick}");
        let head = [
            (self.title.as_str(), CellAlignment::Left),
            ("p50 ms", CellAlignment::Right),
            ("p95 ms", CellAlignment::Right),
            ("× plain", CellAlignment::Right),
            (faster.as_str(), CellAlignment::Right),
        ];
        let row = |(name, samples): &(&'static str, Result<TimeSamples, String>)| match samples {
            Ok(samples) => [
                (*name).to_owned(),
                milliseconds(samples.percentile(50)),
                milliseconds(samples.percentile(95)),
                times(self.ratio(name, PLAIN)),
                times(self.ratio(yardstick, name)),
            ],
            Err(_) => {
                [(*name).to_owned(), "–".to_owned(), "–".to_owned(), "–".to_owned(), "–".to_owned()]
            }
        };
        let mut text = table(&head, &self.results.iter().map(row).collect::<Vec<_>>());
        text.extend(self.note.iter().map(|note| format!("{note}\n")));
        text + &list_absent(&self.results) + "\n"
    }

    /// Divides the median of one contender by the median of another.
    pub(super) fn ratio(&self, of: &str, to: &str) -> Option<f64> {
        Some(self.median(of)?.as_secs_f64() / self.median(to)?.as_secs_f64())
    }
}

pub(super) struct BenchReport {
    pub(super) runs: usize,
    pub(super) comparisons: Vec<TimeComparison>,
    pub(super) output: Result<DrainResult, String>,
    /// Megabytes per second, into and out of a sandbox.
    pub(super) copies: ContenderRates<2>,
    /// Commands per second, for each number of concurrent commands.
    pub(super) commands: ContenderRates<3>,
}

/// Time that a command in a running sandbox may take beyond two plain spawns.
const MAX_ROUND_TRIP: Duration = Duration::from_micros(500);

/// A goal, and the measured value if there is one.
pub(super) struct BenchGoal {
    name: String,
    measured: Option<f64>,
    unit: &'static str,
    reached: Option<bool>,
}

impl BenchGoal {
    pub(super) fn at_least(
        least: f64,
        name: String,
        measured: Option<f64>,
        unit: &'static str,
    ) -> Self {
        Self { name, measured, unit, reached: measured.map(|measured| measured >= least) }
    }

    pub(super) fn below(
        limit: f64,
        name: String,
        measured: Option<f64>,
        unit: &'static str,
    ) -> Self {
        Self { name, measured, unit, reached: measured.map(|measured| measured < limit) }
    }
}

impl BenchReport {
    fn goals(&self) -> Vec<BenchGoal> {
        let mut goals = Vec::new();
        for comparison in &self.comparisons {
            let TimeComparison { title, yardstick, .. } = comparison;
            let faster = match *yardstick {
                EQUAL_BWRAP => vec![(NATIVE, 2.0), (LIBRARY, 2.5)],
                BWRAP => warm_goal(title),
                DOCKER_EXEC => vec![(WARM_NATIVE, 40.0), (WARM_DOCKER, 40.0), (WARM_PODMAN, 40.0)],
                DOCKER_RUN => vec![(POOLED, 20.0)],
                _ => Vec::new(),
            };
            for (contender, least) in faster {
                let name =
                    format!("{contender}, `{title}`: at least {least}× faster than {yardstick}");
                goals.push(BenchGoal::at_least(
                    least,
                    name,
                    comparison.ratio(yardstick, contender),
                    "×",
                ));
            }
            if *yardstick == DOCKER_EXEC {
                let name = format!("{WARM_NATIVE}, `{title}`, less 0.5 ms: below 2× {PLAIN}");
                let rest = comparison
                    .median(WARM_NATIVE)
                    .map(|time| time.saturating_sub(MAX_ROUND_TRIP).as_secs_f64());
                let ratio = rest
                    .zip(comparison.median(PLAIN))
                    .map(|(rest, plain)| rest / plain.as_secs_f64());
                goals.push(BenchGoal::below(2.0, name, ratio, "×"));
            }
            if *yardstick == DOCKER_RUN {
                let name = format!("{UNPOOLED}, `{title}`: below 3× {AS_USUAL}");
                goals.push(BenchGoal::below(3.0, name, comparison.ratio(UNPOOLED, AS_USUAL), "×"));
            }
            if *yardstick == AS_USUAL {
                let name = format!("{UP_NATIVE}, `{title}`: below 5× {AS_USUAL}");
                goals.push(BenchGoal::below(5.0, name, comparison.ratio(UP_NATIVE, AS_USUAL), "×"));
            }
        }
        let output = self.output.as_ref().ok();
        let speed = output.map(DrainResult::gigabytes_per_second);
        goals.push(BenchGoal::at_least(
            2.0,
            "1 GiB of output, 10 MB kept: at least 2 GB/s".to_owned(),
            speed,
            " GB/s",
        ));
        let memory = output.map(|drained| drained.peak_memory as f64 / 1e6);
        goals.push(BenchGoal::below(
            40.0,
            "1 GiB of output, 10 MB kept: below 40 MB of memory".to_owned(),
            memory,
            " MB",
        ));
        goals
    }

    pub(super) fn as_text(&self) -> String {
        let mut text = String::new();
        for comparison in &self.comparisons {
            text += &comparison.as_text();
        }
        text += &format!(
            "{}\n{}\n",
            rates::copies_as_text(&self.copies),
            rates::commands_as_text(&self.commands)
        );
        match &self.output {
            Ok(drained) => {
                let ratio = drained.plain.as_secs_f64() / drained.time.as_secs_f64();
                text += &format!(
                    "1 GiB of output is drained {ratio:.2}× as fast as by a plain pipe to \
                     nowhere\n\n"
                );
            }
            Err(why) => text += &format!("output was not measured: {why}\n\n"),
        }
        text + &goals_as_text(self.goals())
    }

    pub(super) fn as_json(&self) -> Value {
        let comparisons = self.comparisons.iter().map(|comparison| {
            let contenders = comparison.results.iter().map(|(name, samples)| match samples {
                Ok(samples) => json!({
                    "name": name,
                    "p50_ns": samples.percentile(50).map(nanoseconds),
                    "p95_ns": samples.percentile(95).map(nanoseconds),
                    "times_plain": comparison.ratio(name, PLAIN),
                    "faster_than_yardstick": comparison.ratio(comparison.yardstick, name),
                }),
                Err(why) => json!({ "name": name, "absent": why }),
            });
            json!({
                "title": comparison.title,
                "yardstick": comparison.yardstick,
                "note": comparison.note,
                "contenders": contenders.collect::<Vec<_>>(),
            })
        });
        let output = match &self.output {
            Ok(drained) => json!({
                "bytes": BYTES,
                "seconds": drained.time.as_secs_f64(),
                "seconds_of_a_plain_pipe": drained.plain.as_secs_f64(),
                "gigabytes_per_second": drained.gigabytes_per_second(),
                "peak_memory_bytes": drained.peak_memory,
            }),
            Err(why) => json!({ "absent": why }),
        };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let at_once = AT_ONCE.map(|at_once| at_once.to_string());
        json!({
            "measured_at_unix": since_1970.map_or(0, |now| now.as_secs()),
            "kernel": rustix::system::uname().release().to_string_lossy(),
            "processors": std::thread::available_parallelism().map_or(1, usize::from),
            "runs": self.runs,
            "comparisons": comparisons.collect::<Vec<_>>(),
            "output": output,
            "megabytes_per_second": rates::as_json(["in", "out"].map(str::to_owned), &self.copies),
            "commands_per_second": rates::as_json(at_once, &self.commands),
            "goals": goals_as_json(self.goals()),
        })
    }
}

/// Returns the factor by which code in a warm interpreter must be faster, if there is a goal for
/// it.
fn warm_goal(title: &str) -> Vec<(&'static str, f64)> {
    let goal = CODE.iter().find(|(code, _)| title.ends_with(code)).and_then(|(_, least)| *least);
    goal.map(|least| (code::WARM, least)).into_iter().collect()
}

pub(super) fn goals_as_json(goals: Vec<BenchGoal>) -> Value {
    let to_json = |goal: BenchGoal| {
        let BenchGoal { name, measured, reached, .. } = goal;
        json!({ "goal": name, "measured": measured, "reached": reached })
    };
    goals.into_iter().map(to_json).collect()
}

/// Formats a table of the goals and of those that were reached.
pub(super) fn goals_as_text(goals: Vec<BenchGoal>) -> String {
    let row = |goal: BenchGoal| {
        let measured = goal
            .measured
            .map_or_else(|| "–".to_owned(), |measured| format!("{measured:.2}{}", goal.unit));
        let verdict = match goal.reached {
            Some(true) => "reached",
            Some(false) => "MISSED",
            None => "not measured",
        };
        [goal.name, measured, verdict.to_owned()]
    };
    let head = [
        ("goal", CellAlignment::Left),
        ("measured", CellAlignment::Right),
        ("", CellAlignment::Left),
    ];
    table(&head, &goals.into_iter().map(row).collect::<Vec<_>>())
}

/// Lists the contenders that did not take part, each with the reason.
pub(super) fn list_absent<T>(results: &[(&'static str, Result<T, String>)]) -> String {
    let absent = |(name, result): &(&'static str, Result<T, String>)| {
        result.as_ref().err().map(|why| format!("{name} did not take part: {why}\n"))
    };
    results.iter().filter_map(absent).collect()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn milliseconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "–".to_owned(), |time| format!("{:.2}", time.as_secs_f64() * 1e3))
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}×"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(milliseconds: u64) -> Result<TimeSamples, String> {
        let mut samples = TimeSamples::default();
        samples.extend([Duration::from_millis(milliseconds)]);
        Ok(samples)
    }

    fn report() -> BenchReport {
        let results = vec![
            (PLAIN, took(1)),
            (NATIVE, took(2)),
            (LIBRARY, Err("not there".to_owned())),
            (EQUAL_BWRAP, took(4)),
        ];
        let output = Ok(DrainResult {
            time: Duration::from_secs(1),
            plain: Duration::from_secs(1),
            peak_memory: 20_000_000,
        });
        BenchReport {
            runs: 1,
            comparisons: vec![TimeComparison {
                title: "/bin/true".to_owned(),
                yardstick: EQUAL_BWRAP,
                note: Some("bwrap, equal view: by hand".to_owned()),
                results,
            }],
            output,
            copies: vec![
                ("plain cp", Ok([1000.0, 2000.0])),
                ("docker cp", Err("docker is not installed".to_owned())),
            ],
            commands: vec![(PLAIN, Ok([900.0, 1700.4, 1800.0]))],
        }
    }

    #[test]
    fn the_table_has_ratios_goals_and_absent_contenders() {
        assert_eq!(
            report().as_text(),
            "\
/bin/true                p50 ms  p95 ms  × plain  faster than bwrap, equal view
───────────────────────  ──────  ──────  ───────  ─────────────────────────────
plain spawn                1.00    1.00    1.00×                          4.00×
ringfence, native          2.00    2.00    2.00×                          2.00×
ringfence, library cold       –       –        –                              –
bwrap, equal view          4.00    4.00    4.00×                          1.00×
bwrap, equal view: by hand
ringfence, library cold did not take part: not there

1 GiB, MB/s    in   out
───────────  ────  ────
plain cp     1000  2000
docker cp       –     –
docker cp did not take part: docker is not installed

commands a second  1 at once  8 at once  64 at once
─────────────────  ─────────  ─────────  ──────────
plain spawn              900       1700        1800

1 GiB of output is drained 1.00× as fast as by a plain pipe to nowhere

goal                                                                                measured
─────────────────────────────────────────────────────────────────────────────────  ─────────  \
────────────
ringfence, native, `/bin/true`: at least 2× faster than bwrap, equal view              2.00×  \
reached
ringfence, library cold, `/bin/true`: at least 2.5× faster than bwrap, equal view          –  not \
measured
1 GiB of output, 10 MB kept: at least 2 GB/s                                       1.07 GB/s  MISSED
1 GiB of output, 10 MB kept: below 40 MB of memory                                  20.00 MB  \
reached
"
        );
    }

    #[test]
    fn the_json_lists_absent_contenders() {
        let json = report().as_json();
        let contenders = &json["comparisons"][0]["contenders"];
        assert_eq!(contenders[1]["p50_ns"], 2_000_000);
        assert_eq!(contenders[1]["faster_than_yardstick"], 2.0);
        assert_eq!(contenders[2], json!({ "name": LIBRARY, "absent": "not there" }));
        assert_eq!(
            json["megabytes_per_second"][0],
            json!({ "name": "plain cp", "rates": { "in": 1000.0, "out": 2000.0 } })
        );
        assert_eq!(
            json["megabytes_per_second"][1],
            json!({ "name": "docker cp", "absent": "docker is not installed" })
        );
        assert_eq!(json["goals"][1]["reached"], Value::Null);
        assert_eq!(json["goals"][2]["reached"], false);
    }
}
