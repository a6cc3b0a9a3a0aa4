//! Results: the outcome of a run, and how the run was held.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::Limits;
use crate::sync_report::SyncReport;
use crate::{Backend, Clause};

/// Result of one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionResult {
    /// Id of the run in logs and records.
    pub id: String,
    /// Exit code of the command; null if a signal ended the command, or if nothing was run.
    pub exit_code: Option<i32>,
    /// Number of the signal that ended the command; otherwise null.
    pub signal: Option<i32>,
    /// True if the command exited with code 0 before its deadline.
    pub ok: bool,
    /// True if the deadline ended the command.
    pub timed_out: bool,
    /// True if the memory limit ended a process of the run, or of the sandbox while the command
    /// ran.
    pub oom_killed: bool,
    /// Text that the command wrote to standard output. If the text is longer than `limits.output`,
    /// only the beginning and the end are kept.
    pub stdout: String,
    /// Text that the command wrote to standard error. If the text is longer than `limits.output`,
    /// only the beginning and the end are kept.
    pub stderr: String,
    /// Number of bytes that were dropped between the beginning and the end of the output.
    pub dropped: DroppedBytes,
    /// Time from the launch of the command to its end, in seconds.
    pub duration: f64,
    /// Description of how the command was run.
    pub meta: RunMetadata,
}

/// Number of bytes of output that were not kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Dropped")]
pub struct DroppedBytes {
    /// Dropped bytes of standard output.
    pub stdout: u64,
    /// Dropped bytes of standard error.
    pub stderr: u64,
}

/// Description of how a command was run: backend, enforced clauses, limits and denials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Meta")]
pub struct RunMetadata {
    /// Backend that enforced the policy.
    pub backend: Backend,
    /// Reason why the backend was chosen.
    pub chosen_because: String,
    /// Clauses of the policy, each with the mechanism that enforced the clause, in the words of the
    /// backend. The text begins with `weaker:` or `absent:` if a clause was not fully enforced.
    pub held: BTreeMap<Clause, String>,
    /// SHA-256 hash of the policy, in hexadecimal digits.
    pub policy_sha256: String,
    /// Limits that applied to the command.
    pub limits: Limits,
    /// Resources that the command used.
    pub usage: RunUsage,
    /// Attempts that the policy denied, as far as the backend reports denials.
    #[serde(default)]
    pub denials: Vec<Denial>,
    /// Protected paths that the run created, changed or removed, where the backend could not
    /// prevent the change. Paths in the workspace are relative to the workspace, and other paths
    /// are absolute.
    #[serde(default)]
    pub planted: Vec<String>,
    /// Imports that the lint of imports found. The lint isolates nothing.
    #[serde(default)]
    pub blocked_imports: Vec<BlockedImport>,
    /// Explanation of the findings of the lint, also if the lint found nothing; absent if the lint
    /// did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Reason why nothing was run; absent if the command or the code was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_run: Option<NotRunReason>,
    /// True if the code ran in an interpreter that was started before the call; otherwise absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    /// Report of the last sync of a workspace that was copied into the sandbox of the run; absent
    /// if the sandbox used the host's own directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Box<SyncReport>>,
}

impl RunMetadata {
    /// Creates the metadata of a command that has not ended: backend, policy and limits are known.
    ///
    /// The fields that describe the outcome are empty.
    pub fn new(
        backend: Backend,
        chosen_because: String,
        held: BTreeMap<Clause, String>,
        policy_sha256: String,
        limits: Limits,
    ) -> RunMetadata {
        RunMetadata {
            backend,
            chosen_because,
            held,
            policy_sha256,
            limits,
            usage: RunUsage::default(),
            denials: Vec::new(),
            planted: Vec::new(),
            blocked_imports: Vec::new(),
            note: None,
            not_run: None,
            warm: false,
            workspace: None,
        }
    }
}

/// Reason why nothing was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[schemars(rename = "NotRun")]
pub enum NotRunReason {
    /// The lint found an import, and `code.block_imports` is `block`.
    BlockedImports,
}

/// One import that the lint found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockedImport {
    /// Name of the imported module, as written in the code; empty if the code could not be
    /// examined.
    pub module: String,
    /// Line of the import, counted from 1.
    pub line: usize,
    /// Column of the import in characters, counted from 1.
    pub column: usize,
    /// Construct that imports the module.
    pub how: ImportedBy,
}

/// Construct that imports a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ImportedBy {
    /// Statement such as `import os`.
    Import,
    /// Statement such as `from os import path`.
    From,
    /// Call such as `__import__("os")`.
    #[serde(rename = "__import__")]
    BuiltIn,
    /// Call such as `importlib.import_module("os")`.
    ImportModule,
    /// Call such as `exec("import os")`, or `compile` of such text.
    Exec,
    /// Call such as `eval("__import__('os')")`.
    Eval,
    /// Unknown construct, because the code is too long, or nested too deeply, to be examined.
    Unexamined,
}

impl fmt::Display for BlockedImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BlockedImport { module, line, column, how } = self;
        write!(f, "line {line}, column {column}: ")?;
        match how {
            ImportedBy::Import => write!(f, "import {module}"),
            ImportedBy::From => write!(f, "from {module} import"),
            ImportedBy::BuiltIn => write!(f, "__import__ of {module}"),
            ImportedBy::ImportModule => write!(f, "import_module of {module}"),
            ImportedBy::Exec => write!(f, "exec of text that imports {module}"),
            ImportedBy::Eval => write!(f, "eval of text that imports {module}"),
            ImportedBy::Unexamined => f.write_str("too long, or nested too deeply, to be examined"),
        }
    }
}

/// Resources that a run used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Usage")]
pub struct RunUsage {
    /// Processor time in seconds of all processes that were waited for.
    pub cpu_seconds: f64,
    /// Largest resident set of one process, in bytes.
    pub max_rss: u64,
}

/// Attempt that the policy denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denial {
    /// Clause that denied the attempt.
    pub clause: Clause,
    /// Description of the attempt.
    pub what: String,
    /// Smallest line of a policy that would allow the attempt; absent if no line would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<String>,
}
