//! Smallest policy that would have allowed the connections that were let out or asked for.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_core::policy::{Egress, HostRule, Network};
use ringfence_egress::{Denial, DenialReason, EgressEvent, RequestKind, Target};

use super::LogEntry;

/// Returns the network of the smallest policy that allows every target in `entries` that a rule can
/// allow.
pub fn suggest(entries: &[LogEntry]) -> Network {
    let mut rules: BTreeMap<String, (HostRule, BTreeSet<u16>)> = BTreeMap::new();
    for entry in entries {
        let Some(rule) = suggested_rule(&entry.event) else { continue };
        let bare = HostRule { port: None, ..rule.clone() };
        let (_, ports) = rules.entry(bare.to_string()).or_insert_with(|| (bare, BTreeSet::new()));
        ports.extend(rule.ports());
    }
    let allow = rules.into_values().flat_map(|(bare, ports)| {
        let is_usual = HostRule::WEB_PORTS.iter().all(|port| ports.contains(port));
        let rest = ports
            .into_iter()
            .filter(move |port| !is_usual || !HostRule::WEB_PORTS.contains(port))
            .map(Some);
        let ports: Vec<Option<u16>> = is_usual.then_some(None).into_iter().chain(rest).collect();
        ports.into_iter().map(move |port| HostRule { host: bare.host.clone(), port })
    });
    Network::Allow(Egress { allow: allow.collect(), ..Egress::default() })
}

/// Returns the rule that would allow the target of an event. A target that was denied because of
/// its address, or by a rule of its own, must not become allowed this way.
fn suggested_rule(event: &EgressEvent) -> Option<HostRule> {
    let target = match event {
        EgressEvent::Denied(Denial {
            target,
            reason: DenialReason::Unlisted,
            via: RequestKind::Dns,
            ..
        }) => {
            return target.parse().ok();
        }
        EgressEvent::Allowed(passage) => &passage.target,
        EgressEvent::Denied(denial) if denial.reason == DenialReason::Unlisted => &denial.target,
        _ => return None,
    };
    Target::from_authority(target, None).ok().map(|target| target.rule())
}

#[cfg(test)]
mod tests {
    use ringfence_egress::AllowedConnection;

    use super::*;

    fn entry(event: EgressEvent) -> LogEntry {
        LogEntry { time: String::new(), sandbox: None, workspace: "/w".into(), event, number: None }
    }

    fn allowed(target: &str) -> LogEntry {
        let target = target.to_owned();
        entry(EgressEvent::Allowed(AllowedConnection {
            target,
            via: RequestKind::Connect,
            address: None,
            listed: false,
        }))
    }

    fn denied(target: &str, reason: DenialReason) -> LogEntry {
        entry(EgressEvent::Denied(Denial {
            target: target.to_owned(),
            reason,
            via: RequestKind::Connect,
            policy: None,
        }))
    }

    #[track_caller]
    fn check(entries: &[LogEntry], expected: &[&str]) {
        let network = suggest(entries);
        assert_eq!(network.rules().iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn each_target_has_the_least_rule_that_allows_it() {
        check(&[], &[]);
        check(
            &[allowed("b.org:443"), allowed("a.org:80"), allowed("b.org:443")],
            &["a.org:80", "b.org:443"],
        );
        check(
            &[allowed("a.org:80"), allowed("a.org:443"), allowed("a.org:8443")],
            &["a.org", "a.org:8443"],
        );
    }

    #[test]
    fn a_name_that_was_asked_for_without_a_port_is_suggested_for_the_web() {
        let (target, reason) = ("a.org".to_owned(), DenialReason::Unlisted);
        let asked = entry(EgressEvent::Denied(Denial {
            target,
            reason,
            via: RequestKind::Dns,
            policy: None,
        }));
        check(&[asked, allowed("a.org:22")], &["a.org", "a.org:22"]);
    }

    #[test]
    fn rules_are_suggested_only_for_unlisted_targets() {
        let malformed = DenialReason::Malformed { fault: "x".to_owned() };
        check(
            &[denied("a.org:22", DenialReason::Unlisted), denied("b.org:80", malformed)],
            &["a.org:22"],
        );
    }
}
