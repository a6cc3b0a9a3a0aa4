//! Detection of requests that make a host send back the request itself (RFC 9110, section 9.3.8).
//!
//! Method names are case-sensitive, but not every host respects that. Frameworks also take the
//! method from a header or a query parameter, under many names. Each name that contains `method`
//! counts, because gateways treat `_` and `-` alike. Each word of the value counts, because some
//! frameworks take the last entry of a list.

use hyper::Request;
use percent_encoding::percent_decode_str;

/// Methods that make a host send back a request with all its headers. `TRACK` is a method of IIS.
const ECHO_METHODS: [&str; 2] = ["TRACE", "TRACK"];

/// Returns whether a request asks for an echo, by its method or by a header or parameter that
/// overrides the method.
pub(super) fn is_echo_request<B>(request: &Request<B>) -> bool {
    let names_echo = |name: &[u8], value: &[u8]| is_override(name) && has_echo_method(value);
    let headers = request.headers();
    has_echo_method(request.method().as_str().as_bytes())
        || headers.iter().any(|(name, value)| names_echo(name.as_ref(), value.as_bytes()))
        || decode_parameters(request.uri())
            .any(|(find_name_rule, value)| names_echo(&find_name_rule, &value))
}

fn is_override(name: &[u8]) -> bool {
    name.windows(6).any(|part| part.eq_ignore_ascii_case(b"method"))
}

/// Returns whether a word of `text` is an echo method. A dot is part of a word, because names with
/// dots are not methods: `track.love` is a procedure.
fn has_echo_method(text: &[u8]) -> bool {
    let is_word_byte =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let mut words = text.split(|byte| !is_word_byte(byte));
    words.any(|word| ECHO_METHODS.iter().any(|echo| echo.as_bytes().eq_ignore_ascii_case(word)))
}

/// Returns the names and values of the parameters in the query and after semicolons in the path,
/// percent-decoded.
fn decode_parameters(uri: &hyper::Uri) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let text = uri.path_and_query().map_or("", |path| path.as_str());
    text.split(['?', '&', ';']).filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        Some((percent_decode_str(name).collect(), percent_decode_str(value).collect()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, target: &str, header: Option<(&str, &str)>, expected: bool) {
        let mut request = Request::builder().method(method).uri(target);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let shown = format!("{method} {target} {header:?}");
        assert_eq!(is_echo_request(&request.body(()).unwrap()), expected, "{shown}");
    }

    #[test]
    fn echo_requests_are_recognised_wherever_a_method_may_stand() {
        for method in ["TRACE", "trace", "TrAcK"] {
            check(method, "/", None, true);
        }
        for (name, value) in [
            ("X-HTTP-Method-Override", "TRACE"),
            ("X_HTTP_METHOD_OVERRIDE", "TRACE"),
            ("X-HTTP-Method_Override", "trace"),
            ("X-HTTP-Method-Override", "\"TRACE\""),
            ("X-HTTP-Method-Override", "'TRACE'"),
            ("X-HTTP-Method-Override", "GET, TRACE"),
            ("X-HTTP-Method-Override", "TRACE;q=1"),
            ("X-Method", "Track"),
            ("X-Original-Method", "TRACE"),
            ("X-HTTPMethod", "\tTRACE "),
            ("_method", "TRACE"),
        ] {
            check("POST", "/", Some((name, value)), true);
        }
        for target in [
            "/?_method=TRACE",
            "/?a=b&_METHOD=trace",
            "/?_method=%54RAC%45",
            "/?%5Fmeth%6Fd=TRACE",
            "/?_method[]=TRACE",
            "/?a;_method=TRACK",
            "/a;_method=TRACE/b",
            "http://host.test/?x-http-method-override=GET,TRACE",
        ] {
            check("POST", target, None, true);
        }
    }

    #[test]
    fn ordinary_requests_are_not_echo_requests() {
        check("GET", "/trace?trace=TRACE&a=%5", None, false);
        check("TRACER", "/TRACE", Some(("X-Trace", "TRACE")), false);
        check("POST", "/?method=track.love", Some(("X-HTTP-Method-Override", "PATCH")), false);
        check("POST", "/?method=traceroute", Some(("Access-Control-Request-Method", "PUT")), false);
    }
}
