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
    finish(begin(path, purpose, username), token, expiration)
}

/// Digests what is signed, as far as it comes before the token.
fn begin(path: &str, purpose: Purpose, username: &str) -> Sha256 {
    let purpose = match purpose {
        Purpose::Read => "read",
        Purpose::Write => "write",
    };
    Sha256::new().chain_update(format!("{path}:{purpose}:{username}:"))
}

fn finish(begun: Sha256, token: &str, expiration: Option<i64>) -> String {
    let mut digest = begun.chain_update(token);
    if let Some(expiration) = expiration {
        digest.update(format!(":{expiration}"));
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(digest.finalize()))
}

/// How long a signature is: a version, and a digest.
pub const LENGTH: usize = "v1_".len() + 43;

/// What is said of a signature that was right once.
pub const EXPIRED: &str = "signature is already expired";

/// A signature of a URL, of which it is to be found whose token made it.
#[derive(Debug)]
pub struct Claim {
    signature: String,
    expiration: Option<i64>,
    begun: Sha256,
}

impl Claim {
    /// What the query of a URL claims. The messages are envd's.
    pub fn of(query: &Query, purpose: Purpose) -> Result<Claim, Failure> {
        let said = |name: &str| query.get(name).unwrap_or_default();
        let signature = query.get("signature").ok_or_else(|| denied("missing signature query parameter"))?.to_owned();
        let expiration = query.get("signature_expiration").map(str::parse::<i64>).transpose();
        let expiration =
            expiration.map_err(|_| Failure::new(Code::InvalidArgument, "signature_expiration is not a number"))?;
        Ok(Claim { signature, expiration, begun: begin(said("path"), purpose, said("username")) })
    }

    /// Checks that it was made with `token`, and has not expired at `now`, in seconds since 1970.
    pub fn check(&self, token: &str, now: u64) -> Result<(), Failure> {
        if !agree(&self.signature, &finish(self.begun.clone(), token, self.expiration)) {
            return Err(denied("invalid signature"));
        }
        if self.expiration.is_some_and(|expiration| u64::try_from(expiration).unwrap_or(0) < now) {
            return Err(denied(EXPIRED));
        }
        Ok(())
    }
}

fn denied(message: &str) -> Failure {
    Failure::new(Code::Unauthenticated, message)
}

/// Compares two signatures in a time that does not tell where they differ.
pub fn agree(given: &str, expected: &str) -> bool {
    given.len() == expected.len()
        && given.bytes().zip(expected.bytes()).fold(0, |difference, (left, right)| difference | (left ^ right)) == 0
}
