//! Settings read from the host: the files, the environment and the flags, put together by `ringfence-core`.

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use ringfence_core::settings::{Config, Inputs, LayerText, Origin, Settings as Layered, SettingsError};

use crate::Host;

/// The system's settings.
const SYSTEM: &str = "/etc/ringfence/config.toml";
/// A project's settings, in the working directory.
const PROJECT: &str = "ringfence.toml";

/// Everything that was said about how to run, and the host it was said on.
#[derive(Debug, Clone)]
pub struct Settings {
    layered: Layered,
    /// The host that it applies to.
    pub host: Host,
    /// The program that serves as a launcher; this process's own when absent.
    pub launcher: Option<PathBuf>,
}

/// Settings could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read the settings in `{path}`")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process's working directory is gone.
    #[error("cannot find the working directory")]
    Directory {
        /// Why.
        source: io::Error,
    },
    /// What they say is wrong.
    #[error(transparent)]
    Wrong(#[from] SettingsError),
}

impl LoadError {
    /// The next thing to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            LoadError::Read { path, .. } => Some(format!("make `{}` readable, or remove it", path.display())),
            LoadError::Directory { .. } => Some("cd to a directory that exists".to_owned()),
            LoadError::Wrong(error) => error.hint(),
        }
    }
}

impl Settings {
    /// Nothing but defaults, for a host.
    pub fn new(host: Host) -> Settings {
        let inputs = Inputs {
            files: &[],
            variables: [],
            flags: Config::default(),
            home: host.home.as_deref(),
            directory: &host.directory,
        };
        let layered = Layered::load(inputs).expect("nothing was said that could be wrong");
        Settings { layered, host, launcher: None }
    }

    /// What the files and the environment of this process say.
    pub fn from_environment() -> Result<Settings, LoadError> {
        let host = Host::of_this_process().map_err(|source| LoadError::Directory { source })?;
        Settings::load(host, Config::default())
    }

    /// What the files and the environment of a host say, and flags on top of them.
    pub fn load(host: Host, flags: Config) -> Result<Settings, LoadError> {
        let mut files = Vec::new();
        files.extend(read(Origin::System, SYSTEM.into())?);
        if let Some(directory) = host.own_directory("XDG_CONFIG_HOME", ".config") {
            files.extend(read(Origin::User, directory.join("config.toml"))?);
        }
        files.extend(read(Origin::Project, host.directory.join(PROJECT))?);
        let variables = host.variables.iter().map(|(name, value)| (name.clone(), value.clone()));
        let inputs = Inputs { files: &files, variables, flags, home: host.home.as_deref(), directory: &host.directory };
        Ok(Settings { layered: Layered::load(inputs)?, host, launcher: None })
    }

    /// Uses `program`, a `ringfence` binary, as the launcher.
    #[must_use]
    pub fn with_launcher(mut self, program: impl Into<PathBuf>) -> Settings {
        self.launcher = Some(program.into());
        self
    }

    /// What a workspace is judged by, with its paths resolved.
    pub(crate) fn workspace_rules(&self) -> ringfence_core::workspace::Rules {
        let resolve = |path: &Path| {
            let absolute = self.host.absolute(path);
            fs_err::canonicalize(&absolute).unwrap_or(absolute)
        };
        let mut rules = self.layered.workspace_rules(self.host.home.as_deref().map(resolve));
        rules.workspace_root = rules.workspace_root.as_deref().map(resolve);
        rules.allow_workspace = rules.allow_workspace.iter().map(|path| resolve(path)).collect();
        rules.project = rules.project.as_deref().map(resolve);
        rules
    }
}

impl Deref for Settings {
    type Target = Layered;

    fn deref(&self) -> &Layered {
        &self.layered
    }
}

fn read(origin: Origin, path: PathBuf) -> Result<Option<LayerText>, LoadError> {
    match fs_err::read_to_string(&path) {
        Ok(text) => Ok(Some(LayerText { origin, path, text })),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(LoadError::Read { path, source }),
    }
}
