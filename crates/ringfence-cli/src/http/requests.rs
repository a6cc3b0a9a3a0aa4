//! What clients of the control plane say, as E2B's API has it. A fuzz target reads this file by itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a sandbox is asked for with.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(super) template_id: String,
    /// In seconds.
    pub(super) timeout: Option<u64>,
    #[serde(default)]
    pub(super) metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(super) env_vars: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(super) auto_pause: Option<bool>,
    #[serde(default)]
    pub(super) auto_pause_memory: Option<bool>,
    #[serde(default)]
    pub(super) auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    pub(super) allow_internet_access: Option<bool>,
    pub(super) network: Option<NetworkRequest>,
    pub(super) mcp: Option<serde_json::Value>,
    pub(super) iam: Option<serde_json::Value>,
    #[serde(default)]
    pub(super) volume_mounts: Option<Vec<serde_json::Value>>,
}

/// What a client wants of the network. A field that is not here would be one that is not kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct NetworkRequest {
    pub(super) allow_out: Option<Vec<String>>,
    pub(super) deny_out: Option<Vec<String>>,
    pub(super) allow_public_traffic: Option<bool>,
    pub(super) mask_request_host: Option<String>,
    pub(super) dns_servers: Option<Vec<String>>,
    pub(super) egress_proxy: Option<serde_json::Value>,
    pub(super) https_ports: Option<Vec<u16>>,
    pub(super) rules: Option<BTreeMap<String, serde_json::Value>>,
}

/// What a client wants of the network of a sandbox that runs. What it does not say is as the template has it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct NetworkChange {
    pub(super) allow_out: Option<Vec<String>>,
    pub(super) deny_out: Option<Vec<String>>,
    pub(super) dns_servers: Option<Vec<String>>,
    pub(super) egress_proxy: Option<serde_json::Value>,
    pub(super) rules: Option<BTreeMap<String, serde_json::Value>>,
    #[serde(rename = "allow_internet_access")]
    pub(super) allow_internet_access: Option<bool>,
}

/// Whether a request to a sandbox ends its rest.
#[derive(Debug, Deserialize)]
pub(super) struct AutoResume {
    pub(super) enabled: bool,
}

/// How long a sandbox is to stay from now.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Stay {
    /// In seconds.
    #[serde(alias = "duration")]
    pub(super) timeout: Option<u64>,
    /// Whether it goes on with what it had in memory.
    pub(super) memory: Option<bool>,
}

/// What a snapshot is asked for with.
#[derive(Debug, Default, Deserialize)]
pub(super) struct NewSnapshot {
    /// What it is to be called.
    pub(super) name: Option<String>,
    /// Whether it has what the sandbox has in memory.
    pub(super) memory: Option<bool>,
}

/// How a sandbox is brought to rest.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rest {
    /// Whether it keeps what it has in memory.
    pub(super) memory: Option<bool>,
    /// Whether it stays as it is when its guest does not answer.
    #[serde(default)]
    pub(super) require_healthy_guest: bool,
}
