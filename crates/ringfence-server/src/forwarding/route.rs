//! Target of a request: the server itself, or one of its sandboxes.

use hyper::header::HOST;
use hyper::{HeaderMap, Request};
use ringfence_proto::{ENVD_PORT, filesystem, header, process};

/// Target of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// Port of a sandbox; [`ENVD_PORT`] stands for its guest.
    Port { id: &'a str, port: u16 },
    /// Guest of a sandbox that the request does not name. The token or signature in the request
    /// identifies the sandbox.
    Guest,
    /// The server itself.
    Control,
}

impl<'a> Route<'a> {
    /// Finds the target of a request by its host name, else by its headers, else by its path.
    pub(crate) fn from_request<B>(request: &'a Request<B>) -> Route<'a> {
        let headers = request.headers();
        if let Some((port, id)) = text(headers, HOST.as_str()).and_then(in_host) {
            return Route::Port { id, port };
        }
        if let Some(id) = text(headers, header::SANDBOX) {
            let port =
                text(headers, header::PORT).and_then(|port| port.parse().ok()).unwrap_or(ENVD_PORT);
            return Route::Port { id, port };
        }
        let path = request.uri().path();
        let shows_token = headers.contains_key(header::TOKEN);
        if path == "/files" || is_guests(path) && shows_token {
            Route::Guest
        } else {
            Route::Control
        }
    }
}

/// Returns whether a path belongs to the part of envd's API that clients use. The other paths are
/// for the guest and its host alone.
pub(crate) fn is_guests(path: &str) -> bool {
    let service =
        path.strip_prefix('/').and_then(|path| path.split_once('/')).map(|(service, _)| service);
    matches!(path, "/health" | "/files" | "/metrics" | "/envs")
        || service.is_some_and(|service| [process::SERVICE, filesystem::SERVICE].contains(&service))
}

/// Returns the value of a header, if it is text and not empty.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().filter(|text| !text.is_empty())
}

/// Parses the port and the sandbox id at the start of a host name such as `49983-id.example.org`.
fn in_host(host: &str) -> Option<(u16, &str)> {
    let (label, _) = host.split_once('.')?;
    let (port, id) = label.split_once('-')?;
    let is_plain =
        !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    Some((port.parse().ok()?, id)).filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, headers: &[(&str, &str)], expected: Route<'_>) {
        let request = headers
            .iter()
            .fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
        assert_eq!(Route::from_request(&request.body(()).unwrap()), expected);
    }

    #[test]
    fn a_request_is_for_whom_its_host_name_or_headers_name() {
        let local = ("host", "127.0.0.1:3000");
        check("/sandboxes", &[local], Route::Control);
        check("/sandboxes", &[("host", "api.example.org")], Route::Control);
        check(
            "/x",
            &[("host", "8080-abc1.example.org:443")],
            Route::Port { id: "abc1", port: 8080 },
        );
        check("/x", &[("host", "8080-abc1")], Route::Control);
        check("/x", &[("host", "99999-abc1.example.org")], Route::Control);
        check("/x", &[("host", "80-a-b.example.org")], Route::Control);
        check(
            "/x",
            &[local, ("e2b-sandbox-id", "abc")],
            Route::Port { id: "abc", port: ENVD_PORT },
        );
        check(
            "/x",
            &[local, ("e2b-sandbox-id", "abc"), ("e2b-sandbox-port", "49999")],
            Route::Port { id: "abc", port: 49999 },
        );
    }

    #[test]
    fn a_request_that_names_no_sandbox_is_known_by_what_it_shows() {
        check("/files?path=x&signature=y", &[], Route::Guest);
        check("/health", &[], Route::Control);
        check("/health", &[("x-access-token", "t")], Route::Guest);
        check("/process.Process/List", &[("x-access-token", "t")], Route::Guest);
        check("/process.Process/List", &[], Route::Control);
        check("/init", &[("x-access-token", "t")], Route::Control);
    }

    #[test]
    fn routes_between_a_guest_and_its_host_are_not_for_clients() {
        for path in [
            "/init",
            "/tree",
            "/freeze",
            "/",
            "/filesx",
            "/process.Processx/List",
            "/process.Process",
        ] {
            assert!(!is_guests(path), "{path}");
        }
    }
}
