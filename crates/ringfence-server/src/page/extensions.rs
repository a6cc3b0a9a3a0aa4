//! Calls that E2B's API does not have: the promises of a sandbox and their reasons, and the list of
//! templates.

use hyper::StatusCode;
use ringfence::policy::Network;
use ringfence::{Clause, NetworkReach, Support};
use serde::Serialize;

use crate::api::control::OwnerCalls;
use crate::api::network::manifest_of;
use crate::api::reply::{Refusal, Reply, json};

/// Information about a server that needs no key.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServerInfo {
    needs_key: bool,
}

/// Answers whether the server needs an API key.
pub(crate) fn server(needs_key: bool) -> Reply {
    json(StatusCode::OK, &ServerInfo { needs_key })
}

/// Template for sandboxes, as listed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TemplateInfo<'a> {
    name: &'a str,
    network: &'static str,
}

/// Information about the isolation of a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct IsolationInfo<'a> {
    backend: &'static str,
    because: &'a str,
    image: Option<&'a str>,
    network: &'a NetworkReach,
    promises: Vec<Promise<'a>>,
    /// Policy as TOML, with all defaults filled in and without the values of variables.
    policy: String,
    policy_sha256: &'a str,
}

/// Promise and the mechanism that enforces it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Promise<'a> {
    name: &'static str,
    promise: &'static str,
    state: PromiseStrength,
    by: &'a str,
}

/// Degree to which a promise is held.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum PromiseStrength {
    Held,
    Weaker,
    Absent,
}

impl<'a> Promise<'a> {
    /// Creates a promise from the support that a manifest has for its clause.
    fn from_clause(clause: Clause, support: &'a Support) -> Promise<'a> {
        let (state, by) = match support {
            Support::Enforced { by } => (PromiseStrength::Held, by),
            Support::Weaker { how } => (PromiseStrength::Weaker, how),
            Support::Absent { why, .. } => (PromiseStrength::Absent, why),
        };
        Promise { name: clause.name(), promise: clause.promise(), state, by }
    }
}

impl OwnerCalls<'_> {
    /// Answers with the list of templates.
    pub(crate) fn templates(&self) -> Reply {
        let infos = self.server.templates.iter().map(|(name, template)| TemplateInfo {
            name,
            network: match template.network {
                Network::Closed => "closed",
                Network::Allow(_) => "allow",
                Network::Open => "open",
            },
        });
        json(StatusCode::OK, &infos.collect::<Vec<_>>())
    }

    /// Answers with the information about the isolation of a sandbox.
    pub(crate) fn isolation_info(&self, id: &str) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let manifest = manifest_of(&managed)?;
        let info = IsolationInfo {
            backend: manifest.backend.name(),
            because: &manifest.chosen_because,
            image: manifest.container.as_ref().map(|container| container.image.as_str()),
            network: &manifest.network,
            promises: manifest
                .held
                .iter()
                .map(|(clause, by)| Promise::from_clause(*clause, by))
                .collect(),
            policy: toml::to_string(&manifest.policy)
                .expect("a policy is made of tables and plain values"),
            policy_sha256: &manifest.policy_sha256,
        };
        Ok(json(StatusCode::OK, &info))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_that_is_not_held_is_not_said_to_be() {
        let check = |text: &'static str, state, by| {
            let support = Support::from_text(text);
            let Promise { state: found, by: evidence, .. } =
                Promise::from_clause(Clause::Filesystem, &support);
            assert_eq!((found, evidence), (state, by));
        };
        check("mount namespace+landlock", PromiseStrength::Held, "mount namespace+landlock");
        check("bubblewrap: mount namespace", PromiseStrength::Held, "bubblewrap: mount namespace");
        check("weaker: names can be read", PromiseStrength::Weaker, "names can be read");
        check("absent: no isolation", PromiseStrength::Absent, "no isolation");
    }
}
