//! Why settings cannot be put together.

use std::path::PathBuf;

use super::dialect::DialectError;
use super::keys::Wrong;
use super::{Source, Widening};
use crate::Fault;
use crate::policy::DocumentError;

/// Why settings cannot be put together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A file is not well-formed.
    #[error("cannot use the settings in `{path}`")]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: DocumentError,
    },
    /// A variable's value makes no sense.
    #[error("{name}=`{value}` is not valid")]
    Value {
        /// The variable.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// What to set it to.
        expected: &'static str,
        /// What is wrong with it.
        source: Wrong,
    },
    /// A variable is set to bytes that are no text.
    #[error("{0} is not valid UTF-8")]
    NotText(String),
    /// A variable with our prefix that means nothing.
    #[error("unknown variable {name}")]
    UnknownVariable {
        /// Which.
        name: String,
        /// The one that was probably meant.
        nearest: Option<String>,
    },
    /// A path must be absolute and is not.
    #[error("{source_name}: {key} = \"{path}\" is not absolute", path = path.display())]
    Relative {
        /// Where it was said.
        source_name: String,
        /// The key.
        key: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A path starts with `~` and there is no home directory.
    #[error("{source_name}: {key} starts with `~`, and there is no home directory to put in its place")]
    NoHome {
        /// Where it was said.
        source_name: String,
        /// The key.
        key: &'static str,
    },
    /// Secrets are spoken of by somebody else than the user or the system.
    #[error("{source_name}: credentials are said in the user's or the system's own configuration alone")]
    Credentials {
        /// Where they are.
        source_name: String,
    },
    /// A project tries to widen the policy.
    #[error(transparent)]
    Widening(#[from] Box<Widening>),
    /// The variables of existing deployments make no sense.
    #[error(transparent)]
    Dialect(#[from] DialectError),
}

impl SettingsError {
    /// Whose move it is: whoever wrote the settings.
    pub const fn fault(&self) -> Fault {
        Fault::User
    }

    /// The next thing to type.
    pub fn hint(&self) -> Option<String> {
        match self {
            SettingsError::File { source, .. } => source.hint(),
            SettingsError::Value { name, expected, .. } => Some(format!("set {name} to {expected}, or unset it")),
            SettingsError::NotText(name) => Some(format!("unset {name}, and use the flag or a file instead")),
            SettingsError::UnknownVariable { name, nearest: None } => Some(format!("unset {name}")),
            SettingsError::UnknownVariable { nearest: Some(nearest), .. } => Some(format!("did you mean {nearest}?")),
            SettingsError::Relative { .. } => Some("write the whole path, from `/` or from `~`".to_owned()),
            SettingsError::NoHome { .. } => Some("set HOME, or write the whole path".to_owned()),
            SettingsError::Credentials { .. } => Some("move them to ~/.config/ringfence/config.toml".to_owned()),
            SettingsError::Widening(widening) => Some(widening.hint()),
            SettingsError::Dialect(error) => error.hint(),
        }
    }

    pub(super) fn no_home(source: &Source, key: &'static str) -> Self {
        SettingsError::NoHome { source_name: source.to_string(), key }
    }
}
