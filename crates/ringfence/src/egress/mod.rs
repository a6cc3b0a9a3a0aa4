//! The host's end of a sandbox's way out: a thread that holds its gate, and lets through what the policy names.
//!
//! The gate is made inside and its descriptors are sent here (`ringfence_linux::gate`). The rules, and the proxy that
//! keeps them, are `ringfence-egress`.

mod log;
mod sealed;
mod secret;
mod suggest;
mod variables;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ringfence_core::Clause;
use ringfence_core::policy::{Egress, Network, Policy};
use ringfence_core::result::Denial;
use ringfence_egress::{Limits, Mode, Proxy, Resolver, Rules, Settings, Tunnel, Upstream};
use ringfence_linux::control;
use ringfence_linux::gate::{Gate, Kind, RESOLVER, TUNNEL_PACKET};
use tokio::io::Interest;
use tokio::sync::oneshot;

use crate::backends::PrepareError;
use crate::engine::Core;
use crate::ready::Context;
use crate::{Host, RunError, readiness};

pub use log::{Entry, recorded};
pub(crate) use log::{Log, denials_since, length, log_of};
pub use ringfence_egress::{Event, Passage, Reason, Via};
pub(crate) use sealed::Sealed;
pub use secret::{SecretError, SecretFault};
pub use suggest::suggest;
pub(crate) use variables::variables;

/// How many denials a result tells of; all are in the log.
const MOST_DENIALS: usize = 100;

/// The gate that a policy asks for.
pub(crate) fn gate(policy: &Policy) -> Option<Kind> {
    let egress = policy.network.as_ref().and_then(Network::egress)?;
    Some(if egress.transparent { Kind::Transparent } else { Kind::Proxy })
}

/// Two ends of a connection, when a policy asks for a gate: one that it will come from, and one to send it to.
pub(crate) fn await_gate(policy: &Policy) -> Result<Option<(OwnedFd, OwnedFd)>, PrepareError> {
    let failed = |source| PrepareError::Host { what: "the way of the sandbox's gate".to_owned(), source };
    gate(policy).map(|_| control::pair()).transpose().map_err(failed)
}

/// Where a gate comes from.
#[derive(Debug)]
pub(crate) enum Awaited {
    /// From whoever has the other end of this.
    Sent(OwnedFd),
    /// It is there.
    Received(Gate),
}

/// Holds the gate of one sandbox, as long as it lives.
#[derive(Debug)]
pub(crate) struct GateHolder {
    denials: Arc<Mutex<Vec<Denial>>>,
    /// Dropping it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Core {
    /// Holds the gate of a sandbox, which `awaited` brings, and keeps it to what the plan of `context` lets out.
    pub(crate) fn hold_gate(&self, context: &Context, awaited: Awaited) -> Result<GateHolder, RunError> {
        let failed = |source| RunError::Setup { step: "hold the gate of the sandbox's network".to_owned(), source };
        let egress = context.plan.policy.network.as_ref().and_then(Network::egress);
        let egress = egress.expect("only a policy that lets something out has a gate");
        let host = &self.settings.host;
        let credentials = context.sealed.as_ref().map(Sealed::open).transpose().map_err(failed)?;
        let settings = Settings { credentials, ..proxy_settings(egress, host).map_err(failed)? };
        let log = Log::of(host, context.sandbox.clone(), &context.workspace.source, egress.observe);
        GateHolder::start(settings, awaited, log).map_err(failed)
    }
}

impl GateHolder {
    fn start(settings: Settings, awaited: Awaited, log: Log) -> io::Result<GateHolder> {
        let denials: Arc<Mutex<Vec<Denial>>> = Arc::default();
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let kept = Arc::clone(&denials);
        let proxy = Proxy::new(settings, move |event| {
            log.write(&event);
            if let Event::Denied(denial) = event {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.len() < MOST_DENIALS {
                    kept.push(told(denial));
                }
            }
        });
        let thread = std::thread::Builder::new().name("ringfence-egress".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    held = hold(awaited, &proxy) => if let Err(error) = held {
                        tracing::error!(error = crate::chain(&error), "the gate of a sandbox's network was lost");
                    }
                }
            });
        })?;
        Ok(GateHolder { denials, stop: Some(stop), thread: Some(thread) })
    }

    /// Lets nothing through any more, and returns what was denied.
    pub(crate) fn close(mut self) -> Vec<Denial> {
        self.end();
        std::mem::take(&mut *self.denials.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic in it was told by the thread itself
        }
    }
}

impl Drop for GateHolder {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the proxy of a sandbox goes by.
fn proxy_settings(egress: &Egress, host: &Host) -> io::Result<Settings> {
    let upstream = Upstream::from_variables(|name| host.text(name).map(str::to_owned)).map_err(io::Error::other)?;
    Ok(Settings {
        rules: Rules::new(&egress.allow, &egress.deny),
        mode: if egress.observe { Mode::Observe } else { Mode::Enforce },
        upstream,
        limits: Limits::default(),
        resolver: Resolver::system(),
        credentials: None,
    })
}

/// A denial as results tell of it.
pub(crate) fn told(denial: ringfence_egress::Denial) -> Denial {
    let what = format!("{}: {}", denial.target, denial.reason);
    Denial { clause: Clause::Egress, what, allow: denial.policy }
}

/// Waits for the gate, and lets through what comes to it.
async fn hold(awaited: Awaited, proxy: &Proxy) -> io::Result<()> {
    let Some(Gate { proxy: listener, tunnel: device }) = awaited.gate().await? else {
        return Ok(()); // its set-up failed, which is told by whoever watches that
    };
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    let served = proxy.serve(tokio::net::TcpListener::from_std(listener)?);
    let carried = async {
        match device {
            Some(device) => proxy.carry_packets(Tunnel { device, resolver: RESOLVER, packet: TUNNEL_PACKET }).await,
            None => Ok(()),
        }
    };
    tokio::try_join!(served, carried).map(|_| ())
}

impl Awaited {
    async fn gate(self) -> io::Result<Option<Gate>> {
        let socket = match self {
            Awaited::Sent(socket) => socket,
            Awaited::Received(gate) => return Ok(Some(gate)),
        };
        readable(&socket).await?;
        Gate::receive(socket)
    }
}

async fn readable(socket: &OwnedFd) -> io::Result<()> {
    readiness::watch(socket.as_fd(), Interest::READABLE)?.readable().await.map(|_| ())
}
