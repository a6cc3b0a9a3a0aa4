//! The sum of the `test result:` lines of all test binaries.

/// How many tests came out how.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) ignored: u64,
}

impl Tally {
    /// Counts a line of a test binary's output, if it is one that sums up.
    pub(super) fn add(&mut self, line: &str) {
        let Some((_verdict, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        for count in counts.split("; ") {
            let Some((number, outcome)) = count.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match outcome {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
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
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.add(line));
        assert_eq!(tally, Tally { passed: 15, failed: 2, ignored: 1 });
    }

    #[test]
    fn other_lines_count_nothing() {
        let mut tally = Tally::default();
        for line in ["", "5 passed; 1 failed", "test result: ", "test a ... 3 passed", "test result: ok."] {
            tally.add(line);
        }
        assert_eq!(tally, Tally::default());
    }
}
