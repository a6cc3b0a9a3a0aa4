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
fn each_wrong_host_is_refused_with_what_to_write_instead() {
    refuse("", "a host cannot be empty: write for example `example.org` or `*.example.org:443`");
    refuse("https://example.org/a?b", "`https://example.org/a?b` is a URL: write only the host, `example.org:443`");
    refuse("http://u:p@example.org:81", "`http://u:p@example.org:81` is a URL: write only the host, `example.org:81`");
    refuse("gopher://example.org", "`gopher://example.org` is a URL: write only the host, `example.org`");
    refuse("git@example.org", "`git@example.org` names a user: write only the host, `example.org`");
    refuse("example.org/api", "`example.org/api` names a path: hosts are allowed as a whole, write `example.org`");
    for everything in ["*", "*:443", "0.0.0.0/0", "::/0"] {
        refuse(everything, &format!("`{everything}` would allow every host: say that with the network's mode, `open`"));
    }
    for top in ["*.com", "*.com.", "*.com:443"] {
        refuse(
            top,
            &format!("`{top}` would allow a whole top-level domain: name at least two labels, such as `*.example.org`"),
        );
    }
    refuse("a.*.org", "`a.*.org` has a `*` that is not its first label: write `*.example.org`");
    refuse("*example.org", "`*example.org` has a `*` that is not its first label: write `*.example.org`");
    for empty in ["a..org", ".org", "*..org", "example.org..", "."] {
        refuse(empty, &format!("`{empty}` has an empty label: write names with single dots between labels"));
    }
    refuse(
        "exa mple.org",
        "`exa mple.org` has ` `, which no host name has; a name in another script is written as `xn--…`",
    );
    refuse(
        "münchen.example",
        "`münchen.example` has `ü`, which no host name has; a name in another script is written as `xn--…`",
    );
    refuse("-a.org", "`-a.org` has a label that starts or ends with `-`");
    for wrong in ["0", "65536", "", "+1", "x"] {
        refuse(
            &format!("example.org:{wrong}"),
            &format!("`example.org:{wrong}` has port `{wrong}`: a port is a number from 1 to 65535"),
        );
    }
    for partial in ["10.1", "256.1.1.1", "127.0.0.0x1", "[example.org]:443", "[::1"] {
        refuse(
            partial,
            &format!("`{partial}` is no IP address: write all of its parts, such as `192.0.2.1` or `2001:db8::1`"),
        );
    }
    refuse("10.0.0.0/33", "`10.0.0.0/33` has prefix `33`: it is a number from 1 to 32");
    refuse("fd00::/129", "`fd00::/129` has prefix `129`: it is a number from 1 to 128");
    refuse("10.0.0.1/8", "`10.0.0.1/8` is not the first address of its network: write `10.0.0.0/8`");
    let long = format!("{}.org", "a".repeat(64));
    refuse(&long, &format!("`{long}` is too long: a label has at most 63 characters, a name at most 253"));
}

#[test]
fn a_wildcard_names_what_is_beneath_and_not_the_name_itself() {
    let wildcard = rule("*.example.org");
    assert!(wildcard.allows_name("a.example.org", 443));
    assert!(wildcard.allows_name("A.B.Example.Org.", 80));
    assert!(!wildcard.allows_name("example.org", 443));
    assert!(!wildcard.allows_name("badexample.org", 443));
    assert!(!wildcard.allows_name(".example.org", 443));
    assert!(rule("example.org:443").allows_name("example.org", 443));
    assert!(!rule("example.org:443").allows_name("example.org", 80));
}

#[test]
fn an_address_is_named_by_its_network_only() {
    assert!(rule("10.0.0.0/8").allows_address("10.200.3.4".parse().unwrap(), 22));
    assert!(!rule("10.0.0.0/8").allows_address("11.0.0.1".parse().unwrap(), 22));
    assert!(!rule("10.0.0.0/8:22").allows_address("10.0.0.1".parse().unwrap(), 23));
    assert!(rule("fd00::/8").allows_address("fdff::1".parse().unwrap(), 22));
    assert!(!rule("fd00::/8").allows_address("10.0.0.1".parse().unwrap(), 22));
    assert!(rule("192.0.2.1").allows_address("192.0.2.1".parse().unwrap(), 1));
    assert!(!rule("192.0.2.1").allows_name("192.0.2.1", 1));
}

#[test]
fn a_rule_covers_exactly_what_it_allows() {
    let covered = [
        ("example.org", "example.org:443"),
        ("*.example.org", "a.example.org"),
        ("*.example.org", "*.a.example.org:80"),
        ("*.example.org", "*.example.org"),
        ("10.0.0.0/8", "10.1.0.0/16"),
        ("10.0.0.0/8", "10.1.2.3:22"),
    ];
    for (wide, narrow) in covered {
        assert!(rule(wide).covers(&rule(narrow)), "`{wide}` must cover `{narrow}`");
    }
    let uncovered = [
        ("example.org:443", "example.org"),
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
