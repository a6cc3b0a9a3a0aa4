//! Comparison of a pod with what the API server made of it: admission webhooks and limit ranges may
//! change pods.

use k8s_openapi::api::core::v1::{
    Container, Pod, PodSpec, ResourceRequirements, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Returns the first difference between a pod as it was meant and as the cluster has it, in the
/// parts on which a promise depends.
pub(super) fn difference(meant: &PodSpec, found: &Pod) -> Option<String> {
    let Some(found) = &found.spec else { return Some("it has no specification".to_owned()) };
    let shares_host = [found.host_network, found.host_pid, found.host_ipc].contains(&Some(true));
    if shares_host {
        return Some("it shares a namespace with its node".to_owned());
    }
    if found.share_process_namespace == Some(true) {
        return Some("its containers share their processes".to_owned());
    }
    if found.automount_service_account_token != Some(false) {
        return Some("a token of the cluster is mounted".to_owned());
    }
    if found.security_context != meant.security_context {
        return Some("its securityContext was changed".to_owned());
    }
    if found.runtime_class_name != meant.runtime_class_name {
        return Some(format!(
            "its RuntimeClass is `{}`",
            found.runtime_class_name.as_deref().unwrap_or("none")
        ));
    }
    if found.ephemeral_containers.as_ref().is_some_and(|list| !list.is_empty()) {
        return Some("it has a debugging container".to_owned());
    }
    let meant_init = meant.init_containers.as_deref().unwrap_or_default();
    let found_init = found.init_containers.as_deref().unwrap_or_default();
    containers_difference(meant_init, found_init)
        .or_else(|| containers_difference(&meant.containers, &found.containers))
        .or_else(|| volumes_difference(meant, found))
}

fn containers_difference(meant: &[Container], found: &[Container]) -> Option<String> {
    let added = found.iter().find(|found| meant.iter().all(|meant| meant.name != found.name));
    if let Some(added) = added {
        return Some(format!("the container `{}` was added", added.name));
    }
    meant.iter().find_map(|meant| {
        let name = &meant.name;
        let Some(found) = found.iter().find(|found| found.name == *name) else {
            return Some(format!("the container `{name}` was removed"));
        };
        container_difference(meant, found)
            .map(|part| format!("{part} of the container `{name}` was changed"))
    })
}

fn container_difference(meant: &Container, found: &Container) -> Option<&'static str> {
    let no_mounts: &[VolumeMount] = &[];
    let mounts = |container: &Container| {
        let mounts = container.volume_mounts.as_deref().unwrap_or(no_mounts).to_vec();
        // Some versions of Kubernetes write the default of this field.
        let plain = mounts.into_iter().map(|mount| VolumeMount {
            recursive_read_only: mount.recursive_read_only.filter(|mode| mode != "Disabled"),
            read_only: mount.read_only.filter(|is_read_only| *is_read_only),
            ..mount
        });
        plain.collect::<Vec<_>>()
    };
    let checks = [
        (meant.image == found.image, "the image"),
        (meant.command == found.command && meant.args == found.args, "the command"),
        (without_empty(&meant.env) == without_empty(&found.env), "the environment"),
        (found.env_from.as_ref().is_none_or(Vec::is_empty), "the environment"),
        (meant.security_context == found.security_context, "the securityContext"),
        (mounts(meant) == mounts(found), "the list of mounts"),
        (found.lifecycle.is_none(), "the lifecycle"),
        (
            are_same_resources(meant.resources.as_ref(), found.resources.as_ref()),
            "a limit or request",
        ),
    ];
    checks.into_iter().find(|(is_same, _)| !is_same).map(|(_, part)| part)
}

fn without_empty<T: Clone>(list: &Option<Vec<T>>) -> Vec<T> {
    list.clone().unwrap_or_default()
}

fn volumes_difference(meant: &PodSpec, found: &PodSpec) -> Option<String> {
    let volumes = |spec: &PodSpec| spec.volumes.clone().unwrap_or_default();
    let (meant, found) = (volumes(meant), volumes(found));
    let names =
        |volumes: &[Volume]| volumes.iter().map(|volume| volume.name.clone()).collect::<Vec<_>>();
    if names(&meant) != names(&found) {
        return Some("its list of volumes was changed".to_owned());
    }
    let changed = meant.iter().zip(&found).find(|(meant, found)| {
        let limits = [meant, found].map(|volume| {
            let source = volume.empty_dir.as_ref();
            source.map(|source| {
                (source.medium.clone().unwrap_or_default(), source.size_limit.as_ref().map(number))
            })
        });
        limits[0] != limits[1]
    });
    changed.map(|(volume, _)| format!("its volume `{}` was changed", volume.name))
}

fn are_same_resources(
    meant: Option<&ResourceRequirements>,
    found: Option<&ResourceRequirements>,
) -> bool {
    let (Some(meant), Some(found)) = (meant, found) else { return meant.is_none() };
    let has_same = |name: &str| {
        let value = |resources: &ResourceRequirements| {
            let limit = resources.limits.as_ref().and_then(|limits| limits.get(name)).map(number);
            let request =
                resources.requests.as_ref().and_then(|requests| requests.get(name)).map(number);
            (limit, request)
        };
        value(meant) == value(found)
    };
    ["cpu", "memory", "ephemeral-storage"].into_iter().all(has_same)
}

/// Returns the value of a quantity in thousandths. The API server writes quantities in its own
/// form: 1000m becomes 1. A quantity that cannot be read equals no other one.
fn number(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.as_str();
    let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.');
    let (value, unit) = text.split_at(digits.unwrap_or(text.len()));
    let factor: i128 = match unit {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        _ => return None,
    };
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    Some(digits.checked_mul(factor)? / scale)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use k8s_openapi::api::core::v1::EnvVar;
    use ringfence_core::policy::{Limits, Size};
    use ringfence_core::settings::KubernetesConfig;

    use super::super::network::NetworkRule;
    use super::super::pod::PodInputs;
    use super::*;
    use crate::ContainerSpec;

    fn pod() -> Pod {
        PodInputs {
            sandbox: "one",
            owner: "0123",
            settings: &KubernetesConfig::default(),
            container: &ContainerSpec::default(),
            image: "image",
            guest_image: "guest",
            limits: &Limits { memory: Some(Size::mebibytes(64)), ..Limits::default() },
            network: NetworkRule::Closed,
            workspace: Path::new("/workspace"),
            token_hash: "00",
            lease_until: "2026-01-01T00:00:00Z",
        }
        .pod()
    }

    /// Checks what is said about a pod that `change` changed.
    #[track_caller]
    fn check(change: impl FnOnce(&mut PodSpec), expected: Option<&str>) {
        let (meant, mut found) = (pod(), pod());
        change(found.spec.as_mut().unwrap());
        assert_eq!(difference(&meant.spec.unwrap(), &found).as_deref(), expected);
    }

    #[test]
    fn a_pod_that_only_has_other_words_for_its_limits_is_as_meant() {
        check(|_| {}, None);
        check(
            |spec| {
                let limits = spec.containers[0].resources.as_mut().unwrap();
                let limits = limits.limits.as_mut().unwrap();
                limits.insert("memory".to_owned(), Quantity("64Mi".to_owned()));
                limits.insert("cpu".to_owned(), Quantity("1".to_owned()));
                spec.node_name = Some("node".to_owned());
                spec.containers[0].termination_message_path = Some("/dev/log".to_owned());
            },
            None,
        );
    }

    #[test]
    fn each_change_that_a_promise_depends_on_is_found() {
        check(
            |spec| {
                let mut other = spec.containers[0].clone();
                other.name = "sidecar".to_owned();
                spec.containers.push(other);
            },
            Some("the container `sidecar` was added"),
        );
        check(
            |spec| {
                let limits = spec.containers[0].resources.as_mut().unwrap();
                let limits = limits.limits.as_mut().unwrap();
                limits.insert("memory".to_owned(), Quantity("65Mi".to_owned()));
            },
            Some("a limit or request of the container `sandbox` was changed"),
        );
        check(
            |spec| {
                spec.containers[0].env.as_mut().unwrap().push(EnvVar {
                    name: "LD_PRELOAD".to_owned(),
                    value: Some("/x".to_owned()),
                    value_from: None,
                });
            },
            Some("the environment of the container `sandbox` was changed"),
        );
        check(
            |spec| spec.containers[0].security_context = None,
            Some("the securityContext of the container `sandbox` was changed"),
        );
        check(|spec| spec.host_network = Some(true), Some("it shares a namespace with its node"));
        check(
            |spec| spec.automount_service_account_token = None,
            Some("a token of the cluster is mounted"),
        );
        check(
            |spec| spec.volumes.as_mut().unwrap().clear(),
            Some("its list of volumes was changed"),
        );
        check(
            |spec| spec.containers[0].volume_mounts.as_mut().unwrap()[0].read_only = None,
            Some("the list of mounts of the container `sandbox` was changed"),
        );
    }

    #[test]
    fn quantities_in_different_units_are_equal() {
        let value = |text: &str| number(&Quantity(text.to_owned()));
        assert_eq!(value("1"), value("1000m"));
        assert_eq!(value("1Gi"), value("1073741824"));
        assert_eq!(value("1.5"), value("1500m"));
        assert_ne!(value("1G"), value("1Gi"));
        assert_eq!(value("x"), None);
    }
}
