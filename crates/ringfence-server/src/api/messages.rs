//! Answers of the control plane, in the form of E2B's API.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use ringfence_proto::ENVD_VERSION;
use serde::Serialize;

use crate::api::network::NetworkInfo;
use crate::lifecycle::expiry::ExpiryAction;
use crate::lifecycle::registry::ManagedSandbox;
use crate::lifecycle::template::Template;
use crate::storage::snapshots::Snapshot;
use crate::storage::store::SandboxRecord;

/// Name that E2B's API has for the client that runs a sandbox; always this server.
const CLIENT: &str = "ringfence";
const MEBIBYTE: u64 = 1 << 20;

/// Identifiers of a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SandboxIdentity<'a> {
    #[serde(rename = "templateID")]
    template_id: &'a str,
    #[serde(rename = "sandboxID")]
    sandbox_id: &'a str,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    alias: &'a str,
}

impl<'a> SandboxIdentity<'a> {
    fn from_record(record: &'a SandboxRecord) -> SandboxIdentity<'a> {
        SandboxIdentity {
            template_id: &record.template,
            sandbox_id: &record.id,
            client_id: CLIENT,
            envd_version: ENVD_VERSION,
            alias: &record.template,
        }
    }
}

/// Identifiers and tokens that a client needs to use a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxAccess<'a> {
    #[serde(flatten)]
    identity: SandboxIdentity<'a>,
    envd_access_token: &'a str,
    traffic_access_token: Cow<'a, str>,
}

impl<'a> SandboxAccess<'a> {
    pub(crate) fn from_sandbox(managed: &'a ManagedSandbox) -> SandboxAccess<'a> {
        let record = &managed.record;
        SandboxAccess {
            identity: SandboxIdentity::from_record(record),
            envd_access_token: &record.token,
            traffic_access_token: record.traffic_access_token(),
        }
    }
}

/// Entry of a sandbox in a list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListedSandbox<'a> {
    #[serde(flatten)]
    identity: SandboxIdentity<'a>,
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

impl<'a> ListedSandbox<'a> {
    /// Describes a sandbox. `template` is the template of the sandbox, if it still exists.
    pub(crate) fn from_sandbox(
        managed: &'a ManagedSandbox,
        template: Option<&Template>,
    ) -> ListedSandbox<'a> {
        let (record, expiry) = (&managed.record, managed.expiry());
        let shape = template
            .map_or((0, 0, 0), |template| (template.processors, template.memory, template.disk));
        ListedSandbox {
            identity: SandboxIdentity::from_record(record),
            started_at: record.started,
            end_at: expiry.ends,
            cpu_count: shape.0,
            memory: shape.1 / MEBIBYTE,
            disk: shape.2 / MEBIBYTE,
            state: expiry.state().name(),
            metadata: &record.metadata,
        }
    }
}

/// Details of one sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxDetail<'a> {
    #[serde(flatten)]
    pub(crate) listed: ListedSandbox<'a>,
    pub(crate) envd_access_token: &'a str,
    pub(crate) allow_internet_access: bool,
    pub(crate) network: NetworkInfo,
    pub(crate) lifecycle: Lifecycle,
}

/// Entry of a snapshot in an answer.
#[derive(Debug, Serialize)]
pub(crate) struct SnapshotInfo<'a> {
    #[serde(rename = "snapshotID")]
    snapshot_id: &'a str,
    names: Vec<&'a str>,
}

impl<'a> SnapshotInfo<'a> {
    pub(crate) fn from_snapshot(snapshot: &'a Snapshot) -> SnapshotInfo<'a> {
        SnapshotInfo {
            snapshot_id: &snapshot.id,
            names: snapshot.name.as_deref().into_iter().collect(),
        }
    }
}

/// Actions at the end of a sandbox's time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lifecycle {
    auto_resume: bool,
    on_timeout: &'static str,
}

impl Lifecycle {
    pub(crate) fn from_record(record: &SandboxRecord) -> Lifecycle {
        let on_timeout = match record.at_end {
            ExpiryAction::Kill => "kill",
            ExpiryAction::Pause => "pause",
        };
        Lifecycle { auto_resume: record.is_woken, on_timeout }
    }
}

/// Resource use of a sandbox at one time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metric {
    pub(crate) timestamp: Timestamp,
    pub(crate) timestamp_unix: i64,
    pub(crate) cpu_count: u64,
    pub(crate) cpu_used_pct: f64,
    pub(crate) mem_used: u64,
    pub(crate) mem_total: u64,
    pub(crate) mem_cache: u64,
    pub(crate) disk_used: u64,
    pub(crate) disk_total: u64,
}

/// Resource use of several sandboxes, by their ids.
#[derive(Debug, Serialize)]
pub(crate) struct Metrics<'a> {
    pub(crate) sandboxes: BTreeMap<&'a str, Metric>,
}

/// Log of a sandbox, in the forms of both versions of the API.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Logs {
    pub(crate) logs: Vec<LogLine>,
    pub(crate) log_entries: Vec<LogEntry>,
}

/// Log line, in the form of the first version of the API.
#[derive(Debug, Serialize)]
pub(crate) struct LogLine {
    pub(crate) timestamp: Timestamp,
    pub(crate) line: String,
}

/// Log line, in the form of the second version of the API.
#[derive(Debug, Serialize)]
pub(crate) struct LogEntry {
    pub(crate) timestamp: Timestamp,
    pub(crate) message: String,
    pub(crate) level: &'static str,
    pub(crate) fields: BTreeMap<String, String>,
}
