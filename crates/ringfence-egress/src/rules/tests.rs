use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn list(texts: &[&str]) -> Vec<HostRule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn target(text: &str) -> Target {
    Target::from_authority(text, None).unwrap()
}

fn shown(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Allowed => "allowed".to_owned(),
        Verdict::Denied(reason) => reason.to_string(),
    }
}

const UNLISTED: &str = "no rule of the policy allows this target";

#[test]
fn a_target_is_judged_by_its_name_or_address() {
    let rules = Rules::new(
        &list(&[
            "example.org",
            "*.example.net:8443",
            "8.8.8.0/24",
            "10.1.2.3:22",
            "[fd00::/16]:80",
            "bücher.example",
        ]),
        &list(&["bad.example.net:8443", "*.worse.example.net:8443", "8.8.8.8"]),
    );
    for (text, expected) in [
        ("example.org:443", "allowed"),
        ("EXAMPLE.org.:80", "allowed"),
        ("example.org:22", UNLISTED),
        ("www.example.org:443", UNLISTED),
        ("notexample.org:443", UNLISTED),
        ("org:443", UNLISTED),
        ("xn--bcher-kva.example:443", "allowed"),
        ("a.example.net:8443", "allowed"),
        ("a.b.c.example.net:8443", "allowed"),
        ("example.net:8443", UNLISTED),
        ("a.example.net:443", UNLISTED),
        ("bad.example.net:8443", "the policy denies `bad.example.net:8443`"),
        ("a.bad.example.net:8443", "allowed"),
        ("worse.example.net:8443", "allowed"),
        ("a.worse.example.net:8443", "the policy denies `*.worse.example.net:8443`"),
        ("8.8.8.7:443", "allowed"),
        ("0x08080807:443", "allowed"),
        ("8.8.8.8:443", "the policy denies `8.8.8.8`"),
        ("[64:ff9b::8.8.8.8]:443", "the policy denies `8.8.8.8`"),
        ("[64:ff9b::8.8.8.7]:443", UNLISTED),
        ("8.8.9.1:443", UNLISTED),
        ("10.1.2.3:22", "allowed"),
        ("[::ffff:10.1.2.3]:22", "allowed"),
        ("10.1.2.3:80", "10.1.2.3 is not public (private), and no rule allows this address itself"),
        (
            "[64:ff9b::10.1.2.3]:22",
            "64:ff9b::a01:203 is not public (private), and no rule allows this address itself",
        ),
        ("[fd00:0:1::1]:80", "allowed"),
        ("[fd01::1]:80", "fd01::1 is not public (private), and no rule allows this address itself"),
        (
            "169.254.169.254:80",
            "169.254.169.254 is not public (metadata), and no rule allows this address itself",
        ),
    ] {
        assert_eq!(shown(&rules.judge(&target(text))), expected, "{text}");
    }
}

#[test]
fn a_name_reaches_no_internal_address_without_a_rule_for_it() {
    let rules = Rules::new(
        &list(&["example.org", "10.0.0.0/8", "127.0.0.1:8080"]),
        &list(&["10.1.0.0/16", "1.2.3.4"]),
    );
    for (text, address, expected) in [
        ("example.org:443", "93.184.216.34", "allowed"),
        ("example.org:443", "2606:4700::1111", "allowed"),
        ("example.org:443", "10.0.0.1", "allowed"),
        (
            "example.org:22",
            "10.0.0.1",
            "10.0.0.1 is not public (private), and no rule allows this address itself",
        ),
        ("example.org:443", "10.1.0.1", "the policy denies `10.1.0.0/16`"),
        ("example.org:443", "::ffff:10.1.0.1", "the policy denies `10.1.0.0/16`"),
        ("example.org:443", "1.2.3.4", "the policy denies `1.2.3.4`"),
        ("example.org:443", "2002:102:304::1", "the policy denies `1.2.3.4`"),
        (
            "example.org:443",
            "127.0.0.1",
            "127.0.0.1 is not public (loopback), and no rule allows this address itself",
        ),
        ("localhost:8080", "127.0.0.1", "allowed"),
        (
            "example.org:443",
            "::1",
            "::1 is not public (loopback), and no rule allows this address itself",
        ),
        (
            "example.org:443",
            "::",
            ":: is not public (unspecified), and no rule allows this address itself",
        ),
    ] {
        let verdict = rules.judge_address(&target(text), address.parse().unwrap());
        assert_eq!(shown(&verdict), expected, "{text} at {address}");
    }
}

#[test]
fn empty_rules_allow_no_target() {
    let rules = Rules::new(&[], &[]);
    for text in ["example.org:443", "8.8.8.8:53", "[2606:4700::1111]:443"] {
        assert_eq!(rules.judge(&target(text)), Verdict::Denied(DenialReason::Unlisted));
    }
}

#[test]
fn a_denial_reason_survives_json() {
    let reasons = [
        (DenialReason::Unlisted, r#"{"code":"unlisted"}"#),
        (
            DenialReason::Listed { rule: "*.example.org:22".parse().unwrap() },
            r#"{"code":"listed","rule":"*.example.org:22"}"#,
        ),
        (
            DenialReason::Internal { address: [10, 0, 0, 1].into(), class: AddressClass::Private },
            r#"{"code":"internal","address":"10.0.0.1","class":"private"}"#,
        ),
    ];
    for (reason, json) in reasons {
        assert_eq!(serde_json::to_string(&reason).unwrap(), json);
        assert_eq!(serde_json::from_str::<DenialReason>(json).unwrap(), reason);
        assert!(json.contains(&format!("\"code\":\"{}\"", reason.code())));
    }
}

/// Judges a target by searching both lists from end to end, as a reference for the index. If
/// several rules deny the target, the reference may return another one of them.
fn judge_slowly(allow: &[HostRule], deny: &[HostRule], target: &Target) -> Verdict {
    let names = |rule: &&HostRule| match &target.host {
        TargetHost::Name(name) => rule.names(name, target.port),
        TargetHost::Address(IpAddr::V6(address)) => {
            let mut meant =
                carried_ipv4_addresses(*address).map(IpAddr::V4).chain([IpAddr::V6(*address)]);
            meant.any(|address| rule.names_address(address, target.port))
        }
        TargetHost::Address(address) => rule.names_address(*address, target.port),
    };
    let allows = |rule: &HostRule| match &target.host {
        TargetHost::Name(name) => rule.names(name, target.port),
        TargetHost::Address(address) => rule.names_address(*address, target.port),
    };
    if let Some(rule) = deny.iter().find(names) {
        return Verdict::Denied(DenialReason::Listed { rule: rule.clone() });
    }
    match target.host {
        _ if allow.iter().any(allows) => Verdict::Allowed,
        TargetHost::Address(address) if classify(address) != AddressClass::Public => {
            Verdict::Denied(DenialReason::Internal { address, class: classify(address) })
        }
        _ => Verdict::Denied(DenialReason::Unlisted),
    }
}

/// Generates names from few labels, so that rules and targets often match.
fn name() -> impl Strategy<Value = String> {
    proptest::collection::vec(select(vec!["a", "b", "c"]), 1..5)
        .prop_map(|labels| labels.join(".") + ".example")
}

fn address() -> impl Strategy<Value = IpAddr> {
    let ipv4 = select(vec![0x0a00_0000u32, 0x0808_0800, 0x7f00_0000]);
    let ipv4 = (ipv4, any::<u8>())
        .prop_map(|(network, host)| IpAddr::from((network | u32::from(host)).to_be_bytes()));
    let ipv6 =
        select(vec!["fd00::", "2606::", "64:ff9b::800:0", "64:ff9b::808:800", "2002:808:800::"]);
    let ipv6 = (ipv6, any::<u8>()).prop_map(|(network, host)| {
        let network: std::net::Ipv6Addr = network.parse().expect("it is an address");
        IpAddr::from((network.to_bits() | u128::from(host)).to_be_bytes())
    });
    prop_oneof![ipv4, ipv6]
}

fn rule() -> impl Strategy<Value = HostRule> {
    let network = (address(), 0u8..12).prop_map(|(address, shorter)| match address {
        IpAddr::V4(address) => {
            let first = std::net::Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << shorter));
            format!("{first}/{}", 32 - shorter)
        }
        IpAddr::V6(address) => {
            let first = std::net::Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << shorter));
            format!("[{first}/{}]", 128 - shorter)
        }
    });
    let host = prop_oneof![name(), name().prop_map(|name| format!("*.{name}")), network];
    (host, select(vec!["", ":80", ":443", ":22"]))
        .prop_map(|(host, port)| format!("{host}{port}").parse().expect("it is a rule"))
}

proptest! {
    #[test]
    fn an_indexed_verdict_equals_the_verdict_of_the_lists(
        allow in proptest::collection::vec(rule(), 0..12),
        deny in proptest::collection::vec(rule(), 0..6),
        hosts in proptest::collection::vec(prop_oneof![
            name().prop_map(|name| TargetHost::Name(name.parse().expect("it is a name"))),
            address().prop_map(TargetHost::Address),
        ], 1..12),
        port in select(vec![22, 80, 443, 8080]),
    ) {
        let rules = Rules::new(&allow, &deny);
        for host in hosts {
            let target = Target { host, port };
            match (rules.judge(&target), judge_slowly(&allow, &deny, &target)) {
                (
                    Verdict::Denied(DenialReason::Listed { rule }),
                    Verdict::Denied(DenialReason::Listed { .. }),
                ) => {
                    prop_assert!(deny.contains(&rule));
                    let alone = judge_slowly(&[], std::slice::from_ref(&rule), &target);
                    prop_assert_eq!(alone, Verdict::Denied(DenialReason::Listed { rule }));
                }
                (quick, slow) => prop_assert_eq!(quick, slow),
            }
        }
    }
}
