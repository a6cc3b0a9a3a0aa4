use super::*;

#[track_caller]
fn check(text: &str, shown: &str) {
    let target = Target::from_authority(text, Some(80)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(target.to_string(), shown);
    assert_eq!(
        Target::from_authority(shown, None).as_ref(),
        Ok(&target),
        "what is shown is read as the same"
    );
    assert!(
        matches!(target.host, TargetHost::Name(_))
            || target.rule().to_string().parse() == Ok(target.rule())
    );
}

#[track_caller]
fn refuse(text: &str, message: &str) {
    assert_eq!(Target::from_authority(text, Some(80)).unwrap_err().to_string(), message);
}

#[test]
fn a_name_is_folded_to_one_form() {
    for (text, shown) in [
        ("example.org", "example.org:80"),
        ("example.org:443", "example.org:443"),
        ("EXAMPLE.Org:443", "example.org:443"),
        ("example.org.:443", "example.org:443"),
        ("localhost:8080", "localhost:8080"),
        ("münchen.example:443", "xn--mnchen-3ya.example:443"),
        ("XN--MNCHEN-3YA.example", "xn--mnchen-3ya.example:80"),
        ("ｅｘａｍｐｌｅ。org:443", "example.org:443"),
        ("example.org:00443", "example.org:443"),
    ] {
        check(text, shown);
    }
}

#[test]
fn addresses_are_parsed_as_resolvers_parse_them() {
    for text in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0X7F000001",
        "017700000001",
        "0177.0.0.1",
        "0x7f.0.0.0x1",
        "0x7f.1",
        "0177.0x0.1",
        "00000000177.1",
        "１２７.0.0.1",
        "127。0。0。1",
        "[::ffff:127.0.0.1]",
        "[::FFFF:7f00:1]",
        "[0:0:0:0:0:ffff:7f00:0001]",
    ] {
        check(text, "127.0.0.1:80");
        check(&format!("{text}:22"), "127.0.0.1:22");
    }
    check("0", "0.0.0.0:80");
    check("255.255.255.255", "255.255.255.255:80");
    check("4294967295", "255.255.255.255:80");
    check("1.16777215", "1.255.255.255:80");
    check("[2001:DB8:0::1]:443", "[2001:db8::1]:443");
    // Packets to this address may go to 127.0.0.1, but it is not another way to write 127.0.0.1.
    check("[::127.0.0.1]", "[::7f00:1]:80");
}

#[test]
fn malformed_addresses_are_refused() {
    for text in [
        "256.1.1.1",
        "1.2.3.256",
        "1.2.3.4.5",
        "1.2.65536",
        "1.16777216",
        "4294967296",
        "0x100000000",
        "09.1.1.1",
        "0x",
        "0x.1",
        "0xg.1",
        "1.0x",
        "a.1",
        "example.org.1",
        "99999999999999999999",
    ] {
        refuse(text, &format!("`{text}` is not an IP address"));
    }
    for text in [
        "[::1",
        "[]",
        "[example.org]",
        "[127.0.0.1]",
        "[::1]x",
        "[::1]80",
        "[v1.a]",
        "[:::1]",
        "[[::1]]",
    ] {
        let error = Target::from_authority(text, Some(80)).unwrap_err();
        assert!(matches!(error, TargetError::Address(_)), "{text}: {error}");
    }
}

#[test]
fn ambiguous_targets_are_refused() {
    refuse("", "the host is missing");
    refuse(":80", "the host is missing");
    refuse(
        "user@example.org",
        "`user@example.org` contains a user name, which is not part of a host",
    );
    refuse(
        "allowed.example:80@evil.example",
        "`allowed.example:80@evil.example` contains a user name, which is not part of a host",
    );
    refuse(
        "user:secret@[::1]:80",
        "`user:secret@[::1]:80` contains a user name, which is not part of a host",
    );
    refuse(
        "example.org:80:443",
        "`example.org:80:443` has more than one colon: write an IPv6 address in brackets",
    );
    refuse("::1", "`::1` has more than one colon: write an IPv6 address in brackets");
    refuse(
        "[fe80::1%eth0]:80",
        "`fe80::1%eth0` names a network interface, which has no meaning on another machine",
    );
    refuse(
        "[fe80::1%25eth0]",
        "`fe80::1%25eth0` names a network interface, which has no meaning on another machine",
    );
    refuse(
        "example.org\0.evil.example",
        "`example.org\\0.evil.example` has `\\0`, which no host name has",
    );
    refuse("127.0.0.1\0", "`127.0.0.1\\0` has `\\0`, which no host name has");
    refuse("127.0.0.1 ", "`127.0.0.1 ` has ` `, which no host name has");
    refuse(" example.org", "` example.org` has ` `, which no host name has");
    refuse("example.org\r\nx: y", "`example.org\\r\\nx` has `\\r`, which no host name has");
    refuse("%31%32%37.0.0.1", "`%31%32%37.0.0.1` has `%`, which no host name has");
    refuse(
        "example.org%2eevil.example",
        "`example.org%2eevil.example` has `%`, which no host name has",
    );
    refuse("example.org/path", "`example.org/path` has `/`, which no host name has");
    refuse("example.org\\path", "`example.org\\\\path` has `\\\\`, which no host name has");
    refuse("example.org?x", "`example.org?x` has `?`, which no host name has");
    refuse("example.org#x", "`example.org#x` has `#`, which no host name has");
    refuse("*.example.org", "`*.example.org` has `*`, which no host name has");
    refuse("a..org", "`a..org` has an empty label: write names with single dots between labels");
    refuse("127..1", "`127..1` has an empty label: write names with single dots between labels");
    refuse("-1", "`-1` has a label that starts or ends with `-`");
    refuse(
        "xn--example-.org",
        "`xn--example-.org` is a name in no script: it has characters that names may not have, or \
         a wrong `xn--` label",
    );
    let long = format!("{}.org", "a".repeat(64));
    refuse(
        &long,
        &format!("`{long}` is too long: a label has at most 63 characters, a name at most 253"),
    );
}

#[test]
fn a_port_is_a_number_from_1_to_65535() {
    for port in ["", "0", "65536", "+80", "-1", "8o", " 80", "80 ", "000080", "99999999999"] {
        refuse(
            &format!("example.org:{port}"),
            &format!("`example.org:{port}` has port `{port}`: a port is a number from 1 to 65535"),
        );
    }
    assert_eq!(
        Target::from_authority("example.org", None).unwrap_err().to_string(),
        "`example.org` has no port"
    );
    assert_eq!(
        Target::from_parts("example.org", 0).unwrap_err().to_string(),
        "`example.org:0` has port `0`: a port is a number from 1 to 65535"
    );
}

#[test]
fn a_host_given_without_its_port_is_parsed_the_same_way() {
    for (host, shown) in [
        ("Example.org.", "example.org:443"),
        ("0x7f.1", "127.0.0.1:443"),
        ("::1", "[::1]:443"),
        ("::ffff:10.0.0.1", "10.0.0.1:443"),
    ] {
        assert_eq!(Target::from_parts(host, 443).unwrap().to_string(), shown);
    }
    for host in
        ["", "example.org:80", "[::1]", "fe80::1%1", "u@example.org", "example.org\0", "a b"]
    {
        assert!(Target::from_parts(host, 443).is_err(), "{host}");
    }
    let mapped = Target::from_address("::ffff:10.0.0.1".parse().unwrap(), 80).unwrap();
    assert_eq!(mapped.to_string(), "10.0.0.1:80");
}
