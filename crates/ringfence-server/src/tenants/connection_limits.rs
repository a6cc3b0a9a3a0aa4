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
const MAX_CONNECTIONS: usize = 1024;
/// Maximum number of connections of the visitors of all sandboxes, so that connections are left for
/// clients with a key.
const MOST_VISITORS: usize = 2048;
/// Number of seconds after which a client over its limit may try again.
const RETRY_SECONDS: u64 = 1;

/// Party to which connections are charged.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ConnectionHolder {
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

impl ConnectionHolder {
    fn subject(&self) -> &'static str {
        match self {
            ConnectionHolder::AllVisitors => "the visitors of all sandboxes use",
            ConnectionHolder::Visitors(_) => "the visitors of the sandboxes of this owner use",
            ConnectionHolder::Key(_) | ConnectionHolder::Address(_) => "this key uses",
        }
    }

    /// Returns the maximum number of connections.
    fn most(&self) -> usize {
        match self {
            ConnectionHolder::AllVisitors => MOST_VISITORS,
            ConnectionHolder::Address(_)
            | ConnectionHolder::Key(_)
            | ConnectionHolder::Visitors(_) => MAX_CONNECTIONS,
        }
    }

    /// Returns the holder for an address. With IPv6, a client has a whole network of 64 bits, so
    /// the network is the holder.
    pub(crate) fn for_address(address: IpAddr) -> ConnectionHolder {
        ConnectionHolder::Address(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
            }
        })
    }
}

/// Number of connections of each holder.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLimits(Mutex<HashMap<ConnectionHolder, usize>>);

/// Connection that is charged to a holder.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    holder: ConnectionHolder,
}

/// Resources that a connection takes while it is open, also after an upgrade to another protocol.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionCharge(Arc<ChargedPermits>);

#[derive(Debug)]
struct ChargedPermits {
    among_all: Admission,
    _at_address: Option<ConnectionPermit>,
    /// Permits of the holder whose request the connection carried last. A visitor has a second
    /// permit among all visitors.
    of_holder: Mutex<Vec<ConnectionPermit>>,
}

impl ConnectionLimits {
    /// Takes one more connection for `holder`, if it is below its limit.
    pub(crate) fn take(
        self: &Arc<ConnectionLimits>,
        holder: ConnectionHolder,
    ) -> Option<ConnectionPermit> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(holder.clone()).or_default();
        if *count >= holder.most() {
            return None;
        }
        *count += 1;
        Some(ConnectionPermit { limits: Arc::clone(self), holder })
    }
}

impl ConnectionCharge {
    /// Creates the resources of a new connection: one place of all, and one of its address.
    pub(crate) fn new(
        among_all: Admission,
        at_address: Option<ConnectionPermit>,
    ) -> ConnectionCharge {
        ConnectionCharge(Arc::new(ChargedPermits {
            among_all,
            _at_address: at_address,
            of_holder: Mutex::default(),
        }))
    }

    /// Returns the record of the requests and answers on this connection.
    pub(crate) fn exchanges(&self) -> &Exchanges {
        self.0.among_all.exchanges()
    }

    /// Charges this connection to a holder, instead of its earlier holder.
    pub(crate) fn charge_to(
        &self,
        holder: ConnectionHolder,
        limits: &Arc<ConnectionLimits>,
    ) -> Result<(), Refusal> {
        let mut permits = self.0.of_holder.lock().unwrap_or_else(PoisonError::into_inner);
        if permits.first().is_some_and(|permit| permit.holder == holder) {
            return Ok(());
        }
        // Clear first, so that the permits of the earlier holder do not count.
        permits.clear();
        let wanted = match holder {
            ConnectionHolder::Visitors(_) => vec![holder, ConnectionHolder::AllVisitors],
            holder => vec![holder],
        };
        for holder in wanted {
            let (subject, most) = (holder.subject(), holder.most());
            let permit = limits.take(holder);
            let full = || {
                Refusal::busy(
                    format!("{subject} {most} connections, which is the maximum"),
                    RETRY_SECONDS,
                )
            };
            permits.push(permit.ok_or_else(full)?);
        }
        Ok(())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limits.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.holder);
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
        let limits = Arc::new(ConnectionLimits::default());
        let address = ConnectionHolder::Address("192.0.2.1".parse().unwrap());
        let mut permits: Vec<ConnectionPermit> =
            (0..MAX_CONNECTIONS).map_while(|_| limits.take(address.clone())).collect();
        assert_eq!(permits.len(), MAX_CONNECTIONS);
        assert!(limits.take(address.clone()).is_none());
        assert!(limits.take(ConnectionHolder::Address("192.0.2.2".parse().unwrap())).is_some());
        permits.pop();
        assert!(limits.take(address).is_some());
        permits.clear();
        assert!(limits.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_connection_is_counted_once_for_whoever_used_it_last() {
        let limits = Arc::new(ConnectionLimits::default());
        let count = |key: &str| {
            limits.0.lock().unwrap().get(&ConnectionHolder::Key(key.to_owned())).copied()
        };
        let limit = ConnectionLimit::new(1);
        let charge = ConnectionCharge::new(limit.try_admit().unwrap(), None);
        let busy = charge.exchanges().one_more();
        let charge_to =
            |key: &str| charge.charge_to(ConnectionHolder::Key(key.to_owned()), &limits).unwrap();
        charge_to("one");
        charge_to("one");
        assert_eq!(count("one"), Some(1));
        charge_to("other");
        assert_eq!((count("one"), count("other")), (None, Some(1)));
        assert!(limit.try_admit().is_none());
        drop((busy, charge));
        assert_eq!(count("other"), None);
        assert!(limit.try_admit().is_some());
    }

    #[test]
    fn visitors_of_many_owners_leave_connections_for_those_with_a_key() {
        let (limits, limit) =
            (Arc::new(ConnectionLimits::default()), ConnectionLimit::new(2 * MOST_VISITORS));
        let come = |holder: ConnectionHolder| {
            let charge = ConnectionCharge::new(limit.try_admit().unwrap(), None);
            charge.charge_to(holder, &limits).is_ok().then_some(charge)
        };
        let visitors = |owner: usize| ConnectionHolder::Visitors(Some(owner.to_string()));
        let charge: Vec<ConnectionCharge> =
            (0..MOST_VISITORS + 1).map_while(|number| come(visitors(number % 5))).collect();
        assert_eq!(charge.len(), MOST_VISITORS);
        assert!(come(visitors(7)).is_none());
        assert!(come(ConnectionHolder::Key("key".to_owned())).is_some());
        drop(charge);
        assert!(come(visitors(7)).is_some());
    }
}
