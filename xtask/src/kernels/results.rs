//! The lines that a machine prints, and the report that they add up to.

use std::collections::BTreeSet;

use crate::table::{CellAlignment, table};

/// A parsed line of a machine's results.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResultLine<'a> {
    /// Start of a check, whose results follow.
    Begin(&'a str),
    Result(CheckResult<'a>),
    Comment(&'a str),
    /// Cell of the table in docs/promises.md: the row, and the text.
    Promise(&'a str, &'a str),
    /// End of the results: all checks ran.
    Done,
    /// Output of a program that a check called.
    Other(&'a str),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckResult<'a> {
    pub(super) verdict: CheckVerdict,
    pub(super) name: &'a str,
    /// Reason of a skip, or the output that a failed check saw.
    pub(super) detail: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckVerdict {
    Passed,
    Failed,
    Skipped,
}

impl CheckVerdict {
    /// Returns the word or words that a result line starts with.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Failed => "not ok",
            Self::Skipped => "skip",
        }
    }
}

pub(super) fn parse_line(line: &str) -> ResultLine<'_> {
    let line = line.trim_end();
    if line == "DONE" {
        return ResultLine::Done;
    }
    if let Some(check) = line.strip_prefix("== ") {
        return ResultLine::Begin(check);
    }
    if let Some(comment) = line.strip_prefix("# ") {
        return ResultLine::Comment(comment);
    }
    if let Some((row, text)) = line.strip_prefix("promise ").and_then(|rest| rest.split_once(' ')) {
        return ResultLine::Promise(row, text);
    }
    for verdict in [CheckVerdict::Passed, CheckVerdict::Failed, CheckVerdict::Skipped] {
        let Some(rest) = line.strip_prefix(verdict.word()).and_then(|rest| rest.strip_prefix(' '))
        else {
            continue;
        };
        let (name, detail) = rest.split_once(": ").unwrap_or((rest, ""));
        if !name.contains(' ') {
            return ResultLine::Result(CheckResult { verdict, name, detail });
        }
    }
    ResultLine::Other(line)
}

/// Number of results by verdict.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckCounts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl CheckCounts {
    pub(super) fn add(&mut self, verdict: CheckVerdict) {
        match verdict {
            CheckVerdict::Passed => self.passed += 1,
            CheckVerdict::Failed => self.failed += 1,
            CheckVerdict::Skipped => self.skipped += 1,
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }

    fn written(self) -> String {
        match self {
            Self { failed: 0, passed: 0, skipped: 0 } => "no result".to_owned(),
            Self { failed: 0, passed: 0, .. } => "skip".to_owned(),
            Self { failed: 0, passed, .. } => format!("{passed} ok"),
            Self { failed, passed, .. } => format!("{failed} of {} not ok", failed + passed),
        }
    }
}

/// Results of one cell.
#[derive(Debug)]
pub(crate) struct CellReport {
    pub(super) cell: &'static str,
    /// Counts by check, in the order in which the checks ran.
    pub(super) checks: Vec<(String, CheckCounts)>,
    /// Rows of docs/promises.md with the text for this cell.
    pub(super) promises: Vec<(String, String)>,
    /// Reason why not all checks ran, if some did not.
    pub(super) incomplete: Option<String>,
}

impl CellReport {
    pub(super) fn new(cell: &'static str) -> Self {
        Self { cell, checks: Vec::new(), promises: Vec::new(), incomplete: None }
    }

    /// Returns the report of a machine that could not be made, and prints the error.
    pub(super) fn not_started(cell: &'static str, error: &anyhow::Error) -> Self {
        println!("not ok {cell}: {error:#}");
        Self { incomplete: Some(format!("{error:#}")), ..Self::new(cell) }
    }

    pub(super) fn begin(&mut self, check: &str) {
        self.checks.push((check.to_owned(), CheckCounts::default()));
    }

    pub(super) fn add(&mut self, verdict: CheckVerdict) {
        if self.checks.is_empty() {
            self.begin("start");
        }
        if let Some((_, counts)) = self.checks.last_mut() {
            counts.add(verdict);
        }
    }

    /// Sums the counts of all checks. A machine that did not reach its end adds one failure.
    pub(crate) fn counts(&self) -> CheckCounts {
        let end =
            CheckCounts { failed: u64::from(self.incomplete.is_some()), ..CheckCounts::default() };
        self.checks.iter().map(|(_, counts)| *counts).fold(end, CheckCounts::plus)
    }
}

/// Formats a table with a row for each check and a column for each cell.
pub(super) fn matrix(reports: &[CellReport]) -> String {
    let mut seen = BTreeSet::new();
    let checks = reports.iter().flat_map(|report| &report.checks).map(|(check, _)| check.as_str());
    let checks: Vec<&str> = checks.filter(|check| seen.insert(*check)).collect();
    let head: Vec<(&str, CellAlignment)> = std::iter::once("check")
        .chain(reports.iter().map(|report| report.cell))
        .map(|name| (name, CellAlignment::Left))
        .collect();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for check in checks {
        let found = |report: &CellReport| {
            let counts = report.checks.iter().find(|(name, _)| name == check);
            counts.map_or_else(|| "-".to_owned(), |(_, counts)| counts.written())
        };
        rows.push(std::iter::once(check.to_owned()).chain(reports.iter().map(found)).collect());
    }
    let end = |report: &CellReport| {
        if report.incomplete.is_some() { "not reached" } else { "reached" }.to_owned()
    };
    rows.push(std::iter::once("(end)".to_owned()).chain(reports.iter().map(end)).collect());
    table(&head, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_result(line: &str, verdict: CheckVerdict, name: &str, detail: &str) {
        assert_eq!(parse_line(line), ResultLine::Result(CheckResult { verdict, name, detail }));
    }

    #[test]
    fn results_have_a_verdict_a_name_and_a_detail() {
        check_result("ok first-run", CheckVerdict::Passed, "first-run", "");
        check_result(
            "not ok a: wanted /x: y/, saw: z\r",
            CheckVerdict::Failed,
            "a",
            "wanted /x: y/, saw: z",
        );
        check_result(
            "skip tiers: this kernel has no Landlock",
            CheckVerdict::Skipped,
            "tiers",
            "this kernel has no Landlock",
        );
    }

    #[test]
    fn lines_that_are_no_results_are_distinguished() {
        assert_eq!(parse_line("== limits"), ResultLine::Begin("limits"));
        assert_eq!(parse_line("# limits took 9 s"), ResultLine::Comment("limits took 9 s"));
        assert_eq!(
            parse_line("promise hide mount namespace"),
            ResultLine::Promise("hide", "mount namespace")
        );
        assert_eq!(parse_line("DONE"), ResultLine::Done);
        assert_eq!(parse_line("okay then"), ResultLine::Other("okay then"));
        assert_eq!(parse_line("ok, it says"), ResultLine::Other("ok, it says"));
        assert_eq!(parse_line("ok that is a sentence"), ResultLine::Other("ok that is a sentence"));
    }

    #[test]
    fn a_machine_that_does_not_reach_its_end_is_a_failure() {
        let mut report = CellReport::new("6.1");
        report.begin("first");
        report.add(CheckVerdict::Passed);
        report.add(CheckVerdict::Skipped);
        assert_eq!(report.counts(), CheckCounts { passed: 1, failed: 0, skipped: 1 });
        report.incomplete = Some("it ended".to_owned());
        assert_eq!(report.counts(), CheckCounts { passed: 1, failed: 1, skipped: 1 });
    }

    #[test]
    fn the_matrix_has_a_row_per_check_and_a_column_per_cell() {
        let mut one = CellReport::new("5.10");
        one.begin("first");
        one.add(CheckVerdict::Passed);
        one.add(CheckVerdict::Failed);
        one.incomplete = Some("it ended".to_owned());
        let mut other = CellReport::new("6.1");
        other.begin("first");
        other.add(CheckVerdict::Passed);
        other.begin("tiers");
        other.add(CheckVerdict::Skipped);
        let expected = "\
check  5.10           6.1
─────  ─────────────  ───────
first  1 of 2 not ok  1 ok
tiers  -              skip
(end)  not reached    reached
";
        assert_eq!(matrix(&[one, other]), expected);
    }
}
