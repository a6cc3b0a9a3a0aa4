//! `GET` and `POST /files`: download and upload of the bytes of files.

mod download;
mod form;
mod upload;

use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, StatusCode};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::header;
use ringfence_proto::query::UrlQuery;
use ringfence_proto::signature::{SignatureClaim, SignaturePurpose};

use crate::authentication::{self, AccessToken};
use crate::connect_protocol::{Reply, refusal_reply};
use crate::slices::refuse_unread;
use crate::user::{self, SandboxUser};

/// Answers a request of the endpoint `/files`.
pub(crate) async fn answer_files(request: Request<Incoming>, token: &AccessToken) -> Reply {
    let purpose = match *request.method() {
        Method::GET => SignaturePurpose::Read,
        Method::POST => SignaturePurpose::Write,
        _ => {
            let why = "files are read with GET and written with POST";
            return refuse_unread(request, refusal_reply(StatusCode::METHOD_NOT_ALLOWED, why))
                .await;
        }
    };
    let checked = UrlQuery::parse(request.uri().query().unwrap_or_default()).and_then(|query| {
        authorize(&query, request.headers(), token, purpose)?;
        let user = requested_user(&query, request.headers())?;
        Ok((query, user))
    });
    let answer = match (checked, purpose) {
        (Err(failure), _) => return refuse_unread(request, files_failure_reply(&failure)).await,
        (Ok((query, user)), SignaturePurpose::Read) => {
            download::download(&query, &user, request.headers()).await
        }
        (Ok((query, user)), SignaturePurpose::Write) => upload::upload(&query, user, request).await,
    };
    answer.unwrap_or_else(|failure| files_failure_reply(&failure))
}

/// Returns the reply to a failed request for files: an HTTP status that clients know, and a
/// message.
pub(crate) fn files_failure_reply(failure: &Failure) -> Reply {
    let status = match failure.code {
        // envd reports a full disk with this status.
        Code::ResourceExhausted => StatusCode::INSUFFICIENT_STORAGE,
        code => StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    };
    refusal_reply(status, failure.message.as_str())
}

/// Returns the user that the query names, else the user that the headers name.
pub(crate) fn requested_user(
    query: &UrlQuery,
    headers: &HeaderMap,
) -> Result<SandboxUser, Failure> {
    match query.get("username") {
        Some(name) if !name.is_empty() => user::find_user(name),
        _ => authentication::requested_user(headers),
    }
}

/// Checks that the request has the token in a header, or a signature that was made with the token.
/// The messages are those of envd.
fn authorize(
    query: &UrlQuery,
    headers: &HeaderMap,
    token: &AccessToken,
    purpose: SignaturePurpose,
) -> Result<(), Failure> {
    let secret = match token {
        AccessToken::None => return Ok(()),
        AccessToken::Text(secret) => Some(secret),
        AccessToken::Hash(_) => None,
    };
    if headers.get(header::TOKEN).is_some_and(|value| !value.is_empty()) {
        let message = "access token present in header but does not match";
        return token
            .is_presented(headers)
            .then_some(())
            .ok_or_else(|| Failure::new(Code::Unauthenticated, message));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let claim = SignatureClaim::from_query(query, purpose)?;
    match secret {
        Some(secret) => claim.check(secret, now),
        // A guest that does not know its token can check no signature.
        None => Err(Failure::new(Code::Unauthenticated, "this sandbox accepts no signed URL")),
    }
}

#[cfg(test)]
mod tests {
    use ringfence_proto::signature::sign;

    use super::*;

    #[track_caller]
    fn check(query: &str, headers: &[(&'static str, &str)], expected: Result<(), &str>) {
        let query = UrlQuery::parse(query).expect("is well-formed");
        let headers = headers.iter().map(|&(name, value)| {
            (
                name.parse::<hyper::header::HeaderName>().expect("is a name"),
                value.parse().expect("is a value"),
            )
        });
        let answer = authorize(
            &query,
            &headers.collect(),
            &AccessToken::new("secret"),
            SignaturePurpose::Read,
        );
        assert_eq!(answer.map_err(|failure| failure.message), expected.map_err(str::to_owned));
    }

    #[test]
    fn the_token_or_a_signature_with_it_is_needed() {
        let plain = |text: String| text.replace('+', "%2B");
        let signature = plain(sign("/a", SignaturePurpose::Read, "", "secret", None));
        check("path=/a", &[], Err("missing signature query parameter"));
        check("path=/a", &[("x-access-token", "secret")], Ok(()));
        check(
            "path=/a",
            &[("x-access-token", "wrong")],
            Err("access token present in header but does not match"),
        );
        check(&format!("path=/a&signature={signature}"), &[], Ok(()));
        check(&format!("path=/b&signature={signature}"), &[], Err("invalid signature"));
        check(
            &format!("path=/a&username=user&signature={signature}"),
            &[],
            Err("invalid signature"),
        );
        let write = plain(sign("/a", SignaturePurpose::Write, "", "secret", None));
        check(&format!("path=/a&signature={write}"), &[], Err("invalid signature"));
    }

    #[test]
    fn a_signature_expires() {
        for (expiration, expected) in
            [(4_000_000_000, Ok(())), (1_000, Err("signature is already expired"))]
        {
            let signature = sign("/a", SignaturePurpose::Read, "", "secret", Some(expiration))
                .replace('+', "%2B");
            check(
                &format!("path=/a&signature={signature}&signature_expiration={expiration}"),
                &[],
                expected,
            );
            let later =
                format!("path=/a&signature={signature}&signature_expiration={}", expiration + 1);
            check(&later, &[], Err("invalid signature"));
        }
    }

    #[test]
    fn without_a_token_every_caller_is_authorized() {
        let nobody = authorize(
            &UrlQuery::default(),
            &HeaderMap::new(),
            &AccessToken::default(),
            SignaturePurpose::Write,
        );
        assert_eq!(nobody, Ok(()));
    }
}
