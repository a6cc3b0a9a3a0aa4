//! Parser of the arguments after the name of a chore: flags, options with a value, and the rest.

use std::fmt;

use anyhow::Result;

/// The arguments after the name of a chore. Flags and options are removed when they are read.
pub(crate) struct ChoreArguments(Vec<String>);

/// Error for a command line that a chore does not understand.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

impl ChoreArguments {
    pub(crate) fn new(arguments: impl Iterator<Item = String>) -> Self {
        Self(arguments.collect())
    }

    pub(crate) fn ask_for_help(&self) -> bool {
        self.0.iter().any(|argument| argument == "--help" || argument == "-h")
    }

    /// Removes every occurrence of the flag `name` and returns whether there was any.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|argument| argument != name);
        self.0.len() < before
    }

    /// Removes `name N` or `name=N` and returns the number, which must be above zero.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.value(name, "a number")? else { return Ok(None) };
        match value.parse() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => {
                Err(UsageError(format!("`{name}` takes a number above zero, not `{value}`")).into())
            }
        }
    }

    /// Removes `name VALUE` or `name=VALUE` and returns the value. `kind` describes the value in
    /// the error.
    pub(crate) fn value(&mut self, name: &str, kind: &str) -> Result<Option<String>> {
        let Some(position) =
            self.0.iter().position(|argument| argument.split('=').next() == Some(name))
        else {
            return Ok(None);
        };
        let option = self.0.remove(position);
        match option.split_once('=') {
            Some((_, value)) => Ok(Some(value.to_owned())),
            None if position < self.0.len() => Ok(Some(self.0.remove(position))),
            None => Err(UsageError(format!("`{name}` needs {kind} after it")).into()),
        }
    }

    /// Returns the remaining arguments, none of which may look like a flag. `known` lists the valid
    /// flags, from which the error suggests one.
    pub(crate) fn rest(self, known: &[&str]) -> Result<Vec<String>> {
        match self.0.iter().find(|argument| argument.starts_with('-')) {
            Some(flag) if known.is_empty() => {
                Err(UsageError(format!("there is no flag `{flag}` here")).into())
            }
            Some(flag) => {
                let nearest = nearest(flag, known.iter().copied());
                Err(UsageError(format!(
                    "there is no flag `{flag}` here; did you mean `{nearest}`?"
                ))
                .into())
            }
            None => Ok(self.0),
        }
    }

    /// Fails if any argument is left.
    pub(crate) fn end(self, known: &[&str]) -> Result<()> {
        match self.rest(known)?.first() {
            Some(argument) => {
                Err(UsageError(format!("`{argument}` is one argument too many")).into())
            }
            None => Ok(()),
        }
    }
}

/// Returns the candidate that is most similar to `typed`.
pub(crate) fn nearest<'a>(typed: &str, candidates: impl Iterator<Item = &'a str>) -> &'a str {
    let likeness = |candidate: &&str| strsim::jaro_winkler(typed, candidate);
    candidates.max_by(|a, b| likeness(a).total_cmp(&likeness(b))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> ChoreArguments {
        ChoreArguments::new(line.split_whitespace().map(str::to_owned))
    }

    #[track_caller]
    fn check_error<T>(result: Result<T>, expected: &str) {
        let error = result.map(|_| ()).unwrap_err();
        assert!(error.is::<UsageError>());
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn flags_and_options_are_taken_and_filters_are_left() {
        let mut arguments = arguments("one --quick --runs 30 two");
        assert!(arguments.flag("--quick"));
        assert!(!arguments.flag("--quick"));
        assert_eq!(arguments.number("--runs").unwrap(), Some(30));
        assert_eq!(arguments.rest(&[]).unwrap(), ["one", "two"]);
    }

    #[test]
    fn a_number_may_follow_an_equals_sign() {
        assert_eq!(arguments("--runs=7").number("--runs").unwrap(), Some(7));
        assert_eq!(arguments("").number("--runs").unwrap(), None);
    }

    #[test]
    fn values_that_are_not_positive_numbers_are_refused() {
        check_error(arguments("--runs").number("--runs"), "`--runs` needs a number after it");
        check_error(
            arguments("--runs 0").number("--runs"),
            "`--runs` takes a number above zero, not `0`",
        );
        check_error(
            arguments("--runs=x").number("--runs"),
            "`--runs` takes a number above zero, not `x`",
        );
    }

    #[test]
    fn a_misspelt_flag_is_refused_with_the_nearest_flag() {
        check_error(
            arguments("--noinstall").rest(&["--no-install", "--quick"]),
            "there is no flag `--noinstall` here; did you mean `--no-install`?",
        );
        check_error(arguments("extra").end(&[]), "`extra` is one argument too many");
    }

    #[test]
    fn the_most_similar_chore_is_suggested() {
        let chores = || ["check", "test", "dist", "bench", "docs"].into_iter();
        assert_eq!(nearest("tset", chores()), "test");
        assert_eq!(nearest("benhc", chores()), "bench");
        assert_eq!(nearest("doc", chores()), "docs");
    }
}
