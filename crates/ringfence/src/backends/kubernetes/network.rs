//! Network policies of the sandboxes in a namespace. All sandboxes with the same rule share one
//! policy, which selects their label.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::Status;

use super::cluster::{Cluster, creation};
use super::error::ClusterFailure;
use super::pod::{MANAGED_BY, own_key};

/// Rule for the network of a sandbox, which a network policy enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkRule {
    /// Nothing comes in, and nothing goes out.
    Closed,
    /// Nothing comes in, and everything may go out.
    Open,
    /// No network policy of ringfence applies. Only trials use this rule, as their control.
    Untouched,
}

impl NetworkRule {
    /// Returns the value of the label of the pods to which the rule applies.
    pub(super) fn label(self) -> &'static str {
        match self {
            NetworkRule::Closed => "closed",
            NetworkRule::Open => "open",
            NetworkRule::Untouched => "untouched",
        }
    }

    /// Returns the name of the network policy.
    pub(super) fn policy_name(self) -> String {
        format!("ringfence-{}", self.label())
    }

    /// Returns the network policy.
    pub(super) fn policy(self) -> NetworkPolicy {
        let selected = BTreeMap::from([(own_key("network"), self.label().to_owned())]);
        let everything = NetworkPolicyEgressRule::default();
        NetworkPolicy {
            metadata: ObjectMeta {
                name: Some(self.policy_name()),
                labels: Some([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into()),
                ..ObjectMeta::default()
            },
            spec: Some(NetworkPolicySpec {
                pod_selector: Some(LabelSelector {
                    match_labels: Some(selected),
                    match_expressions: None,
                }),
                policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
                ingress: None,
                egress: match self {
                    NetworkRule::Closed => None,
                    NetworkRule::Open | NetworkRule::Untouched => Some(vec![everything]),
                },
            }),
        }
    }
}

/// Creates the network policy of a rule, or checks that the existing policy is the same. Returns an
/// error if another policy of the namespace opens the network of a pod with `labels`,
/// because policies add up.
pub(super) async fn provide(
    cluster: &Cluster,
    rule: NetworkRule,
    labels: &BTreeMap<String, String>,
) -> Result<(), ClusterFailure> {
    let (policies, wanted) = (cluster.network_policies(), rule.policy());
    let name = rule.policy_name();
    let found = cluster.ask("get networkpolicies", policies.get_opt(&name)).await?;
    let found = match found {
        Some(found) => found,
        None => {
            let created = policies.create(&creation(), &wanted).await;
            match created {
                Ok(created) => created,
                // Another process was faster.
                Err(kube::Error::Api(status)) if is_conflict(&status) => {
                    cluster.ask("get networkpolicies", policies.get(&name)).await?
                }
                Err(source) => {
                    let what = "create networkpolicies";
                    return Err(ClusterFailure::from_request(what, &cluster.namespace, source));
                }
            }
        }
    };
    if !is_same(found.spec.as_ref(), wanted.spec.as_ref()) {
        return Err(ClusterFailure::Changed {
            kind: "networkpolicy",
            name,
            difference: "its rules are others".to_owned(),
        });
    }
    let listed = cluster.ask("list networkpolicies", policies.list(&ListParams::default())).await?;
    let opening = listed.items.into_iter().find(|other| {
        other.metadata.name.as_ref() != Some(&name)
            && other.spec.as_ref().is_some_and(|spec| opens(spec, rule, labels))
    });
    match opening {
        None => Ok(()),
        Some(other) => Err(ClusterFailure::Opened { policy: other.name_any() }),
    }
}

/// Tells whether a policy may let through what `rule` denies to a pod with `labels`. Expressions in
/// the selector count as fulfilled.
fn opens(spec: &NetworkPolicySpec, rule: NetworkRule, labels: &BTreeMap<String, String>) -> bool {
    let selected = spec.pod_selector.as_ref().and_then(|selector| selector.match_labels.as_ref());
    let is_selected =
        selected.into_iter().flatten().all(|(name, value)| labels.get(name) == Some(value));
    let lets_in = spec.ingress.as_ref().is_some_and(|rules| !rules.is_empty());
    let lets_out = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
    is_selected && (lets_in || (lets_out && rule == NetworkRule::Closed))
}

/// Tells whether two specifications are the same. The API server may leave out empty lists.
fn is_same(found: Option<&NetworkPolicySpec>, wanted: Option<&NetworkPolicySpec>) -> bool {
    let normal = |spec: Option<&NetworkPolicySpec>| {
        let mut spec = spec.cloned().unwrap_or_default();
        spec.ingress = spec.ingress.filter(|rules| !rules.is_empty());
        spec.egress = spec.egress.filter(|rules| !rules.is_empty());
        spec
    };
    normal(found) == normal(wanted)
}

/// Tells whether an object of that name exists already.
pub(super) fn is_conflict(status: &Status) -> bool {
    status.code == 409
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_lets_more_through_opens_the_network() {
        let labels = BTreeMap::from([(own_key("network"), "closed".to_owned())]);
        let open = NetworkRule::Open.policy().spec.unwrap();
        let everywhere = NetworkPolicySpec { pod_selector: None, ..open.clone() };
        assert!(opens(&everywhere, NetworkRule::Closed, &labels));
        assert!(!opens(&everywhere, NetworkRule::Open, &labels));
        assert!(!opens(&open, NetworkRule::Closed, &labels)); // it selects another label
        let denial = NetworkPolicySpec { egress: None, ..everywhere };
        assert!(!opens(&denial, NetworkRule::Closed, &labels));
    }

    #[test]
    fn a_policy_with_other_rules_is_not_the_same() {
        let closed = NetworkRule::Closed.policy().spec.unwrap();
        let open = NetworkRule::Open.policy().spec.unwrap();
        let emptied = NetworkPolicySpec { ingress: Some(Vec::new()), ..closed.clone() };
        assert!(is_same(Some(&emptied), Some(&closed)));
        assert!(!is_same(Some(&open), Some(&closed)));
        let widened =
            NetworkPolicySpec { policy_types: Some(vec!["Ingress".to_owned()]), ..closed.clone() };
        assert!(!is_same(Some(&widened), Some(&closed)));
        assert!(!is_same(None, Some(&closed)));
    }
}
