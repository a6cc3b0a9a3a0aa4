//! Removal of the parts of a message that are for the next hop only (RFC 9110, section 7.6).

use hyper::body::Body;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Request, Response, Version};

use super::HttpScheme;
use crate::Target;

/// Presence of a protocol upgrade in a request. An upgrade that may not be granted counts as
/// `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upgrade {
    Asked,
    None,
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Turns a client's request into the request that the host gets: in origin form, with the name of
/// `target` as its `Host`.
///
/// If the request has a body, the proxy tells the host to close the connection after the answer, so
/// that a host that ignores the body does not read a request from the body's bytes.
pub(crate) fn prepare_request<B: Body>(
    request: &mut Request<B>,
    target: &Target,
    scheme: HttpScheme,
) -> Upgrade {
    let path =
        request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;

    let has_body = !request.body().is_end_stream();
    let headers = request.headers_mut();
    let wants_trailers = headers.get_all(TE).iter().any(|value| has_word(value, "trailers"));
    let protocol = headers.get(UPGRADE).filter(|protocol| is_judgeable(protocol)).cloned();
    remove_hop_headers(headers);
    remove_proxy_headers(headers);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.append(CONNECTION, HeaderValue::from_static("TE"));
    }
    let host =
        if target.port == scheme.port() { target.host.to_string() } else { target.to_string() };
    headers.insert(HOST, HeaderValue::try_from(host).expect("a host has no control characters"));
    if has_body {
        headers.append(CONNECTION, HeaderValue::from_static("close"));
    }
    match protocol {
        Some(protocol) => {
            headers.insert(UPGRADE, protocol);
            headers.append(CONNECTION, HeaderValue::from_static("upgrade"));
            Upgrade::Asked
        }
        None => Upgrade::None,
    }
}

/// Turns a host's answer into the answer that the client gets.
pub(crate) fn prepare_response<B>(response: &mut Response<B>) {
    let protocol = match response.status() {
        hyper::StatusCode::SWITCHING_PROTOCOLS => response.headers().get(UPGRADE).cloned(),
        _ => None,
    };
    *response.version_mut() = Version::HTTP_11;
    remove_hop_headers(response.headers_mut());
    remove_proxy_headers(response.headers_mut());
    // The body was read as chunks, so a length beside them is wrong (RFC 9112, section 6.3).
    if response.headers().contains_key(TRANSFER_ENCODING) {
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    if let Some(protocol) = protocol {
        response.headers_mut().insert(UPGRADE, protocol);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Returns whether `protocol` cannot name another host after the upgrade. HTTP/2 names a host in
/// each request, and TLS names one in its first message.
fn is_judgeable(protocol: &HeaderValue) -> bool {
    let protocol = protocol.as_bytes().to_ascii_lowercase();
    !["h2", "http/", "tls/"]
        .iter()
        .any(|part| protocol.windows(part.len()).any(|window| window == part.as_bytes()))
}

/// Removes the headers that are for one hop only: those that `Connection` names, and a fixed list.
/// Keeps the headers that state the length of the body, because hyper reads them and writes its
/// own.
pub fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse::<HeaderName>().ok())
        .filter(|name| !matches!(name.as_str(), "content-length" | "transfer-encoding" | "host"))
        .collect();
    let always = [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        UPGRADE,
    ];
    for name in named.iter().chain(&always) {
        headers.remove(name);
    }
}

/// Removes the headers that a client addresses to a proxy.
fn remove_proxy_headers(headers: &mut HeaderMap) {
    let proxies: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("proxy-")).cloned().collect();
    for name in proxies {
        headers.remove(name);
    }
}

fn has_word(value: &HeaderValue, word: &str) -> bool {
    let words = value.to_str().unwrap_or_default().split(',');
    words
        .map(|word| word.split(';').next().unwrap_or_default().trim())
        .any(|own| own.eq_ignore_ascii_case(word))
}
