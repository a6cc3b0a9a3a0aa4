//! Lines that a lenient server may read as lines of an HTTP request.
//!
//! RFC 9112, 3 lets servers separate words by any blank, and old servers take any third word for a
//! version. Some servers take any first word for a method, whatever bytes the word has.

/// Methods that servers know: the registry of IANA, and other methods that are in use.
const KNOWN_METHODS: &[&str] = &[
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DEBUG",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "M-SEARCH",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "NOTIFY",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "SOURCE",
    "SUBSCRIBE",
    "TRACE",
    "TRACK",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UNSUBSCRIBE",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// First bytes of the version in a request line.
const VERSION_PREFIX: &[u8] = b"HTTP/";
/// Name of the header that names a host.
const HOST_HEADER: &[u8] = b"Host";
/// First bytes of the URLs that HTTP servers accept.
const URL_SCHEMES: [&[u8]; 2] = [b"http://", b"https://"];
/// Tests for the bytes that separate words: of a lenient server, of a server that does not know the
/// separators of ASCII (0x1c to 0x1f), and of a server that knows the space alone.
const SEPARATORS: [fn(u8) -> bool; 3] = [is_blank, is_space, |byte| byte == b' '];
/// Tests of [`SEPARATORS`] for a first line, and a fourth test that also accepts the line feed,
/// because some servers take a line feed in the first line for a blank.
const FIRST_LINE_SEPARATORS: [fn(u8) -> bool; 4] =
    [is_blank, is_space, |byte| byte == b' ', |byte| is_blank(byte) || byte == b'\n'];

/// Classification of a line, without its line feed, by the request that the line may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestLine {
    /// The line has a version, names a host, or belongs to the PROXY protocol.
    Whole,
    /// The line is an HTTP/0.9 request or a command of another protocol. The next line shows which
    /// of the two.
    Versionless,
    /// The line is a command of another protocol, unless a later line names a host.
    Command,
    /// The line is a request of SIP, which has headers as HTTP does, but none that names a host.
    Sip,
    /// The line has two words or more. Some servers take any words for a request, and then the
    /// header that names a host follows.
    Words,
    /// The line is not a request.
    None,
}

/// Classifies a line that consists of text.
pub(crate) fn read_line(line: &[u8]) -> RequestLine {
    if has_version_word(line) {
        return RequestLine::Whole;
    }
    let readings = SEPARATORS.map(|separates| {
        let mut words = split_words(line, separates);
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            return RequestLine::None;
        };
        // The CONNECT command of NATS has a JSON object as its argument, and the object may hold a
        // URL.
        let is_nats = first.eq_ignore_ascii_case(b"CONNECT") && second[0] == b'{';
        let is_known = is_method(first) && !is_nats;
        let begins_request = is_known || second[0] == b'/' || second == b"*";
        // The `put` command of beanstalkd has only numbers, and the job follows in the next line.
        let is_number = |word: &[u8]| word.iter().all(u8::is_ascii_digit);
        let are_numbers =
            words.clone().count() == 3 && split_words(line, separates).skip(1).all(is_number);
        if first == b"PROXY"
            || has_scheme(second) && !is_nats
            || begins_request && has_version(line)
        {
            RequestLine::Whole
        } else if words.next().is_some_and(|third| third.starts_with(b"SIP/")) {
            RequestLine::Sip
        } else if second[0] == b'/' || is_known && !are_numbers {
            RequestLine::Versionless
        } else if begins_request {
            RequestLine::Command
        } else {
            RequestLine::None
        }
    });
    if readings.contains(&RequestLine::Whole) {
        return RequestLine::Whole;
    }
    readings.into_iter().find(|reading| *reading != RequestLine::None).unwrap_or(RequestLine::None)
}

/// Classifies a first line of any bytes. Some servers take any first word for a method, even an
/// empty word. `line` may contain line feeds, because some servers end a line only at a carriage
/// return with a line feed.
pub(crate) fn read_first_line(line: &[u8]) -> RequestLine {
    let line = &line[line.iter().take_while(|byte| is_lead(**byte)).count()..];
    if has_version_word(line) || has_url_target(line) {
        return RequestLine::Whole;
    }
    let readings = FIRST_LINE_SEPARATORS.map(|separates| {
        let mut words = split_words(line, separates);
        let first = words.next().unwrap_or_default();
        let second = words.next().unwrap_or_default();
        if first == b"PROXY" {
            RequestLine::Whole
        } else if is_method(first) && !second.is_empty()
            || first.starts_with(b"/")
            || second.starts_with(b"/")
            || second.starts_with(b"*")
        {
            RequestLine::Command
        } else {
            RequestLine::None
        }
    });
    let is_any = |reading: &RequestLine| readings.contains(reading);
    let otherwise = if has_two_words(line) { RequestLine::Words } else { RequestLine::None };
    [RequestLine::Whole, RequestLine::Command].into_iter().find(is_any).unwrap_or(otherwise)
}

/// Classifies a first line that is too long to be kept. `beginning` is the part that was kept, and
/// `has_blank_in_rest` says whether the remaining part has a blank. Servers that read such long
/// lines require a path or a URL without control characters as the target, unless they know the
/// method.
pub(crate) fn read_long_first_line(beginning: &[u8], has_blank_in_rest: bool) -> RequestLine {
    let may_be_request = FIRST_LINE_SEPARATORS.into_iter().any(|separates| {
        let mut words = split_words(beginning, separates);
        let first = words.next().unwrap_or_default();
        let Some(second) = words.next() else { return has_blank_in_rest };
        let is_target = matches!(second[0], b'/' | b'*') || scheme_of(second).is_some();
        is_method(first) || is_target && !second.iter().any(u8::is_ascii_control)
    });
    let is_word = !has_two_words(beginning) && !has_blank_in_rest;
    match (may_be_request, is_word) {
        (true, _) => RequestLine::Whole,
        (_, true) => RequestLine::None,
        _ => RequestLine::Words,
    }
}

/// Returns whether a line of any bytes is a request with a version, which is the third or the last
/// word. In other places `HTTP/` is ordinary text, as in a line of a log.
pub(crate) fn has_version_word(line: &[u8]) -> bool {
    SEPARATORS.into_iter().any(|separates| {
        let words = || split_words(line, separates);
        let versions = [words().nth(2), words().skip(2).last()];
        // A server that takes a control character for a blank sees one more word than we do.
        let last = words().skip(1).last().and_then(|word| word.get(..VERSION_PREFIX.len()));
        versions.into_iter().chain([last]).flatten().any(has_version)
    })
}

/// Returns whether a line, which may be incomplete, names a host in a header or in the target of a
/// request.
pub(crate) fn names_host(line: &[u8]) -> bool {
    has_host_header(line)
        || has_url_target(line)
        || split_words(line, is_blank).next().is_some_and(is_method)
            && split_words(line, is_blank).nth(1).is_some_and(has_scheme)
}

/// Returns whether the second word of a line, which may be incomplete, is a URL. The first word may
/// be any word.
pub(crate) fn has_url_target(line: &[u8]) -> bool {
    let begins_url = |word: &[u8]| {
        scheme_of(word).is_some_and(|scheme| word[scheme.len()..].starts_with(b"://"))
    };
    FIRST_LINE_SEPARATORS
        .into_iter()
        .any(|separates| split_words(line, separates).nth(1).is_some_and(begins_url))
}

/// Returns the scheme of a word that is a URL with a path: the bytes before the first `:/`.
fn scheme_of(word: &[u8]) -> Option<&[u8]> {
    let scheme = &word[..word.windows(2).position(|part| part == b":/")?];
    let is_scheme_byte =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    (!scheme.is_empty() && scheme.iter().all(is_scheme_byte)).then_some(scheme)
}

/// Returns whether a TLS hello has a line that a server may read as a line of a request. Such a
/// line has `HTTP/` in capitals, a word after the first that begins with a version or a URL, or the
/// header that names a host. The `http/1.1` of ALPN is not such a word, because its length stands
/// directly before it. Only complete lines count, because no server acts on half a line.
pub(crate) fn hides_request(hello: &[u8]) -> bool {
    let mut lines: Vec<&[u8]> = hello.split(|byte| *byte == b'\n').collect();
    lines.pop();
    let is_named = |separates: fn(u8) -> bool, line: &[u8]| {
        let mut others = split_words(line, separates).skip(1);
        others.any(|word| {
            URL_SCHEMES.iter().chain([&VERSION_PREFIX]).any(|start| begins_with(word, start))
        })
    };
    lines.into_iter().any(|line| {
        line.windows(VERSION_PREFIX.len()).any(|part| part == VERSION_PREFIX)
            || has_host_header(line)
            || SEPARATORS.into_iter().any(|separates| is_named(separates, line))
    })
}

/// Returns whether a line, or a part that some server takes for a line, is the header that names a
/// host.
pub(crate) fn has_host_header(line: &[u8]) -> bool {
    line.split(|byte| ends_header(*byte)).any(is_host_header)
}

/// Returns whether a byte ends a header for some server. The header parsers of Python end a line at
/// control characters, too.
pub(crate) fn ends_header(byte: u8) -> bool {
    byte.is_ascii_control() && byte != b'\t' || byte == 0x85
}

/// Returns whether bytes, which may be incomplete, can be the start of the header that names a
/// host.
pub(crate) fn may_begin_host_header(bytes: &[u8]) -> bool {
    let start = bytes.iter().position(|byte| !is_blank(*byte)).unwrap_or(bytes.len());
    let (name, rest) = bytes[start..].split_at((bytes.len() - start).min(HOST_HEADER.len()));
    HOST_HEADER[..name.len()].eq_ignore_ascii_case(name) && rest.iter().all(|byte| is_blank(*byte))
}

fn is_host_header(line: &[u8]) -> bool {
    let start = line.iter().position(|byte| !is_blank(*byte)).unwrap_or(line.len());
    let (name, rest) = line[start..].split_at_checked(HOST_HEADER.len()).unwrap_or_default();
    let colon = rest.iter().find(|byte| !is_blank(**byte));
    name.eq_ignore_ascii_case(HOST_HEADER) && colon == Some(&b':')
}

/// Returns whether the bytes after a line begin a header or an empty line, which no other protocol
/// sends after a command. Returns `None` until enough bytes are there to decide.
pub(crate) fn begins_header(bytes: &[u8]) -> Option<bool> {
    match bytes {
        [] | b"\r" => return None,
        [first, ..] if *first == b'\n' || is_blank(*first) => return Some(true),
        _ => {}
    }
    let is_name_byte = |byte: &u8| !is_blank(*byte) && !byte.is_ascii_control() && *byte != b':';
    let rest = &bytes[bytes.iter().take_while(|byte| is_name_byte(byte)).count()..];
    rest.iter().find(|byte| !is_blank(**byte)).map(|byte| *byte == b':')
}

/// Returns whether a line has two words for some server, including servers that take control
/// characters for blanks.
fn has_two_words(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let has_second = |separates| split_words(line, separates).nth(1).is_some();
    FIRST_LINE_SEPARATORS.into_iter().any(has_second) || has_second(is_lead)
}

fn split_words(line: &[u8], separates: fn(u8) -> bool) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(move |byte| separates(*byte)).filter(|word| !word.is_empty())
}

fn has_version(text: &[u8]) -> bool {
    text.windows(VERSION_PREFIX.len()).any(|part| part.eq_ignore_ascii_case(VERSION_PREFIX))
}

fn begins_with(word: &[u8], start: &[u8]) -> bool {
    word.get(..start.len()).is_some_and(|word| word.eq_ignore_ascii_case(start))
}

fn has_scheme(word: &[u8]) -> bool {
    word.windows(3).any(|part| part == b"://")
}

pub(crate) fn is_method(word: &[u8]) -> bool {
    KNOWN_METHODS.iter().any(|method| method.as_bytes().eq_ignore_ascii_case(word))
}

/// Returns whether a word, which may be incomplete, looks like a method: a known method, or capital
/// letters.
pub(crate) fn may_begin_method(word: &[u8]) -> bool {
    let begins = |method: &&str| {
        let own = method.as_bytes().get(..word.len());
        own.is_some_and(|own| own.eq_ignore_ascii_case(word))
    };
    let is_capital = |byte: &u8| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_');
    word.iter().all(is_capital) || KNOWN_METHODS.iter().any(begins)
}

/// Returns whether a byte separates words for some server: the separators of RFC 9112, 3, and the
/// blanks among the first 256 characters of Unicode.
pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c | 0x1c..=0x1f | 0x85 | 0xa0)
}

/// Returns whether a lenient server skips this byte before a request.
pub(crate) fn is_lead(byte: u8) -> bool {
    is_blank(byte) || byte.is_ascii_control()
}

/// Returns whether a byte separates words for a server that does not know the separators of ASCII
/// (0x1c to 0x1f).
fn is_space(byte: u8) -> bool {
    is_blank(byte) && !matches!(byte, 0x1c..=0x1f)
}
