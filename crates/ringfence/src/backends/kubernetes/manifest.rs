//! Manifests that an administrator applies to a namespace: its least rights, its security level,
//! its network policies and its quota.

use std::fmt::Write;

use k8s_openapi::Resource;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::{
    Container, Namespace, PodSecurityContext, PodSpec, PodTemplateSpec, ResourceQuota,
    ResourceQuotaSpec, SeccompProfile, ServiceAccount,
};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

use super::access::role_rules;
use super::network::NetworkRule;
use super::pod::{MANAGED_BY, hardening};
use crate::Root;

/// Name of the account and of its role.
const ACCOUNT: &str = "ringfence";
/// Image that contains the program `ringfence`.
const SERVER_IMAGE: &str = concat!("ringfence:", env!("CARGO_PKG_VERSION"));
/// Level of Pod Security that every pod of ringfence passes.
const SECURITY_LEVEL: &str = "restricted";

/// Kind of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterManifest {
    /// The namespace, with the Pod Security level `restricted`.
    Namespace,
    /// An account with the least role with which the backend works.
    Role,
    /// The network policies that sandboxes share.
    NetworkPolicy,
    /// A quota for the pods of the namespace, to be adapted.
    Quota,
    /// A CronJob that removes sandboxes that nobody keeps. It acts as the account of the role.
    Sweeper,
}

impl ClusterManifest {
    /// Returns the manifest for `namespace`, as YAML.
    pub fn to_yaml(self, namespace: &str) -> String {
        let metadata = |name: &str| ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())].into()),
            ..ObjectMeta::default()
        };
        match self {
            ClusterManifest::Namespace => document(&Namespace {
                metadata: ObjectMeta {
                    name: Some(namespace.to_owned()),
                    labels: Some(
                        ["enforce", "warn"]
                            .map(|mode| {
                                let label = format!("pod-security.kubernetes.io/{mode}");
                                (label, SECURITY_LEVEL.to_owned())
                            })
                            .into(),
                    ),
                    ..ObjectMeta::default()
                },
                ..Namespace::default()
            }),
            ClusterManifest::Role => {
                let account = ServiceAccount {
                    metadata: metadata(ACCOUNT),
                    automount_service_account_token: Some(false),
                    ..ServiceAccount::default()
                };
                let role = Role { metadata: metadata(ACCOUNT), rules: Some(role_rules()) };
                let binding = RoleBinding {
                    metadata: metadata(ACCOUNT),
                    role_ref: RoleRef {
                        api_group: "rbac.authorization.k8s.io".to_owned(),
                        kind: "Role".to_owned(),
                        name: ACCOUNT.to_owned(),
                    },
                    subjects: Some(vec![Subject {
                        kind: "ServiceAccount".to_owned(),
                        name: ACCOUNT.to_owned(),
                        namespace: Some(namespace.to_owned()),
                        api_group: None,
                    }]),
                };
                [document(&account), document(&role), document(&binding)].join("---\n")
            }
            ClusterManifest::NetworkPolicy => {
                let policies = [NetworkRule::Closed, NetworkRule::Open].map(|rule| {
                    let mut policy = rule.policy();
                    policy.metadata.namespace = Some(namespace.to_owned());
                    document(&policy)
                });
                policies.join("---\n")
            }
            ClusterManifest::Quota => {
                let hard = [
                    ("pods", "50"),
                    ("limits.cpu", "50"),
                    ("limits.memory", "64Gi"),
                    ("requests.ephemeral-storage", "200Gi"),
                    ("count/jobs.batch", "50"),
                ];
                let hard = hard.map(|(name, limit)| (name.to_owned(), Quantity(limit.to_owned())));
                document(&ResourceQuota {
                    metadata: metadata(ACCOUNT),
                    spec: Some(ResourceQuotaSpec {
                        hard: Some(hard.into()),
                        ..ResourceQuotaSpec::default()
                    }),
                    status: None,
                })
            }
            ClusterManifest::Sweeper => document(&CronJob {
                metadata: metadata("ringfence-sweep"),
                spec: Some(CronJobSpec {
                    schedule: "*/10 * * * *".to_owned(),
                    concurrency_policy: Some("Forbid".to_owned()),
                    job_template: JobTemplateSpec {
                        metadata: None,
                        spec: Some(JobSpec {
                            backoff_limit: Some(0),
                            active_deadline_seconds: Some(300),
                            template: PodTemplateSpec { metadata: None, spec: Some(sweeper_pod()) },
                            ..JobSpec::default()
                        }),
                    },
                    ..CronJobSpec::default()
                }),
                status: None,
            }),
        }
    }
}

/// Returns the pod of the CronJob that sweeps.
fn sweeper_pod() -> PodSpec {
    let command = ["/ringfence", "kubernetes", "sweep"].map(str::to_owned);
    PodSpec {
        service_account_name: Some(ACCOUNT.to_owned()),
        automount_service_account_token: Some(true),
        restart_policy: Some("Never".to_owned()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(1000),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        containers: vec![Container {
            name: "sweep".to_owned(),
            image: Some(SERVER_IMAGE.to_owned()),
            command: Some(command.into()),
            security_context: Some(hardening(Root::ReadOnly)),
            ..Container::default()
        }],
        ..PodSpec::default()
    }
}

/// Returns an object as a document in YAML.
fn document<K: Resource + Serialize>(object: &K) -> String {
    let mut text = String::new();
    let value = serde_json::to_value(object).expect("an object of the API is JSON");
    write_value(&mut text, &value, 0);
    text
}

/// Writes a value in YAML. Texts are quoted as in JSON, which YAML contains.
fn write_value(text: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    let is_nested = |value: &Value| match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty() && items.iter().any(|item| !item.is_string()),
        _ => false,
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let quoted = Value::String(name.clone());
                let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric());
                let name = if is_plain { name.clone() } else { quoted.to_string() };
                // Writing to a string cannot fail.
                let _ = if is_nested(value) {
                    writeln!(text, "{indent}{name}:")
                } else {
                    writeln!(text, "{indent}{name}: {value}")
                };
                if is_nested(value) {
                    write_value(text, value, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                write_value(&mut inner, item, depth + 1);
                let inner = inner.trim_start();
                let _ = if inner.is_empty() {
                    writeln!(text, "{indent}- {item}")
                } else {
                    write!(text, "{indent}- {inner}")
                };
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_yaml_with_every_field() {
        let yaml = ClusterManifest::Role.to_yaml("agents");
        for line in [
            "kind: \"Role\"",
            "  namespace: \"agents\"",
            "  - apiGroups: [\"\"]",
            "    resources: [\"pods/exec\"]",
            "    verbs: [\"create\",\"get\"]",
        ] {
            assert!(yaml.lines().any(|found| found == line), "{line}:\n{yaml}");
        }
        assert_eq!(yaml.matches("\n---\n").count(), 2);
        let policies = ClusterManifest::NetworkPolicy.to_yaml("agents");
        assert!(policies.contains("- {}\n"), "{policies}");
        let namespace = ClusterManifest::Namespace.to_yaml("agents");
        assert!(
            namespace.contains("\"pod-security.kubernetes.io/enforce\": \"restricted\"\n"),
            "{namespace}"
        );
    }
}
