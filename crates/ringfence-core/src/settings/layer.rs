//! One layer of settings: its values, and the source of each value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::dialect::Dialect;
use super::keys::{KEYS, PathForm, SettingKey};
use super::{BackendSelection, BlockImports, Config, SettingsError, ValueSource};
use crate::policy::{KeyLines, nearest, parse_toml};

/// Origin of a configuration file, which decides its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOrigin {
    /// The system's file, `/etc/ringfence/config.toml`.
    System,
    /// The user's file, `$XDG_CONFIG_HOME/ringfence/config.toml`.
    User,
    /// The project's file, `./ringfence.toml`, which may only narrow the policy.
    Project,
    /// A policy file that is given by name on the command line.
    Given,
}

impl FileOrigin {
    pub(super) const fn rank(self) -> LayerRank {
        match self {
            FileOrigin::System => LayerRank::System,
            FileOrigin::User => LayerRank::User,
            FileOrigin::Project => LayerRank::Project,
            FileOrigin::Given => LayerRank::Given,
        }
    }
}

/// The text of a configuration file that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerText {
    /// Origin of the file.
    pub origin: FileOrigin,
    /// Path of the file, as messages should show it.
    pub path: PathBuf,
    /// Content of the file, in TOML.
    pub text: String,
}

/// Order of the layers, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LayerRank {
    System,
    User,
    Project,
    Dialect,
    Variables,
    Given,
    Flags,
}

/// Values of one layer, and their places.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) rank: LayerRank,
    pub(super) config: Config,
    pub(super) selection: Option<BackendSelection>,
    place: LayerOrigin,
}

#[derive(Debug)]
enum LayerOrigin {
    File {
        path: PathBuf,
        lines: KeyLines,
    },
    /// Name of the variable that sets each key.
    Variables(BTreeMap<&'static str, &'static str>),
    Flags,
}

impl Layer {
    fn new(rank: LayerRank, config: Config, place: LayerOrigin) -> Self {
        let selection = config.backend.map(BackendSelection::from);
        Layer { rank, config, selection, place }
    }

    pub(super) fn from_file(file: &LayerText) -> Result<Layer, SettingsError> {
        let config = parse_toml(&file.text)
            .map_err(|source| SettingsError::File { path: file.path.clone(), source })?;
        let place =
            LayerOrigin::File { path: file.path.clone(), lines: KeyLines::from_toml(&file.text) };
        Ok(Layer::new(file.origin.rank(), config, place))
    }

    pub(super) fn from_flags(config: Config) -> Layer {
        Layer::new(LayerRank::Flags, config, LayerOrigin::Flags)
    }

    /// Reads the layers of the environment: the `SANDBOX_*` and the `RINGFENCE_*` variables.
    ///
    /// A layer without any variable is left out.
    pub(super) fn from_variables(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Vec<Layer>, SettingsError> {
        let mut config = Config::default();
        let mut said = BTreeMap::new();
        let mut foreign = Vec::new();
        for (name, value) in variables {
            // Most variables belong to other programs and may have any value, even without valid
            // UTF-8.
            let Some(name) = name.to_str().filter(|name| is_ringfence_variable(name)) else {
                continue;
            };
            let value = value.into_string().map_err(|_| SettingsError::NotText(name.to_owned()))?;
            if name.starts_with("SANDBOX_") {
                foreign.push((name.to_owned(), value));
                continue;
            }
            let known = KEYS
                .iter()
                .find_map(|key| Some((key, key.variable.filter(|own| own.name == name)?)));
            let (key, variable) = known.ok_or_else(|| unknown_variable(name))?;
            (variable.apply)(&mut config, &value).map_err(|source| SettingsError::Value {
                name: variable.name,
                value,
                expected: variable.value,
                source,
            })?;
            said.insert(key.name, variable.name);
        }
        let mut layers = Vec::new();
        if !foreign.is_empty() {
            layers.push(Layer::from_dialect(Dialect::read(foreign)?));
        }
        if !said.is_empty() {
            layers.push(Layer::new(LayerRank::Variables, config, LayerOrigin::Variables(said)));
        }
        Ok(layers)
    }

    fn from_dialect(dialect: Dialect) -> Layer {
        let mut config = Config {
            backend: dialect.selection.map(BackendSelection::choice),
            ..Config::default()
        };
        config.limits.time = dialect.time;
        config.code.block_imports = dialect.block_dangerous_imports.map(BlockImports::from_switch);
        config.code.store_code = dialect.store_code;
        let selected = dialect.selected_by.map(|name| ("backend", name));
        let rest = [
            ("limits.time", "SANDBOX_TIMEOUT_SEC"),
            ("code.block_imports", "SANDBOX_BLOCK_DANGEROUS_IMPORTS"),
            ("code.store_code", "SANDBOX_STORE_CODE"),
        ];
        let said = selected.into_iter().chain(rest).collect();
        Layer {
            selection: dialect.selection,
            ..Layer::new(LayerRank::Dialect, config, LayerOrigin::Variables(said))
        }
    }

    /// Returns the source of `key` in this layer. The layer must set `key`.
    pub(super) fn source(&self, key: &str) -> ValueSource {
        match &self.place {
            LayerOrigin::File { path, lines } => {
                ValueSource::File { path: path.clone(), line: lines.line(key).unwrap_or(1) }
            }
            LayerOrigin::Variables(said) => {
                let name = said.get(self.key_that_sets(key));
                ValueSource::Variable(name.copied().unwrap_or_default().to_owned())
            }
            LayerOrigin::Flags => {
                let setting = SettingKey::containing(self.key_that_sets(key));
                let flag = setting.and_then(|setting| setting.flag);
                ValueSource::Flag(flag.unwrap_or("a flag").into())
            }
        }
    }

    /// Returns the key of this layer that sets `key`.
    ///
    /// The mode and the hosts of the network are one value, and a layer may set both by one key.
    fn key_that_sets<'a>(&self, key: &'a str) -> &'a str {
        let network = &self.config.network;
        match key {
            "network.mode" if network.mode.is_none() => "network.allow",
            "network.allow" if network.allow.is_none() => "network.mode",
            key => key,
        }
    }

    /// Expands the home directory in paths, and checks paths and credentials.
    ///
    /// Only the system's and the user's file may set credentials.
    pub(super) fn check(&mut self, home: Option<&Path>) -> Result<(), SettingsError> {
        let with_paths = || KEYS.iter().filter_map(|key| Some((key.name, key.paths?)));
        for (key, paths) in with_paths() {
            let is_expanded =
                (paths.list)(&mut self.config).into_iter().all(|path| expand_home(path, home));
            if !is_expanded {
                return Err(SettingsError::no_home(&self.source(key), key));
            }
        }
        // The author of credentials chooses which secret goes to which host. The code that is to be
        // confined may be the author of any other layer.
        if !self.config.credentials.is_empty() && self.rank > LayerRank::User {
            return Err(SettingsError::Credentials {
                source_name: self.source("credentials").to_string(),
            });
        }
        for (key, paths) in with_paths().filter(|(_, paths)| paths.form == PathForm::Absolute) {
            let relative =
                (paths.list)(&mut self.config).into_iter().find(|path| !path.is_absolute());
            if let Some(path) = relative.cloned() {
                let source_name = self.source(key).to_string();
                return Err(SettingsError::Relative { source_name, key, path });
            }
        }
        Ok(())
    }
}

/// Replaces a leading `~` by the home directory. Returns `false` if there is no home directory.
fn expand_home(path: &mut PathBuf, home: Option<&Path>) -> bool {
    if let Ok(rest) = path.strip_prefix("~") {
        let Some(home) = home else { return false };
        *path = if rest.as_os_str().is_empty() { home.to_owned() } else { home.join(rest) };
    }
    true
}

/// Variables that the command line reads and that are not settings.
const NON_SETTING_VARIABLES: [&str; 2] = ["RINGFENCE_LOG", "RINGFENCE_MCP_TOKEN"];

/// Returns `true` if ringfence must either understand the variable or refuse it.
fn is_ringfence_variable(name: &str) -> bool {
    let is_other = NON_SETTING_VARIABLES.contains(&name) || name.starts_with("RINGFENCE_TEST_");
    (name.starts_with("RINGFENCE_") && !is_other) || name.starts_with("SANDBOX_")
}

fn unknown_variable(name: &str) -> SettingsError {
    let known = KEYS.iter().filter_map(|key| key.variable).map(|variable| variable.name.to_owned());
    // Compare without the prefix, because the common prefix would make all names look similar.
    let short = |name: &str| name.trim_start_matches("RINGFENCE_").to_owned();
    let nearest = nearest(&short(name), known.map(|name| short(&name)))
        .map(|name| format!("RINGFENCE_{name}"));
    SettingsError::UnknownVariable { name: name.to_owned(), nearest }
}
