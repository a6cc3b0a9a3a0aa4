//! Identity of the caller: the access token that authorizes a request, and the user that the
//! request names.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, StatusCode};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::{header, signature};

use crate::connect_protocol::{Reply, refusal_reply};
use crate::user::{self, SandboxUser};

/// Access token that every caller must present.
#[derive(Debug, Clone, Default)]
pub(crate) enum AccessToken {
    /// No token is needed, because the socket itself is private.
    #[default]
    None,
    /// The token itself.
    Text(String),
    /// Hash of the token, of a guest whose command line others can read.
    Hash(String),
}

impl AccessToken {
    /// Creates the token from the text of the token file. Line breaks at the end are ignored.
    pub(crate) fn new(text: &str) -> AccessToken {
        AccessToken::Text(text.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Returns true if the request has the token in its `x-access-token` header, or if no token is
    /// needed.
    pub(crate) fn is_presented(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::TOKEN).and_then(|value| value.to_str().ok());
        self.is(given.unwrap_or_default())
    }

    /// Returns true if `given` is the token, or if no token is needed.
    pub(crate) fn is(&self, given: &str) -> bool {
        match self {
            AccessToken::None => true,
            AccessToken::Text(token) => signature::is_same_secret(given, token),
            AccessToken::Hash(hash) => {
                let given = signature::token_hash(given);
                signature::is_same_secret(&given, hash)
            }
        }
    }

    /// Returns the reply 401 if the request does not have the token, and `None` if the request may
    /// proceed.
    pub(crate) fn refusal(&self, headers: &HeaderMap) -> Option<Reply> {
        (!self.is_presented(headers)).then(|| {
            let message =
                format!("the header `{}` is missing or not this sandbox's", header::TOKEN);
            refusal_reply(StatusCode::UNAUTHORIZED, message)
        })
    }
}

/// Returns the user that a request names with `Authorization: Basic` and an empty password. A
/// request without the header means the user of the sandbox.
pub(crate) fn requested_user(headers: &HeaderMap) -> Result<SandboxUser, Failure> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(user::current_user()) };
    let name = decode_basic_user(value.as_bytes()).ok_or_else(|| {
        Failure::new(
            Code::Unauthenticated,
            "the header `authorization` does not name a user with `Basic`",
        )
    })?;
    user::find_user(&name)
}

fn decode_basic_user(value: &[u8]) -> Option<String> {
    let (scheme, credentials) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let credentials = String::from_utf8(STANDARD.decode(credentials.trim_ascii()).ok()?).ok()?;
    credentials.split_once(':').map(|(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_named_with_basic_and_no_password() {
        assert_eq!(decode_basic_user(b"Basic dXNlcjo="), Some("user".to_owned()));
        assert_eq!(decode_basic_user(b"basic cm9vdDo="), Some("root".to_owned()));
        for wrong in [
            &b""[..],
            b"Basic",
            b"Bearer dXNlcjo=",
            b"Basic !",
            b"Basic dXNlcg==",
            b"\xff\xff\xff\xff\xff\xff",
        ] {
            assert_eq!(decode_basic_user(wrong), None);
        }
    }

    #[test]
    fn a_token_is_compared_whole() {
        let token = AccessToken::new("secret\n");
        let headers = |value: &'static str| {
            HeaderMap::from_iter([(
                header::TOKEN.parse::<hyper::header::HeaderName>().unwrap(),
                value.parse().unwrap(),
            )])
        };
        assert!(token.is_presented(&headers("secret")));
        assert!(!token.is_presented(&headers("secre")));
        assert!(!token.is_presented(&headers("")));
        assert!(!token.is_presented(&HeaderMap::new()));
        assert!(AccessToken::default().is_presented(&HeaderMap::new()));
        let hashed = AccessToken::Hash(signature::token_hash("secret"));
        assert!(hashed.is("secret"));
        assert!(!hashed.is("secre") && !hashed.is(&signature::token_hash("secret")));
    }
}
