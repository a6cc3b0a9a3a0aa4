//! Results: the outcome of a run, and how the run was held.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::policy::Limits;
use crate::{Backend, Clause};

/// What became of one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutionResult {
    /// Names this run in logs and records.
    pub id: String,
    /// What the command exited with; absent when a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// Whether the command exited with 0 in time.
    pub ok: bool,
    /// Whether the deadline ended it.
    pub timed_out: bool,
    /// Whether the memory limit ended a process of it.
    pub oom_killed: bool,
    /// What it wrote to its standard output, head and tail.
    pub stdout: String,
    /// What it wrote to its standard error, head and tail.
    pub stderr: String,
    /// How many bytes were dropped between head and tail.
    pub dropped: Dropped,
    /// Seconds from launch to end.
    pub duration: f64,
    /// How it was run.
    pub meta: Meta,
}

/// Bytes that were not kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Dropped {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
}

/// How a command was run, and what held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Meta {
    /// Who held the policy.
    pub backend: Backend,
    /// Why this backend.
    pub chosen_because: String,
    /// What held each clause, in the backend's words.
    pub held: BTreeMap<Clause, String>,
    /// The hash of the policy.
    pub policy_sha256: String,
    /// The limits that applied.
    pub limits: Limits,
    /// What was used.
    pub usage: Usage,
    /// What was denied, where the backend can tell.
    #[serde(default)]
    pub denials: Vec<Denial>,
    /// Protected paths that the run made, changed or removed although nothing could keep it from
    /// it: relative to the workspace, absolute outside it.
    #[serde(default)]
    pub planted: Vec<String>,
    /// Imports that the lint found; it is lint, and isolates nothing.
    #[serde(default)]
    pub blocked_imports: Vec<BlockedImport>,
    /// What to make of the imports that were found, or of there being none; absent where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Why nothing was run; absent when something was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_run: Option<NotRun>,
    /// Whether it ran in an interpreter that had been waiting for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
}

impl Meta {
    /// Creates the metadata of a command that has not ended: backend, policy and limits are known.
    ///
    /// The fields that describe the outcome are empty.
    pub fn new(
        backend: Backend,
        chosen_because: String,
        held: BTreeMap<Clause, String>,
        policy_sha256: String,
        limits: Limits,
    ) -> Meta {
        Meta {
            backend,
            chosen_because,
            held,
            policy_sha256,
            limits,
            usage: Usage::default(),
            denials: Vec::new(),
            planted: Vec::new(),
            blocked_imports: Vec::new(),
            note: None,
            not_run: None,
            warm: false,
        }
    }
}

/// Why nothing was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NotRun {
    /// The lint found an import that it is to block.
    BlockedImports,
}

/// One import that the lint found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlockedImport {
    /// What is imported, as it is written; empty where the code could not be examined.
    pub module: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// By what means.
    pub how: ImportedBy,
}

/// By what means something is imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ImportedBy {
    /// `import os`.
    Import,
    /// `from os import path`.
    From,
    /// `__import__("os")`.
    #[serde(rename = "__import__")]
    BuiltIn,
    /// `importlib.import_module("os")`.
    ImportModule,
    /// `exec("import os")`, or `compile` of such text.
    Exec,
    /// `eval("__import__('os')")`.
    Eval,
    /// Nobody knows: the code is too long, or nested too deeply, to be examined.
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

/// What a run used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Processor time of every process that was waited for.
    pub cpu_seconds: f64,
    /// The largest resident set of one process, in bytes.
    pub max_rss: u64,
}

/// One thing that was denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denial {
    /// The clause that denied it.
    pub clause: Clause,
    /// What was attempted.
    pub what: String,
    /// The smallest line of a policy that would allow it, where one would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<String>,
}
