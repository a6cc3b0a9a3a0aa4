//! Network of a sandbox: the request of a client, checked against the network of the template. A
//! client may only narrow the network of its template.

use std::collections::HashSet;
use std::sync::Arc;

use hyper::{Request, StatusCode};
use ringfence::Manifest;
use ringfence::egress::ChangeError;
use ringfence::policy::{Egress, HostRule, Network};
use ringfence_service::exchange::RequestBody;
use serde::Serialize;

use crate::api::control::{OwnerCalls, body};
use crate::api::reply::{Refusal, Reply, bare};
use crate::api::requests::{NetworkChange, NetworkRequest};
use crate::lifecycle::registry::ManagedSandbox;
use crate::run_to_completion;
use crate::storage::store::SandboxRecord;

/// Entries in a client's list that stand for all addresses.
const ALL_ADDRESSES: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Network that a client asks for, relative to the network of its template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WantedNetwork {
    /// The whole network of the template.
    Template,
    /// No network at all.
    Nothing,
    /// The hosts in `allow`, except those in `deny`.
    Only { allow: Vec<HostRule>, deny: Vec<HostRule> },
    /// The network of the template, except these hosts.
    Without(Vec<HostRule>),
}

impl WantedNetwork {
    /// Parses the request of a client. Refuses fields that the server does not support, and hosts
    /// beyond the template.
    pub(crate) fn from_request(
        template: &Network,
        allows_internet: Option<bool>,
        asked: Option<&NetworkRequest>,
    ) -> Result<WantedNetwork, Refusal> {
        if let Some(field) = asked.and_then(unsupported_field) {
            return Err(Refusal::wrong(format!(
                "this server does not support `network.{field}`: leave it out"
            )));
        }
        let (allows_everything, allow) =
            rules("allowOut", asked.and_then(|asked| asked.allow_out.as_deref()))?;
        let (denies_everything, deny) =
            rules("denyOut", asked.and_then(|asked| asked.deny_out.as_deref()))?;
        if allows_internet == Some(false) {
            return Ok(WantedNetwork::Nothing);
        }
        if allows_everything || !denies_everything {
            // Unless the client denies everything, its allowed hosts change nothing: the template
            // decides.
            return match (template, deny.as_slice()) {
                (_, []) | (Network::Closed, _) => Ok(WantedNetwork::Template),
                (Network::Allow(_), _) => Ok(WantedNetwork::Without(deny)),
                (Network::Open, _) => Err(Refusal::wrong(
                    "this template allows every host, so `network.denyOut` must deny every host: \
                     add 0.0.0.0/0 to it, and add the hosts that the sandbox needs to \
                     `network.allowOut`",
                )),
            };
        }
        if allow.is_empty() {
            return Ok(WantedNetwork::Nothing);
        }
        let beyond =
            |why: &str| Err(Refusal::wrong(format!("`network.allowOut`: the template {why}")));
        match template {
            Network::Open => {}
            Network::Allow(egress) if egress.observe => {
                return beyond("allows every host that it does not deny");
            }
            Network::Allow(egress) => {
                if let Some(rule) = allow.iter().find(|rule| !rule.is_covered_by(&egress.allow)) {
                    return beyond(&format!("does not allow `{rule}`"));
                }
            }
            Network::Closed => return beyond("allows no host"),
        }
        Ok(WantedNetwork::Only { allow, deny })
    }

    /// Returns the network of a new sandbox, or `None` if it is that of the template.
    pub(crate) fn narrowed(self, template: &Network) -> Option<Network> {
        match self {
            WantedNetwork::Template => None,
            WantedNetwork::Nothing if *template == Network::Closed => None,
            WantedNetwork::Nothing => Some(Network::Closed),
            wanted => {
                let own = template.egress().cloned().unwrap_or_default();
                Some(wanted.network(template, &own))
            }
        }
    }

    /// Returns the network of a sandbox of the template. `own` supplies the options that are fixed
    /// at the start of the sandbox.
    fn network(self, template: &Network, own: &Egress) -> Network {
        let theirs = template.egress().cloned().unwrap_or_default();
        let (allow, deny) = match self {
            WantedNetwork::Template if *template == Network::Open => return Network::Open,
            WantedNetwork::Template => (theirs.allow, Vec::new()),
            WantedNetwork::Nothing => (Vec::new(), Vec::new()),
            WantedNetwork::Only { allow, deny } => (allow, deny),
            WantedNetwork::Without(deny) => (theirs.allow, deny),
        };
        // A client may repeat rules that the server listed for it.
        let known: HashSet<HostRule> = theirs.deny.iter().cloned().collect();
        let more = deny.into_iter().filter(|rule| !known.contains(rule));
        let deny = theirs.deny.into_iter().chain(more).collect();
        Network::Allow(Egress { allow, deny, transparent: own.transparent, observe: own.observe })
    }
}

impl From<NetworkChange> for NetworkRequest {
    fn from(change: NetworkChange) -> NetworkRequest {
        let NetworkChange { allow_out, deny_out, dns_servers, egress_proxy, rules, .. } = change;
        NetworkRequest {
            allow_out,
            deny_out,
            dns_servers,
            egress_proxy,
            rules,
            ..NetworkRequest::default()
        }
    }
}

/// Returns the new rules for a sandbox with the network `own`, or `None` if nothing changes.
/// Refuses a change that the sandbox does not support.
fn change(
    wanted: WantedNetwork,
    template: &Network,
    own: &Network,
) -> Result<Option<Egress>, Refusal> {
    let is_nothing = wanted == WantedNetwork::Nothing
        || (wanted == WantedNetwork::Template && *template == Network::Closed);
    // The template may have changed since the sandbox was started.
    let is_list = matches!(wanted, WantedNetwork::Only { .. })
        || template.egress().is_some_and(|egress| !egress.observe);
    match own {
        Network::Closed if is_nothing => Ok(None),
        Network::Closed => Err(Refusal::unsupported(
            "the sandbox was started with a closed network, which cannot be opened: create another \
             sandbox",
        )),
        Network::Open if wanted == WantedNetwork::Template && *template == Network::Open => {
            Ok(None)
        }
        Network::Open => Err(Refusal::unsupported(
            "the sandbox was started with an open network, which cannot be restricted: create \
             another sandbox with `network.allowOut`",
        )),
        Network::Allow(own) if own.observe && (is_nothing || is_list) => Err(Refusal::unsupported(
            "the sandbox was started to reach every host that is not denied, which cannot be \
             restricted: create another sandbox",
        )),
        Network::Allow(own) => match wanted.network(template, own) {
            Network::Allow(egress) => Ok(Some(egress)),
            _ => Err(Refusal::unsupported(
                "the sandbox was started with a list of allowed hosts, and cannot be changed to \
                 reach every host: give another list, with 0.0.0.0/0 in `denyOut`, or create \
                 another sandbox",
            )),
        },
    }
}

impl OwnerCalls<'_> {
    /// Replaces the network of a sandbox. Answers once the new rules are in force.
    pub(crate) async fn set_network(
        &self,
        id: &str,
        request: Request<RequestBody>,
    ) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let asked: NetworkChange = body(request).await?;
        let Some(template) = self.server.templates.get(&managed.record.template) else {
            let message = format!(
                "the template `{}` of the sandbox no longer exists, so its network cannot be \
                 changed",
                managed.record.template
            );
            return Err(Refusal::wrong(message));
        };
        let allows_internet = asked.allow_internet_access;
        let wanted =
            WantedNetwork::from_request(&template.network, allows_internet, Some(&asked.into()))?;
        let own = network_of(&managed)?;
        if let Some(egress) = change(wanted, &template.network, &own)? {
            let sandbox = managed.sandbox.clone();
            run_to_completion(async move { sandbox.set_egress(egress).await }).await.map_err(
                |error| match error {
                    ChangeError::Unreachable { .. }
                    | ChangeError::Directory(_)
                    | ChangeError::Refused { .. } => {
                        tracing::error!(
                            id,
                            error = ringfence::chain(&error),
                            "cannot change the network of a sandbox"
                        );
                        Refusal::failed(format!(
                            "the network of sandbox `{id}` could not be changed; the log of the \
                             server says why"
                        ))
                    }
                    ChangeError::TooLong { .. } => Refusal::wrong(error.to_string()),
                    error => Refusal::unsupported(error.to_string()),
                },
            )?;
            tracing::info!(id, "changed the network of a sandbox");
        }
        Ok(bare(StatusCode::NO_CONTENT))
    }
}

/// Returns the current manifest of a sandbox.
pub(crate) fn manifest_of(managed: &ManagedSandbox) -> Result<Arc<Manifest>, Refusal> {
    managed.sandbox.current_manifest().map_err(|error| {
        tracing::error!(
            id = managed.record.id,
            error = ringfence::chain(&error),
            "cannot read the manifest of a sandbox"
        );
        Refusal::failed(
            "the network of the sandbox could not be read; the log of the server says why",
        )
    })
}

/// Returns the current network of a sandbox.
pub(crate) fn network_of(managed: &ManagedSandbox) -> Result<Network, Refusal> {
    Ok(manifest_of(managed)?.policy.network.clone().unwrap_or(Network::Closed))
}

/// Network of a sandbox, as the lists that a client could ask for to get it.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetworkInfo {
    allow_out: Vec<String>,
    deny_out: Vec<String>,
    allow_public_traffic: bool,
}

/// Returns the request that gives a sandbox this network, or `None` if the network is that of the
/// template.
pub(crate) fn narrowing(network: &Network, template: Option<&Network>) -> Option<NetworkRequest> {
    let (allow_out, deny_out) = lists(network);
    let asked = NetworkRequest {
        allow_out: Some(allow_out),
        deny_out: Some(deny_out),
        ..NetworkRequest::default()
    };
    (template != Some(network)).then_some(asked)
}

/// Returns the lists of allowed and denied hosts that describe a network.
fn lists(network: &Network) -> (Vec<String>, Vec<String>) {
    let text = |rules: &[HostRule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>();
    let everything = ALL_ADDRESSES[0].to_owned();
    match network {
        Network::Open => (Vec::new(), Vec::new()),
        Network::Closed => (Vec::new(), vec![everything]),
        Network::Allow(egress) if egress.observe => (Vec::new(), text(&egress.deny)),
        Network::Allow(egress) => {
            (text(&egress.allow), [vec![everything], text(&egress.deny)].concat())
        }
    }
}

impl NetworkInfo {
    pub(crate) fn from_network(network: &Network, record: &SandboxRecord) -> NetworkInfo {
        let (allow_out, deny_out) = lists(network);
        NetworkInfo { allow_out, deny_out, allow_public_traffic: record.traffic_token.is_none() }
    }

    /// Returns whether the network reaches anything.
    pub(crate) fn reaches_something(&self) -> bool {
        !self.allow_out.is_empty()
            || !self.deny_out.iter().any(|rule| ALL_ADDRESSES.contains(&rule.as_str()))
    }
}

/// Returns whether a request says what the sandbox may reach.
pub(crate) fn is_requested(allows_internet: Option<bool>, asked: Option<&NetworkRequest>) -> bool {
    allows_internet == Some(false)
        || asked.is_some_and(|asked| asked.allow_out.is_some() || asked.deny_out.is_some())
}

/// Returns the name of a field that the client set and the server does not support, if any.
fn unsupported_field(asked: &NetworkRequest) -> Option<&'static str> {
    let given = [
        ("maskRequestHost", asked.mask_request_host.is_some()),
        ("dnsServers", asked.dns_servers.as_ref().is_some_and(|servers| !servers.is_empty())),
        ("egressProxy", asked.egress_proxy.as_ref().is_some_and(|proxy| !proxy.is_null())),
        ("httpsPorts", asked.https_ports.as_ref().is_some_and(|ports| !ports.is_empty())),
        ("rules", asked.rules.as_ref().is_some_and(|rules| !rules.is_empty())),
    ];
    given.into_iter().find_map(|(field, is_given)| is_given.then_some(field))
}

/// Parses a client's list. Returns whether the list contains an entry for everything, and its other
/// rules.
fn rules(field: &str, listed: Option<&[String]>) -> Result<(bool, Vec<HostRule>), Refusal> {
    let (everything, others): (Vec<&str>, Vec<&str>) = listed
        .into_iter()
        .flatten()
        .map(String::as_str)
        .partition(|rule| ALL_ADDRESSES.contains(rule));
    let parse = |text: &str| {
        let wrong =
            |error| Refusal::wrong(format!("`network.{field}`: {}", ringfence::chain(&error)));
        text.parse::<HostRule>().map_err(wrong)
    };
    let rules: Result<Vec<HostRule>, Refusal> = others.into_iter().map(parse).collect();
    Ok((!everything.is_empty(), rules?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the flags of `ringfence up` that would turn the network of the template into the
    /// network of the new sandbox.
    fn as_flags(wanted: WantedNetwork, template: &Network) -> String {
        let theirs = template.egress().cloned().unwrap_or_default();
        let list = |flag: &str, rules: Vec<HostRule>| -> Vec<String> {
            rules.iter().map(|rule| format!("{flag} {rule}")).collect()
        };
        match wanted.narrowed(template) {
            None => String::new(),
            Some(Network::Closed) => "--net closed".to_owned(),
            Some(Network::Open) => "--net open".to_owned(),
            Some(Network::Allow(Egress { allow, deny, transparent, observe })) => {
                assert_eq!((transparent, observe), (theirs.transparent, theirs.observe));
                let allow = if allow == theirs.allow { Vec::new() } else { allow };
                let deny = deny.into_iter().filter(|rule| !theirs.deny.contains(rule)).collect();
                [list("--allow", allow), list("--deny", deny)].concat().join(" ")
            }
        }
    }

    #[track_caller]
    fn check(template: &Network, asked: &str, expected: Result<&str, &str>) {
        let asked: NetworkRequest = serde_json::from_str(asked).unwrap();
        let found = WantedNetwork::from_request(template, Some(true), Some(&asked))
            .map(|wanted| as_flags(wanted, template));
        match expected {
            Ok(words) => assert_eq!(found.unwrap(), words),
            Err(why) => assert!(
                found.as_ref().is_err_and(|refusal| refusal.message.contains(why)),
                "{found:?}"
            ),
        }
    }

    #[test]
    fn a_client_may_narrow_what_its_template_lets_be_reached() {
        let open = Network::Open;
        check(&open, "{}", Ok(""));
        check(&open, r#"{"denyOut": ["0.0.0.0/0"]}"#, Ok("--net closed"));
        let one = r#"{"allowOut": ["example.org"], "denyOut": ["0.0.0.0/0"]}"#;
        check(&open, one, Ok("--allow example.org"));
        check(&open, r#"{"allowOut": ["example.org"]}"#, Ok(""));
        check(&open, r#"{"denyOut": ["example.org"]}"#, Err("add 0.0.0.0/0"));
        check(
            &open,
            r#"{"dnsServers": ["9.9.9.9"]}"#,
            Err("does not support `network.dnsServers`"),
        );

        let some = Network::only(["*.example.org".parse().unwrap()]);
        check(
            &some,
            r#"{"allowOut": ["a.example.org"], "denyOut": ["0.0.0.0/0"]}"#,
            Ok("--allow a.example.org"),
        );
        check(
            &some,
            r#"{"allowOut": ["example.net"], "denyOut": ["0.0.0.0/0"]}"#,
            Err("`example.net`"),
        );
        check(&some, r#"{"denyOut": ["b.example.org"]}"#, Ok("--deny b.example.org"));
        check(&Network::Closed, one, Err("allows no host"));
        check(&Network::Closed, "{}", Ok(""));
        check(&open, r#"{"allowOut": ["0.0.0.0/0"], "denyOut": ["0.0.0.0/0"]}"#, Ok(""));
        check(
            &some,
            r#"{"allowOut": ["0.0.0.0/0"], "denyOut": ["0.0.0.0/0", "b.example.org"]}"#,
            Ok("--deny b.example.org"),
        );
    }

    #[test]
    fn an_invalid_list_is_refused_under_every_template() {
        let some = Network::only(["*.example.org".parse().unwrap()]);
        for template in [Network::Open, Network::Closed, some] {
            check(&template, r#"{"denyOut": ["1.2.3.4/99"]}"#, Err("`network.denyOut`: "));
            check(
                &template,
                r#"{"denyOut": ["0.0.0.0/0", "nonsense!!"]}"#,
                Err("`network.denyOut`: "),
            );
            check(&template, r#"{"allowOut": ["nonsense!!"]}"#, Err("`network.allowOut`: "));
        }
    }

    #[test]
    fn no_internet_is_none_whatever_the_template_says() {
        let flags = |template: Network, allows| {
            let wanted = WantedNetwork::from_request(&template, allows, None).unwrap();
            as_flags(wanted, &template)
        };
        assert_eq!(flags(Network::Open, Some(false)), "--net closed");
        assert_eq!(flags(Network::Open, None), "");
        assert_eq!(flags(Network::Closed, Some(false)), "");
    }

    fn list(text: &str) -> Vec<HostRule> {
        text.split_whitespace().map(|rule| rule.parse().unwrap()).collect()
    }

    /// Checks a change of a sandbox with the network `own`. `expected` holds the allowed and denied
    /// hosts after the change, or `None` if nothing changes, or the reason of the refusal.
    #[track_caller]
    fn change_to(
        own: &Network,
        template: &Network,
        asked: &str,
        expected: Result<Option<(&str, &str)>, &str>,
    ) {
        let asked: NetworkChange = serde_json::from_str(asked).unwrap();
        let allows = asked.allow_internet_access;
        let changed = WantedNetwork::from_request(template, allows, Some(&asked.into()))
            .and_then(|wanted| change(wanted, template, own))
            .map_err(|refusal| refusal.message);
        match expected {
            Ok(expected) => {
                let (expected, found) =
                    (expected.map(|(a, d)| (list(a), list(d))), changed.unwrap());
                assert_eq!(found.map(|egress| (egress.allow, egress.deny)), expected);
            }
            Err(why) => {
                assert!(changed.as_ref().is_err_and(|message| message.contains(why)), "{changed:?}")
            }
        }
    }

    #[test]
    fn a_change_replaces_all_and_never_reaches_beyond_the_template() {
        let template = Network::Allow(Egress {
            allow: list("*.example.org"),
            deny: list("b.example.org"),
            ..Egress::default()
        });
        let own = Network::only(list("a.example.org"));
        change_to(&own, &template, "{}", Ok(Some(("*.example.org", "b.example.org"))));
        change_to(
            &own,
            &template,
            r#"{"allow_internet_access": false}"#,
            Ok(Some(("", "b.example.org"))),
        );
        change_to(
            &own,
            &template,
            r#"{"denyOut": ["0.0.0.0/0"]}"#,
            Ok(Some(("", "b.example.org"))),
        );
        let some = r#"{"allowOut": ["c.example.org"], "denyOut": ["0.0.0.0/0", "d.example.org"]}"#;
        change_to(
            &own,
            &template,
            some,
            Ok(Some(("c.example.org", "b.example.org d.example.org"))),
        );
        let repeated =
            r#"{"allowOut": ["c.example.org"], "denyOut": ["0.0.0.0/0", "b.example.org"]}"#;
        change_to(&own, &template, repeated, Ok(Some(("c.example.org", "b.example.org"))));
        let without = r#"{"denyOut": ["d.example.org"]}"#;
        change_to(
            &own,
            &template,
            without,
            Ok(Some(("*.example.org", "b.example.org d.example.org"))),
        );
        let beyond = r#"{"allowOut": ["example.net"], "denyOut": ["0.0.0.0/0"]}"#;
        change_to(&own, &template, beyond, Err("does not allow `example.net`"));
        change_to(
            &own,
            &template,
            r#"{"dnsServers": ["9.9.9.9"]}"#,
            Err("does not support `network.dnsServers`"),
        );
        change_to(&own, &Network::Open, beyond, Ok(Some(("example.net", ""))));
        change_to(&own, &Network::Open, "{}", Err("cannot be changed to reach every host"));
    }

    #[test]
    fn a_sandbox_without_a_gate_keeps_its_network_or_refuses_the_change() {
        let one = r#"{"allowOut": ["example.org"], "denyOut": ["0.0.0.0/0"]}"#;
        for nothing in [r#"{"allow_internet_access": false}"#, r#"{"denyOut": ["0.0.0.0/0"]}"#] {
            change_to(&Network::Closed, &Network::Open, nothing, Ok(None));
            change_to(&Network::Closed, &Network::Closed, nothing, Ok(None));
            change_to(
                &Network::Open,
                &Network::Open,
                nothing,
                Err("an open network, which cannot be restricted"),
            );
        }
        change_to(&Network::Closed, &Network::Closed, "{}", Ok(None));
        change_to(
            &Network::Closed,
            &Network::Open,
            "{}",
            Err("a closed network, which cannot be opened"),
        );
        change_to(
            &Network::Closed,
            &Network::Open,
            one,
            Err("a closed network, which cannot be opened"),
        );
        change_to(&Network::Open, &Network::Open, "{}", Ok(None));
        change_to(
            &Network::Open,
            &Network::Open,
            one,
            Err("an open network, which cannot be restricted"),
        );
    }

    #[test]
    fn a_template_that_observes_is_not_narrowed_by_a_list() {
        let observes = Network::Allow(Egress { observe: true, ..Egress::default() });
        let one = r#"{"allowOut": ["example.org"], "denyOut": ["0.0.0.0/0"]}"#;
        check(&observes, one, Err("that it does not deny"));
        change_to(&observes, &observes, one, Err("that it does not deny"));
        change_to(
            &observes,
            &observes,
            r#"{"allow_internet_access": false}"#,
            Err("that is not denied"),
        );
        change_to(
            &observes,
            &observes,
            r#"{"denyOut": ["example.org"]}"#,
            Ok(Some(("", "example.org"))),
        );
        // A sandbox that was started when its template observed cannot be limited to a list, so the
        // change is refused.
        let listed = Network::only(list("example.org"));
        let without = r#"{"denyOut": ["example.org"]}"#;
        for (asked, denied) in [("{}", ""), (one, ""), (without, "example.org")] {
            change_to(&listed, &listed, asked, Ok(Some(("example.org", denied))));
            change_to(&observes, &listed, asked, Err("that is not denied"));
        }
        change_to(&observes, &Network::Open, one, Err("that is not denied"));
        change_to(&listed, &Network::Open, one, Ok(Some(("example.org", ""))));
    }

    #[test]
    fn the_network_of_a_snapshot_is_requested_again_and_widens_nothing() {
        let some = Network::only(["a.example.org".parse().unwrap()]);
        assert_eq!(narrowing(&some, Some(&some)), None);
        let flags = |network: &Network, template: &Network| {
            let asked = narrowing(network, Some(&Network::Open));
            WantedNetwork::from_request(template, None, asked.as_ref())
                .map(|wanted| as_flags(wanted, template))
        };
        assert_eq!(flags(&some, &Network::Open).unwrap(), "--allow a.example.org");
        assert_eq!(flags(&Network::Closed, &Network::Open).unwrap(), "--net closed");
        assert!(flags(&some, &Network::Closed).is_err(), "the template has become narrower");
        assert!(flags(&some, &Network::only([])).is_err());
    }

    #[test]
    fn a_client_that_says_nothing_of_what_is_reached_leaves_it_as_it_was() {
        let asked = |text: &str| serde_json::from_str::<NetworkRequest>(text).unwrap();
        assert!(!is_requested(None, None) && !is_requested(Some(true), None));
        assert!(!is_requested(None, Some(&asked(r#"{"allowPublicTraffic": false}"#))));
        assert!(
            is_requested(Some(false), None)
                && is_requested(None, Some(&asked(r#"{"denyOut": []}"#)))
        );
    }

    #[test]
    fn a_request_that_is_not_known_is_not_overlooked() {
        assert!(serde_json::from_str::<NetworkRequest>(r#"{"denyIn": ["0.0.0.0/0"]}"#).is_err());
        assert!(serde_json::from_str::<NetworkChange>(r#"{"allowPublicTraffic": false}"#).is_err());
    }
}
