//! The request to start a sandbox that stays, which every caller fills in: the command line, the
//! server, MCP and programs that use the library.

use std::str::FromStr;
use std::time::Duration;

use ringfence_core::Policy;
use serde::{Deserialize, Serialize};

/// Request to start a sandbox that stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartRequest {
    /// Name of the sandbox; by default a random, unique name.
    pub name: Option<String>,
    /// The policy of the sandbox.
    pub policy: Policy,
    /// Longest time that the sandbox may stay; without a lease it stays until it is stopped.
    pub lease: Option<Duration>,
    /// Reaction to an existing sandbox of the same name.
    pub existing: Existing,
    /// Options that only apply to container engines.
    pub container: ContainerSpec,
}

impl StartRequest {
    /// Returns the request for a nameless sandbox with a policy.
    pub fn new(policy: Policy) -> StartRequest {
        let container = ContainerSpec::default();
        StartRequest { name: None, policy, lease: None, existing: Existing::default(), container }
    }

    /// Sets the name of the sandbox.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> StartRequest {
        self.name = Some(name.into());
        self
    }
}

/// Reaction to an existing sandbox of the same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Existing {
    /// Use the existing sandbox if it has the same specification, and fail if it differs.
    #[default]
    Reuse,
    /// Fail if the name is taken.
    Refuse,
    /// Stop the existing sandbox and start a new one.
    Replace,
}

/// Options that only apply to container engines. They cannot widen a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Purpose of the container.
    pub preset: Preset,
    /// Image from which the container is made; by default the image of the engine's settings, else
    /// ringfence's own image.
    pub image: Option<String>,
    /// Time at which the image is fetched; by default as the preset says.
    pub pull: Option<Pull>,
    /// Capabilities of Linux that are not dropped, besides those of the preset.
    pub capabilities: Vec<String>,
    /// Access to the image's own files; by default as the preset says.
    pub root: Option<Root>,
    /// Path of the program `ringfence` that a second container runs as the proxy for the allowed
    /// hosts, in a network that other containers can join. By default the process that keeps the
    /// sandbox is the proxy.
    #[serde(default)]
    pub proxy: Option<String>,
}

/// Purpose of a container, which determines the defaults of other options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// The container runs commands of an agent.
    #[default]
    Agent,
    /// The container is a person's development environment.
    Dev,
}

/// Time at which an image is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pull {
    /// At every start. If fetching fails, an existing copy is enough.
    Always,
    /// Only if the image does not exist locally.
    Missing,
    /// Never: the image must exist locally.
    Never,
}

impl FromStr for Pull {
    type Err = String;

    fn from_str(text: &str) -> Result<Pull, String> {
        match text {
            "always" => Ok(Pull::Always),
            "missing" => Ok(Pull::Missing),
            "never" => Ok(Pull::Never),
            _ => Err("it is one of always, missing, never".to_owned()),
        }
    }
}

/// Access of a container to its image's own files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Root {
    /// The files are read-only.
    ReadOnly,
    /// The files can be changed. The changes are lost with the container.
    Writable,
}
