//! Repeated requests. Two requests with the same `Idempotency-Key` count as one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use crate::api::control::Owner;
use crate::api::reply::Refusal;

/// Time for which a request is remembered.
const REQUEST_LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Maximum number of remembered requests of all owners; the oldest is forgotten first.
const MAX_REQUESTS: usize = 4096;
/// Maximum number of remembered requests of one owner, so that an owner does not push out the
/// requests of others.
const MOST_OF_ONE: usize = 256;
/// Maximum length of a key, in bytes.
pub(crate) const LONGEST_KEY: usize = 256;

/// Result of a request: the id of the sandbox, once it exists.
pub(crate) type CreateOutcome = Arc<OnceCell<String>>;

/// Remembered requests, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct IdempotencyCache(Mutex<VecDeque<RememberedRequest>>);

#[derive(Debug)]
struct RememberedRequest {
    owner: Owner,
    key: String,
    body: [u8; 32],
    since: Instant,
    outcome: CreateOutcome,
}

impl IdempotencyCache {
    /// Returns the outcome of the request with this key, which may still be pending. Remembers the
    /// request if the key is new. Refuses a key that was used with another body.
    pub(crate) fn outcome(
        &self,
        owner: &Owner,
        key: &str,
        body: &[u8],
    ) -> Result<CreateOutcome, Refusal> {
        if key.len() > LONGEST_KEY {
            return Err(Refusal::wrong(format!(
                "an `Idempotency-Key` has at most {LONGEST_KEY} bytes"
            )));
        }
        let body: [u8; 32] = Sha256::digest(body).into();
        let mut requests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        requests.retain(|request| request.since.elapsed() < REQUEST_LIFETIME);
        if let Some(before) =
            requests.iter().find(|request| request.owner == *owner && request.key == key)
        {
            return match before.body == body {
                true => Ok(Arc::clone(&before.outcome)),
                false => {
                    let message = "this `Idempotency-Key` was already used for another request";
                    Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message))
                }
            };
        }
        let is_own = |request: &RememberedRequest| request.owner == *owner;
        if requests.iter().filter(|request| is_own(request)).count() >= MOST_OF_ONE {
            let oldest = requests.iter().position(is_own);
            oldest.map(|oldest| requests.remove(oldest));
        }
        if requests.len() >= MAX_REQUESTS {
            requests.pop_front();
        }
        let outcome = CreateOutcome::default();
        let (owner, key, since) = (owner.clone(), key.to_owned(), Instant::now());
        requests.push_back(RememberedRequest {
            owner,
            key,
            body,
            since,
            outcome: Arc::clone(&outcome),
        });
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_sent_again_is_the_same_and_another_with_its_key_is_refused() {
        let cache = IdempotencyCache::default();
        let (one, other) = (Some("one".to_owned()), Some("other".to_owned()));
        let first = cache.outcome(&one, "k", b"{}").unwrap();
        assert!(Arc::ptr_eq(&first, &cache.outcome(&one, "k", b"{}").unwrap()));
        assert!(!Arc::ptr_eq(&first, &cache.outcome(&one, "l", b"{}").unwrap()));
        assert!(!Arc::ptr_eq(&first, &cache.outcome(&other, "k", b"{}").unwrap()));
        assert_eq!(cache.outcome(&one, "k", b"{ }").unwrap_err().status.as_u16(), 422);
        assert_eq!(
            cache.outcome(&one, &"k".repeat(LONGEST_KEY + 1), b"").unwrap_err().status.as_u16(),
            400
        );
    }

    #[test]
    fn remembered_requests_are_bounded_and_no_owner_pushes_out_another() {
        let cache = IdempotencyCache::default();
        let quiet = cache.outcome(&None, "k", b"").unwrap();
        let loud = Some("loud".to_owned());
        let first = cache.outcome(&loud, "0", b"").unwrap();
        for number in 1..=MOST_OF_ONE {
            cache.outcome(&loud, &number.to_string(), b"").unwrap();
        }
        assert_eq!(cache.0.lock().unwrap().len(), MOST_OF_ONE + 1);
        assert!(Arc::ptr_eq(&quiet, &cache.outcome(&None, "k", b"").unwrap()));
        assert!(!Arc::ptr_eq(&first, &cache.outcome(&loud, "0", b"").unwrap()));
    }
}
