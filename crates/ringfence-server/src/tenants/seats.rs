//! Limits on the number of connections per client, so that other clients get connections, too.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_service::connections::Admission;
use ringfence_service::exchange::Exchanges;

use crate::api::control::Owner;
use crate::api::reply::Refusal;

/// Maximum number of connections of one address, of one key, and of the visitors of one owner's
/// sandboxes.
const MOST: usize = 1024;
/// Maximum number of connections of the visitors of all sandboxes, so that connections are left for
/// clients with a key.
const MOST_VISITORS: usize = 2048;
/// Number of seconds after which a client over its limit may try again.
const WAIT: u64 = 1;

/// Party to which connections are charged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// All clients at one address.
    Address(IpAddr),
    /// All clients with one key, by the id of the key.
    Key(String),
    /// All clients without credentials that use the sandboxes of one owner, such as visitors of
    /// ports.
    Visitors(Owner),
    /// All visitors of the sandboxes of all owners.
    AllVisitors,
}

impl Holder {
    fn words(&self) -> &'static str {
        match self {
            Holder::AllVisitors => "the visitors of all sandboxes have",
            Holder::Visitors(_) => "the visitors of this owner's sandboxes have",
            Holder::Key(_) | Holder::Address(_) => "this key has",
        }
    }

    /// Returns the maximum number of connections.
    fn most(&self) -> usize {
        match self {
            Holder::AllVisitors => MOST_VISITORS,
            Holder::Address(_) | Holder::Key(_) | Holder::Visitors(_) => MOST,
        }
    }

    /// Returns the holder for an address. With IPv6, a client has a whole network of 64 bits, so
    /// the network is the holder.
    pub(crate) fn at(address: IpAddr) -> Holder {
        Holder::Address(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
            }
        })
    }
}

/// Number of connections of each holder.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<HashMap<Holder, usize>>);

/// Connection that is charged to a holder.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    holder: Holder,
}

/// Resources that a connection takes while it is open, also after an upgrade to another protocol.
#[derive(Debug, Clone)]
pub(crate) struct Taken(Arc<Places>);

#[derive(Debug)]
struct Places {
    among_all: Admission,
    _at_address: Option<Seat>,
    /// Seats of the holder whose request the connection carried last. A visitor has a second seat
    /// among all visitors.
    of_holder: Mutex<Vec<Seat>>,
}

impl Seats {
    /// Takes one more connection for `holder`, if it is below its limit.
    pub(crate) fn take(self: &Arc<Seats>, holder: Holder) -> Option<Seat> {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = seats.entry(holder.clone()).or_default();
        if *count >= holder.most() {
            return None;
        }
        *count += 1;
        Some(Seat { seats: Arc::clone(self), holder })
    }
}

impl Taken {
    /// Creates the resources of a new connection: one place of all, and one of its address.
    pub(crate) fn new(among_all: Admission, at_address: Option<Seat>) -> Taken {
        Taken(Arc::new(Places { among_all, _at_address: at_address, of_holder: Mutex::default() }))
    }

    /// Returns the record of the requests and answers on this connection.
    pub(crate) fn exchanges(&self) -> &Exchanges {
        self.0.among_all.exchanges()
    }

    /// Charges this connection to a holder, instead of its earlier holder.
    pub(crate) fn be_of(&self, holder: Holder, seats: &Arc<Seats>) -> Result<(), Refusal> {
        let mut taken = self.0.of_holder.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.first().is_some_and(|seat| seat.holder == holder) {
            return Ok(());
        }
        // Clear first, so that the seats of the earlier holder do not count.
        taken.clear();
        let wanted = match holder {
            Holder::Visitors(_) => vec![holder, Holder::AllVisitors],
            holder => vec![holder],
        };
        for holder in wanted {
            let (whose, most) = (holder.words(), holder.most());
            let seat = seats.take(holder);
            let full = || Refusal::busy(format!("{whose} {most} connections and no more"), WAIT);
            taken.push(seat.ok_or_else(full)?);
        }
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
    use ringfence_service::connections::ConnectionLimit;

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
        let limit = ConnectionLimit::new(1);
        let taken = Taken::new(limit.try_admit().unwrap(), None);
        let busy = taken.exchanges().one_more();
        let be_of = |key: &str| taken.be_of(Holder::Key(key.to_owned()), &seats).unwrap();
        be_of("one");
        be_of("one");
        assert_eq!(count("one"), Some(1));
        be_of("other");
        assert_eq!((count("one"), count("other")), (None, Some(1)));
        assert!(limit.try_admit().is_none());
        drop((busy, taken));
        assert_eq!(count("other"), None);
        assert!(limit.try_admit().is_some());
    }

    #[test]
    fn visitors_of_many_owners_leave_connections_for_those_with_a_key() {
        let (seats, limit) = (Arc::new(Seats::default()), ConnectionLimit::new(2 * MOST_VISITORS));
        let come = |holder: Holder| {
            let taken = Taken::new(limit.try_admit().unwrap(), None);
            taken.be_of(holder, &seats).is_ok().then_some(taken)
        };
        let visitors = |owner: usize| Holder::Visitors(Some(owner.to_string()));
        let taken: Vec<Taken> =
            (0..MOST_VISITORS + 1).map_while(|number| come(visitors(number % 5))).collect();
        assert_eq!(taken.len(), MOST_VISITORS);
        assert!(come(visitors(7)).is_none());
        assert!(come(Holder::Key("key".to_owned())).is_some());
        drop(taken);
        assert!(come(visitors(7)).is_some());
    }
}
