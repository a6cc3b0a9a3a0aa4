//! What a sandbox that stays is to be.

use std::str::FromStr;
use std::time::Duration;

use ringfence_core::Policy;
use serde::{Deserialize, Serialize};

/// What a sandbox that stays is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// What it is called; one of its own when absent.
    pub name: Option<String>,
    /// What must hold.
    pub policy: Policy,
    /// How long it may stay; until it is stopped when absent.
    pub lease: Option<Duration>,
    /// What to do when there is one of that name.
    pub existing: Existing,
    /// What only a container engine is told.
    pub container: ContainerSpec,
}

impl Spec {
    /// A nameless sandbox behind a policy.
    pub fn new(policy: Policy) -> Spec {
        let container = ContainerSpec::default();
        Spec { name: None, policy, lease: None, existing: Existing::default(), container }
    }

    /// Gives it a name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Spec {
        self.name = Some(name.into());
        self
    }
}

/// What to do when there is a sandbox of the same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Existing {
    /// Use it if it is what is asked for, and refuse if it differs.
    #[default]
    Reuse,
    /// Refuse.
    Refuse,
    /// Stop it and make a new one.
    Replace,
}

/// What only a container engine is told. It cannot widen a policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// What the container is for.
    pub preset: Preset,
    /// What it is made from; what the engine's settings say when absent, else ringfence's own image.
    pub image: Option<String>,
    /// When the image is fetched; what the preset says when absent.
    pub pull: Option<Pull>,
    /// Capabilities that are not dropped, besides those of the preset.
    pub capabilities: Vec<String>,
    /// Whether the image's own files can be changed; what the preset says when absent.
    pub root: Option<Root>,
    /// Where the program `ringfence` is that a container beside this one runs as the proxy of the allowed hosts, in a
    /// network that other containers can join. When absent, the process that keeps the sandbox is the proxy.
    #[serde(default)]
    pub proxy: Option<String>,
}

/// What a container is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// An agent's commands.
    #[default]
    Agent,
    /// A person's development environment.
    Dev,
}

/// When an image is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pull {
    /// At every start; a copy that is there will do when that fails.
    Always,
    /// When it is not there.
    Missing,
    /// Not at all.
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

/// Whether an image's own files can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Root {
    /// They cannot.
    ReadOnly,
    /// They can, and the changes go with the container.
    Writable,
}
