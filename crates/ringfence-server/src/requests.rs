//! Request bodies of the control plane, in the form of E2B's API. A fuzz target includes this file
//! by itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Request to create a sandbox.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(super) template_id: String,
    /// Lease in seconds.
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

/// Network that a client asks for. Unknown fields are errors, because the server would not honour
/// them.
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

/// Change of the network of a running sandbox. Missing fields mean the values of the template.
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

/// Setting that lets a request to a paused sandbox resume it.
#[derive(Debug, Deserialize)]
pub(super) struct AutoResume {
    pub(super) enabled: bool,
}

/// Request for a lease that begins now.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Stay {
    /// Length of the lease in seconds.
    #[serde(alias = "duration")]
    pub(super) timeout: Option<u64>,
    /// Set to `false` to ask for a resume without the memory, which the server refuses.
    pub(super) memory: Option<bool>,
}

/// Request to take a snapshot.
#[derive(Debug, Default, Deserialize)]
pub(super) struct NewSnapshot {
    /// Name of the snapshot, optional.
    pub(super) name: Option<String>,
    /// Set to `false` for a snapshot without the memory, the only kind that the server supports.
    pub(super) memory: Option<bool>,
}

/// Request to pause a sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rest {
    /// Set to `false` to ask for a pause without the memory, which the server refuses.
    pub(super) memory: Option<bool>,
    /// Set to refuse the pause when the guest does not answer.
    #[serde(default)]
    pub(super) require_healthy_guest: bool,
}
