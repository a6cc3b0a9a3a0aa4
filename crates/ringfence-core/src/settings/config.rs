//! The content of one layer of settings, which is also the format of a configuration file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::code::CodeConfig;
use crate::audit::Store;
use crate::policy::{Environment, Filesystem, Limits, NetworkTable};
use crate::settings::{Credential, SecretOrigin};
use crate::{Choice, Clause, Policy};

/// What one layer says: a policy, and what only the user and the system may say.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How the policy is made to hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<Choice>,
    /// What can be read and written.
    pub filesystem: Filesystem,
    /// What can be reached.
    #[serde(skip_serializing_if = "NetworkTable::is_unsaid", deserialize_with = "NetworkTable::consistent")]
    pub network: NetworkTable,
    /// How much may be used.
    pub limits: Limits,
    /// Which variables are seen.
    pub env: Environment,
    /// Promises that must be fully enforced.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub require: BTreeSet<Clause>,
    /// Promises that may be weaker than written, or absent.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub allow_weaker: BTreeSet<Clause>,
    /// The one tree that all workspaces must lie in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_root: Option<PathBuf>,
    /// Directories that may be workspaces, and hold them, although a rule forbids it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_workspace: Vec<PathBuf>,
    /// What containers are made from.
    pub container: ContainerConfig,
    /// Secrets that hosts outside are shown and no sandbox is; the user's and the system's to say, and nobody else's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credential>,
    /// What is kept of runs.
    pub audit: AuditConfig,
    /// How code is run.
    pub code: CodeConfig,
}

/// What a layer says of containers, which only a container engine is told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerConfig {
    /// The image that they are made from; ringfence's own when nobody says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// What a layer says of execution records.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// Which runs leave a record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<Store>,
    /// Where records go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
}

impl Config {
    /// Returns the policy that the configuration states.
    pub fn policy(self) -> Policy {
        let Config { backend, filesystem, network, limits, env, require, allow_weaker, .. } = self;
        Policy { backend, filesystem, network: network.network(), limits, env, require, allow_weaker }
    }

    /// Replaces a leading `~` in every path by the home directory.
    ///
    /// # Errors
    ///
    /// Returns the key of the first path that starts with `~` if there is no home directory.
    pub(super) fn expand_home(&mut self, home: Option<&Path>) -> Result<(), &'static str> {
        let files = &mut self.filesystem;
        let paths = (files.read.iter_mut().flatten().map(|path| ("filesystem.read", path)))
            .chain(files.write.iter_mut().flatten().map(|path| ("filesystem.write", path)))
            .chain(files.workspace.iter_mut().map(|workspace| ("filesystem.workspace", &mut workspace.source)))
            .chain(self.workspace_root.iter_mut().map(|path| ("workspace_root", path)))
            .chain(self.allow_workspace.iter_mut().map(|path| ("allow_workspace", path)))
            .chain(self.credentials.iter_mut().filter_map(|credential| match &mut credential.origin {
                SecretOrigin::File(path) => Some(("credentials", path)),
                SecretOrigin::Command(_) | SecretOrigin::Variable(_) => None,
            }))
            .chain(self.audit.dir.iter_mut().map(|path| ("audit.dir", path)));
        for (key, path) in paths {
            if let Ok(rest) = path.strip_prefix("~") {
                let home = home.ok_or(key)?;
                *path = if rest.as_os_str().is_empty() { home.to_owned() } else { home.join(rest) };
            }
        }
        Ok(())
    }
}

impl From<Policy> for Config {
    fn from(policy: Policy) -> Self {
        let Policy { backend, filesystem, network, limits, env, require, allow_weaker } = policy;
        let network = network.map(NetworkTable::from).unwrap_or_default();
        Config { backend, filesystem, network, limits, env, require, allow_weaker, ..Config::default() }
    }
}
