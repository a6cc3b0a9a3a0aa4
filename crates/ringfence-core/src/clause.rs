//! The clauses of a policy: each is one promise that a test can break.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Promise of a sandbox, which is one part of a policy.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Clause {
    /// Only the workspace and what the policy names can be read or written.
    Filesystem,
    /// Files that match `hide` cannot be read, even inside the workspace.
    Hide,
    /// Files that match `protect` can be read but not changed.
    Protect,
    /// Nothing leaves the sandbox over a network.
    Network,
    /// Only the hosts that the policy names can be reached.
    Egress,
    /// No process outside can be seen, signalled or traced.
    Processes,
    /// No shared memory, message queue, keyring or socket of the host can be reached.
    Ipc,
    /// No privilege is held, and none can be gained.
    Privilege,
    /// Kernel interfaces that programs do not need are closed.
    Kernel,
    /// Nothing can be typed into the caller's terminal.
    Terminal,
    /// Only the environment and the descriptors that the policy passes are there.
    Environment,
    /// No process, mount, cgroup or file outlives the run.
    Cleanup,
    /// The run ends at its deadline.
    Time,
    /// No more output than the limit is kept.
    Output,
    /// No more memory than the limit is used.
    Memory,
    /// No more processor time than the limit is used.
    Cpus,
    /// No more processes than the limit exist at once.
    ProcessCount,
    /// `/tmp` holds no more than the limit.
    Tmp,
    /// The workspace grows by no more than the limit.
    Disk,
}

impl Clause {
    /// Every clause, in the order of the documentation.
    pub const ALL: [Clause; 19] = [
        Clause::Filesystem,
        Clause::Hide,
        Clause::Protect,
        Clause::Network,
        Clause::Egress,
        Clause::Processes,
        Clause::Ipc,
        Clause::Privilege,
        Clause::Kernel,
        Clause::Terminal,
        Clause::Environment,
        Clause::Cleanup,
        Clause::Time,
        Clause::Output,
        Clause::Memory,
        Clause::Cpus,
        Clause::ProcessCount,
        Clause::Tmp,
        Clause::Disk,
    ];

    /// Returns the name of the clause in `--require`, `--allow-weaker` and results.
    pub const fn name(self) -> &'static str {
        match self {
            Clause::Filesystem => "filesystem",
            Clause::Hide => "hide",
            Clause::Protect => "protect",
            Clause::Network => "network",
            Clause::Egress => "egress",
            Clause::Processes => "processes",
            Clause::Ipc => "ipc",
            Clause::Privilege => "privilege",
            Clause::Kernel => "kernel",
            Clause::Terminal => "terminal",
            Clause::Environment => "environment",
            Clause::Cleanup => "cleanup",
            Clause::Time => "time",
            Clause::Output => "output",
            Clause::Memory => "memory",
            Clause::Cpus => "cpus",
            Clause::ProcessCount => "process-count",
            Clause::Tmp => "tmp",
            Clause::Disk => "disk",
        }
    }

    /// Returns the promise of the clause as a sentence, without a capital letter and a full stop.
    pub const fn promise(self) -> &'static str {
        match self {
            Clause::Filesystem => {
                "only the workspace and what the policy names can be read or written"
            }
            Clause::Hide => "files that match `hide` cannot be read, even inside the workspace",
            Clause::Protect => "files that match `protect` can be read but not changed",
            Clause::Network => "nothing leaves the sandbox over a network",
            Clause::Egress => "only the hosts that the policy names can be reached",
            Clause::Processes => "no process outside can be seen, signalled or traced",
            Clause::Ipc => "no shared memory, queue, keyring or socket of the host can be reached",
            Clause::Privilege => "no privilege is held, and none can be gained",
            Clause::Kernel => "kernel interfaces that programs do not need are closed",
            Clause::Terminal => "nothing can be typed into the caller's terminal",
            Clause::Environment => {
                "only the environment and descriptors that the policy passes are there"
            }
            Clause::Cleanup => "no process, mount, cgroup or file outlives the run",
            Clause::Time => "the run ends at its deadline",
            Clause::Output => "no more output than the limit is kept",
            Clause::Memory => "no more memory than the limit is used",
            Clause::Cpus => "no more processor time than the limit is used",
            Clause::ProcessCount => "no more processes than the limit exist at once",
            Clause::Tmp => "`/tmp` holds no more than the limit",
            Clause::Disk => "the workspace grows by no more than the limit",
        }
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for a text that is not the name of a clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown promise `{0}`: it is one of {list}",
    list = Clause::ALL.map(Clause::name).join(", ")
)]
pub struct UnknownClause(String);

impl FromStr for Clause {
    type Err = UnknownClause;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Clause::ALL
            .into_iter()
            .find(|clause| clause.name() == text)
            .ok_or_else(|| UnknownClause(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_the_same_in_flags_and_documents() {
        for clause in Clause::ALL {
            assert_eq!(clause.name().parse(), Ok(clause));
            assert_eq!(serde_json::to_value(clause).unwrap(), clause.name());
            assert!(!clause.promise().is_empty());
        }
        let message = "netwrok".parse::<Clause>().unwrap_err().to_string();
        assert!(
            message.starts_with("unknown promise `netwrok`: it is one of filesystem, hide,"),
            "{message}"
        );
    }
}
