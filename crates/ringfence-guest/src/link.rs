//! Links: a host reaches the guest over carriers that may be lost, and each stream of the host's
//! link is served as a connection.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_link::greeting::{LinkStage, ReceivedGreeting, receive_greeting, refuse, welcome};
use ringfence_link::{CarrierTimeouts, CarrierTurn, Link, LinkFailure, run_carrier};
use ringfence_proto::link::frame::RefusalReason;
use ringfence_proto::link::{LINK_VERSION, LinkId, LinkSide};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::authentication::AccessToken;
use crate::server::{
    ACCEPT_RETRY_DELAY, ConnectionStream, GuestListener, GuestServer, serve_connection,
};
use crate::{first_process, log};

/// Maximum number of links. One without a carrier gives way to a new one.
const MAX_LINKS: usize = 8;
/// Maximum number of carriers, those that have not been greeted included. Further ones wait in the
/// backlog of the socket.
const MAX_CARRIERS: usize = 64;
/// Time limit for a host to greet, and to take the answer.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which a carrier counts as lost: the host sends a ping more often.
const MAX_SILENCE: Duration = Duration::from_secs(90);

/// The links of the guest, and the means to serve their streams.
#[derive(Debug)]
pub(crate) struct LinkService {
    token: AccessToken,
    /// Server of the streams. A link was authenticated as a whole, so its requests need no token.
    server: Rc<GuestServer>,
    /// Permits for connections, which streams share with the connections of other listeners.
    connections: Arc<Semaphore>,
    links: RefCell<HashMap<LinkId, KeptLink>>,
    /// Time for which a link without a carrier is kept.
    lifetime: Duration,
    /// Number of carriers that were admitted and have not ended.
    carriers: Cell<usize>,
    /// Time at which the last carrier ended, or the guest was started.
    last_carrier: Cell<Instant>,
}

#[derive(Debug)]
struct KeptLink {
    link: Link,
    /// Time at which the last carrier was lost; `None` while there is a carrier.
    lost: Option<Instant>,
}

/// A carrier that was accepted.
struct AdmittedCarrier {
    link: Link,
    turn: CarrierTurn,
    /// Number of bytes that the guest has received.
    received: u64,
}

impl LinkService {
    /// Returns the service of a guest without links.
    pub(crate) fn new(
        server: &GuestServer,
        connections: &Arc<Semaphore>,
        lifetime: Duration,
    ) -> Rc<LinkService> {
        Rc::new(LinkService {
            token: server.token.clone(),
            server: Rc::new(server.for_authenticated_callers()),
            connections: Arc::clone(connections),
            links: RefCell::default(),
            lifetime,
            carriers: Cell::default(),
            last_carrier: Cell::new(Instant::now()),
        })
    }

    /// Accepts carriers until the process ends.
    pub(crate) async fn accept_carriers(self: Rc<Self>, listener: GuestListener) {
        let carriers = Arc::new(Semaphore::new(MAX_CARRIERS));
        loop {
            let permit = carriers.clone().acquire_owned().await.expect("it is never closed");
            let accepted: io::Result<Box<dyn ConnectionStream>> = match &listener {
                GuestListener::Unix(listener) => {
                    listener.accept().await.map(|(carrier, _)| Box::new(carrier) as _)
                }
                GuestListener::Tcp(listener) => listener.accept().await.map(|(carrier, _)| {
                    let _ = carrier.set_nodelay(true); // a failure only makes the carrier slower
                    Box::new(carrier) as _
                }),
            };
            match accepted {
                Ok(carrier) => {
                    tokio::task::spawn_local(Rc::clone(&self).serve_carrier(carrier, permit));
                }
                // Either the peer has disconnected already, or no descriptor is free.
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
            }
        }
    }

    /// Ends the guest when there has been no carrier for the lifetime of links: the process that
    /// kept the sandbox is gone.
    pub(crate) async fn end_without_carrier(self: Rc<Self>) {
        loop {
            let absent = match self.carriers.get() {
                0 => self.last_carrier.get().elapsed(),
                _ => Duration::ZERO,
            };
            let rest = self.lifetime.saturating_sub(absent);
            if rest.is_zero() {
                log::write_line(format_args!("nobody has kept the sandbox for too long"));
                std::process::exit(first_process::KEEPER_GONE_EXIT_CODE);
            }
            tokio::time::sleep(rest).await;
        }
    }

    async fn serve_carrier(
        self: Rc<Self>,
        mut carrier: Box<dyn ConnectionStream>,
        permit: OwnedSemaphorePermit,
    ) {
        let greeted = timeout(GREETING_TIMEOUT, receive_greeting(&mut carrier)).await;
        let Ok(Ok((greeting, decoder))) = greeted else { return };
        let admitted = match self.admit(&greeting) {
            Ok(admitted) => admitted,
            Err(reason) => {
                // The host may have gone already.
                let _ = timeout(GREETING_TIMEOUT, refuse(&mut carrier, reason)).await;
                return;
            }
        };
        let AdmittedCarrier { link, turn, received } = admitted;
        self.carriers.set(self.carriers.get() + 1);
        match timeout(GREETING_TIMEOUT, welcome(&mut carrier, received)).await {
            Ok(Ok(())) => {
                let timeouts = CarrierTimeouts::Listen { silence: MAX_SILENCE };
                run_carrier(&link, turn, carrier, decoder, timeouts).await;
            }
            _ => drop(carrier),
        }
        drop(permit);
        self.carriers.set(self.carriers.get() - 1);
        self.last_carrier.set(Instant::now());
        self.keep_without_carrier(greeting.id, &link, turn).await;
    }

    /// Finds or makes the link of a carrier. The token is compared before all else.
    fn admit(
        self: &Rc<Self>,
        greeting: &ReceivedGreeting,
    ) -> Result<AdmittedCarrier, RefusalReason> {
        if !self.token.is(&greeting.token) {
            return Err(RefusalReason::Token);
        }
        if greeting.version != LINK_VERSION {
            return Err(RefusalReason::Version);
        }
        let mut links = self.links.borrow_mut();
        if !links.contains_key(&greeting.id) {
            // A new link has received nothing.
            if greeting.stage == LinkStage::Known || greeting.received != 0 {
                return Err(RefusalReason::UnknownLink);
            }
            if links.len() >= MAX_LINKS {
                drop_oldest(&mut links)?;
            }
            let link = Link::new(LinkSide::Guest);
            tokio::task::spawn_local(Rc::clone(self).serve_streams(link.clone()));
            links.insert(greeting.id, KeptLink { link, lost: None });
        }
        let kept = links.get_mut(&greeting.id).expect("it is there or was just inserted");
        // The earlier carrier may still have bytes, and its host is no longer behind it.
        kept.link.stop_carrier();
        let received = kept.link.received();
        match kept.link.begin_carrier(greeting.received) {
            Ok(turn) => {
                kept.lost = None;
                Ok(AdmittedCarrier { link: kept.link.clone(), turn, received })
            }
            Err(error) => {
                kept.link.fail(LinkFailure::Violation(error));
                links.remove(&greeting.id);
                Err(RefusalReason::Contradiction)
            }
        }
    }

    /// Serves each stream of a link as a connection.
    async fn serve_streams(self: Rc<Self>, link: Link) {
        while let Ok(stream) = link.accept().await {
            // Without a permit the stream is dropped, and the host sees that it was reset.
            if let Ok(permit) = self.connections.clone().try_acquire_owned() {
                serve_connection(self.server.clone(), Box::new(stream), permit);
            }
        }
    }

    /// Keeps a link whose carrier has ended for its lifetime, unless it has another carrier.
    async fn keep_without_carrier(&self, id: LinkId, link: &Link, turn: CarrierTurn) {
        if link.is_current(turn) {
            if let Some(kept) = self.links.borrow_mut().get_mut(&id) {
                kept.lost = Some(Instant::now());
            }
            if timeout(self.lifetime, link.carrier_replaced(turn)).await.is_err() {
                log::write_line(format_args!(
                    "a link has had no carrier for {} s; its streams are closed",
                    self.lifetime.as_secs()
                ));
                link.fail(LinkFailure::Lost { time: self.lifetime });
            }
        }
        if link.failure().is_some() {
            let mut links = self.links.borrow_mut();
            if links.get(&id).is_some_and(|kept| kept.link.failure().is_some()) {
                links.remove(&id);
            }
        }
    }
}

/// Ends the link that has had no carrier for the longest time.
fn drop_oldest(links: &mut HashMap<LinkId, KeptLink>) -> Result<(), RefusalReason> {
    let lost = links.iter().filter_map(|(id, kept)| Some((kept.lost?, *id)));
    let (_, oldest) = lost.min_by_key(|(since, _)| *since).ok_or(RefusalReason::TooManyLinks)?;
    if let Some(kept) = links.remove(&oldest) {
        kept.link.fail(LinkFailure::Closed);
    }
    Ok(())
}
