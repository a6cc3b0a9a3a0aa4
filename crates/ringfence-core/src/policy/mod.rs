//! Policies: the rules that must hold in a sandbox.
//!
//! A [`Policy`] is written in TOML, in JSON, with flags, or with the methods of the type. A field
//! that is `None` was not stated; [`Policy::with_defaults`] fills in its default. The type keeps
//! stated and default values apart, because a backend that waives the defaults must still refuse a
//! stated clause that it cannot hold.

mod document;
mod environment;
mod glob;
mod glob_tokens;
mod host;
mod limits;
mod name;
mod name_matcher;
mod network;
mod size;
mod span;
pub(crate) mod text;
mod workspace;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use document::{DocumentError, schema};
pub(crate) use document::{KeyLines, nearest, parse_toml};
pub use environment::{Environment, VariableError};
pub use glob::{GlobComponent, GlobError, PathGlob};
pub use host::{Host, HostRule, HostRuleError};
pub use limits::{LimitError, Limits};
pub use name::{HostName, HostNameError};
pub use name_matcher::NameMatcher;
pub use network::{Egress, Network, NetworkError, NetworkMode, NetworkTable};
pub use size::{Size, SizeError};
pub use span::{Span, SpanError};
pub use workspace::{Workspace, WorkspaceError};

use crate::{BackendChoice, Clause};

/// Rules that must hold in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Backend that enforces the policy; the default is `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendChoice>,
    /// Files that the sandbox can read and write.
    pub filesystem: Filesystem,
    /// Network that the sandbox can reach; closed by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Limits on the resources that the sandbox may use.
    pub limits: Limits,
    /// Environment variables of the sandbox.
    pub env: Environment,
    /// Promises that must be fully enforced.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub require: BTreeSet<Clause>,
    /// Promises that may be enforced only in part, or not at all.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub allow_weaker: BTreeSet<Clause>,
}

/// Files and directories that a sandbox can use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Filesystem {
    /// Directory that the sandbox can read and write, as `SOURCE` or `SOURCE:DESTINATION`.
    /// `DESTINATION` is the path in the sandbox. The default is the working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// Further paths that the sandbox can read.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "text::paths")]
    pub read: Option<Vec<PathBuf>>,
    /// Further paths that the sandbox can read and write.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "text::paths")]
    pub write: Option<Vec<PathBuf>>,
    /// Files of the workspace that the sandbox cannot read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hide: Option<Vec<PathGlob>>,
    /// Files of the workspace that the sandbox can read and cannot change; the default is
    /// `.git/hooks` and `.git/config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protect: Option<Vec<PathGlob>>,
}

impl Policy {
    /// Default of `filesystem.protect`, relative to the workspace.
    ///
    /// These paths of a git repository make the host run code: `hooks` contains programs, and
    /// `config` can name programs.
    pub const DEFAULT_PROTECTED: [&'static str; 2] = [".git/hooks", ".git/config"];
    /// Default of `limits.output`: the output that is kept of each stream.
    pub const DEFAULT_OUTPUT: Size = Size::mebibytes(10);
    /// Default of `limits.tmp`: the size of `/tmp`.
    pub const DEFAULT_TMP: Size = Size::mebibytes(1024);

    /// Returns the policy with the default of every unstated field that has one.
    ///
    /// The limits on time, memory, processors, processes and disk have no default and stay unset.
    #[must_use]
    pub fn with_defaults(&self) -> Policy {
        let mut full = self.clone();
        full.backend.get_or_insert_default();
        full.filesystem.workspace.get_or_insert_with(|| Workspace::at("."));
        full.filesystem.read.get_or_insert_default();
        full.filesystem.write.get_or_insert_default();
        full.filesystem.hide.get_or_insert_default();
        full.filesystem
            .protect
            .get_or_insert_with(|| Self::DEFAULT_PROTECTED.map(PathGlob::literal).to_vec());
        full.network.get_or_insert(Network::Closed);
        full.limits.output.get_or_insert(Self::DEFAULT_OUTPUT);
        full.limits.tmp.get_or_insert(Self::DEFAULT_TMP);
        full.env.pass.get_or_insert_default();
        full
    }

    /// Replaces the value of each variable in `env.set` by `***`, so that the policy may be shown.
    ///
    /// The values may be secrets; the names of the variables remain.
    #[must_use]
    pub fn without_values(mut self) -> Policy {
        self.env.set.values_mut().for_each(|value| *value = "***".to_owned());
        self
    }

    /// Returns a path of the policy that is not UTF-8, if there is one. JSON cannot represent such
    /// a path.
    pub fn path_that_is_not_text(&self) -> Option<&Path> {
        let files = &self.filesystem;
        let workspace = files.workspace.iter();
        let workspace = workspace
            .flat_map(|workspace| std::iter::once(&workspace.source).chain(&workspace.destination));
        let granted = files.read.iter().chain(&files.write).flatten();
        workspace.chain(granted).map(PathBuf::as_path).find(|path| path.to_str().is_none())
    }

    /// Returns the hash that identifies the policy in results and certificates.
    ///
    /// The hash is the SHA-256 of the policy's JSON, in lower-case hexadecimal digits.
    pub fn sha256(&self) -> String {
        let json = serde_json::to_vec(self)
            .expect("a policy has only string keys, and paths that are not UTF-8 are replaced");
        crate::to_hex(&Sha256::digest(&json))
    }

    /// Sets the backend, or `Auto` for an automatic choice.
    #[must_use]
    pub fn backend(mut self, choice: impl Into<BackendChoice>) -> Self {
        self.backend = Some(choice.into());
        self
    }

    /// Sets the workspace, which has the same path on the host and inside the sandbox.
    #[must_use]
    pub fn workspace(mut self, workspace: impl Into<PathBuf>) -> Self {
        self.filesystem.workspace = Some(Workspace::at(workspace));
        self
    }

    /// Adds a path that can be read.
    #[must_use]
    pub fn read(mut self, path: impl Into<PathBuf>) -> Self {
        self.filesystem.read.get_or_insert_default().push(path.into());
        self
    }

    /// Adds a path that can be read and written.
    #[must_use]
    pub fn write(mut self, path: impl Into<PathBuf>) -> Self {
        self.filesystem.write.get_or_insert_default().push(path.into());
        self
    }

    /// Adds files of the workspace that cannot be read.
    #[must_use]
    pub fn hide(mut self, glob: PathGlob) -> Self {
        self.filesystem.hide.get_or_insert_default().push(glob);
        self
    }

    /// Adds files of the workspace that cannot be changed.
    ///
    /// The first call replaces the default, [`Policy::DEFAULT_PROTECTED`].
    #[must_use]
    pub fn protect(mut self, glob: PathGlob) -> Self {
        self.filesystem.protect.get_or_insert_default().push(glob);
        self
    }

    /// Sets the network that the sandbox can reach.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = Some(network);
        self
    }

    /// Limits the wall-clock time of a run.
    #[must_use]
    pub fn time(mut self, time: impl Into<Span>) -> Self {
        self.limits.time = Some(time.into());
        self
    }

    /// Limits the memory of all processes together.
    #[must_use]
    pub fn memory(mut self, memory: Size) -> Self {
        self.limits.memory = Some(memory);
        self
    }

    /// Limits the processor time to that of `cpus` processors; 1.5 is one and a half.
    #[must_use]
    pub fn cpus(mut self, cpus: f64) -> Self {
        self.limits.cpus = Some(cpus);
        self
    }

    /// Limits the number of processes and threads.
    #[must_use]
    pub fn processes(mut self, processes: u32) -> Self {
        self.limits.processes = Some(processes);
        self
    }

    /// Limits the output that is kept of each stream.
    #[must_use]
    pub fn output(mut self, output: Size) -> Self {
        self.limits.output = Some(output);
        self
    }

    /// Passes a variable of the caller to the sandbox.
    #[must_use]
    pub fn pass_env(mut self, name: impl Into<String>) -> Self {
        self.env.pass.get_or_insert_default().push(name.into());
        self
    }

    /// Sets a variable in the sandbox.
    #[must_use]
    pub fn set_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.set.insert(name.into(), value.into());
        self
    }

    /// Requires that a clause is fully enforced.
    #[must_use]
    pub fn require(mut self, clause: Clause) -> Self {
        self.require.insert(clause);
        self
    }

    /// Accepts that a clause holds only in part, or not at all.
    #[must_use]
    pub fn allow_weaker(mut self, clause: Clause) -> Self {
        self.allow_weaker.insert(clause);
        self
    }
}
