//! The number of connections that a server has open at once. When there are as many as there can be, the one that has been idle for
//! longest makes room for the next, so that clients who say nothing keep nobody out.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::exchange::Exchanges;

/// Time in which a new connection is not closed for others, so that a flood of connections leaves
/// each client enough of it for a first request.
const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(250);

/// The connections of one server.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    most: usize,
    grace: Duration,
    open: Mutex<OpenConnections>,
    /// Somebody left, or became idle.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// The number of the next one.
    next: u64,
    by_number: HashMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    exchanges: Exchanges,
    admitted: Instant,
}

/// The place of one connection, which it has until this is dropped, or until another needs it more.
#[derive(Debug)]
pub(crate) struct Admission {
    limit: Arc<ConnectionLimit>,
    number: u64,
    exchanges: Exchanges,
}

impl ConnectionLimit {
    /// Lets so many connections be open at once.
    pub(crate) fn new(most: usize) -> Arc<ConnectionLimit> {
        ConnectionLimit::with_grace(most, FIRST_REQUEST_GRACE)
    }

    fn with_grace(most: usize, grace: Duration) -> Arc<ConnectionLimit> {
        Arc::new(ConnectionLimit { most, grace, open: Mutex::default(), changed: Arc::default() })
    }

    /// Gives a new connection a place. Where there is none, the one of the connection that has been idle for longest is
    /// taken; where none is idle, it waits.
    pub(crate) async fn admit(self: &Arc<ConnectionLimit>) -> Admission {
        loop {
            if let Some(admission) = self.try_admit() {
                return admission;
            }
            // A connection whose grace is over can be closed, and nobody tells of that.
            let _ = timeout(self.grace, self.changed.notified()).await; // it is tried again either way
        }
    }

    /// The same, now or not at all.
    pub(crate) fn try_admit(self: &Arc<ConnectionLimit>) -> Option<Admission> {
        let mut open = self.open();
        if open.by_number.len() >= self.most && !open.close_idle(self.grace) {
            return None;
        }
        let number = open.next;
        open.next += 1;
        let exchanges = Exchanges::told_to(Arc::clone(&self.changed));
        let admitted = Instant::now();
        open.by_number.insert(number, OpenConnection { exchanges: exchanges.clone(), admitted });
        Some(Admission { limit: Arc::clone(self), number, exchanges })
    }

    /// Closes the connection that has been idle for longest, if accept(2) failed for want of a descriptor or of memory,
    /// and not because the peer has gone already.
    pub(crate) fn make_room_after(&self, error: &io::Error) {
        let wants = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        if Errno::from_io_error(error).is_some_and(|errno| wants.contains(&errno)) {
            self.open().close_idle(self.grace);
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    /// Closes the connection that has been idle for longest, if one is. A connection without a
    /// request is not closed before its grace is over.
    fn close_idle(&mut self, grace: Duration) -> bool {
        let idle = self.by_number.iter().filter_map(|(number, connection)| {
            let is_new = !connection.exchanges.has_begun() && connection.admitted.elapsed() < grace;
            let idleness = connection.exchanges.idleness().filter(|_| !is_new)?;
            Some((idleness, *number))
        });
        let Some((_, longest)) = idle.min() else { return false };
        if let Some(connection) = self.by_number.remove(&longest) {
            connection.exchanges.close();
        }
        true
    }
}

impl Admission {
    /// The requests and answers on the connection.
    pub(crate) fn exchanges(&self) -> &Exchanges {
        &self.exchanges
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.limit.open().by_number.remove(&self.number);
        self.limit.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(limit: &Arc<ConnectionLimit>) -> Option<Admission> {
        limit.try_admit()
    }

    /// Set once the connection was told to close.
    fn is_closed(admission: &Admission) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = admission.exchanges().closed() => true,
                () = std::future::ready(()) => false,
            }
        })
    }

    #[test]
    fn the_connection_that_was_idle_for_longest_makes_room() {
        let limit = ConnectionLimit::with_grace(2, Duration::ZERO);
        let (first, second) = (admit(&limit).unwrap(), admit(&limit).unwrap());
        first.exchanges().touch();
        let third = admit(&limit).unwrap();
        assert_eq!([&first, &second, &third].map(is_closed), [false, true, false]);
        drop(second); // its place was another's already
        let fourth = admit(&limit).unwrap();
        assert_eq!([&first, &third, &fourth].map(is_closed), [true, false, false]);
        assert_eq!(limit.open().by_number.len(), 2);
    }

    #[test]
    fn a_connection_whose_request_is_answered_keeps_its_place_and_others_wait() {
        let limit = ConnectionLimit::with_grace(2, Duration::ZERO);
        let (first, second) = (admit(&limit).unwrap(), admit(&limit).unwrap());
        let (answering, other) = (first.exchanges().one_more(), second.exchanges().one_more());
        assert!(admit(&limit).is_none());
        drop(other);
        let third = admit(&limit).unwrap();
        assert_eq!([&first, &second].map(is_closed), [false, true]);
        let _busy = third.exchanges().one_more();
        assert!(admit(&limit).is_none());
        drop((answering, first));
        assert!(admit(&limit).is_some(), "a place that was left is free");
    }

    #[test]
    fn a_want_of_descriptors_closes_an_idle_connection_and_a_peer_that_left_does_not() {
        let limit = ConnectionLimit::with_grace(2, Duration::ZERO);
        let idle = admit(&limit).unwrap();
        limit.make_room_after(&Errno::CONNABORTED.into());
        assert!(!is_closed(&idle));
        limit.make_room_after(&Errno::MFILE.into());
        assert!(is_closed(&idle));
    }

    #[test]
    fn strangers_make_room_before_clients_who_have_shown_who_they_are() {
        let limit = ConnectionLimit::with_grace(2, Duration::ZERO);
        let client = admit(&limit).unwrap();
        client.exchanges().mark_known();
        let stranger = admit(&limit).unwrap();
        stranger.exchanges().touch();
        let _next = admit(&limit).unwrap();
        assert_eq!([&client, &stranger].map(is_closed), [false, true]);
    }

    #[test]
    fn a_new_connection_keeps_its_place_for_a_short_while() {
        let limit = ConnectionLimit::with_grace(2, Duration::from_secs(600));
        let (first, second) = (admit(&limit).unwrap(), admit(&limit).unwrap());
        assert!(admit(&limit).is_none());
        for connection in limit.open().by_number.values_mut() {
            connection.admitted = Instant::now().checked_sub(limit.grace).expect("the clock has run for that long");
        }
        let third = admit(&limit).unwrap();
        assert_eq!([&first, &second, &third].map(is_closed), [true, false, false]);
    }
}
