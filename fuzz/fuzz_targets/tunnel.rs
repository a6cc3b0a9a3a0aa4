//! Checks the first bytes of a tunnel to a host that is given by name, split in any way. TLS that
//! is accepted is exactly one hello, which names the same single server to every reader. Bytes that
//! pass unread begin neither like TLS or SSL nor like HTTP.
//!
//! The readers here share no code with the readers of the proxy. They are as lenient as the most
//! lenient server that we know of.
#![no_main]
#![expect(dead_code, reason = "the proxy uses more of what is read here")]

use libfuzzer_sys::fuzz_target;

// Include the modules by path, because they are private to the proxy.
#[path = "../../crates/ringfence-egress/src/hello.rs"]
mod hello;
#[path = "../../crates/ringfence-egress/src/opening/mod.rs"]
mod opening;
#[path = "../../crates/ringfence-egress/src/watch/mod.rs"]
mod watch;

use hello::{ClientHello, HelloPosition, HelloReader};
use opening::{LineRule, OpeningKind, OpeningReader, OtherNames};
use watch::{AdmittedBytes, StreamWatch};

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    for size in [bytes.len(), usize::from(size)] {
        let mut opening = OpeningReader::new(OtherNames::Judged);
        let mut kind = None;
        for piece in bytes.chunks(size.max(1)) {
            opening.bytes.extend_from_slice(piece);
            kind = opening.kind();
            if kind.is_some() {
                break;
            }
        }
        let kind = kind.unwrap_or_else(|| opening.kind_at_end());
        let passed = &opening.bytes;
        match kind {
            OpeningKind::Tls(ClientHello::Named(name)) => {
                check_hello(&passed[..opening.hello_length()], Some(&name))
            }
            OpeningKind::Tls(ClientHello::Unnamed) => {
                check_hello(&passed[..opening.hello_length()], None)
            }
            // A single printable character passes alone, and the proxy cuts an answer to it in TLS.
            OpeningKind::Other if matches!(passed.as_slice(), [b' '..=b'~']) => {}
            OpeningKind::Other => check_unread(bytes, passed.len()),
            OpeningKind::Tls(ClientHello::Unreadable(_))
            | OpeningKind::Http
            | OpeningKind::Undecided(_) => {}
        }
    }
    check_second_hello(bytes);
    check_late_hello(bytes, usize::from(size));
    check_late_host(bytes, usize::from(size));
});

/// Checks that a stream is stopped if its first line has two or more words and a later line is the
/// header that names a host. The end of the stream may end that line.
fn check_late_host(bytes: &[u8], size: usize) {
    let mut watch = StreamWatch::new(LineRule::First);
    let is_stopped =
        bytes.chunks(size.max(1)).any(|piece| watch.read(piece) == AdmittedBytes::None);
    if is_stopped || !watch.admits_end() {
        return;
    }
    let is_lead = |byte: &u8| *byte <= b' ' || matches!(byte, 0x7f | 0x85 | 0xa0);
    // Some servers end lines at each line feed, others only at a carriage return with a line feed.
    let fed: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let mut returned = Vec::new();
    let mut rest = bytes;
    while let Some(end) = rest.windows(2).position(|part| part == b"\r\n") {
        returned.push(&rest[..end]);
        rest = &rest[end + 2..];
    }
    returned.push(rest);
    for lines in [fed, returned] {
        let mut lines = lines.into_iter().skip_while(|line| line.iter().all(is_lead));
        let first = lines.next().unwrap_or_default().trim_ascii_end();
        let first = &first[first.iter().take_while(|byte| is_lead(byte)).count()..];
        if first.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).count() < 2 {
            continue;
        }
        let is_host = |line: &[u8]| {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            line.contains(&b':') && name.trim_ascii().eq_ignore_ascii_case(b"host")
        };
        assert!(!lines.any(is_host), "a line names a host: {}", bytes.escape_ascii());
    }
}

/// Checks that a stream passes unchanged or is stopped, and that a stream with a hello is stopped.
fn check_late_hello(bytes: &[u8], size: usize) {
    let mut watch = StreamWatch::new(LineRule::Every);
    let mut passed = Vec::new();
    for piece in bytes.chunks(size.max(1)) {
        match watch.read(piece) {
            AdmittedBytes::All => passed.extend_from_slice(piece),
            AdmittedBytes::Part(mut part) => passed.append(&mut part),
            AdmittedBytes::None => return assert!(!watch.take_findings().is_empty()),
        }
    }
    if !watch.admits_end() {
        return;
    }
    passed.append(&mut watch.take_rest());
    assert!(passed == bytes, "a stream is changed");
    for start in 0..bytes.len() {
        if let [22, 0..=15, _, high, low, rest @ ..] = &bytes[start..] {
            let record =
                rest.get(..usize::from(*high) << 8 | usize::from(*low)).unwrap_or_default();
            let is_named = names_in(record).is_some_and(|names| !names.is_empty());
            assert!(!is_named, "a hello passes unread");
        }
    }
}

/// Checks that the bytes are one hello in whole records, and that the hello names only this server.
fn check_hello(bytes: &[u8], name: Option<&str>) {
    let message = content_of(bytes, &[22]);
    let names = names_in(&message).unwrap_or_else(|| panic!("a hello that cannot be read passes"));
    let named: Vec<String> =
        names.iter().map(|name| String::from_utf8_lossy(name).to_lowercase()).collect();
    match name {
        Some(name) => assert_eq!(named, [name.to_lowercase()]),
        None => assert!(
            named.iter().all(|name| name.parse::<std::net::IpAddr>().is_ok()),
            "{named:?} passes as none"
        ),
    }
}

/// Checks that a second hello is the only handshake message up to the end of that hello.
fn check_second_hello(bytes: &[u8]) {
    let mut reader = HelloReader::new(HelloPosition::AfterRetry);
    if let Some(ClientHello::Named(name)) = reader.read(bytes) {
        let names =
            names_in(&content_of(&bytes[..reader.length()], &[22])).expect("it can be read");
        assert_eq!(names, [name.as_bytes()].map(<[u8]>::to_ascii_lowercase));
    }
}

/// Joins the contents of all records of the given types.
fn content_of(mut bytes: &[u8], types: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    while let [kind, 3, _, high, low, rest @ ..] = bytes {
        let length = usize::from(*high) << 8 | usize::from(*low);
        assert!(length > 0 && rest.len() >= length, "half a record passes, or an empty one");
        if types.contains(kind) {
            content.extend_from_slice(&rest[..length]);
        }
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "something else than records passes");
    content
}

/// Returns all names in all lists of a hello, in lower case and regardless of their type. Returns
/// `None` unless the message is exactly one hello.
fn names_in(message: &[u8]) -> Option<Vec<Vec<u8>>> {
    let [1, a, b, c, body @ ..] = message else { return None };
    let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
    if length != body.len() {
        return None;
    }
    let skip = |bytes: &'_ [u8], width: usize| -> Option<usize> {
        let length =
            bytes.get(..width)?.iter().fold(0, |length, byte| length * 256 + usize::from(*byte));
        (width + length <= bytes.len()).then_some(width + length)
    };
    let mut rest = body.get(34..)?;
    for width in [1, 2, 1] {
        rest = &rest[skip(rest, width)?..];
    }
    let mut names = Vec::new();
    if rest.is_empty() {
        return Some(names);
    }
    let mut extensions = &rest[2..skip(rest, 2)?];
    while !extensions.is_empty() {
        let end = 2 + skip(extensions.get(2..)?, 2)?;
        let (extension, next) = extensions.split_at(end);
        if extension[..2] == [0, 0] {
            // Each entry is a type, a length and a name. A truncated entry also counts.
            let mut list = extension.get(6..).unwrap_or_default();
            while !list.is_empty() {
                let end =
                    list.get(1..).and_then(|list| skip(list, 2)).map_or(list.len(), |end| end + 1);
                names.push(list.get(3..end).unwrap_or_default().to_ascii_lowercase());
                list = &list[end..];
            }
        }
        extensions = next;
    }
    Some(names)
}

/// Checks that the bytes, of which the first `released` were passed on together, begin neither like
/// TLS or SSL nor like HTTP.
fn check_unread(bytes: &[u8], released: usize) {
    if let [first, second, third, ..] = *bytes {
        assert!(
            !(second == 3 && (third <= 4 || (20..=26).contains(&first))),
            "a TLS record passes unread"
        );
        let is_version = matches!(bytes.get(3..5), Some([3, _] | [0, 2]));
        assert!(!(first >= 0x80 && third == 1 && is_version), "a hello of SSL 2 passes unread");
    }
    assert!(bytes.first() != Some(&22), "a handshake passes unread");
    // Three leading control characters are passed on at once, so only bytes that were passed on
    // with them count.
    let is_lead = |byte: &u8| *byte <= b' ' || matches!(byte, 0x7f | 0x85 | 0xa0);
    let lead = bytes.iter().take_while(|byte| is_lead(byte)).count();
    let seen = if lead >= 3 { &bytes[..released] } else { bytes };
    let Some(rest) = seen.get(lead..).filter(|rest| !rest.is_empty()) else { return };
    let Some(line) = rest.split(|byte| *byte == b'\n').next() else { return };
    let text: String = line.iter().map(|byte| char::from(*byte)).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_known = |word: &str| {
        ["GET", "HEAD", "POST", "PUT", "OPTIONS", "PRI"]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(word))
    };
    if let [method, target, ..] = words[..] {
        let is_versioned =
            words[2..].iter().any(|word| word.to_ascii_uppercase().starts_with("HTTP/"));
        // Without a version, only the next line distinguishes a request from a command, once the
        // line has arrived.
        let next: &[u8] = rest.get(line.len() + 1..).unwrap_or_default();
        let name = next.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let is_empty = next.starts_with(b"\n") || next.starts_with(b"\r\n");
        let has_header = is_empty || next.get(name) == Some(&b':');
        // SIP has headers, but the watch lets no header name a host.
        let is_sip = words.get(2).is_some_and(|version| version.starts_with("SIP/"));
        // The same holds for the `put` command of beanstalkd, which has four numbers.
        let is_number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
        let is_put = words.len() == 5 && words[1..].iter().all(is_number);
        let is_request = is_versioned || target.contains("://") || has_header && !is_sip && !is_put;
        assert!(!(is_known(method) && is_request), "a request passes unread: {text:?}");
    }
}
