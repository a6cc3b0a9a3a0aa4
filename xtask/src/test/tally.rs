//! The sum of the `test result:` lines of all test binaries and of the checks of a virtual machine.

use std::collections::BTreeSet;

use ringfence_test_ledger::Skip;

use crate::kernels::CheckCounts;

/// Number of tests by outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TestTally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl TestTally {
    /// Adds the counts of a line of a test binary's output, if the line is a summary.
    pub(crate) fn add(&mut self, line: &str) {
        let Some((_verdict, counts)) =
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for count in counts.split("; ") {
            let Some((number, outcome)) = count.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match outcome {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }

    /// Counts skipped tests as skipped. Each of them returned early, so that its test harness
    /// counted a pass.
    pub(crate) fn set_apart(&mut self, skips: &[Skip]) {
        let tests = skips.iter().map(|skip| &skip.place).collect::<BTreeSet<_>>().len() as u64;
        self.passed = self.passed.saturating_sub(tests);
        self.skipped += tests;
    }

    /// Adds the results of the checks of a virtual machine.
    pub(crate) fn add_machine(&mut self, counts: CheckCounts) {
        self.passed += counts.passed;
        self.failed += counts.failed;
        self.skipped += counts.skipped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_of_all_binaries_are_added_up() {
        let output = "
running 2 tests
test a ... ok
test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s
   Doc-tests ringfence
test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.25s
all doctests ran in 0.31s; merged doctests compilation took 0.25s
";
        let mut tally = TestTally::default();
        output.lines().for_each(|line| tally.add(line));
        assert_eq!(tally, TestTally { passed: 15, failed: 2, skipped: 1 });
    }

    #[test]
    fn a_test_that_skips_for_two_needs_is_one_skipped_test() {
        let skip = |need: &str| Skip {
            place: "a::test".to_owned(),
            need: need.to_owned(),
            reason: String::new(),
        };
        let mut tally = TestTally { passed: 5, failed: 0, skipped: 1 };
        tally.set_apart(&[skip("bwrap"), skip("landlock")]);
        tally.add_machine(CheckCounts { passed: 10, failed: 2, skipped: 1 });
        assert_eq!(tally, TestTally { passed: 14, failed: 2, skipped: 3 });
    }

    #[test]
    fn other_lines_count_nothing() {
        let mut tally = TestTally::default();
        for line in
            ["", "5 passed; 1 failed", "test result: ", "test a ... 3 passed", "test result: ok."]
        {
            tally.add(line);
        }
        assert_eq!(tally, TestTally::default());
    }
}
