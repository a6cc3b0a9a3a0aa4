//! Request bodies of the control plane, in the form of E2B's API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Request to create a sandbox.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    /// Lease in seconds.
    pub(crate) timeout: Option<u64>,
    #[serde(default)]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) env_vars: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) auto_pause: Option<bool>,
    #[serde(default)]
    pub(crate) auto_pause_memory: Option<bool>,
    #[serde(default)]
    pub(crate) auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    pub(crate) allow_internet_access: Option<bool>,
    pub(crate) network: Option<NetworkRequest>,
    pub(crate) mcp: Option<serde_json::Value>,
    pub(crate) iam: Option<serde_json::Value>,
    #[serde(default)]
    pub(crate) volume_mounts: Option<Vec<serde_json::Value>>,
}

/// Network that a client asks for. Unknown fields are errors, because the server would not honour
/// them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetworkRequest {
    pub(crate) allow_out: Option<Vec<String>>,
    pub(crate) deny_out: Option<Vec<String>>,
    pub(crate) allow_public_traffic: Option<bool>,
    pub(crate) mask_request_host: Option<String>,
    pub(crate) dns_servers: Option<Vec<String>>,
    pub(crate) egress_proxy: Option<serde_json::Value>,
    pub(crate) https_ports: Option<Vec<u16>>,
    pub(crate) rules: Option<BTreeMap<String, serde_json::Value>>,
}

/// Change of the network of a running sandbox. Missing fields mean the values of the template.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NetworkChange {
    pub(crate) allow_out: Option<Vec<String>>,
    pub(crate) deny_out: Option<Vec<String>>,
    pub(crate) dns_servers: Option<Vec<String>>,
    pub(crate) egress_proxy: Option<serde_json::Value>,
    pub(crate) rules: Option<BTreeMap<String, serde_json::Value>>,
    #[serde(rename = "allow_internet_access")]
    pub(crate) allow_internet_access: Option<bool>,
}

/// Setting that lets a request to a paused sandbox resume it.
#[derive(Debug, Deserialize)]
pub(crate) struct AutoResume {
    pub(crate) enabled: bool,
}

/// Request for a lease that begins now.
#[derive(Debug, Default, Deserialize)]
pub struct LeaseRequest {
    /// Length of the lease in seconds.
    #[serde(alias = "duration")]
    pub(crate) timeout: Option<u64>,
    /// Set to `false` to ask for a resume without the memory, which the server refuses.
    pub(crate) memory: Option<bool>,
}

/// Request to take a snapshot.
#[derive(Debug, Default, Deserialize)]
pub struct NewSnapshot {
    /// Name of the snapshot, optional.
    pub(crate) name: Option<String>,
    /// Set to `false` for a snapshot without the memory, the only kind that the server supports.
    pub(crate) memory: Option<bool>,
}

/// Request to pause a sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseRequest {
    /// Set to `false` to ask for a pause without the memory, which the server refuses.
    pub(crate) memory: Option<bool>,
    /// Set to refuse the pause when the guest does not answer.
    #[serde(default)]
    pub(crate) require_healthy_guest: bool,
}
