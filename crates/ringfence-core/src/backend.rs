//! Names of the backends, and the choice of a backend in a policy.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Backend that enforces a policy.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Launcher of ringfence itself, with namespaces, Landlock and seccomp.
    Native,
    /// Bubblewrap, with the same view of files and the same seccomp filter as `native`.
    Bwrap,
    /// Docker engine, with one container per sandbox.
    Docker,
    /// Podman engine, with one container per sandbox.
    Podman,
    /// Kubernetes, with one pod per sandbox, and one Job per single command.
    Kubernetes,
    /// Cloud of E2B, or another service with the API of E2B. This version does not have the
    /// backend.
    E2b,
    /// No isolation by ringfence, which trusts the container or VM around ringfence.
    Outer,
    /// No isolation at all, by explicit choice.
    Local,
}

impl Backend {
    /// Every backend, in the order of the documentation.
    pub const ALL: [Backend; 8] = [
        Backend::Native,
        Backend::Bwrap,
        Backend::Docker,
        Backend::Podman,
        Backend::Kubernetes,
        Backend::E2b,
        Backend::Outer,
        Backend::Local,
    ];

    /// Returns the name of the backend in policies, flags and results.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Native => "native",
            Backend::Bwrap => "bwrap",
            Backend::Docker => "docker",
            Backend::Podman => "podman",
            Backend::Kubernetes => "kubernetes",
            Backend::E2b => "e2b",
            Backend::Outer => "outer",
            Backend::Local => "local",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Backend that a policy asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum BackendChoice {
    /// The first of `native` and `bwrap` that can hold the whole policy on this host, else `outer`
    /// if a container is detected.
    #[default]
    Auto,
    /// The named backend; there is no fallback.
    Only(Backend),
}

impl BackendChoice {
    /// Returns the names that a policy may use for a choice, `auto` first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        std::iter::once("auto").chain(Backend::ALL.into_iter().map(Backend::name))
    }
}

impl From<Backend> for BackendChoice {
    fn from(backend: Backend) -> Self {
        BackendChoice::Only(backend)
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendChoice::Auto => f.write_str("auto"),
            BackendChoice::Only(backend) => backend.fmt(f),
        }
    }
}

/// Error for a text that is neither `auto` nor the name of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown backend `{0}`: it is one of {list}",
    list = BackendChoice::names().collect::<Vec<_>>().join(", ")
)]
pub struct UnknownBackend(String);

impl FromStr for BackendChoice {
    type Err = UnknownBackend;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(BackendChoice::Auto);
        }
        let named = Backend::ALL.into_iter().find(|backend| backend.name() == text);
        named.map(BackendChoice::Only).ok_or_else(|| UnknownBackend(text.to_owned()))
    }
}

crate::policy::text::serde_as_text!(
    BackendChoice,
    "a backend: auto, native, bwrap, docker, podman, kubernetes, e2b, outer or local",
    "Choice"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_as_the_same_choice() {
        for name in BackendChoice::names() {
            assert_eq!(name.parse::<BackendChoice>().unwrap().to_string(), name);
        }
        assert_eq!("bwrap".parse(), Ok(BackendChoice::from(Backend::Bwrap)));
        for backend in Backend::ALL {
            assert_eq!(serde_json::to_value(backend).unwrap(), backend.name());
        }
    }

    #[test]
    fn an_unknown_backend_is_refused_with_the_known_names() {
        assert_eq!(
            "firejail".parse::<BackendChoice>().unwrap_err().to_string(),
            "unknown backend `firejail`: it is one of auto, native, bwrap, docker, podman, \
             kubernetes, e2b, outer, local"
        );
    }
}
