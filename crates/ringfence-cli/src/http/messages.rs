//! What clients of the control plane say and are told, as E2B's API has it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use ringfence_proto::ENVD_VERSION;
use serde::{Deserialize, Serialize};

use super::registry::Live;
use super::template::Template;

/// Who runs a sandbox, for clients that want to know: this server.
const CLIENT: &str = "ringfence";
const MEBIBYTE: u64 = 1 << 20;

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
    #[serde(rename = "allow_internet_access")]
    pub(super) allow_internet_access: Option<bool>,
    pub(super) network: Option<NetworkRequest>,
    pub(super) mcp: Option<serde_json::Value>,
    pub(super) iam: Option<serde_json::Value>,
    #[serde(default)]
    pub(super) volume_mounts: Option<Vec<serde_json::Value>>,
}

/// What a client wants of the network. A field that is not here would be one that is not kept.
#[derive(Debug, Default, Deserialize)]
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

/// How long a sandbox is to stay from now.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Stay {
    /// In seconds.
    #[serde(alias = "duration")]
    pub(super) timeout: Option<u64>,
}

/// What a client needs to use a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Access<'a> {
    #[serde(rename = "templateID")]
    template_id: &'a str,
    #[serde(rename = "sandboxID")]
    sandbox_id: &'a str,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    envd_access_token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_access_token: Option<&'a str>,
    alias: &'a str,
}

impl<'a> Access<'a> {
    pub(super) fn of(live: &'a Live) -> Access<'a> {
        let record = &live.record;
        Access {
            template_id: &record.template,
            sandbox_id: &record.id,
            client_id: CLIENT,
            envd_version: ENVD_VERSION,
            envd_access_token: &record.token,
            traffic_access_token: record.traffic_token.as_deref(),
            alias: &record.template,
        }
    }
}

/// What a client is told of a sandbox among others.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed<'a> {
    #[serde(rename = "templateID")]
    template_id: &'a str,
    #[serde(rename = "sandboxID")]
    sandbox_id: &'a str,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    alias: &'a str,
    started_at: Timestamp,
    end_at: Timestamp,
    cpu_count: u64,
    #[serde(rename = "memoryMB")]
    memory: u64,
    #[serde(rename = "diskSizeMB")]
    disk: u64,
    state: &'static str,
    metadata: &'a BTreeMap<String, String>,
}

impl<'a> Listed<'a> {
    /// `template` is what it was made from, if that is still there.
    pub(super) fn of(live: &'a Live, template: Option<&Template>) -> Listed<'a> {
        let record = &live.record;
        let shape = template.map_or((0, 0, 0), |template| (template.processors, template.memory, template.disk));
        Listed {
            template_id: &record.template,
            sandbox_id: &record.id,
            client_id: CLIENT,
            envd_version: ENVD_VERSION,
            alias: &record.template,
            started_at: record.started,
            end_at: live.ends(),
            cpu_count: shape.0,
            memory: shape.1 / MEBIBYTE,
            disk: shape.2 / MEBIBYTE,
            state: "running",
            metadata: &record.metadata,
        }
    }
}

/// What a client is told of one sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Detail<'a> {
    #[serde(flatten)]
    pub(super) listed: Listed<'a>,
    pub(super) envd_access_token: &'a str,
    pub(super) allow_internet_access: bool,
    pub(super) lifecycle: Lifecycle,
}

/// What becomes of a sandbox whose time is over.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lifecycle {
    auto_resume: bool,
    on_timeout: &'static str,
}

impl Lifecycle {
    /// It ends.
    pub(super) const ENDS: Lifecycle = Lifecycle { auto_resume: false, on_timeout: "kill" };
}

/// What a guest says of what its sandbox uses.
#[derive(Debug, Deserialize)]
pub(super) struct Used {
    ts: i64,
    cpu_count: u64,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

/// What a client is told of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metric {
    timestamp: Timestamp,
    timestamp_unix: i64,
    cpu_count: u64,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl From<Used> for Metric {
    fn from(used: Used) -> Metric {
        Metric {
            timestamp: Timestamp::from_second(used.ts).unwrap_or_default(),
            timestamp_unix: used.ts,
            cpu_count: used.cpu_count,
            cpu_used_pct: used.cpu_used_pct,
            mem_used: used.mem_used,
            mem_total: used.mem_total,
            mem_cache: used.mem_cache,
            disk_used: used.disk_used,
            disk_total: used.disk_total,
        }
    }
}

/// The log of a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Logs {
    pub(super) logs: Vec<LogLine>,
    pub(super) log_entries: Vec<LogEntry>,
}

/// One line of it, as the first version of the API has it.
#[derive(Debug, Serialize)]
pub(super) struct LogLine {
    pub(super) timestamp: Timestamp,
    pub(super) line: String,
}

/// One line of it, as the second has it.
#[derive(Debug, Serialize)]
pub(super) struct LogEntry {
    pub(super) timestamp: Timestamp,
    pub(super) message: String,
    pub(super) level: &'static str,
    pub(super) fields: BTreeMap<String, String>,
}
