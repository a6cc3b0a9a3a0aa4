//! Settings: layers of what was said, from the built-in to the flags, and where each value came from.
//!
//! Later layers win: built-in, the system's file, the user's file, the project's file, the variables of existing
//! deployments ([`dialect`]), `RINGFENCE_*`, a policy file given by name, flags. A scalar is replaced, lists are
//! united. The project's file may be written by the very code that is to be confined, so it may only narrow what
//! the layers below it say; an attempt to widen is an error that names both places.

mod choose;
mod code;
mod config;
mod container;
mod credential;
pub mod dialect;
mod error;
mod explain;
mod keys;
mod layer;
mod merge;
mod narrow;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

pub use choose::{ChooseError, Chosen, Level, Notice, Selection, resolve};
pub use code::{BlockImports, Code, CodeConfig, Language, LanguageError, Module};
pub use config::{AuditConfig, Config, ContainerConfig};
pub use container::{Container, HostView, detect_container};
pub use credential::{Credential, CredentialError, HeaderTemplate, SecretOrigin};
pub use error::SettingsError;
pub use explain::Explained;
pub use keys::{KEYS, Key, Variable};
pub use layer::{LayerText, Origin};
pub use narrow::Widening;

use crate::Policy;
use crate::audit::Store;
use layer::Layer;
use merge::Merged;

/// The JSON Schema of a configuration file.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Config).to_value()
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody said it.
    BuiltIn,
    /// A file says it.
    File {
        /// Which.
        path: PathBuf,
        /// On which line, from 1.
        line: usize,
    },
    /// A variable says it.
    Variable(String),
    /// A flag says it.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::BuiltIn => f.write_str("built-in default"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Variable(name) => f.write_str(name),
            Source::Flag(flag) => f.write_str(flag),
        }
    }
}

/// Where each value comes from, by key; a key that is missing is built in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<String, Vec<Source>>);

impl Sources {
    /// Where the value of `key` comes from: one place, or for a list each that added to it, lowest layer first.
    pub fn of(&self, key: &str) -> &[Source] {
        self.0.get(key).map_or(&[Source::BuiltIn], Vec::as_slice)
    }

    /// The highest layer that said something of `key`.
    pub fn last(&self, key: &str) -> &Source {
        self.of(key).last().unwrap_or(&Source::BuiltIn)
    }

    fn replace(&mut self, key: &str, source: Source) {
        self.0.insert(key.to_owned(), vec![source]);
    }

    fn add(&mut self, key: &str, source: Source) {
        let sources = self.0.entry(key.to_owned()).or_default();
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
}

/// What the layers are made from.
#[derive(Debug)]
pub struct Inputs<'a, Variables> {
    /// The files that exist, in any order.
    pub files: &'a [LayerText],
    /// The environment, whole; what is not ours is left alone.
    pub variables: Variables,
    /// What the flags say.
    pub flags: Config,
    /// What a leading `~` stands for.
    pub home: Option<&'a Path>,
    /// The working directory, absolute: the project.
    pub directory: &'a Path,
}

/// How execution records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// Which runs leave one.
    pub store: Store,
    /// Where they go.
    pub dir: PathBuf,
}

/// Everything that was said, put together.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What must hold, as far as somebody said it.
    pub policy: Policy,
    /// How the backend is to be chosen.
    pub selection: Selection,
    /// The one tree that all workspaces must lie in.
    pub workspace_root: Option<PathBuf>,
    /// Directories that may be workspaces although a rule forbids it.
    pub allow_workspace: Vec<PathBuf>,
    /// What containers are made from, when somebody said it.
    pub image: Option<String>,
    /// Secrets that hosts outside are shown and no sandbox is.
    pub credentials: Vec<Credential>,
    /// How execution records are kept.
    pub audit: Audit,
    /// How code is run.
    pub code: Code,
    /// Where each value comes from.
    pub sources: Sources,
}

impl Settings {
    /// Where records go when nobody says.
    pub const AUDIT_DIR: &'static str = "artifacts/executions";

    /// Puts the layers together.
    pub fn load<Variables>(inputs: Inputs<'_, Variables>) -> Result<Settings, SettingsError>
    where
        Variables: IntoIterator<Item = (OsString, OsString)>,
    {
        let mut layers = inputs.files.iter().map(Layer::file).collect::<Result<Vec<_>, _>>()?;
        layers.extend(Layer::variables(inputs.variables)?);
        layers.push(Layer::flags(inputs.flags));
        layers.sort_by_key(|layer| layer.rank);

        let mut merged = Merged::default();
        for mut layer in layers {
            layer.check(inputs.home)?;
            if layer.rank == Origin::Project.rank() {
                layer = narrow::narrow(&mut merged, layer, inputs.directory)?;
            }
            merged.add(layer);
        }
        Ok(merged.settle())
    }

    /// Where the choice of a backend comes from.
    pub fn selected_by(&self) -> &Source {
        self.sources.last("backend")
    }

    /// The same, with a backend that another flag than its own chose.
    #[must_use]
    pub fn selected_by_flag(mut self, flag: &'static str) -> Settings {
        self.sources.replace("backend", Source::Flag(flag));
        self
    }

    /// What a workspace is judged by; the caller resolves the paths among them.
    pub fn workspace_rules(&self, home: Option<PathBuf>) -> crate::workspace::Rules {
        crate::workspace::Rules {
            home,
            workspace_root: self.workspace_root.clone(),
            allow_workspace: self.allow_workspace.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
