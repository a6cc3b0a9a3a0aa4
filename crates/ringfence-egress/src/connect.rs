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

use crate::maybe_tls::MaybeTlsStream;
use crate::pass::ConnectionPass;
use crate::proxy::{Proxy, ProxyMode};
use crate::upstream::{ConnectionPurpose, UpstreamProxy};
use crate::{
    AllowedConnection, ConnectionRefusal, Denial, DenialReason, EgressEvent, RequestKind,
    ResolveError, Target, TargetHost, Verdict,
};

/// Most addresses of one name that the proxy tries.
const MAX_ADDRESSES: usize = 8;
/// Time that an address has to answer before the next address is tried in parallel (RFC 8305,
/// section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Longest time that a lookup may take if an upstream proxy will resolve the name anyway.
const UPSTREAM_LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Open connection to a target.
#[derive(Debug)]
#[non_exhaustive]
pub struct TargetConnection {
    /// TCP stream to the target, or through the upstream proxy's tunnel.
    pub stream: TcpStream,
    /// Address of the target, or `None` if an upstream proxy chose the address.
    pub address: Option<IpAddr>,
    /// Kind of request that asked for the connection.
    pub via: RequestKind,
}

/// Connection on which HTTP requests for a host are sent.
pub(crate) struct OriginConnection {
    pub(crate) stream: MaybeTlsStream,
    pub(crate) pass: ConnectionPass,
    /// Upstream proxy that reads the requests, if there is one.
    pub(crate) hop: Option<UpstreamProxy>,
}

impl TargetConnection {
    /// Returns the pass for this connection to `target`, by which the proxy judges the connection
    /// again when the rules change.
    pub(crate) fn pass(&self, target: &Target) -> ConnectionPass {
        ConnectionPass { target: target.clone(), via: self.via, address: self.address }
    }
}

impl Proxy {
    /// Connects to a target if the rules allow the target and one of its addresses. Reports a
    /// denial, or the connection that was made, to the proxy's owner.
    ///
    /// A name is looked up once, and only the allowed addresses of that lookup are tried. If the
    /// rules change meanwhile, the attempt begins again.
    pub async fn connect(
        &self,
        target: &Target,
        via: RequestKind,
    ) -> Result<TargetConnection, ConnectionRefusal> {
        // Boxed, because the caller's future lasts as long as the connection and would otherwise
        // keep space for this shorter future.
        Box::pin(self.connect_by_current_rules(
            target,
            via,
            self.upstream_for(target, ConnectionPurpose::Tunnel),
        ))
        .await
    }

    /// Connects to the server that takes plain HTTP requests for `target`: the target itself, or an
    /// upstream proxy.
    pub(crate) async fn connect_for_http(
        &self,
        target: &Target,
    ) -> Result<OriginConnection, ConnectionRefusal> {
        let Some(hop) = self.upstream_for(target, ConnectionPurpose::Http) else {
            let connection = self.connect_by_current_rules(target, RequestKind::Http, None).await?;
            let pass = connection.pass(target);
            return Ok(OriginConnection {
                stream: MaybeTlsStream::Clear(connection.stream),
                pass,
                hop: None,
            });
        };
        let listed = self.admit_target(target, RequestKind::Http)?;
        self.resolve_addresses(target, RequestKind::Http, true).await?;
        let stream = self
            .with_connect_timeout(target, hop.dial())
            .await?
            .map_err(upstream_refusal(target))?;
        self.report_passage(target, RequestKind::Http, None, listed);
        let pass = ConnectionPass { target: target.clone(), via: RequestKind::Http, address: None };
        Ok(OriginConnection { stream: MaybeTlsStream::Clear(stream), pass, hop: Some(hop) })
    }

    fn upstream_for(&self, target: &Target, purpose: ConnectionPurpose) -> Option<UpstreamProxy> {
        self.settings().upstream.as_ref()?.proxy_for(target, purpose)
    }

    /// Connects to a target. Begins again if the rules change meanwhile, so that the new rules
    /// decide.
    async fn connect_by_current_rules(
        &self,
        target: &Target,
        via: RequestKind,
        hop: Option<UpstreamProxy>,
    ) -> Result<TargetConnection, ConnectionRefusal> {
        loop {
            let mut changes = self.rule_changes();
            tokio::select! {
                biased;
                Ok(()) = changes.changed() => {}
                reached = self.connect_once(target, via, hop.as_ref()) => return reached,
            }
        }
    }

    async fn connect_once(
        &self,
        target: &Target,
        via: RequestKind,
        hop: Option<&UpstreamProxy>,
    ) -> Result<TargetConnection, ConnectionRefusal> {
        let listed = self.admit_target(target, via)?;
        let addresses = self.resolve_addresses(target, via, hop.is_some()).await?;
        let connection = match hop {
            Some(hop) => {
                let stream = self
                    .with_connect_timeout(target, hop.open_tunnel(target))
                    .await?
                    .map_err(upstream_refusal(target))?;
                TargetConnection { stream, address: None, via }
            }
            None => {
                let dialled = self
                    .with_connect_timeout(target, dial_addresses(addresses, target.port))
                    .await?;
                let (stream, address) = dialled.map_err(unreachable_refusal(target))?;
                TargetConnection { stream, address: Some(address), via }
            }
        };
        self.report_passage(target, via, connection.address, listed);
        Ok(connection)
    }

    /// Judges a target by its name, or by its address if the client gave an address.
    ///
    /// Returns `true` if a rule allows the target. Returns `false` if no rule does and
    /// [`ProxyMode::Observe`] lets the target through.
    pub(crate) fn admit_target(
        &self,
        target: &Target,
        via: RequestKind,
    ) -> Result<bool, ConnectionRefusal> {
        match self.rules().judge(target) {
            Verdict::Allowed => Ok(true),
            Verdict::Denied(DenialReason::Unlisted)
                if self.settings().mode == ProxyMode::Observe =>
            {
                Ok(false)
            }
            Verdict::Denied(reason) => {
                Err(self.report_denial(Denial::for_target(target, via, reason)))
            }
        }
    }

    /// Reports a denial to the proxy's owner, and returns the refusal for the client.
    pub(crate) fn report_denial(&self, denial: Denial) -> ConnectionRefusal {
        self.report_event(EgressEvent::Denied(denial.clone()));
        denial.into()
    }

    fn report_passage(
        &self,
        target: &Target,
        via: RequestKind,
        address: Option<IpAddr>,
        listed: bool,
    ) {
        self.report_event(EgressEvent::Allowed(AllowedConnection {
            target: target.to_string(),
            via,
            address,
            listed,
        }));
    }

    /// Returns the addresses of a target to which the proxy may connect.
    ///
    /// With an upstream proxy, a name that does not resolve here is no error, because the upstream
    /// resolves names itself. The list is then empty.
    async fn resolve_addresses(
        &self,
        target: &Target,
        via: RequestKind,
        has_upstream: bool,
    ) -> Result<Vec<IpAddr>, ConnectionRefusal> {
        let name = match &target.host {
            TargetHost::Address(address) => return Ok(vec![*address]),
            TargetHost::Name(name) => name,
        };
        let settings = self.settings();
        let limit = if has_upstream {
            UPSTREAM_LOOKUP_TIMEOUT.min(settings.limits.lookup)
        } else {
            settings.limits.lookup
        };
        let found = match timeout(limit, settings.resolver.lookup_addresses(name)).await {
            Ok(found) => found,
            Err(_) => Err(ResolveError::Slow(name.clone())),
        };
        let found = match found {
            Ok(found) => found,
            Err(_) if has_upstream => return Ok(Vec::new()),
            Err(source) => {
                return Err(ConnectionRefusal::Unresolved { target: target.clone(), source });
            }
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
            Some(reason) if allowed.is_empty() => {
                Err(self.report_denial(Denial::for_target(target, via, reason)))
            }
            _ => Ok(allowed),
        }
    }

    pub(crate) async fn with_connect_timeout<T>(
        &self,
        target: &Target,
        attempt: impl Future<Output = T>,
    ) -> Result<T, ConnectionRefusal> {
        let limit = self.settings().limits.connect;
        timeout(limit, attempt)
            .await
            .map_err(|_| ConnectionRefusal::Slow { target: target.clone(), limit })
    }
}

fn unreachable_refusal(target: &Target) -> impl FnOnce(io::Error) -> ConnectionRefusal {
    |source| ConnectionRefusal::Unreachable { target: target.clone(), source }
}

fn upstream_refusal(target: &Target) -> impl FnOnce(crate::UpstreamError) -> ConnectionRefusal {
    |source| ConnectionRefusal::Upstream { target: target.clone(), source }
}

/// Connects to the address that answers first.
///
/// Each address has a head start of [`ATTEMPT_DELAY`] on the next. IPv4 and IPv6 addresses
/// alternate.
async fn dial_addresses(addresses: Vec<IpAddr>, port: u16) -> io::Result<(TcpStream, IpAddr)> {
    let mut waiting = alternate_families(addresses).into_iter().take(MAX_ADDRESSES);
    let mut attempts = FuturesUnordered::new();
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let attempt = |address: IpAddr| async move {
        let stream = TcpStream::connect(SocketAddr::new(address, port)).await?;
        set_socket_options(&stream);
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
            () = sleep(ATTEMPT_DELAY), if !last => {}
        }
    }
}

/// Sets the socket options of an outgoing connection.
///
/// Keepalive is on because the proxy has no limit on silence, so that the kernel must detect a peer
/// that is gone.
pub(crate) fn set_socket_options(stream: &TcpStream) {
    let _ = stream.set_nodelay(true); // a failure only costs speed
    // A failure only means that a dead connection is held longer.
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
}

fn alternate_families(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let (fours, sixes): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.into_iter().partition(IpAddr::is_ipv4);
    let longest = fours.len().max(sixes.len());
    let pairs = (0..longest).flat_map(|index| [fours.get(index), sixes.get(index)]);
    pairs.flatten().copied().collect()
}
