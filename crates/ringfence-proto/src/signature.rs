//! Signatures: what lets a bare URL read or write one file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};

use crate::code::{Code, Failure};
use crate::query::Query;

/// What a signed URL may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Reading the file.
    Read,
    /// Writing it.
    Write,
}

/// Signs the use of a path by a user; `expiration` is in seconds since 1970.
pub fn sign(path: &str, purpose: Purpose, username: &str, token: &str, expiration: Option<i64>) -> String {
    let purpose = match purpose {
        Purpose::Read => "read",
        Purpose::Write => "write",
    };
    let mut text = format!("{path}:{purpose}:{username}:{token}");
    if let Some(expiration) = expiration {
        text = format!("{text}:{expiration}");
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())))
}

/// How long a signature is: a version, and a digest.
pub const LENGTH: usize = "v1_".len() + 43;

/// What is said of a signature that was right once.
pub const EXPIRED: &str = "signature is already expired";

/// Checks that the query of a URL is signed with `token`, and has not expired at `now`, in seconds since 1970. The
/// messages are envd's.
pub fn check(query: &Query, purpose: Purpose, token: &str, now: u64) -> Result<(), Failure> {
    let denied = |message: &str| Err(Failure::new(Code::Unauthenticated, message));
    let Some(signature) = query.get("signature") else { return denied("missing signature query parameter") };
    let expiration = match query.get("signature_expiration").map(str::parse::<i64>) {
        None => None,
        Some(Ok(expiration)) => Some(expiration),
        Some(Err(_)) => return Err(Failure::new(Code::InvalidArgument, "signature_expiration is not a number")),
    };
    let path = query.get("path").unwrap_or_default();
    let expected = sign(path, purpose, query.get("username").unwrap_or_default(), token, expiration);
    if !agree(signature, &expected) {
        return denied("invalid signature");
    }
    if expiration.is_some_and(|expiration| u64::try_from(expiration).unwrap_or(0) < now) {
        return denied(EXPIRED);
    }
    Ok(())
}

/// Compares two signatures in a time that does not tell where they differ.
pub fn agree(given: &str, expected: &str) -> bool {
    given.len() == expected.len()
        && given.bytes().zip(expected.bytes()).fold(0, |difference, (left, right)| difference | (left ^ right)) == 0
}
