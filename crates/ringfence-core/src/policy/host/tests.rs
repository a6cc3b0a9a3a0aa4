use super::*;

#[track_caller]
fn check(text: &str, shown: &str) {
    let rule: HostRule = text.parse().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(rule.to_string(), shown);
    assert_eq!(shown.parse::<HostRule>().unwrap(), rule);
}

#[track_caller]
fn refuse(text: &str, message: &str) {
    assert_eq!(text.parse::<HostRule>().unwrap_err().to_string(), message);
}

fn rule(text: &str) -> HostRule {
    text.parse().unwrap()
}

fn name(text: &str) -> HostName {
    text.parse().unwrap()
}

#[test]
fn names_wildcards_addresses_and_networks_are_rules() {
    check("example.org", "example.org");
    check("Example.ORG.", "example.org");
    check("localhost", "localhost");
    check("_dmarc.example.org", "_dmarc.example.org");
    check("example.org:443", "example.org:443");
    check("*.example.net", "*.example.net");
    check("*.example.net:443", "*.example.net:443");
    check("192.0.2.1", "192.0.2.1");
    check("192.0.2.1:8080", "192.0.2.1:8080");
    check("2001:DB8::1", "2001:db8::1");
    check("[2001:db8::1]", "2001:db8::1");
    check("[2001:db8::1]:443", "[2001:db8::1]:443");
    check("10.0.0.0/8", "10.0.0.0/8");
    check("10.0.0.0/8:22", "10.0.0.0/8:22");
    check("fd00::/8", "fd00::/8");
    check("[fd00::/8]:443", "[fd00::/8]:443");
    check("192.0.2.1/32", "192.0.2.1");
}

#[test]
fn each_wrong_host_is_refused_with_a_correction() {
    refuse("", "a host cannot be empty: write for example `example.org` or `*.example.org:443`");
    refuse(
        "https://example.org/a?b",
        "`https://example.org/a?b` is a URL: write only the host, `example.org:443`",
    );
    refuse(
        "http://u:p@example.org:81",
        "`http://u:p@example.org:81` is a URL: write only the host, `example.org:81`",
    );
    refuse(
        "gopher://example.org",
        "`gopher://example.org` is a URL: write only the host, `example.org`",
    );
    refuse("git@example.org", "`git@example.org` names a user: write only the host, `example.org`");
    refuse(
        "example.org/api",
        "`example.org/api` names a path: hosts are allowed as a whole, write `example.org`",
    );
    for everything in ["*", "*:443", "0.0.0.0/0", "::/0"] {
        refuse(
            everything,
            &format!(
                "`{everything}` would allow every host: say that with the network's mode, `open`"
            ),
        );
    }
    refuse("a.*.org", "`a.*.org` has a `*` that is not its first label: write `*.example.org`");
    refuse(
        "*example.org",
        "`*example.org` has a `*` that is not its first label: write `*.example.org`",
    );
    for empty in ["a..org", ".org", "example.org..", "."] {
        refuse(
            empty,
            &format!("`{empty}` has an empty label: write names with single dots between labels"),
        );
    }
    refuse("exa mple.org", "`exa mple.org` has ` `, which no host name has");
    refuse("-a.org", "`-a.org` has a label that starts or ends with `-`");
    for wrong in ["0", "65536", "", "+1", "x"] {
        refuse(
            &format!("example.org:{wrong}"),
            &format!(
                "`example.org:{wrong}` has port `{wrong}`: a port is a number from 1 to 65535"
            ),
        );
    }
    for partial in ["10.1", "256.1.1.1", "127.0.0.0x1", "[example.org]:443", "[::1"] {
        refuse(
            partial,
            &format!(
                "`{partial}` is no IP address: write all of its parts, such as `192.0.2.1` or \
                 `2001:db8::1`"
            ),
        );
    }
    refuse("10.0.0.0/33", "`10.0.0.0/33` has prefix `33`: it is a number from 1 to 32");
    refuse("fd00::/129", "`fd00::/129` has prefix `129`: it is a number from 1 to 128");
    refuse(
        "10.0.0.1/8",
        "`10.0.0.1/8` is not the first address of its network: write `10.0.0.0/8`",
    );
    let long = format!("{}.org", "a".repeat(64));
    refuse(
        &long,
        &format!("`{long}` is too long: a label has at most 63 characters, a name at most 253"),
    );
}

#[test]
fn a_wildcard_names_the_hosts_beneath_a_name_only() {
    let wildcard = rule("*.example.org");
    assert!(wildcard.names(&name("a.example.org"), 443));
    assert!(wildcard.names(&name("A.B.Example.Org."), 80));
    assert!(!wildcard.names(&name("example.org"), 443));
    assert!(!wildcard.names(&name("badexample.org"), 443));
    assert!(rule("example.org:443").names(&name("example.org"), 443));
    assert!(!rule("example.org:443").names(&name("example.org"), 80));
}

#[test]
fn a_wildcard_under_a_public_suffix_is_no_rule() {
    // Among the suffixes are an unknown top-level domain, suffixes of two labels, a suffix in
    // another script, and suffixes that come from a wildcard of the public suffix list.
    for suffix in ["com", "internal", "co.uk", "xn--55qx5d.cn", "kawasaki.jp", "any.ck"] {
        for rule in [format!("*.{suffix}"), format!("*.{suffix}."), format!("*.{suffix}:443")] {
            refuse(
                &rule,
                &format!(
                    "`{rule}` names all that is registered under `{suffix}`, by anybody: \
                     write more labels, such as `*.example.{suffix}`"
                ),
            );
        }
        check(&format!("*.a.example.{suffix}"), &format!("*.a.example.{suffix}"));
    }
    check("co.uk", "co.uk");
    check("*.github.io", "*.github.io");
    check("*.s3.amazonaws.com:443", "*.s3.amazonaws.com:443");
    check("*.city.kawasaki.jp", "*.city.kawasaki.jp");
    check("*.www.ck", "*.www.ck");
}

#[test]
fn names_in_other_scripts_are_folded() {
    check("München.example", "xn--mnchen-3ya.example");
    check("*.BÜCHER.example:443", "*.xn--bcher-kva.example:443");
    check("例え。テスト", "xn--r8jz45g.xn--zckzah");
    assert_eq!(rule("münchen.example"), rule("xn--mnchen-3ya.example"));
    refuse(
        "xn--a.example",
        "`xn--a.example` is a name in no script: it has characters that names may not have, or a \
         wrong `xn--` label",
    );
}

#[test]
fn a_rule_without_a_port_names_the_web_ports() {
    for port in [80, 443] {
        assert!(rule("example.org").names(&name("example.org"), port));
        assert!(rule("192.0.2.1").names_address("192.0.2.1".parse().unwrap(), port));
    }
    for port in [1, 22, 8080, 65535] {
        assert!(!rule("example.org").names(&name("example.org"), port));
        assert!(!rule("192.0.2.1").names_address("192.0.2.1".parse().unwrap(), port));
        assert!(rule(&format!("example.org:{port}")).names(&name("example.org"), port));
    }
}

#[test]
fn an_address_is_named_by_its_network_only() {
    let names =
        |text: &str, address: &str, port| rule(text).names_address(address.parse().unwrap(), port);
    assert!(names("10.0.0.0/8", "10.200.3.4", 80));
    assert!(!names("10.0.0.0/8", "11.0.0.1", 80));
    assert!(names("10.0.0.0/8:22", "10.0.0.1", 22));
    assert!(!names("10.0.0.0/8:22", "10.0.0.1", 23));
    assert!(names("fd00::/8", "fdff::1", 443));
    assert!(!names("fd00::/8", "10.0.0.1", 443));
}

#[test]
fn an_ipv4_mapped_ipv6_address_is_an_ipv4_address() {
    check("::ffff:10.0.0.1", "10.0.0.1");
    check("[::ffff:10.0.0.1]:22", "10.0.0.1:22");
    check("::ffff:10.0.0.0/104", "10.0.0.0/8");
    let everything = "::ffff:0.0.0.0/96";
    refuse(
        everything,
        &format!("`{everything}` would allow every host: say that with the network's mode, `open`"),
    );
}

#[test]
fn a_rule_covers_exactly_what_it_allows() {
    let covered = [
        ("example.org", "example.org:443"),
        ("*.example.org", "a.example.org"),
        ("*.example.org", "*.a.example.org:80"),
        ("*.example.org", "*.example.org"),
        ("10.0.0.0/8", "10.1.0.0/16"),
        ("10.0.0.0/8", "10.1.2.3:443"),
        ("10.0.0.0/8:22", "10.1.2.3:22"),
    ];
    for (wide, narrow) in covered {
        assert!(rule(wide).covers(&rule(narrow)), "`{wide}` must cover `{narrow}`");
    }
    let uncovered = [
        ("example.org:443", "example.org"),
        ("example.org", "example.org:8080"),
        ("10.0.0.0/8", "10.1.2.3:22"),
        ("example.org", "a.example.org"),
        ("*.example.org", "example.org"),
        ("*.a.example.org", "*.example.org"),
        ("10.1.0.0/16", "10.0.0.0/8"),
        ("10.0.0.0/8", "example.org"),
    ];
    for (narrow, wide) in uncovered {
        assert!(!rule(narrow).covers(&rule(wide)), "`{narrow}` must not cover `{wide}`");
    }
}

#[test]
fn rules_cover_together_what_none_covers_alone() {
    let covered = |text: &str, by: &[&str]| {
        let by: Vec<HostRule> = by.iter().map(|text| rule(text)).collect();
        rule(text).is_covered_by(&by)
    };
    assert!(covered("a.example.org", &["*.example.org:80", "a.example.org:443"]));
    assert!(!covered("a.example.org", &["*.example.org:80", "b.example.org:443"]));
    assert!(!covered("a.example.org", &[]));
}

#[test]
fn rules_overlap_where_both_name_a_host_on_a_port() {
    let overlap = |own: &str, other: &str| {
        let [own, other] = [own, other].map(|text| text.parse::<HostRule>().unwrap());
        assert_eq!(own.overlaps(&other), other.overlaps(&own));
        own.overlaps(&other)
    };
    assert!(overlap("a.example.org", "*.example.org:443"));
    assert!(overlap("*.example.org", "*.b.example.org:80"));
    assert!(!overlap("example.org", "*.example.org"));
    assert!(!overlap("example.org", "example.org:8443"));
    assert!(!overlap("example.org", "192.0.2.1"));
}
