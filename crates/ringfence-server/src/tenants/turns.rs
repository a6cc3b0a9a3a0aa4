//! Fair limits for slow operations: a maximum number at once, of which one owner gets at most half.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::api::control::Owner;

/// Maximum time to wait for a turn.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Turns for one kind of operation.
#[derive(Debug)]
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    most: u32,
    most_of_one: usize,
    /// Semaphores of the owners that have a turn or wait for one.
    of: Mutex<HashMap<Owner, Arc<Semaphore>>>,
}

/// Permission to run one operation, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _any: OwnedSemaphorePermit,
}

impl Turns {
    /// Creates turns for `most` operations at once, of which one owner gets at most half.
    pub(crate) fn new(most: u32) -> Turns {
        let all = Arc::new(Semaphore::new(most as usize));
        Turns { all, most, most_of_one: (most / 2) as usize, of: Mutex::default() }
    }

    /// Waits for a turn. Returns `None` if the wait takes too long. An owner at its limit does not
    /// block other owners.
    pub(crate) async fn take(&self, owner: &Owner) -> Option<Turn> {
        let own = {
            let mut owners = self.of.lock().unwrap_or_else(PoisonError::into_inner);
            // Forget owners that neither have a turn nor wait for one.
            owners.retain(|_, own| Arc::strong_count(own) > 1);
            let own = owners
                .entry(owner.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(self.most_of_one)));
            Arc::clone(own)
        };
        let turn = async {
            let own = own.acquire_owned().await.expect("it is never closed");
            let any = Arc::clone(&self.all).acquire_owned().await.expect("it is never closed");
            Turn { _own: own, _any: any }
        };
        timeout(PATIENCE, turn).await.ok()
    }

    /// Waits until no turn is taken, for at most [`PATIENCE`].
    pub(crate) async fn over(&self) {
        // After a timeout, turns that are still taken are not waited for.
        let _ = timeout(PATIENCE, self.all.acquire_many(self.most)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn one_owner_does_not_take_all_turns() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let turns = Turns::new(4);
            let (ada, bob) = (Some("ada".to_owned()), Some("bob".to_owned()));
            let take = |owner: &Owner| turns.take(owner).now_or_never().map(Option::unwrap);
            let first = take(&ada).unwrap();
            let _second = take(&ada).unwrap();
            assert!(take(&ada).is_none());
            drop(take(&bob).unwrap());
            assert!(turns.take(&ada).await.is_none(), "it waits in vain");
            drop(first);
            drop(take(&ada).unwrap());
            assert_eq!(turns.of.lock().unwrap().len(), 1, "who has none is forgotten");
        });
    }
}
