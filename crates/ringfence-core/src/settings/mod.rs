//! Settings: layers of configuration, from the built-in defaults to the flags, and the source of
//! each value.
//!
//! The layers, from lowest to highest, are the built-in defaults, the system's file, the user's
//! file, the project's file, the variables of existing deployments ([`dialect`]), the `RINGFENCE_*`
//! variables, a policy file given by name, and the flags. A higher layer replaces a single value of
//! a lower layer and adds to its lists. Two lists are replaced: `network.allow` and `code.preload`.
//!
//! The table [`KEYS`] declares every setting, with the rules by which its values are merged,
//! narrowed and explained.
//!
//! The code that is to be confined may have written the project's file. Therefore that file may
//! only narrow what the layers below it allow. An attempt to widen is an error that names both
//! places.

mod choose;
mod code;
mod config;
mod container;
mod credential;
pub mod dialect;
mod error;
mod explain;
mod field;
mod keys;
mod kubernetes;
mod layer;
mod merge;
mod narrow;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

pub use choose::{
    BackendNotice, BackendSelection, ChooseError, ChosenBackend, NoticeLevel, resolve,
};
pub use code::{BlockImports, CodeConfig, CodeSettings, Language, LanguageError, PythonModule};
pub use config::{AuditConfig, Config, ContainerConfig};
pub use container::{DetectedContainer, HostView, detect_container};
pub use credential::{Credential, CredentialError, HeaderTemplate, SecretOrigin};
pub use error::SettingsError;
pub use explain::ExplainedValue;
pub use keys::{KEYS, SettingKey, SettingVariable};
pub use kubernetes::{InvalidToleration, KubernetesConfig, Toleration};
pub use layer::{FileOrigin, LayerText};
pub use narrow::Widening;

use serde::{Deserialize, Serialize};

use crate::Policy;
use crate::audit::RecordedRuns;
use layer::Layer;
use merge::MergedLayers;

/// Returns the JSON Schema of a configuration file.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Config).to_value()
}

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ValueSource {
    /// Built-in default, because no layer sets the value.
    BuiltIn,
    /// Configuration file or policy file.
    File {
        /// Path of the file, as messages show it.
        path: PathBuf,
        /// Line of the key in the file, counted from 1.
        line: usize,
    },
    /// Environment variable with this name.
    Variable(String),
    /// Command-line flag, such as `--memory`.
    Flag(Cow<'static, str>),
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueSource::BuiltIn => f.write_str("built-in default"),
            ValueSource::File { path, line } => write!(f, "{}:{line}", path.display()),
            ValueSource::Variable(name) => f.write_str(name),
            ValueSource::Flag(flag) => f.write_str(flag),
        }
    }
}

/// Sources of the values, by key. A key that is not in the map has its built-in default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueSources(BTreeMap<String, Vec<ValueSource>>);

impl ValueSources {
    /// Returns the sources of the value of `key`.
    ///
    /// A single value has one source. A list has each source that added to it, lowest layer first.
    pub fn for_key(&self, key: &str) -> &[ValueSource] {
        self.0.get(key).map_or(&[ValueSource::BuiltIn], Vec::as_slice)
    }

    /// Returns the source of `key` in the highest layer that sets the key.
    pub fn last(&self, key: &str) -> &ValueSource {
        self.for_key(key).last().unwrap_or(&ValueSource::BuiltIn)
    }

    fn replace(&mut self, key: &str, source: ValueSource) {
        self.0.insert(key.to_owned(), vec![source]);
    }

    fn add(&mut self, key: &str, source: ValueSource) {
        let sources = self.0.entry(key.to_owned()).or_default();
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
}

/// Inputs from which [`Settings::load`] makes the layers.
#[derive(Debug)]
pub struct SettingsInputs<'a, Variables> {
    /// Configuration files that exist, in any order.
    pub files: &'a [LayerText],
    /// The whole environment of the process. Variables of other programs are ignored.
    pub variables: Variables,
    /// Values that the flags set.
    pub flags: Config,
    /// Home directory, which replaces a leading `~` in paths.
    pub home: Option<&'a Path>,
    /// Absolute path of the working directory, which is the directory of the project.
    pub directory: &'a Path,
}

/// Settings for execution records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditSettings {
    /// Runs that leave a record.
    pub store: RecordedRuns,
    /// Directory for the records.
    pub dir: PathBuf,
}

/// Settings of all layers, merged. They can be sent to another process as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Policy with the fields that some layer states, without defaults.
    pub policy: Policy,
    /// Selection of the backend.
    pub selection: BackendSelection,
    /// Directory in which all workspaces must lie; `None` for no limit.
    pub workspace_root: Option<PathBuf>,
    /// Directories that may be or contain workspaces although a rule forbids it.
    pub allow_workspace: Vec<PathBuf>,
    /// Image of the containers; ringfence's own image when absent.
    pub image: Option<String>,
    /// Settings for sandboxes on a Kubernetes cluster.
    #[serde(default)]
    pub kubernetes: KubernetesConfig,
    /// Secrets that the egress proxy shows to outside hosts and that no sandbox sees.
    pub credentials: Vec<Credential>,
    /// Settings for execution records.
    pub audit: AuditSettings,
    /// Settings for running code.
    pub code: CodeSettings,
    /// Source of each value.
    pub sources: ValueSources,
}

impl Settings {
    /// Default of `audit.dir`, relative to the working directory.
    pub const AUDIT_DIR: &'static str = "artifacts/executions";

    /// Merges the layers into settings.
    pub fn load<Variables>(inputs: SettingsInputs<'_, Variables>) -> Result<Settings, SettingsError>
    where
        Variables: IntoIterator<Item = (OsString, OsString)>,
    {
        let mut layers =
            inputs.files.iter().map(Layer::from_file).collect::<Result<Vec<_>, _>>()?;
        layers.extend(Layer::from_variables(inputs.variables)?);
        layers.push(Layer::from_flags(inputs.flags));
        layers.sort_by_key(|layer| layer.rank);

        let mut merged = MergedLayers::default();
        for mut layer in layers {
            layer.check(inputs.home)?;
            if layer.rank == FileOrigin::Project.rank() {
                narrow::narrow(&mut merged, &mut layer, inputs.directory)?;
            }
            merged.add(&layer);
        }
        Ok(merged.into_settings())
    }

    /// Returns the source of the backend selection.
    pub fn selected_by(&self) -> &ValueSource {
        self.sources.last("backend")
    }

    /// Records `flag` as the source of the backend selection.
    ///
    /// The method is for flags other than `--backend` that choose a backend, such as `--container`.
    #[must_use]
    pub fn selected_by_flag(mut self, flag: &'static str) -> Settings {
        self.sources.replace("backend", ValueSource::Flag(flag.into()));
        self
    }

    /// Returns the rules for workspaces. The caller must resolve the paths in the rules.
    pub fn workspace_rules(&self, home: Option<PathBuf>) -> crate::workspace::WorkspaceRules {
        crate::workspace::WorkspaceRules {
            home,
            workspace_root: self.workspace_root.clone(),
            allow_workspace: self.allow_workspace.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
