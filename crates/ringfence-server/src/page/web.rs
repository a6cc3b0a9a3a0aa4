//! Web page at `/`, made of files that are part of this program. The page has no rights of its own:
//! its script calls the API with the key of the user who logs in.

use std::sync::LazyLock;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, StatusCode};
use sha2::{Digest, Sha256};

use crate::api::reply::{Reply, bare};
use crate::forwarding::route::text;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// Content security policy of the page: only resources of this server. Inline styles are allowed
/// because the terminal writes them.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                      img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Headers that are sent with every file.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // Browsers ask for a file each time, but get it again only if the version of this program has
    // changed it.
    (CACHE_CONTROL, "no-cache"),
];

/// File of the page.
struct PageFile {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($path:literal is $kind:ident of $name:literal,)*) => {
        [$(PageFile { path: $path, kind: $kind, bytes: include_bytes!(concat!("web/", $name)) }),*]
    };
}

/// All files of the page.
const FILES: [PageFile; 18] = files![
    "/" is HTML of "index.html",
    "/page/icon.svg" is PICTURE of "icon.svg",
    "/page/style.css" is STYLE of "style.css",
    "/page/sandbox.css" is STYLE of "sandbox.css",
    "/page/app.js" is SCRIPT of "app.js",
    "/page/api.js" is SCRIPT of "api.js",
    "/page/dom.js" is SCRIPT of "dom.js",
    "/page/login.js" is SCRIPT of "login.js",
    "/page/list.js" is SCRIPT of "list.js",
    "/page/sandbox.js" is SCRIPT of "sandbox.js",
    "/page/charts.js" is SCRIPT of "charts.js",
    "/page/activity.js" is SCRIPT of "activity.js",
    "/page/terminal.js" is SCRIPT of "terminal.js",
    "/page/text.js" is SCRIPT of "text.js",
    "/page/files.js" is SCRIPT of "files.js",
    "/page/vendor/xterm.mjs" is SCRIPT of "vendor/xterm.mjs",
    "/page/vendor/addon-fit.mjs" is SCRIPT of "vendor/addon-fit.mjs",
    "/page/vendor/xterm.css" is STYLE of "vendor/xterm.css",
];

/// Entity tags that identify the versions of the files, in the order of [`FILES`].
static TAGS: LazyLock<[HeaderValue; FILES.len()]> = LazyLock::new(|| {
    FILES.map(|file| {
        let tag = format!("\"{}\"", ringfence_core::to_hex(&Sha256::digest(file.bytes)[..16]));
        HeaderValue::try_from(tag).expect("hexadecimal is plain")
    })
});

/// Answers a request for a file of the page, or returns `None` for other requests.
pub(crate) fn answer<B>(request: &Request<B>) -> Option<Reply> {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return None;
    }
    let position = FILES.iter().position(|file| file.path == request.uri().path())?;
    let (file, tag) = (&FILES[position], &TAGS[position]);
    let is_known = text(request.headers(), IF_NONE_MATCH.as_str()) == tag.to_str().ok();
    let mut reply = bare(if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::OK });
    if !is_known {
        let bytes = Bytes::from_static(file.bytes);
        *reply.body_mut() = Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
    }
    let headers = reply.headers_mut();
    headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(ETAG, tag.clone());
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: Method, path: &str, known: &str) -> Option<Reply> {
        answer(
            &Request::builder()
                .method(method)
                .uri(path)
                .header(IF_NONE_MATCH, known)
                .body(())
                .unwrap(),
        )
    }

    #[test]
    fn a_file_is_sent_once_and_with_strict_headers() {
        let reply = ask(Method::GET, "/", "\"other\"").unwrap();
        assert_eq!(reply.status(), StatusCode::OK);
        for (name, value) in HEADERS {
            assert_eq!(reply.headers()[&name], value);
        }
        let tag = reply.headers()[ETAG].to_str().unwrap();
        assert_eq!(ask(Method::GET, "/", tag).unwrap().status(), StatusCode::NOT_MODIFIED);
        assert_eq!(ask(Method::GET, "/page/app.js", tag).unwrap().status(), StatusCode::OK);
    }

    #[test]
    fn only_what_is_listed_is_a_file_of_the_page() {
        for path in [
            "/page",
            "/page/",
            "/page/../server.rs",
            "/page/app.js/",
            "//",
            "/index.html",
            "/page/APP.js",
        ] {
            assert!(ask(Method::GET, path, "x").is_none(), "{path}");
        }
        assert!(ask(Method::POST, "/", "x").is_none());
    }

    #[test]
    fn every_file_that_a_file_names_is_there() {
        for file in FILES
            .iter()
            .filter(|file| !file.path.starts_with("/page/vendor/") && file.kind != PICTURE)
        {
            let text = std::str::from_utf8(file.bytes).unwrap();
            let named = text
                .split(['"', '\''])
                .filter(|word| word.starts_with("/page/") || word.starts_with("./"));
            for name in named {
                let path = name.replacen("./", "/page/", 1);
                assert!(FILES.iter().any(|file| file.path == path), "{} names {name}", file.path);
            }
        }
    }

    #[test]
    fn no_file_of_ours_makes_markup_of_text() {
        let is_ours =
            |file: &&PageFile| file.kind == SCRIPT && !file.path.starts_with("/page/vendor/");
        for file in FILES.iter().filter(is_ours) {
            let text = std::str::from_utf8(file.bytes).unwrap();
            for trap in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
            ] {
                assert!(!text.contains(trap), "{} has {trap}", file.path);
            }
        }
    }
}
