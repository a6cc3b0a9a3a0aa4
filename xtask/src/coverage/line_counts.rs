//! Counts of lines, from a report in the format of lcov, geninfo(1).

use std::ops::AddAssign;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// Number of lines with code, and of those that ran.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineCounts {
    pub(super) lines: usize,
    pub(super) covered: usize,
}

impl LineCounts {
    pub(super) fn percentage(self) -> f64 {
        if self.lines == 0 { 100.0 } else { self.covered as f64 * 100.0 / self.lines as f64 }
    }
}

impl AddAssign for LineCounts {
    fn add_assign(&mut self, other: Self) {
        self.lines += other.lines;
        self.covered += other.covered;
    }
}

/// The lines of one file in a report.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileCoverage {
    pub(super) path: PathBuf,
    /// Numbers of the lines with code, each with the number of times that it ran.
    pub(super) lines: Vec<(usize, u64)>,
}

impl FileCoverage {
    /// Counts the lines up to `last`.
    pub(super) fn count_lines(&self, last: usize) -> LineCounts {
        let counted = self.lines.iter().filter(|(line, _)| *line <= last);
        LineCounts {
            lines: counted.clone().count(),
            covered: counted.filter(|(_, runs)| *runs > 0).count(),
        }
    }
}

/// Reads a report: `SF:` opens a file, and `DA:LINE,RUNS` is a line of it.
pub(super) fn parse_lcov(report: &str) -> Result<Vec<FileCoverage>> {
    let mut files: Vec<FileCoverage> = Vec::new();
    for record in report.lines() {
        if let Some(path) = record.strip_prefix("SF:") {
            files.push(FileCoverage { path: path.into(), lines: Vec::new() });
        } else if let Some(line) = record.strip_prefix("DA:") {
            let parsed = line.split_once(',').and_then(|(line, runs)| {
                Some((line.parse().ok()?, runs.split(',').next()?.parse().ok()?))
            });
            let parsed = parsed.with_context(|| format!("`{record}` is no record of lcov"))?;
            files.last_mut().context("the report opens with a line of no file")?.lines.push(parsed);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_before_the_tests_are_counted() {
        let report = "SF:/a.rs\nFN:1,main\nDA:1,7\nDA:2,0\nDA:9,3\nLF:3\nend_of_record\n\
                      SF:/b.rs\nDA:4,18446744073709551615\nend_of_record\n";
        let files = parse_lcov(report).unwrap();
        assert_eq!(files.len(), 2);
        assert_eq!(files[0].count_lines(8), LineCounts { lines: 2, covered: 1 });
        assert_eq!(files[0].count_lines(9), LineCounts { lines: 3, covered: 2 });
        assert_eq!(files[1].count_lines(9), LineCounts { lines: 1, covered: 1 });
    }

    #[test]
    fn a_malformed_report_is_refused() {
        assert!(parse_lcov("DA:1,1\n").is_err());
        assert!(parse_lcov("SF:/a.rs\nDA:one,1\n").is_err());
    }

    #[test]
    fn shares_are_of_lines_with_code() {
        let mut counts = LineCounts { lines: 3, covered: 3 };
        counts += LineCounts { lines: 1, covered: 0 };
        assert_eq!(counts.percentage(), 75.0);
        assert_eq!(LineCounts::default().percentage(), 100.0);
    }
}
