//! Rights that the backend needs in its namespace, and the question whether the account has them.

use futures_util::future::try_join_all;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;

use super::cluster::{Cluster, creation};
use super::error::ClusterFailure;

/// Rule of a role: verbs on resources of one API group.
#[derive(Debug, Clone, Copy)]
struct NeededRights {
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
}

/// Everything that the backend does with the API, and nothing else.
const NEEDED_RIGHTS: [NeededRights; 4] = [
    NeededRights {
        group: "",
        resources: &["pods"],
        verbs: &["create", "delete", "get", "list", "patch", "watch"],
    },
    // A WebSocket is opened with GET, and executing a program counts as creation.
    NeededRights { group: "", resources: &["pods/exec"], verbs: &["create", "get"] },
    NeededRights { group: "batch", resources: &["jobs"], verbs: &["create", "delete", "get"] },
    NeededRights {
        group: "networking.k8s.io",
        resources: &["networkpolicies"],
        verbs: &["create", "get", "list"],
    },
];

/// Returns the rules of the least role with which the backend works.
pub(super) fn role_rules() -> Vec<PolicyRule> {
    let strings = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let rule = |rights: &NeededRights| PolicyRule {
        api_groups: Some(vec![rights.group.to_owned()]),
        resources: Some(strings(rights.resources)),
        verbs: strings(rights.verbs),
        ..PolicyRule::default()
    };
    NEEDED_RIGHTS.iter().map(rule).collect()
}

/// Asks the API server for each right of the account. Fails with the first missing right, and the
/// line of the role that would give it.
pub(super) async fn check_access(cluster: &Cluster) -> Result<(), ClusterFailure> {
    let asked = NEEDED_RIGHTS.iter().flat_map(|rights| {
        let resources = rights.resources.iter();
        resources.flat_map(move |&resource| {
            rights.verbs.iter().map(move |&verb| (rights.group, resource, verb))
        })
    });
    let answers = asked.map(async |(group, resource, verb)| {
        let is_allowed = is_allowed(cluster, group, resource, verb).await?;
        Ok::<_, ClusterFailure>((group, resource, verb, is_allowed))
    });
    let answers = try_join_all(answers).await?;
    match answers.into_iter().find(|(.., is_allowed)| !is_allowed) {
        None => Ok(()),
        Some((group, resource, verb, _)) => Err(ClusterFailure::Forbidden {
            what: format!("{verb} {resource}"),
            namespace: cluster.namespace.clone(),
            message: format!(
                "its role lacks the rule {{apiGroups: [\"{group}\"], resources: [{resource}], \
                 verbs: [{verb}]}}"
            ),
        }),
    }
}

async fn is_allowed(
    cluster: &Cluster,
    group: &str,
    resource: &str,
    verb: &str,
) -> Result<bool, ClusterFailure> {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (resource, None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                namespace: Some(cluster.namespace.clone()),
                resource: Some(resource.to_owned()),
                subresource,
                verb: Some(verb.to_owned()),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client().clone());
    let parameters = creation();
    let answer = reviews.create(&parameters, &review);
    let answer = cluster.ask("ask for the rights of the account", answer).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
