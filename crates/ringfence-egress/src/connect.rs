//! Connections to targets.
//!
//! The proxy judges a target by its name, resolves the name, and judges the addresses. Then the
//! proxy connects to an address that was judged, and to no other.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::pass::Pass;
use crate::proxy::{Mode, Proxy};
use crate::upstream::{Hop, Purpose};
use crate::way::Way;
use crate::{
    Denial, Event, Passage, Reason, Refusal, ResolveError, Target, TargetHost, Verdict, Via,
};

/// Most addresses of one name that the proxy tries.
const MOST_ADDRESSES: usize = 8;
/// Time that an address has to answer before the next address is tried in parallel (RFC 8305,
/// section 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Longest time that a lookup may take if an upstream proxy will resolve the name anyway.
const GLANCE: Duration = Duration::from_secs(1);

/// Open connection to a target.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connection {
    /// TCP stream to the target, or through the upstream proxy's tunnel.
    pub stream: TcpStream,
    /// Address of the target, or `None` if an upstream proxy chose the address.
    pub address: Option<IpAddr>,
    /// Kind of request that asked for the connection.
    pub via: Via,
}

/// Connection on which HTTP requests for a host are sent.
pub(crate) struct Origin {
    pub(crate) stream: Way,
    pub(crate) pass: Pass,
    /// Upstream proxy that reads the requests, if there is one.
    pub(crate) hop: Option<Hop>,
}

impl Connection {
    /// Returns the pass for this connection to `target`, by which the proxy judges the connection
    /// again when the rules change.
    pub(crate) fn pass(&self, target: &Target) -> Pass {
        Pass { target: target.clone(), via: self.via, address: self.address }
    }
}

impl Proxy {
    /// Connects to a target if the rules allow the target and one of its addresses. Reports a
    /// denial, or the connection that was made, to the proxy's owner.
    ///
    /// A name is looked up once, and only the allowed addresses of that lookup are tried. If the
    /// rules change meanwhile, the attempt begins again.
    pub async fn connect(&self, target: &Target, via: Via) -> Result<Connection, Refusal> {
        // Boxed, because the caller's future lasts as long as the connection and would otherwise
        // keep space for this shorter future.
        Box::pin(self.reach(target, via, self.hop(target, Purpose::Tunnel))).await
    }

    /// Connects to the server that takes plain HTTP requests for `target`: the target itself, or an
    /// upstream proxy.
    pub(crate) async fn open(&self, target: &Target) -> Result<Origin, Refusal> {
        let Some(hop) = self.hop(target, Purpose::Http) else {
            let connection = self.reach(target, Via::Http, None).await?;
            let pass = connection.pass(target);
            return Ok(Origin { stream: Way::Clear(connection.stream), pass, hop: None });
        };
        let listed = self.admit(target, Via::Http)?;
        self.addresses(target, Via::Http, true).await?;
        let stream = self.in_time(target, hop.dial()).await?.map_err(upstream_of(target))?;
        self.passed(target, Via::Http, None, listed);
        let pass = Pass { target: target.clone(), via: Via::Http, address: None };
        Ok(Origin { stream: Way::Clear(stream), pass, hop: Some(hop) })
    }

    fn hop(&self, target: &Target, purpose: Purpose) -> Option<Hop> {
        self.settings().upstream.as_ref()?.hop(target, purpose)
    }

    /// Connects to a target. Begins again if the rules change meanwhile, so that the new rules
    /// decide.
    async fn reach(
        &self,
        target: &Target,
        via: Via,
        hop: Option<Hop>,
    ) -> Result<Connection, Refusal> {
        loop {
            let mut changes = self.rule_changes();
            tokio::select! {
                biased;
                Ok(()) = changes.changed() => {}
                reached = self.reach_at_once(target, via, hop.as_ref()) => return reached,
            }
        }
    }

    async fn reach_at_once(
        &self,
        target: &Target,
        via: Via,
        hop: Option<&Hop>,
    ) -> Result<Connection, Refusal> {
        let listed = self.admit(target, via)?;
        let addresses = self.addresses(target, via, hop.is_some()).await?;
        let connection = match hop {
            Some(hop) => {
                let stream =
                    self.in_time(target, hop.tunnel(target)).await?.map_err(upstream_of(target))?;
                Connection { stream, address: None, via }
            }
            None => {
                let dialled = self.in_time(target, dial(addresses, target.port)).await?;
                let (stream, address) = dialled.map_err(of(target))?;
                Connection { stream, address: Some(address), via }
            }
        };
        self.passed(target, via, connection.address, listed);
        Ok(connection)
    }

    /// Judges a target by its name, or by its address if the client gave an address.
    ///
    /// Returns `true` if a rule allows the target. Returns `false` if no rule does and
    /// [`Mode::Observe`] lets the target through.
    pub(crate) fn admit(&self, target: &Target, via: Via) -> Result<bool, Refusal> {
        match self.rules().judge(target) {
            Verdict::Allowed => Ok(true),
            Verdict::Denied(Reason::Unlisted) if self.settings().mode == Mode::Observe => Ok(false),
            Verdict::Denied(reason) => Err(self.deny(Denial::of(target, via, reason))),
        }
    }

    /// Reports a denial to the proxy's owner, and returns the refusal for the client.
    pub(crate) fn deny(&self, denial: Denial) -> Refusal {
        self.tell(Event::Denied(denial.clone()));
        denial.into()
    }

    fn passed(&self, target: &Target, via: Via, address: Option<IpAddr>, listed: bool) {
        self.tell(Event::Allowed(Passage { target: target.to_string(), via, address, listed }));
    }

    /// Returns the addresses of a target to which the proxy may connect.
    ///
    /// With an upstream proxy, a name that does not resolve here is no error, because the upstream
    /// resolves names itself. The list is then empty.
    async fn addresses(
        &self,
        target: &Target,
        via: Via,
        has_upstream: bool,
    ) -> Result<Vec<IpAddr>, Refusal> {
        let name = match &target.host {
            TargetHost::Address(address) => return Ok(vec![*address]),
            TargetHost::Name(name) => name,
        };
        let settings = self.settings();
        let limit =
            if has_upstream { GLANCE.min(settings.limits.lookup) } else { settings.limits.lookup };
        let found = match timeout(limit, settings.resolver.lookup(name)).await {
            Ok(found) => found,
            Err(_) => Err(ResolveError::Slow(name.clone())),
        };
        let found = match found {
            Ok(found) => found,
            Err(_) if has_upstream => return Ok(Vec::new()),
            Err(source) => return Err(Refusal::Unresolved { target: target.clone(), source }),
        };
        let (rules, mut refused) = (self.rules(), None);
        let mut allowed = found;
        allowed.retain(|address| match rules.judge_address(target, *address) {
            Verdict::Allowed => true,
            Verdict::Denied(reason) => {
                refused.get_or_insert(reason);
                false
            }
        });
        match refused {
            Some(reason) if allowed.is_empty() => Err(self.deny(Denial::of(target, via, reason))),
            _ => Ok(allowed),
        }
    }

    pub(crate) async fn in_time<T>(
        &self,
        target: &Target,
        attempt: impl Future<Output = T>,
    ) -> Result<T, Refusal> {
        let limit = self.settings().limits.connect;
        timeout(limit, attempt).await.map_err(|_| Refusal::Slow { target: target.clone(), limit })
    }
}

fn of(target: &Target) -> impl FnOnce(io::Error) -> Refusal {
    |source| Refusal::Unreachable { target: target.clone(), source }
}

fn upstream_of(target: &Target) -> impl FnOnce(crate::UpstreamError) -> Refusal {
    |source| Refusal::Upstream { target: target.clone(), source }
}

/// Connects to the address that answers first.
///
/// Each address has a head start of [`HEAD_START`] on the next. IPv4 and IPv6 addresses alternate.
async fn dial(addresses: Vec<IpAddr>, port: u16) -> io::Result<(TcpStream, IpAddr)> {
    let mut waiting = in_turns(addresses).into_iter().take(MOST_ADDRESSES);
    let mut attempts = FuturesUnordered::new();
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let attempt = |address: IpAddr| async move {
        let stream = TcpStream::connect(SocketAddr::new(address, port)).await?;
        prepare(&stream);
        Ok::<_, io::Error>((stream, address))
    };
    loop {
        match waiting.next() {
            Some(address) => attempts.push(attempt(address)),
            None if attempts.is_empty() => return Err(failure),
            None => {}
        }
        let last = waiting.len() == 0;
        tokio::select! {
            Some(outcome) = attempts.next() => match outcome {
                Ok(connected) => return Ok(connected),
                Err(error) => failure = error,
            },
            () = sleep(HEAD_START), if !last => {}
        }
    }
}

/// Sets the socket options of an outgoing connection.
///
/// Keepalive is on because the proxy has no limit on silence, so that the kernel must detect a peer
/// that is gone.
pub(crate) fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true); // a failure only costs speed
    // A failure only means that a dead connection is held longer.
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
}

fn in_turns(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let (fours, sixes): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.into_iter().partition(IpAddr::is_ipv4);
    let longest = fours.len().max(sixes.len());
    let pairs = (0..longest).flat_map(|index| [fours.get(index), sixes.get(index)]);
    pairs.flatten().copied().collect()
}
