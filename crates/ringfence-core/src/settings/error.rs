//! Errors of loading settings.

use std::path::PathBuf;

use super::dialect::DialectError;
use super::keys::ValueError;
use super::{ValueSource, Widening};
use crate::Fault;
use crate::policy::DocumentError;

/// Reason why the layers cannot be merged into settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A file is not valid TOML, or has a wrong key or value.
    #[error("cannot use the settings in `{path}`")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error in the document, with its line.
        source: DocumentError,
    },
    /// A `RINGFENCE_*` variable has an invalid value.
    #[error("{name}=`{value}` is not valid")]
    Value {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// Description of the values that the variable accepts.
        expected: &'static str,
        /// Error of parsing the value.
        source: ValueError,
    },
    /// The value of the named variable is not valid UTF-8.
    #[error("{0} is not valid UTF-8")]
    NotText(String),
    /// A variable has the prefix `RINGFENCE_` but is not a setting.
    #[error("unknown variable {name}")]
    UnknownVariable {
        /// Name of the unknown variable.
        name: String,
        /// Known variable that was probably meant.
        nearest: Option<String>,
    },
    /// A path is relative although it must be absolute.
    #[error("{source_name}: {key} = \"{path}\" is not absolute", path = path.display())]
    Relative {
        /// Source of the value, such as `config.toml:3`.
        source_name: String,
        /// Key that has the path.
        key: &'static str,
        /// Path that is not absolute.
        path: PathBuf,
    },
    /// A path starts with `~`, but there is no home directory.
    #[error(
        "{source_name}: {key} starts with `~`, and there is no home directory to put in its place"
    )]
    NoHome {
        /// Source of the value, such as `config.toml:3`.
        source_name: String,
        /// Key that has the path.
        key: &'static str,
    },
    /// A layer other than the system's and the user's file sets credentials.
    #[error(
        "{source_name}: credentials are said in the user's or the system's own configuration alone"
    )]
    Credentials {
        /// Source of the credentials, such as `ringfence.toml:1`.
        source_name: String,
    },
    /// The project's file tries to widen the policy.
    #[error(transparent)]
    Widening(#[from] Box<Widening>),
    /// The variables of existing deployments are invalid or contradict each other.
    #[error(transparent)]
    Dialect(#[from] DialectError),
}

impl SettingsError {
    /// Returns the party that can correct the error: the user, who wrote the settings.
    pub const fn fault(&self) -> Fault {
        Fault::User
    }

    /// Returns a hint that tells the user how to correct the error.
    pub fn hint(&self) -> Option<String> {
        match self {
            SettingsError::File { source, .. } => source.hint(),
            SettingsError::Value { name, expected, .. } => {
                Some(format!("set {name} to {expected}, or unset it"))
            }
            SettingsError::NotText(name) => {
                Some(format!("unset {name}, and use the flag or a file instead"))
            }
            SettingsError::UnknownVariable { name, nearest: None } => Some(format!("unset {name}")),
            SettingsError::UnknownVariable { nearest: Some(nearest), .. } => {
                Some(format!("did you mean {nearest}?"))
            }
            SettingsError::Relative { .. } => {
                Some("write the whole path, from `/` or from `~`".to_owned())
            }
            SettingsError::NoHome { .. } => Some("set HOME, or write the whole path".to_owned()),
            SettingsError::Credentials { .. } => {
                Some("move them to ~/.config/ringfence/config.toml".to_owned())
            }
            SettingsError::Widening(widening) => Some(widening.hint()),
            SettingsError::Dialect(error) => error.hint(),
        }
    }

    pub(super) fn no_home(source: &ValueSource, key: &'static str) -> Self {
        SettingsError::NoHome { source_name: source.to_string(), key }
    }
}
