use super::*;

#[track_caller]
fn kind(bytes: &[u8]) -> Option<OpeningKind> {
    let mut opening = OpeningReader::new(OtherNames::Judged);
    opening.bytes = bytes.to_vec();
    let kind = opening.kind();
    let mut opening = OpeningReader::new(OtherNames::Judged);
    let mut piecewise = None;
    for byte in bytes {
        opening.bytes.push(*byte);
        piecewise = piecewise.or_else(|| opening.kind());
    }
    let is_same = match (&kind, &piecewise) {
        (Some(OpeningKind::Tls(_)), Some(OpeningKind::Tls(_))) => true, // the fault text may differ
        (kind, piecewise) => kind == piecewise,
    };
    assert!(is_same, "{}: {kind:?} at once, {piecewise:?} in pieces", bytes.escape_ascii());
    kind
}

#[track_caller]
fn check(openings: &[&[u8]], expected: Option<OpeningKind>) {
    for bytes in openings {
        assert_eq!(kind(bytes), expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn requests_that_a_lenient_server_reads_are_http() {
    let openings: [&[u8]; 40] = [
        b"GET / HTTP/1.1\r\n",
        b"\r\n\r\nGET / HTTP/1.1\r\n",
        b"\n \t\x0b\x0c\r\nGET / HTTP/1.1\r\n",
        b" GET / HTTP/1.1\r\n",
        b"\tget / http/1.1\r\n",
        b"\0GET / HTTP/1.1\r\n",
        b"\x01\x7fPOST / HTTP/1.0\r\n",
        b"\0BREW /pot HTTP/1.1\r\n",
        b"\0\0delete / http/1.1\n",
        b"\x1cGET\x1d/\x1eHTTP/1.1\n",
        b"\xa0GET\xa0/\xa0HTTP/1.1\n",
        b"\x85GET / HTTP/1.1\n",
        b"\xef\xbb\xbfGET / HTTP/1.1\n",
        b"GET / HTTP/1.1\n",
        b"GET\t/\tHTTP/1.1\n",
        b"GET\r/\rHTTP/1.1\n",
        b"GET\0/ HTTP/1.1\n",
        b"GET /\0\x01\x7f\xff HTTP/1.1\n",
        b"M-SEARCH * HTTP/1.1\n",
        b"PRI * HTTP/2.0\r\n",
        b"0GET / HTTP/1.1\n",
        b"G@T / HTTP/1.1\n",
        b"get\t/\xc3\xa9\thttp/1.1\r\n",
        b"GET / HTTP/9.9.9 \r\n",
        b"GET /\r\n\r\n",
        b"GET /\nHost: front.test",
        b"GET a.html\r\nConnection: keep-alive\r\n",
        b"get ?a\r\nHost : front.test\r\n",
        b"GET key\r\n folded",
        b"BREW /pot\r\n\n",
        b"GET http://front.test/\r\n",
        b"GET h\x1etp://front.test/\r\n",
        b"GET https://front.test/ FTP/1.0\r\n",
        b"OPTIONS * FOO\r\nA:",
        b"PUT / \r\n\r\n",
        b"CONNECT front.test:443 HTTP/1.1\r\n",
        b"0032git-upload-pack / HTTP/1.1\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY UNKNOWN\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
    ];
    check(&openings, Some(OpeningKind::Http));
    for length in [8 * 1024, 16 * 1024, 63 * 1024, MAX_LINE_BYTES, 70 * 1024] {
        let long = [b"GET /".to_vec(), vec![b'a'; length], b" HTTP/1.1\r\n".to_vec()].concat();
        check(&[&long, &[b" \0", &long[..]].concat()], Some(OpeningKind::Http));
        check(
            &[&[vec![b'A'; length], b" / HTTP/1.1\r\n".to_vec()].concat()],
            Some(OpeningKind::Http),
        );
    }
}

#[test]
fn a_request_after_control_characters_is_http_if_it_arrives_at_once() {
    for lead in [&b"\x01\x02\x03"[..], &[0; 100], &[1; 9000], b"\x05\x01\0\r\n"] {
        assert_eq!(kind_at_once(&[lead, b"GET / HTTP/1.1\r\n"].concat()), Some(OpeningKind::Http));
    }
}

fn kind_at_once(bytes: &[u8]) -> Option<OpeningKind> {
    let mut opening = OpeningReader::new(OtherNames::Judged);
    opening.bytes = bytes.to_vec();
    opening.kind()
}

#[test]
fn a_request_line_with_any_bytes_is_http_if_it_arrives_at_once() {
    for line in [
        &b"@GET /a HTTP/1.1\r\n"[..],
        b"\"POST /a HTTP/1.1\r\n",
        b"F\xd6\xd6 /a HTTP/1.1\r\n",
        b"\xc2\xc3\xc4 /a HTTP/1.1\r\n",
        b"X1 /a\x01 HTTP/1.1\r\n",
        b"A /a\x01 HTTP/1.1\r\n",
        b"0032git-upload-pack /x\0 HTTP/1.1\n",
        b"{\"a\": 1} /a\0 http/1.0\n",
        b"\0binary /a HTTP/1.1\n",
        b"X\0/a HTTP/1.1\n",
    ] {
        assert_eq!(kind_at_once(line), Some(OpeningKind::Http), "{}", line.escape_ascii());
    }
    for line in
        [&b"<14>1 web: \"GET / HTTP/1.1\" 200\n"[..], b"{\"protocol\": \"HTTP/1.1\", \"a\": 1}\n"]
    {
        assert_eq!(kind_at_once(line), Some(OpeningKind::Other), "{}", line.escape_ascii());
    }
}

#[test]
fn a_client_that_waits_after_a_command_or_a_byte_passes() {
    for (bytes, rule) in [
        (&b"get key\r\n"[..], LineRule::UntilAnswered),
        (b"GET /key\r\n", LineRule::UntilAnswered),
        (b"GET /key\r\nHo", LineRule::UntilAnswered),
        (b"ruok", LineRule::First),
        (b"mntr", LineRule::First),
        (b"\x01", LineRule::First),
        (b"\0\x01", LineRule::First),
        (b"\x80", LineRule::First),
        (b"\x80\x01", LineRule::First),
        (b"\xff\xfd\x01", LineRule::First),
        (b"\r\n", LineRule::First),
        (b"\n", LineRule::First),
    ] {
        let mut opening = OpeningReader::new(OtherNames::Judged);
        opening.bytes = bytes.to_vec();
        assert_eq!(opening.kind(), None, "{}", bytes.escape_ascii());
        assert_eq!(
            opening.kind_after_pause(),
            Some(OpeningKind::Other),
            "{}",
            bytes.escape_ascii()
        );
        assert_eq!(opening.line_rule(), rule, "{}", bytes.escape_ascii());
    }
    for bytes in [
        &b"GET / HTTP/1.1"[..],
        b"GE",
        b"get",
        b"BREW",
        b"brew /",
        b"\r",
        b"\r\n ",
        b"\r\nGET",
        &[22],
        &[22, 3, 1],
        b"\x01\x03",
        b"\x80\x03",
        b"\xa0G",
        b"\xef\xbb",
    ] {
        let mut opening = OpeningReader::new(OtherNames::Judged);
        opening.bytes = bytes.to_vec();
        assert_eq!(opening.kind(), None, "{}", bytes.escape_ascii());
        assert_eq!(opening.kind_after_pause(), None, "{}", bytes.escape_ascii());
    }
}

#[test]
fn other_protocols_are_recognised_before_they_wait_for_an_answer() {
    let openings: [&[u8]; 41] = [
        b"put 0 0 60 4\r\n",
        b"put 0 0 60 4\r\na: b\r\n",
        b"PASS *\r\n",
        b"PASS *\r\nNICK :a\r\n",
        b"DEFINE * word\r\n",
        b"hrpc\x09\0\0",
        b"1700000000 host GET /index HTTP/1.1 200\n",
        b"1700000000 host GET http://a.test/index HTTP/1.1 200\n",
        b"OPTIONS sip:a@host.test SIP/2.0\r\nVia: SIP/2.0/TCP a.test\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        b"EHLO client.test\r\n",
        b"HELO client.test\r\n",
        b"PING\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"*2\r\n$3\r\nGET\r\n$1\r\n/\r\n",
        b"get key\r\nget user:1\r\n",
        b"GET /key\r\nquit\r\n",
        b"CONNECT {\"verbose\":false,\"url\":\"nats://a.test\"}\r\n",
        b"COPY a b\r\n\x01",
        b"a1 CAPABILITY\r\n",
        b"NICK somebody\r\n",
        b"CONNECT\naccept-version:1.2\nhost:/\n\n\0",
        b"002egit-upload-pack /project.git\0host=a.test\0",
        b"0032git-receive-pack /project.git\0host=host.test\0",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"\0\0\0\x54\0\x03\0\0user\0me\0",
        b"\0\0\0\x2a\0\x12\0\x03\0\0\0\0",
        b"@RSYNCD: 31.0\n",
        b"AMQP\0\0\x09\x01",
        b"RFB 003.008\n",
        b"JRMI\0\x02K",
        b"{\"method\": \"hello\"",
        b"<?xml version='1.0'?>",
        b"\x05\x01\0",
        b"\x10\x1a\0\x04MQTT\x04",
        b"\0binary",
        b"\xff\xfb\x18",
        b"\x04\0\0\0\x05\0\0\0\0",
        b"0\x0c\x02\x01\x01`\x07\x02\x01\x03\x04\0\x80\0",
        &[0; 100],
        b"\x12\x01\0\x2f\0\0\x01\0",
    ];
    check(&openings, Some(OpeningKind::Other));
}

#[test]
fn an_opening_of_undecided_protocol_is_held_back() {
    let openings: [&[u8]; 12] = [
        b"GET / HTTP/1.1",
        b"GET / HTTP/1.1\r",
        b"GE",
        b"\r\n",
        b"\0",
        b" \r\n\t",
        b"\0GE",
        b"\0BREW",
        b"\xef\xbb",
        b"0032git-upload-pack /project.git",
        b"\x80",
        b"\x80\x2e\x01\x00",
    ];
    check(&openings, None);
    let blanks = vec![b'\n'; MAX_LINE_BYTES + 1];
    assert!(matches!(kind(&blanks), Some(OpeningKind::Undecided(_))));
}

#[test]
fn openings_like_tls_or_ssl_without_a_hello_are_unreadable() {
    let hello = [
        &[22, 3, 1, 0, 50, 1, 0, 0, 46, 3, 3][..],
        &[7; 32],
        &[0, 0, 2, 0x13, 1, 1, 0, 0, 5, 0, 0, 0, 1, 0],
    ];
    let hello = hello.concat();
    let after = |first: &[u8]| [first, &hello].concat();
    let openings = [
        after(&[21, 3, 1, 0, 2, 1, 0]),
        after(&[21, 3, 3, 0, 2, 1, 112]),
        after(&[20, 3, 3, 0, 1, 1]),
        after(&[23, 3, 3, 0, 1, 0]),
        after(&[24, 3, 2, 0, 3, 1, 0, 0]),
        after(&[25, 3, 3, 0, 1, 0]),
        after(&[99, 3, 1, 0, 1, 0]),
        after(&[0, 3, 0, 0, 0]),
        after(&[255, 3, 4, 0, 1, 0]),
        after(&[22, 3, 1, 0, 0]),
        after(&[22, 3, 1, 0, 4, 0, 0, 0, 0]),
        after(&[22, 3, 0, 0x41, 0]),
        vec![21, 3, 0x7f],
        vec![22, 2],
        vec![0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10],
        vec![0x80, 0x2e, 1, 0, 2, 0, 0x15],
        vec![0xff, 0, 1, 3, 3],
        [&hello[..4], &[51], &hello[5..], &[1]].concat(),
    ];
    for bytes in openings {
        let found = kind(&bytes);
        assert!(
            matches!(&found, Some(OpeningKind::Tls(ClientHello::Unreadable(_)))),
            "{bytes:?}: {found:?}"
        );
    }
}

/// Returns a hello with this random value and an extension of an unknown type before the server
/// name.
fn hello_with(random: [u8; 32], extension: &[u8]) -> Vec<u8> {
    let number = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
    let unknown = [&[0x7a, 0x7a], &number(extension.len())[..], extension].concat();
    let name =
        [0, 0, 0, 16, 0, 14, 0, 0, 11].into_iter().chain(*b"origin.test").collect::<Vec<u8>>();
    let rest = [0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 4, 0, 2, 8, 4, 0, 43, 0, 3, 2, 3, 4];
    let share = [&[0, 51, 0, 38, 0, 36, 0, 29, 0, 32][..], &random].concat();
    let extensions = [&unknown[..], &name, &rest, &share].concat();
    let lists = [&[0, 0, 2, 0x13, 1, 1, 0][..], &number(extensions.len()), &extensions].concat();
    let body = [&[3, 3][..], &random, &lists].concat();
    let message = [&[1, 0], &number(body.len())[..], &body].concat();
    [&[22, 3, 1], &number(message.len())[..], &message].concat()
}

#[test]
fn a_hello_that_is_also_a_request_is_unreadable() {
    for extension in [
        &b" /secret HTTP/1.1\r\nHost: front.test\r\n\r\n"[..],
        b" /secret HTTP/1.1\n\n",
        b"\t/secret\thttp/1.0\r\n",
        b"\x1c/secret\x1cHTTP/1.1\n",
        b" /secret\x08HTTP/1.1\n",
        b" /secret x\r\nHost: front.test\r\n\r\n",
        b" /secret\r\nA: b\r\n hOsT : front.test\r\n\r\n",
        b" /secret x\r\nA: b\rHost: front.test\r\n\r\n",
        b" http://front.test/secret\r\n\r\n",
        b" HTTPS://front.test/secret x\r\n\r\n",
    ] {
        let hello = hello_with([7; 32], extension);
        let found = kind(&hello);
        let is_refused = matches!(&found, Some(OpeningKind::Tls(ClientHello::Unreadable(_))));
        assert!(is_refused, "{}: {found:?}", extension.escape_ascii());
        let mut opening = OpeningReader::new(OtherNames::Ignored);
        opening.bytes = hello;
        let named = OpeningKind::Tls(ClientHello::Named("origin.test".to_owned()));
        assert_eq!(opening.kind(), Some(named), "to an address, any protocol passes");
    }
}

#[test]
fn ordinary_hellos_are_not_read_as_requests() {
    let own = OpeningKind::Tls(ClientHello::Named("origin.test".to_owned()));
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    // ALPN between line feeds and blanks. The same bytes occur in ordinary hellos as numbers of
    // extensions and groups.
    let protocols = b" \n\0\x10\0\x0e\0\x0c\x02h2\x08http/1.1\n\n\0\x0b\0\x02\x01\0\0\n\r\n";
    for _ in 0..20_000 {
        let bytes = std::array::from_fn(|_| random());
        let mut opening = OpeningReader::new(OtherNames::Judged);
        opening.bytes = hello_with(bytes, &[protocols, &bytes[..]].concat());
        assert_eq!(opening.kind().as_ref(), Some(&own), "{}", opening.bytes.escape_ascii());
    }
}

#[test]
fn an_opening_that_ends_early_is_judged_by_its_possible_protocol() {
    let at_end = |bytes: &[u8]| {
        let mut opening = OpeningReader::new(OtherNames::Judged);
        opening.bytes = bytes.to_vec();
        opening.kind_at_end()
    };
    for bytes in
        [&b"GET / HTTP/1.1"[..], b"\0GET /", b"get http://front.test/\r", b"GET\0/ HTTP/1.0"]
    {
        assert!(matches!(at_end(bytes), OpeningKind::Undecided(_)), "{}", bytes.escape_ascii());
    }
    assert!(matches!(at_end(&[22, 3, 1, 0, 9, 1]), OpeningKind::Tls(ClientHello::Unreadable(_))));
    for bytes in [&b""[..], b"hello", b"\r\n", b"\0\0", b"\x80"] {
        assert_eq!(at_end(bytes), OpeningKind::Other, "{}", bytes.escape_ascii());
    }
}

#[test]
fn tunnels_to_an_address_pass_all_but_unreadable_tls_at_once() {
    for (bytes, passes) in [
        (&b"G"[..], true),
        (b"\0", true),
        (&[99, 3, 1], true),
        (&[21, 3, 1], false),
        (&[22, 9], false),
    ] {
        let mut opening = OpeningReader::new(OtherNames::Ignored);
        opening.bytes = bytes.to_vec();
        assert_eq!(opening.kind() == Some(OpeningKind::Other), passes, "{bytes:?}");
    }
}
