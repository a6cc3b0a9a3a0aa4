//! Fair limits for slow operations: a maximum number at once, of which one owner gets at most half.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::api::control::Owner;

/// Maximum time to wait for a permit.
pub(crate) const PERMIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Semaphore for one kind of operation, in which no owner gets more than half of the permits.
#[derive(Debug)]
pub(crate) struct FairSemaphore {
    all: Arc<Semaphore>,
    most: u32,
    most_of_one: usize,
    /// Semaphores of the owners that have a permit or wait for one.
    by_owner: Mutex<HashMap<Owner, Arc<Semaphore>>>,
}

/// Permission to run one operation, held until it is dropped.
#[derive(Debug)]
pub(crate) struct FairPermit {
    _own: OwnedSemaphorePermit,
    _any: OwnedSemaphorePermit,
}

impl FairSemaphore {
    /// Creates a semaphore for `most` operations at once, of which one owner gets at most half.
    pub(crate) fn new(most: u32) -> FairSemaphore {
        let all = Arc::new(Semaphore::new(most as usize));
        FairSemaphore { all, most, most_of_one: (most / 2) as usize, by_owner: Mutex::default() }
    }

    /// Waits for a permit. Returns `None` if the wait takes too long. An owner at its limit does
    /// not block other owners.
    pub(crate) async fn take(&self, owner: &Owner) -> Option<FairPermit> {
        let own = {
            let mut owners = self.by_owner.lock().unwrap_or_else(PoisonError::into_inner);
            // Forget owners that neither have a permit nor wait for one.
            owners.retain(|_, own| Arc::strong_count(own) > 1);
            let own = owners
                .entry(owner.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(self.most_of_one)));
            Arc::clone(own)
        };
        let permit = async {
            let own = own.acquire_owned().await.expect("it is never closed");
            let any = Arc::clone(&self.all).acquire_owned().await.expect("it is never closed");
            FairPermit { _own: own, _any: any }
        };
        timeout(PERMIT_TIMEOUT, permit).await.ok()
    }

    /// Waits until no permit is taken, for at most [`PERMIT_TIMEOUT`].
    pub(crate) async fn over(&self) {
        // After a timeout, permits that are still taken are not waited for.
        let _ = timeout(PERMIT_TIMEOUT, self.all.acquire_many(self.most)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn one_owner_does_not_take_all_permits() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let semaphore = FairSemaphore::new(4);
            let (ada, bob) = (Some("ada".to_owned()), Some("bob".to_owned()));
            let take = |owner: &Owner| semaphore.take(owner).now_or_never().map(Option::unwrap);
            let first = take(&ada).unwrap();
            let _second = take(&ada).unwrap();
            assert!(take(&ada).is_none());
            drop(take(&bob).unwrap());
            assert!(semaphore.take(&ada).await.is_none(), "it waits in vain");
            drop(first);
            drop(take(&ada).unwrap());
            assert_eq!(semaphore.by_owner.lock().unwrap().len(), 1, "who has none is forgotten");
        });
    }
}
