//! The content of one layer of settings, which is also the format of a configuration file.

use std::collections::BTreeSet;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BlockImports, CodeConfig, CodeSettings, Credential, KubernetesConfig, PythonModule};
use crate::audit::RecordedRuns;
use crate::policy::{Environment, Filesystem, Limits, NetworkTable};
use crate::{BackendChoice, Clause, Policy};

/// Settings of one layer: a policy, and further settings that a project's file may change only in
/// part or not at all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Backend that enforces the policy; the default is `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendChoice>,
    /// Files that the sandbox can read and write.
    pub filesystem: Filesystem,
    /// Network that the sandbox can reach; closed by default.
    #[serde(
        skip_serializing_if = "NetworkTable::is_unsaid",
        deserialize_with = "NetworkTable::consistent"
    )]
    pub network: NetworkTable,
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
    /// Directory in which all workspaces must lie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_root: Option<PathBuf>,
    /// Directories that may be or contain workspaces although a rule forbids them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_workspace: Vec<PathBuf>,
    /// Settings for containers.
    pub container: ContainerConfig,
    /// Settings for sandboxes on a Kubernetes cluster.
    pub kubernetes: KubernetesConfig,
    /// Secrets that requests to outside hosts get, and that no sandbox sees. Only the files of the
    /// user and of the system may contain credentials.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credential>,
    /// Settings for the records of runs.
    pub audit: AuditConfig,
    /// Settings for running code.
    pub code: CodeConfig,
}

/// Settings for containers, which only container engines use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerConfig {
    /// Image from which containers are made; the default is ringfence's own image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// Settings for the records of runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// Runs that leave a record; the default is `on_error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<RecordedRuns>,
    /// Directory of the records; the default is `artifacts/executions` in the working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
}

impl Config {
    /// Returns the policy that the configuration states.
    pub fn policy(self) -> Policy {
        let Config { backend, filesystem, network, limits, env, require, allow_weaker, .. } = self;
        Policy {
            backend,
            filesystem,
            network: network.network(),
            limits,
            env,
            require,
            allow_weaker,
        }
    }

    /// Returns the built-in layer: the default of each key that has one.
    ///
    /// [`CodeSettings`] adds the built-in languages, and [`Settings`](super::Settings) the default
    /// of `audit.dir`.
    pub(super) fn built_in() -> Config {
        let mut config = Config::from(Policy::default().with_defaults());
        config.network.transparent = Some(false);
        config.network.observe = Some(false);
        config.audit.store = Some(RecordedRuns::default());
        config.code.block_imports = Some(BlockImports::default());
        config.code.imports = Some(PythonModule::built_in());
        config.code.store_code = Some(RecordedRuns::default());
        config.code.warm = Some(CodeSettings::DEFAULT_WARM);
        config
    }
}

impl From<Policy> for Config {
    fn from(policy: Policy) -> Self {
        let Policy { backend, filesystem, network, limits, env, require, allow_weaker } = policy;
        let network = network.map(NetworkTable::from).unwrap_or_default();
        Config {
            backend,
            filesystem,
            network,
            limits,
            env,
            require,
            allow_weaker,
            ..Config::default()
        }
    }
}
