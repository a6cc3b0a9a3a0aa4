//! How many connections one client has at once, so that others get some, too.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::reply::Refusal;

/// How many connections one address has at once, and one key.
const MOST: usize = 1024;
/// After how many seconds one with too many may try again.
const WAIT: u64 = 1;

/// Who connections belong to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// Whoever is at an address.
    Address(IpAddr),
    /// Whoever has a key, by its id.
    Key(String),
}

/// Who has how many connections.
#[derive(Debug, Default)]
pub(super) struct Seats(Mutex<HashMap<Holder, usize>>);

/// One connection of a holder's.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    holder: Holder,
}

/// The seat of a connection, by whose request it carries: it is that key's until another shows its own.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken(Arc<Mutex<Option<Seat>>>);

impl Seats {
    /// One more connection of `holder`, if that has few enough.
    pub(super) fn take(self: &Arc<Seats>, holder: Holder) -> Option<Seat> {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = seats.entry(holder.clone()).or_default();
        if *count >= MOST {
            return None;
        }
        *count += 1;
        Some(Seat { seats: Arc::clone(self), holder })
    }
}

impl Taken {
    /// Has this connection be one of a key's.
    pub(super) fn be_of(&self, key: &str, seats: &Arc<Seats>) -> Result<(), Refusal> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let holder = Holder::Key(key.to_owned());
        if taken.as_ref().is_some_and(|seat| seat.holder == holder) {
            return Ok(());
        }
        let seat = seats.take(holder);
        *taken = Some(seat.ok_or_else(|| Refusal::busy(format!("this key has {MOST} connections and no more"), WAIT))?);
        Ok(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.seats.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = seats.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                seats.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_takes_no_more_than_its_share_and_gives_back_what_it_leaves() {
        let seats = Arc::new(Seats::default());
        let address = Holder::Address("192.0.2.1".parse().unwrap());
        let mut taken: Vec<Seat> = (0..MOST).map_while(|_| seats.take(address.clone())).collect();
        assert_eq!(taken.len(), MOST);
        assert!(seats.take(address.clone()).is_none());
        assert!(seats.take(Holder::Address("192.0.2.2".parse().unwrap())).is_some());
        taken.pop();
        assert!(seats.take(address).is_some());
        taken.clear();
        assert!(seats.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_connection_is_counted_once_for_whoever_used_it_last() {
        let seats = Arc::new(Seats::default());
        let count = |key: &str| seats.0.lock().unwrap().get(&Holder::Key(key.to_owned())).copied();
        let taken = Taken::default();
        taken.be_of("one", &seats).unwrap();
        taken.be_of("one", &seats).unwrap();
        assert_eq!(count("one"), Some(1));
        taken.be_of("other", &seats).unwrap();
        assert_eq!((count("one"), count("other")), (None, Some(1)));
        drop(taken);
        assert_eq!(count("other"), None);
    }
}
