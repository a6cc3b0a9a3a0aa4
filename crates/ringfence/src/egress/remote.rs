//! A proxy in a container of its own: its orders and its events.
//!
//! One connection is all that links the proxy with the process that owns the sandbox. Orders arrive
//! over the connection, and events go back. When the connection ends, the proxy ends. Therefore no
//! file holds the rules, and nothing is left when the owner is killed.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ringfence_core::policy::Network;
use ringfence_egress::{EgressEvent, Proxy, UpstreamProxies};
use ringfence_linux::sys::process::raise_descriptor_limit;
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::gate_holder::{proxy_settings, rules};
use crate::Host;

/// Longest orders, in bytes; lists of hosts can be long.
const MAX_ORDERS_BYTES: u64 = 64 << 20;
/// Longest event, in bytes.
const MAX_EVENT_BYTES: u64 = 64 << 10;
/// Longest time that either side waits for the next message of the other.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);
/// Byte with which either side confirms that it has done as it was told.
const DONE_BYTE: u8 = b'!';

/// Orders of a proxy.
#[derive(Debug, Serialize, Deserialize)]
struct ProxyOrders {
    /// Address on which the proxy listens: in the sandbox's network, and in no other network of the
    /// proxy.
    listen: SocketAddr,
    /// Rules for the connections that the proxy lets out.
    network: Network,
    /// Variables that name proxies of the host.
    variables: BTreeMap<String, String>,
}

/// A proxy that waits for its orders.
#[derive(Debug)]
pub(crate) struct RemoteProxy {
    pub(crate) connection: tokio::net::UnixStream,
    /// Address on which the proxy is to listen.
    pub(crate) address: SocketAddr,
    /// Addresses of the sandbox's network, in CIDR notation.
    pub(crate) subnet: Option<String>,
}

impl RemoteProxy {
    /// Sends the proxy its orders, and waits until it listens.
    pub(super) async fn send_orders(
        mut self,
        network: &Network,
        host: &Host,
    ) -> io::Result<UnixStream> {
        let spellings = UpstreamProxies::VARIABLES
            .into_iter()
            .flat_map(|name| [name.to_owned(), name.to_ascii_lowercase()]);
        let variables = spellings
            .filter_map(|name| Some((name.clone(), host.text(&name)?.to_owned())))
            .collect();
        let orders = ProxyOrders { listen: self.address, network: network.clone(), variables };
        let obeyed = async {
            self.connection.write_all(&line(&orders)).await?;
            self.connection.read_u8().await
        };
        match timeout(MESSAGE_TIMEOUT, obeyed).await {
            Ok(Ok(DONE_BYTE)) => self.connection.into_std(),
            Ok(Ok(_)) => Err(io::ErrorKind::InvalidData.into()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Reads the events of a proxy, until the proxy ends.
pub(super) async fn follow(connection: UnixStream, hear: impl Fn(EgressEvent)) -> io::Result<()> {
    let (reader, mut writer) = tokio::net::UnixStream::from_std(connection)?.into_split();
    let mut reader = tokio::io::BufReader::new(reader);
    loop {
        let mut event = String::new();
        if (&mut reader).take(MAX_EVENT_BYTES).read_line(&mut event).await? == 0 {
            tracing::info!("the proxy of a sandbox's network has ended");
            return Ok(());
        }
        hear(serde_json::from_str(&event)?);
        writer.write_u8(DONE_BYTE).await?;
    }
}

/// Runs the proxy of a sandbox. The process that listens at `owner` gives the orders, and the proxy
/// ends with it.
pub fn serve(owner: &Path) -> io::Result<()> {
    let connection = UnixStream::connect(owner)?;
    connection.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
    let mut orders = String::new();
    BufReader::new(&connection).take(MAX_ORDERS_BYTES).read_line(&mut orders)?;
    let ProxyOrders { listen, network, variables } = serde_json::from_str(&orders)?;
    let egress = network.egress().ok_or(io::ErrorKind::InvalidData)?;
    let settings = proxy_settings(egress, |name| variables.get(name).cloned())?;

    let (owner, observes) = (Mutex::new(connection.try_clone()?), egress.observe);
    let proxy = Proxy::new(rules(egress), settings, move |event| {
        if observes || matches!(event, EgressEvent::Denied(_) | EgressEvent::Omitted { .. }) {
            let owner = owner.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = send_event(&owner, &event); // if the owner is gone, this process ends, too
        }
    });
    let _ = raise_descriptor_limit(); // if this fails, there can be fewer connections
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(listen).await?;
        (&connection).write_all(&[DONE_BYTE])?;
        tokio::select! {
            served = proxy.serve(listener) => served,
            _ = ended(connection) => Ok(()),
        }
    })
}

/// Sends an event to the owner, and waits until the owner has recorded it. The client hears of a
/// denial only then, so that a caller that waits for the client finds the denial.
fn send_event(mut owner: &UnixStream, event: &EgressEvent) -> io::Result<()> {
    owner.write_all(&line(event))?;
    owner.read_exact(&mut [0])
}

fn line(of: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(of).expect("it has only string keys");
    line.push(b'\n');
    line
}

/// Waits until the other end of a connection is closed, without reading from it.
fn ended(connection: UnixStream) -> oneshot::Receiver<()> {
    let (sender, ended) = oneshot::channel();
    std::thread::spawn(move || {
        // poll(2) reports POLLHUP even if no event is asked for.
        while poll(&mut [PollFd::new(&connection, PollFlags::empty())], None)
            == Err(rustix::io::Errno::INTR)
        {}
        sender.send(())
    });
    ended
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_proxy_obeys_tells_of_each_denial_before_its_client_hears_and_ends_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("owner");
        let owner = tokio::net::UnixListener::bind(&path).unwrap();
        let serving = std::thread::spawn(move || serve(&path));
        let (connection, _) = owner.accept().await.unwrap();
        // Bind the port only to find a free one, and release it before the proxy gets its orders,
        // because the proxy cannot share the port.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let remote = RemoteProxy { connection, address, subnet: None };
        let host = Host::new(BTreeMap::new(), "/".into());
        let connection = remote.send_orders(&Network::only([]), &host).await.unwrap();

        let heard: Arc<Mutex<Vec<EgressEvent>>> = Arc::default();
        let kept = Arc::clone(&heard);
        let following =
            tokio::spawn(follow(connection, move |event| kept.lock().unwrap().push(event)));
        let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
            .await
            .unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 403");
        assert!(matches!(
            &heard.lock().unwrap()[..],
            [EgressEvent::Denied(denial)] if denial.target == "example.com:443"
        ));

        following.abort();
        let _ = following.await; // cancelled, so the owner's end is closed
        tokio::task::spawn_blocking(move || serving.join().unwrap().unwrap()).await.unwrap();
    }
}
