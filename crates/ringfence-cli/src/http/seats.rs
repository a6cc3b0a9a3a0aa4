//! How many connections one client has at once, so that others get some, too.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

use super::control::Owner;
use super::reply::Refusal;

/// How many connections one address has at once, one key, and the visitors of its sandboxes.
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
    /// Whoever comes to the sandboxes of one owner without showing anything, as their ports' visitors do.
    Visitors(Owner),
}

impl Holder {
    /// Whoever is at an address. With IPv6, one client has a whole network of 64 bits.
    pub(super) fn at(address: IpAddr) -> Holder {
        Holder::Address(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        })
    }
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

/// What a connection takes up for as long as it is open, also when it speaks another protocol than it began with.
#[derive(Debug, Clone)]
pub(super) struct Taken(Arc<Places>);

#[derive(Debug)]
struct Places {
    _among_all: OwnedSemaphorePermit,
    _at_address: Option<Seat>,
    /// By whose request it carries: it is that holder's until another's comes.
    of_holder: Mutex<Option<Seat>>,
}

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
    /// What a new connection takes up: one place of all, and one of its address's.
    pub(super) fn new(among_all: OwnedSemaphorePermit, at_address: Option<Seat>) -> Taken {
        let places = Places { _among_all: among_all, _at_address: at_address, of_holder: Mutex::default() };
        Taken(Arc::new(places))
    }

    /// Has this connection be one of a holder's.
    pub(super) fn be_of(&self, holder: Holder, seats: &Arc<Seats>) -> Result<(), Refusal> {
        let mut taken = self.0.of_holder.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.as_ref().is_some_and(|seat| seat.holder == holder) {
            return Ok(());
        }
        let whose = match holder {
            Holder::Visitors(_) => "the visitors of this owner's sandboxes have",
            Holder::Key(_) | Holder::Address(_) => "this key has",
        };
        let seat = seats.take(holder);
        *taken = Some(seat.ok_or_else(|| Refusal::busy(format!("{whose} {MOST} connections and no more"), WAIT))?);
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
    use tokio::sync::Semaphore;

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
        let among_all = Arc::new(Semaphore::new(1));
        let taken = Taken::new(Arc::clone(&among_all).try_acquire_owned().unwrap(), None);
        let be_of = |key: &str| taken.be_of(Holder::Key(key.to_owned()), &seats).unwrap();
        be_of("one");
        be_of("one");
        assert_eq!(count("one"), Some(1));
        be_of("other");
        assert_eq!((count("one"), count("other")), (None, Some(1)));
        assert_eq!(among_all.available_permits(), 0);
        drop(taken);
        assert_eq!((count("other"), among_all.available_permits()), (None, 1));
    }
}
