//! Limit on the number of connections that a server has open at once. At the limit, the server
//! closes the connection that has been idle for longest, so that silent clients do not block new
//! clients.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::exchange::Exchanges;

/// Time during which the server does not close a new connection to make room for another. The grace
/// gives each client enough time for a first request, even under a flood of connections.
const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(250);

/// Maximum time to wait after accept(2) has failed, before the server tries again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections of one server, with a limit on their number.
#[derive(Debug)]
pub struct ConnectionLimit {
    most: usize,
    grace: Duration,
    open: Mutex<OpenConnections>,
    /// Notified when a connection closes or becomes idle.
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// Number that the next connection gets.
    next: u64,
    by_number: HashMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    exchanges: Exchanges,
    admitted: Instant,
}

/// Registration of one open connection. The connection counts against the limit until the admission
/// is dropped or the limit closes the connection for another client.
#[derive(Debug)]
pub struct Admission {
    limit: Arc<ConnectionLimit>,
    number: u64,
    exchanges: Exchanges,
}

impl ConnectionLimit {
    /// Creates a limit of `most` connections that are open at once.
    pub fn new(most: usize) -> Arc<ConnectionLimit> {
        ConnectionLimit::with_grace(most, FIRST_REQUEST_GRACE)
    }

    fn with_grace(most: usize, grace: Duration) -> Arc<ConnectionLimit> {
        Arc::new(ConnectionLimit { most, grace, open: Mutex::default(), changed: Arc::default() })
    }

    /// Admits a new connection. At the limit, closes the connection that has been idle for longest;
    /// if no connection is idle, waits.
    pub async fn admit(self: &Arc<ConnectionLimit>) -> Admission {
        loop {
            if let Some(admission) = self.try_admit() {
                return admission;
            }
            // Nothing notifies `changed` when the grace of a connection ends, so the loop also
            // tries again after a timeout.
            let _ = timeout(self.grace, self.changed.notified()).await;
        }
    }

    /// Admits a new connection as [`ConnectionLimit::admit`] does, but returns `None` instead of
    /// waiting.
    pub fn try_admit(self: &Arc<ConnectionLimit>) -> Option<Admission> {
        let mut open = self.open();
        if open.by_number.len() >= self.most && !open.close_idle(self.grace) {
            return None;
        }
        let number = open.next;
        open.next += 1;
        let exchanges = Exchanges::with_listener(Arc::clone(&self.changed));
        let admitted = Instant::now();
        open.by_number.insert(number, OpenConnection { exchanges: exchanges.clone(), admitted });
        Some(Admission { limit: Arc::clone(self), number, exchanges })
    }

    /// Closes the connection that has been idle for longest, if accept(2) failed for lack of
    /// descriptors or memory, and not because the peer disconnected. Returns whether a connection
    /// was closed. The descriptor of that connection is free once its task has ended.
    pub fn make_room_after(&self, error: &io::Error) -> bool {
        let wants = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        Errno::from_io_error(error).is_some_and(|errno| wants.contains(&errno))
            && self.open().close_idle(self.grace)
    }

    /// Makes room after accept(2) has failed, and returns when the server should try again: as soon
    /// as the task of a connection has ended, or after a pause.
    pub async fn recover_from(&self, error: &io::Error, connections: &mut JoinSet<()>) {
        if self.make_room_after(error) && !connections.is_empty() {
            // The server calls accept(2) again in either case, so the result does not matter.
            let _ = timeout(ACCEPT_PAUSE, connections.join_next()).await;
        } else {
            sleep(ACCEPT_PAUSE).await;
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    /// Closes the connection that has been idle for longest and returns whether any connection was
    /// idle. Keeps a connection that has not sent a request until its grace is over.
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
    /// Returns the record of the requests and answers on the connection.
    pub fn exchanges(&self) -> &Exchanges {
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

    /// Returns whether the limit told the connection to close.
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
        drop(second); // the third connection already has its place
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
        assert!(!limit.make_room_after(&Errno::CONNABORTED.into()));
        assert!(!is_closed(&idle));
        assert!(limit.make_room_after(&Errno::MFILE.into()));
        assert!(is_closed(&idle));
        assert!(!limit.make_room_after(&Errno::MFILE.into()), "no connection is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_makes_room_is_waited_for_and_no_longer() {
        let limit = ConnectionLimit::with_grace(2, Duration::ZERO);
        let mut connections = JoinSet::new();
        let idle = admit(&limit).unwrap();
        connections.spawn(async move { idle.exchanges().closed().await });
        let begun = tokio::time::Instant::now();
        limit.recover_from(&Errno::MFILE.into(), &mut connections).await;
        assert_eq!((begun.elapsed(), connections.len()), (Duration::ZERO, 0));
        limit.recover_from(&Errno::MFILE.into(), &mut connections).await;
        assert_eq!(begun.elapsed(), ACCEPT_PAUSE, "nobody made room");
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
            connection.admitted =
                Instant::now().checked_sub(limit.grace).expect("the clock has run for that long");
        }
        let third = admit(&limit).unwrap();
        assert_eq!([&first, &second, &third].map(is_closed), [true, false, false]);
    }
}
