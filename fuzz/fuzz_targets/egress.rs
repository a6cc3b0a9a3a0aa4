//! Checks that any text is a target, a rule or an error, and that parsing never panics. A parsed
//! value parses again from its text, and the indexed verdict equals the verdict of the lists.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use ringfence_egress::{
    AddressClass, DenialReason, HostRule, Rules, Target, TargetHost, Verdict, classify,
};

fuzz_target!(|texts: (&str, &str, &str)| {
    let (allow, deny) = (rules(texts.0), rules(texts.1));
    let index = Rules::new(&allow, &deny);
    for text in texts.2.lines() {
        for parsed in [Target::from_authority(text, Some(443)), Target::from_parts(text, 80)] {
            match parsed {
                Ok(target) => judge(&index, &allow, &deny, &target),
                Err(error) => drop(error.to_string()),
            }
        }
    }
});

fn rules(text: &str) -> Vec<HostRule> {
    let rules: Vec<HostRule> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for rule in &rules {
        assert_eq!(rule.to_string().parse().as_ref(), Ok(rule));
        assert!(rule.covers(rule) && rule.is_covered_by(&rules));
    }
    rules
}

fn judge(index: &Rules, allow: &[HostRule], deny: &[HostRule], target: &Target) {
    assert_eq!(Target::from_authority(&target.to_string(), None).as_ref(), Ok(target));
    assert!(names(&target.rule(), target));
    let (allowed, denied) =
        (allow.iter().any(|rule| names(rule, target)), deny.iter().any(|rule| names(rule, target)));
    match index.judge(target) {
        // An address that embeds another address is denied by the rule for the embedded address.
        Verdict::Denied(DenialReason::Listed { rule }) => {
            let may_carry = matches!(target.host, TargetHost::Address(IpAddr::V6(_)));
            assert!(deny.contains(&rule) && (names(&rule, target) || may_carry));
        }
        verdict => {
            assert!(!denied);
            let expected = match target.host {
                _ if allowed => Verdict::Allowed,
                TargetHost::Address(address) if classify(address) != AddressClass::Public => {
                    Verdict::Denied(DenialReason::Internal { address, class: classify(address) })
                }
                _ => Verdict::Denied(DenialReason::Unlisted),
            };
            assert_eq!(verdict, expected);
        }
    }
}

fn names(rule: &HostRule, target: &Target) -> bool {
    match &target.host {
        TargetHost::Name(name) => rule.names(name, target.port),
        TargetHost::Address(address) => rule.names_address(*address, target.port),
    }
}
