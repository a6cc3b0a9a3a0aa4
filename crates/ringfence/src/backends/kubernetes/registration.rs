//! Registration of the object of a sandbox: a file on the host that names what to remove after a
//! crash.

use std::path::Path;

use ringfence_core::settings::KubernetesConfig;
use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::error::ClusterFailure;
use crate::write_private_file;

/// Name of the registration in a sandbox's directory.
pub(super) const REGISTRATION_FILE: &str = "kubernetes.json";

/// Object at a cluster that must be removed. The file is written before the object is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClusterRegistration {
    /// Address of the API server, which tells clusters apart.
    pub(super) server: String,
    pub(super) context: Option<String>,
    pub(super) namespace: String,
    pub(super) kind: ObjectKind,
    pub(super) name: String,
}

/// Kind of the object of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ObjectKind {
    /// A pod, for a sandbox that stays.
    Pod,
    /// A Job, for one command.
    Job,
}

impl ObjectKind {
    /// Returns the name of the kind, as `kubectl` takes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            ObjectKind::Pod => "pod",
            ObjectKind::Job => "job",
        }
    }
}

impl ClusterRegistration {
    pub(super) fn new(cluster: &Cluster, kind: ObjectKind, name: String) -> ClusterRegistration {
        ClusterRegistration {
            server: cluster.server.clone(),
            context: cluster.context.clone(),
            namespace: cluster.namespace.clone(),
            kind,
            name,
        }
    }

    /// Writes the registration to a sandbox's directory.
    pub(super) fn write(&self, sandbox_dir: &Path) -> Result<(), ClusterFailure> {
        let text = serde_json::to_string(self).expect("it has only string keys");
        write_private_file(&sandbox_dir.join(REGISTRATION_FILE), &text)
            .map_err(|source| ClusterFailure::Files { what: "write the registration", source })
    }

    /// Reads the registration of a sandbox's directory, if there is one.
    pub(super) fn read(sandbox_dir: &Path) -> Option<ClusterRegistration> {
        let text = fs_err::read_to_string(sandbox_dir.join(REGISTRATION_FILE)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Returns the settings that lead to the cluster of the registration.
    pub(super) fn settings(&self) -> KubernetesConfig {
        KubernetesConfig {
            context: self.context.clone(),
            namespace: Some(self.namespace.clone()),
            ..KubernetesConfig::default()
        }
    }
}
