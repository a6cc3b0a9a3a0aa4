//! Limits on the resources that a run may use.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::policy::{Size, Span};

/// Limits on the resources that a run may use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Maximum wall-clock time of a command. At the deadline, all processes of the command are
    /// ended. The default is no limit; code has 30 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Span>,
    /// Maximum memory of all processes together, including swap. The default is `1G` in a
    /// container, and no limit elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    /// Maximum number of processors that all processes use together; 1.5 means the time of one and
    /// a half processors. The default is 1 in a container, and no limit elsewhere.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "cpus")]
    #[schemars(range(min = 0.01))]
    pub cpus: Option<f64>,
    /// Maximum number of processes and threads at once. The default is 1024 in a container, and no
    /// limit elsewhere.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "processes")]
    #[schemars(range(min = 1))]
    pub processes: Option<u32>,
    /// Maximum output that is kept of each stream; the default is `10M`. Of longer output, the
    /// beginning and the end are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Size>,
    /// Maximum size of `/tmp`, and separately of the private home; the default is `1G`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmp: Option<Size>,
    /// Maximum growth of the workspace. No backend can enforce this limit yet, so a policy with
    /// this limit is refused unless `allow_weaker` contains `disk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
}

/// Reason why a number cannot be a limit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The number of processors is below 0.01, infinite, or not a number.
    #[error("`{0}` processors: it is a number from 0.01, such as 0.5 or 2")]
    Cpus(f64),
    /// The number of processes is 0, but the command itself is a process.
    #[error("`{0}` processes: it is a number from 1, and the command itself is one")]
    Processes(u32),
}

impl Limits {
    /// Checks a limit on processors and returns it. The least valid limit is 0.01.
    pub fn check_cpus(cpus: f64) -> Result<f64, LimitError> {
        if cpus.is_finite() && cpus >= 0.01 { Ok(cpus) } else { Err(LimitError::Cpus(cpus)) }
    }

    /// Checks a limit on processes and returns it. The least valid limit is 1.
    pub fn check_processes(processes: u32) -> Result<u32, LimitError> {
        if processes >= 1 { Ok(processes) } else { Err(LimitError::Processes(processes)) }
    }
}

fn cpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let cpus = Option::<f64>::deserialize(deserializer)?;
    cpus.map(Limits::check_cpus).transpose().map_err(serde::de::Error::custom)
}

fn processes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    let processes = Option::<u32>::deserialize(deserializer)?;
    processes.map(Limits::check_processes).transpose().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refuse(document: &str, message: &str) {
        assert_eq!(toml::from_str::<Limits>(document).unwrap_err().message(), message);
    }

    #[test]
    fn limits_too_low_for_any_run_are_refused() {
        for wrong in ["0", "-1", "inf", "nan"] {
            let shown = if wrong == "nan" { "NaN" } else { wrong };
            refuse(
                &format!("cpus = {wrong}"),
                &format!("`{shown}` processors: it is a number from 0.01, such as 0.5 or 2"),
            );
        }
        refuse(
            "processes = 0",
            "`0` processes: it is a number from 1, and the command itself is one",
        );
        let limits: Limits = toml::from_str("cpus = 1\nprocesses = 1").unwrap();
        assert_eq!((limits.cpus, limits.processes), (Some(1.0), Some(1)));
    }

    #[test]
    fn a_number_where_text_belongs_is_refused_with_a_correction() {
        refuse(
            "time = 30",
            "invalid type: integer `30`, expected a duration such as `500ms`, `30s`, `2m` or \
             `1h30m`",
        );
    }
}
