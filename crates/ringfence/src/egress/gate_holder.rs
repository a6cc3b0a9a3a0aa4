//! Serves the gate of a sandbox: a thread that holds the gate and lets through what the policy
//! allows.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ringfence_core::Clause;
use ringfence_core::policy::{Egress, Network};
use ringfence_core::result::Denial;
use ringfence_egress::{
    ClientLimits, EgressEvent, Proxy, ProxyMode, ProxySettings, Resolver, Rules, Tunnel,
    UpstreamProxies,
};
use ringfence_linux::Launcher;
use ringfence_linux::gate::{Gate, RESOLVER_ADDRESS, TUNNEL_PACKET_BYTES};
use ringfence_linux::sys::process::raise_descriptor_limit;
use tokio::io::Interest;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::change::RuleListener;
use super::{EgressLog, LoadedCredentials, RemoteProxy, remote};
use crate::RunError;
use crate::engine::Core;
use crate::run::plan::PlannedRun;
use crate::run::readiness;
use crate::sandbox::directory::{Name, SandboxDirs};

/// Highest number of denials that a result lists one by one; further denials are only counted.
pub(super) const MAX_LISTED_DENIALS: usize = 100;
/// Maximum time, after a gate is closed, to judge the connections that a command left behind.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// Source of a gate.
#[derive(Debug)]
pub(crate) enum GateSource {
    /// Socket from which the gate is received.
    Sent(OwnedFd),
    /// Gate that was received already.
    Received(Gate),
}

/// Way out of a container's network, which leads nowhere until it is served.
#[derive(Debug)]
pub(crate) enum ContainerEgress {
    Gate(Gate),
    Proxy(RemoteProxy),
}

/// Holder of the gate of one sandbox; dropping it closes the gate.
#[derive(Debug)]
pub(crate) struct GateHolder {
    denials: Arc<Mutex<KeptDenials>>,
    /// Sender whose drop ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Denials of a sandbox: the first ones, and the number of others.
#[derive(Debug, Default)]
struct KeptDenials {
    first: Vec<Denial>,
    more: u64,
}

impl KeptDenials {
    fn add(&mut self, denial: ringfence_egress::Denial) {
        if self.first.len() < MAX_LISTED_DENIALS {
            self.first.push(convert_denial(denial));
        } else {
            self.more += 1;
        }
    }
}

/// Returns denials for a result. A last entry stands for `more` denials that are not in the list.
pub(super) fn add_uncounted(mut denials: Vec<Denial>, more: u64) -> Vec<Denial> {
    if more > 0 {
        let what = format!("{more} more, of which `ringfence egress log` has those that were kept");
        denials.push(Denial { clause: Clause::Egress, what, allow: None });
    }
    denials
}

impl Core {
    /// Holds the gate that `awaited` brings, and lets through what the plan of `context` allows.
    pub(crate) fn hold_gate(
        &self,
        context: &PlannedRun,
        awaited: GateSource,
    ) -> Result<GateHolder, RunError> {
        let failed = |source| RunError::Setup {
            step: "hold the gate of the sandbox's network".to_owned(),
            source,
        };
        let (_, egress) = allowed_network(context);
        let host = &self.settings.host;
        let credentials = context
            .credentials
            .as_ref()
            .map(LoadedCredentials::open)
            .transpose()
            .map_err(failed)?;
        let settings =
            proxy_settings(egress, |name| host.text(name).map(str::to_owned)).map_err(failed)?;
        let (rules, settings) = (rules(egress), ProxySettings { credentials, ..settings });
        let orders = self.listen_for_orders(context).map_err(failed)?;
        // A process that forks for itself is ringfence's own, so its limit may be raised. The
        // sandbox has its own limit by now. Each connection takes two descriptors.
        if matches!(self.launcher, Launcher::Here) {
            let _ = raise_descriptor_limit(); // if this fails, there can be fewer connections
        }
        let held = GateHolder::start(self.log(context), async |tell, stopped| {
            let proxy = Proxy::new(rules, settings, tell);
            let obeyed = async {
                match orders {
                    Some(orders) => orders.carry_out_orders(&proxy).await,
                    None => std::future::pending().await,
                }
            };
            let held = async {
                tokio::select! {
                    held = serve_gate(awaited, &proxy) => held,
                    obeyed = obeyed => obeyed,
                }
            };
            let mut held = pin!(held);
            tokio::select! {
                held = &mut held => return held,
                _ = stopped => proxy.drain(),
            }
            timeout(DRAIN_TIMEOUT, held).await.unwrap_or(Ok(()))
        });
        held.map_err(failed)
    }

    /// Returns the listener on which the rules of a sandbox that stays can be changed.
    fn listen_for_orders(&self, context: &PlannedRun) -> io::Result<Option<RuleListener>> {
        let Some(name) = &context.sandbox else { return Ok(None) };
        let name = Name::new(name).map_err(io::Error::other)?;
        let sandbox_dirs = SandboxDirs::for_host(&self.settings.host).map_err(io::Error::other)?;
        RuleListener::listen(sandbox_dirs.path(&name), context.plan.clone()).map(Some)
    }

    /// Sends the plan of `context` to a proxy that waits for its orders, and records the events of
    /// the proxy.
    pub(crate) async fn order_proxy(
        &self,
        context: &PlannedRun,
        proxy: RemoteProxy,
    ) -> Result<GateHolder, RunError> {
        let failed = |source| RunError::Setup {
            step: "send the rules to the sandbox's proxy".to_owned(),
            source,
        };
        let (network, _) = allowed_network(context);
        let connection = proxy.send_orders(network, &self.settings.host).await.map_err(failed)?;
        let started = GateHolder::start(self.log(context), async |tell, stopped| {
            tokio::select! {
                followed = remote::follow(connection, tell) => followed,
                _ = stopped => Ok(()),
            }
        });
        started.map_err(failed)
    }

    fn log(&self, context: &PlannedRun) -> EgressLog {
        let (_, egress) = allowed_network(context);
        EgressLog::for_sandbox(
            &self.settings.host,
            context.sandbox.clone(),
            &context.workspace.source,
            egress.observe,
        )
    }
}

/// Returns the network of a plan, and its egress rules.
fn allowed_network(context: &PlannedRun) -> (&Network, &Egress) {
    let network = context.plan.policy.network.as_ref();
    let both = network.and_then(|network| Some((network, network.egress()?)));
    both.expect("only a policy that lets something out has a gate or a proxy")
}

/// Function that takes the events of a proxy.
type EventSink = Box<dyn Fn(EgressEvent) + Send + Sync>;

impl GateHolder {
    /// Runs `work` on a thread of its own, and records the events that `work` reports. `work` must
    /// end soon after its receiver completes.
    fn start(
        log: EgressLog,
        work: impl AsyncFnOnce(EventSink, oneshot::Receiver<()>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<GateHolder> {
        let denials: Arc<Mutex<KeptDenials>> = Arc::default();
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let kept = Arc::clone(&denials);
        let tell = Box::new(move |event| {
            log.write(&event);
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                EgressEvent::Denied(denial) => kept.add(denial),
                EgressEvent::Omitted { denials } => kept.more += denials,
                _ => {}
            }
        });
        let thread =
            std::thread::Builder::new().name("ringfence-egress".to_owned()).spawn(move || {
                runtime.block_on(async {
                    if let Err(error) = work(tell, stopped).await {
                        tracing::error!(
                            error = crate::chain(&error),
                            "the gate of a sandbox's network was lost"
                        );
                    }
                });
            })?;
        Ok(GateHolder { denials, stop: Some(stop), thread: Some(thread) })
    }

    /// Judges the connections that the command left behind, closes the gate, and returns the
    /// denials.
    pub(crate) fn close(mut self) -> Vec<Denial> {
        self.end();
        let kept =
            std::mem::take(&mut *self.denials.lock().unwrap_or_else(PoisonError::into_inner));
        add_uncounted(kept.first, kept.more)
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // the thread itself has reported a panic
        }
    }
}

impl Drop for GateHolder {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn rules(egress: &Egress) -> Rules {
    Rules::new(&egress.allow, &egress.deny)
}

/// Returns the settings of a sandbox's proxy, besides its rules.
pub(super) fn proxy_settings(
    egress: &Egress,
    variable: impl Fn(&str) -> Option<String>,
) -> io::Result<ProxySettings> {
    let upstream = UpstreamProxies::from_variables(variable).map_err(io::Error::other)?;
    Ok(ProxySettings {
        mode: if egress.observe { ProxyMode::Observe } else { ProxyMode::Enforce },
        upstream,
        limits: ClientLimits::default(),
        resolver: Resolver::for_system(),
        credentials: None,
    })
}

/// Converts a denial to the form that results have.
pub(super) fn convert_denial(denial: ringfence_egress::Denial) -> Denial {
    let what = format!("{}: {}", denial.target, denial.reason);
    Denial { clause: Clause::Egress, what, allow: denial.policy }
}

/// Waits for the gate, and serves the connections that come to it.
async fn serve_gate(awaited: GateSource, proxy: &Proxy) -> io::Result<()> {
    let gate = tokio::select! {
        gate = awaited.gate() => gate?,
        () = proxy.wait_until_drained() => None,
    };
    let Some(Gate { proxy: listener, tunnel: device }) = gate else {
        return Ok(()); // the set-up failed, as its watcher reports, or the gate is closed
    };
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    let served = proxy.serve(tokio::net::TcpListener::from_std(listener)?);
    let carried = async {
        match device {
            Some(device) => {
                proxy
                    .carry_packets(Tunnel {
                        device,
                        resolver: RESOLVER_ADDRESS,
                        packet: TUNNEL_PACKET_BYTES,
                    })
                    .await
            }
            None => Ok(()),
        }
    };
    tokio::try_join!(served, carried).map(|_| ())
}

impl GateSource {
    async fn gate(self) -> io::Result<Option<Gate>> {
        let socket = match self {
            GateSource::Sent(socket) => socket,
            GateSource::Received(gate) => return Ok(Some(gate)),
        };
        readable(&socket).await?;
        Gate::receive(socket)
    }
}

async fn readable(socket: &OwnedFd) -> io::Result<()> {
    readiness::watch(socket.as_fd(), Interest::READABLE)?.readable().await.map(|_| ())
}
