//! Settings of the backend `kubernetes`: the cluster, and the parts of a pod that no policy states.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings for sandboxes on a Kubernetes cluster. None of them can widen a policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesConfig {
    /// Context of the kubeconfig that names the cluster; the default is the current context. In a
    /// pod without a kubeconfig, the service account of the pod is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Namespace of the pods; the default is the namespace of the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Image of the container in which commands run; the default is `container.image`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Image that contains the guest, from which an init container copies the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_image: Option<String>,
    /// Secrets of the namespace with which the kubelet fetches the images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<String>,
    /// RuntimeClass of the pods, such as `gvisor`; the default is the default of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<String>,
    /// Service account of the pods. Its token is never mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Labels that a node must have to run the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the pods tolerate, such as `dedicated=agents:NoSchedule`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Labels of the pods besides the labels of ringfence.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Taint that a pod tolerates, in the form of `kubectl taint`: `KEY[=VALUE][:EFFECT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    /// Key of the taint.
    pub key: String,
    /// Value of the taint; any value if absent.
    pub value: Option<String>,
    /// Effect of the taint; every effect if absent.
    pub effect: Option<String>,
}

/// Effects that a taint can have.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

impl fmt::Display for Toleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if let Some(value) = &self.value {
            write!(f, "={value}")?;
        }
        if let Some(effect) = &self.effect {
            write!(f, ":{effect}")?;
        }
        Ok(())
    }
}

/// Error for a text that is not a toleration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a toleration: write KEY, KEY:EFFECT or KEY=VALUE:EFFECT")]
pub struct InvalidToleration(String);

impl FromStr for Toleration {
    type Err = InvalidToleration;

    fn from_str(text: &str) -> Result<Toleration, InvalidToleration> {
        let invalid = || InvalidToleration(text.to_owned());
        let (taint, effect) = match text.rsplit_once(':') {
            Some((taint, effect)) => (taint, Some(effect.to_owned())),
            None => (text, None),
        };
        if effect.as_ref().is_some_and(|effect| !EFFECTS.contains(&effect.as_str())) {
            return Err(invalid());
        }
        let (key, value) = match taint.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (taint, None),
        };
        if key.is_empty() {
            return Err(invalid());
        }
        Ok(Toleration { key: key.to_owned(), value, effect })
    }
}

crate::policy::text::serde_as_text!(
    Toleration,
    "a taint that pods tolerate: KEY, KEY:EFFECT or KEY=VALUE:EFFECT",
    "Toleration"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_reads_back_as_it_was_written() {
        for text in ["gpu", "gpu:NoSchedule", "dedicated=agents:NoExecute", "dedicated=agents"] {
            assert_eq!(text.parse::<Toleration>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_toleration_without_a_key_or_with_an_unknown_effect_is_refused() {
        for text in ["", "=agents", ":NoSchedule", "gpu:Never"] {
            let error = text.parse::<Toleration>().unwrap_err();
            assert!(error.to_string().contains("is not a toleration"), "{text}: {error}");
        }
    }
}
