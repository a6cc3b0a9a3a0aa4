use super::*;

#[track_caller]
fn check(text: &str, folded: &str) {
    let name: HostName = text.parse().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(name.as_str(), folded);
    assert_eq!(folded.parse(), Ok(name));
}

#[track_caller]
fn refuse(text: &str, message: &str) {
    assert_eq!(text.parse::<HostName>().unwrap_err().to_string(), message);
}

#[test]
fn names_are_folded_to_one_form() {
    check("example.org", "example.org");
    check("EXAMPLE.Org", "example.org");
    check("example.org.", "example.org");
    check("localhost", "localhost");
    check("_dmarc.example.org", "_dmarc.example.org");
    check("r3---sn-a.example.org", "r3---sn-a.example.org");
    check("münchen.example", "xn--mnchen-3ya.example");
    check("MÜNCHEN.example", "xn--mnchen-3ya.example");
    check("XN--MNCHEN-3YA.example", "xn--mnchen-3ya.example");
    // A decomposed letter, full-width letters, the full stops of other scripts, and a soft hyphen.
    check("mu\u{308}nchen.example", "xn--mnchen-3ya.example");
    check("ｅｘａｍｐｌｅ.org", "example.org");
    check("example。org．", "example.org");
    check("exa\u{ad}mple.org", "example.org");
    // The Kelvin sign folds to the letter k; the sharp s is a letter of its own and stays.
    check("\u{212a}ube.example", "kube.example");
    check("faß.example", "xn--fa-hia.example");
}

#[test]
fn each_invalid_host_name_is_refused_with_its_own_reason() {
    for empty in ["", ".", "a..org", ".org", "example.org..", "a.。org"] {
        refuse(
            empty,
            &format!("`{empty}` has an empty label: write names with single dots between labels"),
        );
    }
    for (name, shown, character) in [
        ("exa mple.org", "exa mple.org", " "),
        ("example.org\0", "example.org\\0", "\\0"),
        ("example.org\0.evil.example", "example.org\\0.evil.example", "\\0"),
        ("a\nb.org", "a\\nb.org", "\\n"),
        ("ex%61mple.org", "ex%61mple.org", "%"),
        ("a/b.org", "a/b.org", "/"),
        ("a\\b.org", "a\\\\b.org", "\\\\"),
        ("u@example.org", "u@example.org", "@"),
        ("example.org:80", "example.org:80", ":"),
        ("[example.org]", "[example.org]", "["),
        ("*.example.org", "*.example.org", "*"),
        // A full-width slash folds to a slash.
        ("example.org／a.b", "example.org／a.b", "/"),
    ] {
        refuse(name, &format!("`{shown}` has `{character}`, which no host name has"));
    }
    refuse(
        "a..\u{1b}[2J",
        "`a..\\u{1b}[2J` has an empty label: write names with single dots between labels",
    );
    for hyphen in ["-a.org", "a-.org", "a.-"] {
        refuse(hyphen, &format!("`{hyphen}` has a label that starts or ends with `-`"));
    }
    // A prefix without a label, labels that encode only ASCII or are not in their normal form, a
    // label that is not valid Punycode, and a zero-width joiner.
    for wrong in [
        "xn--",
        "xn--example-.org",
        "xn--a.org",
        "xn--mnchen-3yA\u{fc}.org",
        "xn--zz9999999.org",
        "a\u{200d}b.org",
    ] {
        refuse(
            wrong,
            &format!(
                "`{}` is a name in no script: it has characters that names may not have, or a \
                 wrong `xn--` label",
                wrong.escape_debug()
            ),
        );
    }
    for number in ["127.0.0.1", "10.1", "1", "0x7f.1", "a.1", "a.0x1", "017700000001"] {
        refuse(
            number,
            &format!("`{number}` ends in a number, so that a resolver reads it as an address"),
        );
    }
    refuse("１２７.１", "`127.1` ends in a number, so that a resolver reads it as an address");
}

#[test]
fn the_longest_label_has_63_characters_and_the_longest_name_253() {
    let long = |label: usize| format!("{}.org", "a".repeat(label));
    check(&long(63), &long(63));
    refuse(
        &long(64),
        &format!(
            "`{}` is too long: a label has at most 63 characters, a name at most 253",
            long(64)
        ),
    );
    let name = |length: usize| format!("{}{}", "a.".repeat(length / 2), "b".repeat(length % 2));
    check(&name(253), &name(253));
    refuse(
        &name(255),
        &format!(
            "`{}` is too long: a label has at most 63 characters, a name at most 253",
            name(255)
        ),
    );
    // The label is short as written and too long when folded.
    let folded = "ü".repeat(62);
    refuse(
        &folded,
        &format!("`{folded}` is too long: a label has at most 63 characters, a name at most 253"),
    );
    let absurd = "a".repeat(100_000);
    assert!(absurd.parse::<HostName>().unwrap_err().to_string().len() < 200);
}

#[test]
fn a_host_name_knows_its_parents() {
    let name: HostName = "a.b.example".parse().unwrap();
    assert_eq!(name.parents().collect::<Vec<_>>(), ["example", "b.example"]);
    for parent in ["example", "b.example"] {
        assert!(name.is_beneath(&parent.parse().unwrap()));
    }
    for other in ["a.b.example", "c.example", "xample", "a.b"] {
        assert!(!name.is_beneath(&other.parse().unwrap()));
    }
}
