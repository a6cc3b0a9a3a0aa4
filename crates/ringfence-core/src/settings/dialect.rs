//! Dialects: the `SANDBOX_*` variables of existing deployments, each with its documented meaning.

use std::time::Duration;

use crate::Backend;
use crate::audit::RecordedRuns;
use crate::policy::Span;
use crate::settings::BackendSelection;

/// Values of the variables of existing deployments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Selection of the backend, if a variable states one.
    pub selection: Option<BackendSelection>,
    /// Name of the variable that states the selection.
    pub selected_by: Option<&'static str>,
    /// Time limit from `SANDBOX_TIMEOUT_SEC`.
    pub time: Option<Span>,
    /// Value of `SANDBOX_BLOCK_DANGEROUS_IMPORTS`.
    pub block_dangerous_imports: Option<bool>,
    /// Value of `SANDBOX_STORE_CODE`.
    pub store_code: Option<RecordedRuns>,
}

/// Reason why the variables of existing deployments cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialectError {
    /// A variable has a value that it does not accept.
    #[error("{name}=`{value}` is not valid: it is {values}")]
    Value {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// Description of the values that the variable accepts.
        values: String,
    },
    /// Two variables ask for different selections of the backend.
    #[error("{first} and {second} disagree: `{first_asks}` against `{second_asks}`")]
    Disagreement {
        /// First variable, as `NAME=value`.
        first: String,
        /// Selection that the first variable asks for.
        first_asks: BackendSelection,
        /// Second variable, as `NAME=value`.
        second: String,
        /// Selection that the second variable asks for.
        second_asks: BackendSelection,
    },
}

impl DialectError {
    /// Returns a hint for a disagreement. The message about a wrong value needs none.
    pub fn hint(&self) -> Option<String> {
        match self {
            DialectError::Value { .. } => None,
            DialectError::Disagreement { .. } => {
                Some("unset one of the two; RINGFENCE_BACKEND says all that either can".to_owned())
            }
        }
    }
}

/// A variable that selects a backend, with the selection for each of its values.
struct BackendSelector {
    name: &'static str,
    values: &'static [(&'static str, BackendSelection)],
}

const SELECTORS: [BackendSelector; 3] = [
    BackendSelector {
        name: "SANDBOX_MODE",
        values: &[
            ("auto", BackendSelection::BwrapElseContainerElseBare),
            ("container", BackendSelection::TrustContainer),
            ("bwrap", BackendSelection::Only(Backend::Bwrap)),
        ],
    },
    BackendSelector {
        name: "SANDBOX_METHOD",
        values: &[
            ("bwrap", BackendSelection::Only(Backend::Bwrap)),
            ("docker", BackendSelection::Only(Backend::Docker)),
            ("podman", BackendSelection::Only(Backend::Podman)),
            ("noop", BackendSelection::Only(Backend::Local)),
            ("kubernetes", BackendSelection::Only(Backend::Kubernetes)),
        ],
    },
    BackendSelector {
        name: "SANDBOX_TYPE",
        values: &[
            ("local", BackendSelection::Auto),
            ("docker", BackendSelection::DockerElseAuto),
            ("e2b", BackendSelection::Only(Backend::E2b)),
        ],
    },
];

const TIMEOUT_VARIABLE: &str = "SANDBOX_TIMEOUT_SEC";
const BLOCK_IMPORTS_VARIABLE: &str = "SANDBOX_BLOCK_DANGEROUS_IMPORTS";
const STORE_CODE_VARIABLE: &str = "SANDBOX_STORE_CODE";

impl Dialect {
    /// Reads the variables of existing deployments and ignores all other variables.
    pub fn read(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, DialectError> {
        let mut dialect = Dialect::default();
        let mut asked: Vec<(&'static str, String, BackendSelection)> = Vec::new();
        for (name, value) in variables {
            match name.as_str() {
                TIMEOUT_VARIABLE => dialect.time = Some(parse_seconds(&value)?),
                BLOCK_IMPORTS_VARIABLE => {
                    dialect.block_dangerous_imports = Some(parse_switch(&value)?)
                }
                STORE_CODE_VARIABLE => dialect.store_code = Some(parse_store(&value)?),
                name => {
                    let Some(selector) = SELECTORS.iter().find(|selector| selector.name == name)
                    else {
                        continue;
                    };
                    asked.push((selector.name, value.clone(), selector.select(&value)?));
                }
            }
        }
        // Sort by the order of `SELECTORS`, because the environment has no fixed order and the
        // result must always be the same.
        asked
            .sort_by_key(|(name, ..)| SELECTORS.iter().position(|selector| selector.name == *name));
        if let Some((first, rest)) = asked.split_first() {
            if let Some(second) = rest.iter().find(|second| second.2 != first.2) {
                return Err(DialectError::Disagreement {
                    first: format!("{}={}", first.0, first.1),
                    first_asks: first.2,
                    second: format!("{}={}", second.0, second.1),
                    second_asks: second.2,
                });
            }
            dialect.selected_by = Some(first.0);
            dialect.selection = Some(first.2);
        }
        Ok(dialect)
    }
}

impl BackendSelector {
    fn select(&self, value: &str) -> Result<BackendSelection, DialectError> {
        let named = self.values.iter().find(|(name, _)| value.eq_ignore_ascii_case(name));
        let list = || self.values.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        named
            .map(|(_, selection)| *selection)
            .ok_or_else(|| wrong_value(self.name, value, format!("one of {}", list())))
    }
}

fn wrong_value(name: &'static str, value: &str, values: impl Into<String>) -> DialectError {
    DialectError::Value { name, value: value.to_owned(), values: values.into() }
}

fn parse_seconds(value: &str) -> Result<Span, DialectError> {
    let seconds: Option<u32> = value.trim().parse().ok().filter(|seconds| *seconds > 0);
    let wrong = || wrong_value(TIMEOUT_VARIABLE, value, "a whole number of seconds, 1 or more");
    seconds.map(|seconds| Duration::from_secs(seconds.into()).into()).ok_or_else(wrong)
}

fn parse_switch(value: &str) -> Result<bool, DialectError> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(wrong_value(BLOCK_IMPORTS_VARIABLE, value, "true or false")),
    }
}

fn parse_store(value: &str) -> Result<RecordedRuns, DialectError> {
    value
        .to_ascii_lowercase()
        .parse()
        .map_err(|_| wrong_value(STORE_CODE_VARIABLE, value, "one of on_error, always, never"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Dialect, DialectError> {
        Dialect::read(
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    #[track_caller]
    fn refuse(variables: &[(&str, &str)], message: &str) {
        assert_eq!(read(variables).unwrap_err().to_string(), message);
    }

    #[test]
    fn every_value_of_every_selector_is_understood_in_any_case() {
        for selector in &SELECTORS {
            for (value, selection) in selector.values {
                for spelling in [(*value).to_owned(), value.to_uppercase()] {
                    let dialect = read(&[(selector.name, &spelling)]).unwrap();
                    assert_eq!(
                        (dialect.selection, dialect.selected_by),
                        (Some(*selection), Some(selector.name))
                    );
                }
            }
        }
        assert_eq!(read(&[]).unwrap(), Dialect::default());
        assert_eq!(read(&[("SANDBOX_COLOUR", "red"), ("HOME", "/")]).unwrap(), Dialect::default());
    }

    #[test]
    fn variables_for_time_imports_and_records_are_read() {
        let dialect = read(&[
            (TIMEOUT_VARIABLE, "30"),
            (BLOCK_IMPORTS_VARIABLE, "True"),
            (STORE_CODE_VARIABLE, "always"),
        ])
        .unwrap();
        assert_eq!(dialect.time, Some("30s".parse().unwrap()));
        assert_eq!(dialect.block_dangerous_imports, Some(true));
        assert_eq!(dialect.store_code, Some(RecordedRuns::Always));
        assert_eq!(
            read(&[(BLOCK_IMPORTS_VARIABLE, "0")]).unwrap().block_dangerous_imports,
            Some(false)
        );
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_valid_values() {
        refuse(
            &[("SANDBOX_MODE", "docker")],
            "SANDBOX_MODE=`docker` is not valid: it is one of auto, container, bwrap",
        );
        refuse(
            &[("SANDBOX_METHOD", "auto")],
            "SANDBOX_METHOD=`auto` is not valid: it is one of bwrap, docker, podman, noop, \
             kubernetes",
        );
        refuse(
            &[("SANDBOX_TYPE", "")],
            "SANDBOX_TYPE=`` is not valid: it is one of local, docker, e2b",
        );
        for wrong in ["0", "-1", "30s", ""] {
            let message = format!(
                "SANDBOX_TIMEOUT_SEC=`{wrong}` is not valid: it is a whole number of seconds, 1 or \
                 more"
            );
            refuse(&[(TIMEOUT_VARIABLE, wrong)], &message);
        }
        refuse(
            &[(BLOCK_IMPORTS_VARIABLE, "maybe")],
            "SANDBOX_BLOCK_DANGEROUS_IMPORTS=`maybe` is not valid: it is true or false",
        );
        refuse(
            &[(STORE_CODE_VARIABLE, "sometimes")],
            "SANDBOX_STORE_CODE=`sometimes` is not valid: it is one of on_error, always, never",
        );
    }

    #[test]
    fn two_selectors_that_agree_are_one() {
        let dialect = read(&[("SANDBOX_METHOD", "bwrap"), ("SANDBOX_MODE", "bwrap")]).unwrap();
        assert_eq!(dialect.selection, Some(BackendSelection::Only(Backend::Bwrap)));
        assert_eq!(dialect.selected_by, Some("SANDBOX_MODE"));
    }

    #[test]
    fn two_selectors_that_disagree_are_an_error_that_names_both() {
        let all: Vec<_> = SELECTORS
            .iter()
            .flat_map(|selector| {
                selector.values.iter().map(move |(value, asks)| (selector.name, *value, *asks))
            })
            .collect();
        for (index, first) in all.iter().enumerate() {
            for second in all[index..].iter().filter(|second| second.0 != first.0) {
                let read = read(&[(second.0, second.1), (first.0, first.1)]);
                if first.2 == second.2 {
                    assert!(read.is_ok());
                    continue;
                }
                let message = read.unwrap_err().to_string();
                let (one, other) =
                    (format!("{}={}", first.0, first.1), format!("{}={}", second.0, second.1));
                assert!(message.starts_with(&format!("{one} and {other} disagree")), "{message}");
            }
        }
        refuse(
            &[("SANDBOX_TYPE", "docker"), ("SANDBOX_METHOD", "bwrap")],
            "SANDBOX_METHOD=bwrap and SANDBOX_TYPE=docker disagree: `bwrap` against `docker, else \
             auto`",
        );
    }
}
