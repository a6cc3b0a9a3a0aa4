//! Signatures of URLs. The holder of a signed URL can read or write one file without an access
//! token.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

use crate::code::{Code, Failure};
use crate::query::UrlQuery;

/// Operation that a signed URL permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignaturePurpose {
    /// Reading the file.
    Read,
    /// Writing the file.
    Write,
}

/// Signs the use of `path` by `username` with the access token `token`. `expiration` is in seconds
/// since 1970; `None` means that the signature does not expire.
pub fn sign(
    path: &str,
    purpose: SignaturePurpose,
    username: &str,
    token: &str,
    expiration: Option<i64>,
) -> String {
    finish_signature(digest_signed_text(path, purpose, username), token, expiration)
}

/// Digests the part of the signed text that precedes the token.
fn digest_signed_text(path: &str, purpose: SignaturePurpose, username: &str) -> Sha256 {
    let purpose = match purpose {
        SignaturePurpose::Read => "read",
        SignaturePurpose::Write => "write",
    };
    Sha256::new().chain_update(format!("{path}:{purpose}:{username}:"))
}

fn finish_signature(begun: Sha256, token: &str, expiration: Option<i64>) -> String {
    let mut digest = begun.chain_update(token);
    if let Some(expiration) = expiration {
        digest.update(format!(":{expiration}"));
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(digest.finalize()))
}

/// Returns the hash by which a guest recognizes its access token without knowing the token.
pub fn token_hash(token: &str) -> String {
    STANDARD_NO_PAD.encode(Sha256::digest(token))
}

/// Length of a signature in characters: the version prefix, and a SHA-256 digest as unpadded
/// base64.
pub const SIGNATURE_LENGTH: usize = "v1_".len() + 43;

/// Message for a signature that matches but has expired.
pub const EXPIRED_MESSAGE: &str = "signature is already expired";

/// Signature in a URL, before it is known whose token made the signature.
#[derive(Debug)]
pub struct SignatureClaim {
    signature: String,
    expiration: Option<i64>,
    /// Digest of the signed text before the token, so that several tokens can be checked cheaply.
    begun: Sha256,
}

impl SignatureClaim {
    /// Reads the signature and the signed parameters from the query of a URL. The messages are
    /// those of envd.
    pub fn from_query(
        query: &UrlQuery,
        purpose: SignaturePurpose,
    ) -> Result<SignatureClaim, Failure> {
        let said = |name: &str| query.get(name).unwrap_or_default();
        let signature = query
            .get("signature")
            .ok_or_else(|| denied_failure("missing signature query parameter"))?
            .to_owned();
        let expiration = query.get("signature_expiration").map(str::parse::<i64>).transpose();
        let expiration = expiration.map_err(|_| {
            Failure::new(Code::InvalidArgument, "signature_expiration is not a number")
        })?;
        Ok(SignatureClaim {
            signature,
            expiration,
            begun: digest_signed_text(said("path"), purpose, said("username")),
        })
    }

    /// Checks that the signature was made with `token` and has not expired at `now`, in seconds
    /// since 1970.
    pub fn check(&self, token: &str, now: u64) -> Result<(), Failure> {
        if !is_same_secret(
            &self.signature,
            finish_signature(self.begun.clone(), token, self.expiration),
        ) {
            return Err(denied_failure("invalid signature"));
        }
        if self.expiration.is_some_and(|expiration| u64::try_from(expiration).unwrap_or(0) < now) {
            return Err(denied_failure(EXPIRED_MESSAGE));
        }
        Ok(())
    }
}

fn denied_failure(message: &str) -> Failure {
    Failure::new(Code::Unauthenticated, message)
}

/// Compares two secrets, such as signatures, tokens or their hashes, in a time that does not reveal
/// the position of a difference. The time does reveal whether the lengths differ.
pub fn is_same_secret(given: impl AsRef<[u8]>, expected: impl AsRef<[u8]>) -> bool {
    given.as_ref().ct_eq(expected.as_ref()).into()
}
