//! Change of the egress rules of a running sandbox.
//!
//! The process that holds a sandbox's gate listens in the directory of the sandbox for new
//! rules. It writes the new rules to a file there, applies them, and then confirms the change.
//! Therefore the rules in the file are the ones in force, whichever process asked for them and even
//! if that process has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_core::policy::{Egress, Network};
use ringfence_core::{Fault, Plan};
use ringfence_egress::Proxy;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::changed_rules::{ChangedRules, MAX_ORDER_BYTES};
use super::gate_holder::rules;
use crate::Sandbox;
use crate::sandbox::directory::{Name, SandboxDirError};
use crate::session::{UnixConnector, listen_in};

/// Name of the socket on which orders are received.
const ORDER_SOCKET: &str = "egress.sock";
/// Longest time that either side waits for the other.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an accept(2) that failed, for example because the host has no descriptor left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Reason why the egress rules of a sandbox could not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The sandbox is not there, or one of its files cannot be read.
    #[error(transparent)]
    Directory(#[from] SandboxDirError),
    /// The sandbox has no gate: its network is open, or it has none.
    #[error(
        "cannot change what the sandbox `{name}` may reach: its network is {network}, which has no \
         gate"
    )]
    NoGate {
        /// Name of the sandbox.
        name: Name,
        /// Mode of the sandbox's network.
        network: &'static str,
    },
    /// The sandbox's proxy is a container, which takes its rules only once.
    #[error(
        "cannot change what the sandbox `{name}` may reach: its proxy is a container of its own"
    )]
    ProxyContainer {
        /// Name of the sandbox.
        name: Name,
    },
    /// The change would affect a setting that is fixed at the start.
    #[error("cannot change `network.{key}` of the sandbox `{name}`: it is fixed at the start")]
    Fixed {
        /// Name of the sandbox.
        name: Name,
        /// Key of the setting below `network`.
        key: &'static str,
    },
    /// The lists are too long.
    #[error(
        "cannot change what the sandbox `{name}` may reach: the lists have {length} bytes, and \
         {MAX_ORDER_BYTES} at most"
    )]
    TooLong {
        /// Name of the sandbox.
        name: Name,
        /// Length of the lists, in bytes.
        length: usize,
    },
    /// The process that holds the gate does not answer. The old or the new rules may be in force.
    #[error("cannot reach the process that holds the gate of the sandbox `{name}`")]
    Unreachable {
        /// Name of the sandbox.
        name: Name,
        /// Error of the connection.
        source: io::Error,
    },
    /// The process that holds the gate could not apply the rules. The old rules are in force.
    #[error("cannot change the rules of the sandbox `{name}`: {why}")]
    Refused {
        /// Name of the sandbox.
        name: Name,
        /// Reason that the process gave.
        why: String,
    },
}

impl ChangeError {
    /// Returns whose move it is after this error.
    pub fn fault(&self) -> Fault {
        match self {
            ChangeError::Directory(SandboxDirError::File { .. }) | ChangeError::Refused { .. } => {
                Fault::Host
            }
            ChangeError::Unreachable { .. } => Fault::Backend,
            _ => Fault::User,
        }
    }

    /// Returns the next commands to type.
    pub fn hints(&self) -> Vec<String> {
        match self {
            ChangeError::Directory(error) => vec![error.hint()],
            ChangeError::NoGate { name, .. } => {
                vec![format!(
                    "replace it by one with a gate: ringfence up {name} --replace --allow HOST"
                )]
            }
            ChangeError::ProxyContainer { name } => {
                vec![format!(
                    "replace it by one with other hosts: ringfence up {name} --replace --proxy \
                     --allow HOST"
                )]
            }
            ChangeError::Fixed { name, key } => {
                vec![format!("replace it by one with another {key}: ringfence up {name} --replace")]
            }
            ChangeError::TooLong { .. } => {
                vec!["write fewer rules: *.example.org stands for many hosts".to_owned()]
            }
            ChangeError::Unreachable { name, .. } => vec![
                "ask again".to_owned(),
                format!(
                    "or replace it, if an earlier ringfence started it: ringfence up {name} \
                     --replace"
                ),
            ],
            ChangeError::Refused { .. } => vec!["check the disk: df -h".to_owned()],
        }
    }
}

impl Sandbox {
    /// Replaces the hosts that the sandbox may reach. When this function returns, the new lists
    /// hold for every new connection and request from inside, and open connections that are no
    /// longer allowed are closed. The sandbox's manifest, as other processes read it, has the new
    /// lists.
    ///
    /// The sandbox must have been started with a list of hosts, because a closed or an open network
    /// has no gate. `transparent` and `observe` must be as they were at the start. Secrets stay
    /// with the hosts that they are for. Secrets for hosts that were not allowed at the start were
    /// not read, and are not added.
    pub async fn set_egress(&self, egress: Egress) -> Result<(), ChangeError> {
        self.require_kept()?;
        let (manifest, name) = (self.manifest(), || self.manifest().name.clone());
        let own = match &manifest.policy.network {
            Some(Network::Allow(own)) => own,
            other => {
                let network = other.as_ref().map_or("closed", Network::mode);
                return Err(ChangeError::NoGate { name: name(), network });
            }
        };
        if manifest.container.as_ref().is_some_and(|container| container.spec.proxy.is_some()) {
            return Err(ChangeError::ProxyContainer { name: name() });
        }
        let kept = [
            ("transparent", own.transparent == egress.transparent),
            ("observe", own.observe == egress.observe),
        ];
        if let Some((key, _)) = kept.into_iter().find(|(_, is_kept)| !is_kept) {
            return Err(ChangeError::Fixed { name: name(), key });
        }
        let order = line(&Network::Allow(egress));
        if order.len() > MAX_ORDER_BYTES {
            return Err(ChangeError::TooLong { name: name(), length: order.len() });
        }
        let answered = timeout(ORDER_TIMEOUT, send_order(&self.directory(), &order)).await;
        let unreachable = |source| ChangeError::Unreachable { name: name(), source };
        let answer = answered
            .map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?
            .map_err(unreachable)?;
        answer.map_err(|why| ChangeError::Refused { name: name(), why })
    }
}

/// Sends an order to the process that holds the gate, and waits for the answer.
async fn send_order(sandbox_dir: &Path, order: &[u8]) -> io::Result<Result<(), String>> {
    let mut stream = UnixConnector::for_socket(sandbox_dir, ORDER_SOCKET)?.open().await?;
    stream.write_all(order).await?;
    let mut answer = String::new();
    BufReader::new(stream).take(MAX_ORDER_BYTES as u64).read_line(&mut answer).await?;
    Ok(serde_json::from_str(&answer)?)
}

/// Listener on which the process that holds a sandbox's gate receives new rules.
#[derive(Debug)]
pub(super) struct RuleListener {
    listener: OwnedFd,
    sandbox_dir: PathBuf,
    /// Plan that the sandbox was started with.
    plan: Plan,
}

impl RuleListener {
    /// Listens in the directory of a sandbox that was started with `plan`.
    pub(super) fn listen(sandbox_dir: PathBuf, plan: Plan) -> io::Result<RuleListener> {
        Ok(RuleListener {
            listener: listen_in(&sandbox_dir, ORDER_SOCKET.as_ref())?,
            sandbox_dir,
            plan,
        })
    }

    /// Carries out orders, one after the other, until the future is dropped.
    pub(super) async fn carry_out_orders(self, proxy: &Proxy) -> io::Result<()> {
        let listener = UnixListener::from(self.listener.try_clone()?);
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // A client that takes too long, or has gone, is not waited for.
                    let _ = timeout(ORDER_TIMEOUT, self.answer_order(stream, proxy)).await;
                }
                Err(_) => sleep(ACCEPT_RETRY_DELAY).await,
            }
        }
    }

    async fn answer_order(&self, stream: UnixStream, proxy: &Proxy) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut order = String::new();
        (&mut stream).take(MAX_ORDER_BYTES as u64).read_line(&mut order).await?;
        let done = self.change_rules(&order, proxy).map_err(|error| crate::chain(&error));
        stream.write_all(&line(&done)).await
    }

    /// Writes the new rules to the file, and applies them without a pause in between.
    fn change_rules(&self, order: &str, proxy: &Proxy) -> io::Result<()> {
        let network: Network = serde_json::from_str(order)?;
        let Some(egress) = network.egress() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a gate needs a list of allowed hosts",
            ));
        };
        let rules = rules(egress);
        let mut policy = self.plan.policy.clone();
        policy.network = Some(network.clone());
        let differs = policy != self.plan.policy;
        let policy_sha256 = if differs { policy.sha256() } else { self.plan.policy_sha256.clone() };
        ChangedRules { network, policy_sha256, differs }.write(&self.sandbox_dir)?;
        proxy.set_rules(rules);
        tracing::info!("the hosts that a sandbox may reach were changed");
        Ok(())
    }
}

fn line(of: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(of).expect("it has only string keys");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use ringfence_core::{Backend, Policy};
    use ringfence_egress::{
        ClientLimits, ConnectionRefusal, ProxyMode, ProxySettings, RequestKind, Resolver, Rules,
        Target,
    };

    use super::super::changed_rules::{TEMPORARY_RULES_FILE, changed};
    use super::*;

    /// Returns a proxy that lets nothing out, and that takes orders in `sandbox_dir`.
    fn holder(sandbox_dir: &Path) -> (Proxy, Plan) {
        let policy = Policy::default().network(Network::only([]));
        let (summary, policy_sha256, held) = (String::new(), policy.sha256(), BTreeMap::new());
        let plan = Plan { backend: Backend::Native, summary, policy, policy_sha256, held };
        let nobody: SocketAddr = ([127, 0, 0, 1], 9).into();
        let settings = ProxySettings {
            mode: ProxyMode::Enforce,
            upstream: None,
            limits: ClientLimits::default(),
            resolver: Resolver::for_server(nobody).unwrap(),
            credentials: None,
        };
        let proxy = Proxy::new(Rules::default(), settings, |_| ());
        let (orders, own) =
            (RuleListener::listen(sandbox_dir.into(), plan.clone()).unwrap(), proxy.clone());
        tokio::spawn(async move { orders.carry_out_orders(&own).await });
        (proxy, plan)
    }

    #[tokio::test]
    async fn an_order_is_obeyed_and_written_down_before_it_is_answered() {
        let sandbox_dir = tempfile::tempdir().unwrap();
        let (proxy, plan) = holder(sandbox_dir.path());
        let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = host.local_addr().unwrap();
        let target = Target::from_address(address.ip(), address.port()).unwrap();
        let is_denied = async || {
            matches!(
                proxy.connect(&target, RequestKind::Connect).await,
                Err(ConnectionRefusal::Denied(_))
            )
        };
        assert!(is_denied().await);
        assert_eq!(changed(sandbox_dir.path()).unwrap(), None);

        let one = Network::only([address.to_string().parse().unwrap()]);
        send_order(sandbox_dir.path(), &line(&one)).await.unwrap().unwrap();
        assert!(!is_denied().await);
        let changed_rules = changed(sandbox_dir.path()).unwrap().unwrap();
        assert_eq!((&changed_rules.network, changed_rules.differs), (&one, true));
        assert_ne!(changed_rules.policy_sha256, plan.policy_sha256);

        send_order(sandbox_dir.path(), &line(&Network::only([]))).await.unwrap().unwrap();
        assert!(is_denied().await);
        let changed_rules = changed(sandbox_dir.path()).unwrap().unwrap();
        assert_eq!(
            (changed_rules.policy_sha256, changed_rules.differs),
            (plan.policy_sha256, false)
        );
    }

    #[tokio::test]
    async fn an_invalid_order_changes_nothing_and_a_silent_client_times_out() {
        let sandbox_dir = tempfile::tempdir().unwrap();
        let (proxy, _) = holder(sandbox_dir.path());
        for (order, why) in
            [("{\n", "EOF"), ("{\"mode\": \"open\"}\n", "a gate needs a list"), ("\n", "EOF")]
        {
            let answer = send_order(sandbox_dir.path(), order.as_bytes()).await.unwrap();
            assert!(answer.as_ref().is_err_and(|error| error.contains(why)), "{order}: {answer:?}");
        }
        drop(
            UnixConnector::for_socket(sandbox_dir.path(), ORDER_SOCKET)
                .unwrap()
                .open()
                .await
                .unwrap(),
        );
        assert_eq!(changed(sandbox_dir.path()).unwrap(), None);
        // If the rules cannot be written to the sandbox directory, they are not applied.
        fs_err::create_dir(sandbox_dir.path().join(TEMPORARY_RULES_FILE)).unwrap();
        let any = Network::only(["127.0.0.1:9".parse().unwrap()]);
        assert!(send_order(sandbox_dir.path(), &line(&any)).await.unwrap().is_err());
        let target = Target::from_parts("127.0.0.1", 9).unwrap();
        assert!(matches!(
            proxy.connect(&target, RequestKind::Connect).await,
            Err(ConnectionRefusal::Denied(_))
        ));
    }
}
