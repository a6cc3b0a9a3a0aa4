//! Pool of the connections to a guest that can carry another request.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Highest number of connections in a pool.
const MAX_CONNECTIONS: usize = 64;
/// Longest time that a connection is kept, by default. A guest closes a connection that is idle
/// for half a minute. A runtime that was stopped meanwhile would notice that too late: after a
/// request was sent, which the guest may have carried out.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Connections to one guest that were used, and are kept for other requests.
#[derive(Debug)]
pub struct IdleConnections<C> {
    /// The connections, each with the time since when it is kept; the last used one is last.
    kept: Mutex<Vec<(C, Instant)>>,
    /// Longest time that a connection is kept.
    pub(super) timeout: Duration,
}

/// State of a connection that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleConnectionState {
    /// The caller can use the connection now.
    Ready,
    /// The connection stays for later, or for another caller.
    Reserved,
    /// The connection cannot be used again.
    Closed,
}

impl<C> Default for IdleConnections<C> {
    fn default() -> IdleConnections<C> {
        IdleConnections { kept: Mutex::new(Vec::new()), timeout: IDLE_TIMEOUT }
    }
}

impl<C> IdleConnections<C> {
    /// Keeps a connection for another request, unless there are enough.
    pub fn keep(&self, connection: C) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_CONNECTIONS {
            kept.push((connection, Instant::now()));
        }
    }

    /// Takes the last used connection that is ready. Drops connections that are closed, or were
    /// kept for too long.
    pub fn take(&self, state: impl Fn(&C) -> IdleConnectionState) -> Option<C> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(connection, since)| {
            since.elapsed() < self.timeout && state(connection) != IdleConnectionState::Closed
        });
        let is_ready = |(connection, _): &(C, _)| state(connection) == IdleConnectionState::Ready;
        let position = kept.iter().rposition(is_ready)?;
        Some(kept.remove(position).0)
    }
}

#[cfg(test)]
mod tests {
    use super::IdleConnectionState::{Closed, Ready, Reserved};
    use super::*;

    #[test]
    fn the_last_used_ready_connection_is_taken_and_closed_ones_are_dropped() {
        let pool = IdleConnections::default();
        for connection in [(1, Ready), (2, Ready), (3, Closed), (4, Reserved)] {
            pool.keep(connection);
        }
        let take = || pool.take(|(_, state)| *state).map(|(number, _)| number);
        assert_eq!([take(), take(), take()], [Some(2), Some(1), None]);
        assert_eq!(pool.take(|_| Ready), Some((4, Reserved)));
        assert_eq!(pool.take(|_| Ready), None);
    }

    #[test]
    fn a_pool_keeps_a_bounded_number_of_connections() {
        let pool = IdleConnections::default();
        (0..=MAX_CONNECTIONS).for_each(|number| pool.keep(number));
        let taken = std::iter::from_fn(|| pool.take(|_| Ready)).count();
        assert_eq!(taken, MAX_CONNECTIONS);
    }
}
