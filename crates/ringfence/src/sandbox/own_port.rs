//! A port of a sandbox that shares its host's network.
//!
//! The connection is made from here, not by the guest: it goes to an address at which only the sandbox's own processes
//! listen, and before anything is sent on it, it is checked that one of them is at its other end.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ringfence_linux::listening;
use ringfence_linux::pause::ProcessTree;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::session::{PortStream, SessionError};

/// How long a server may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a process of a tree that listens on a port.
pub(super) async fn connect(tree: ProcessTree, port: u16) -> Result<PortStream, SessionError> {
    let closed = || SessionError::PortClosed { port };
    let unseen = |error: io::Error| {
        tracing::warn!(port, %error, "whose port it is cannot be told");
        closed()
    };
    let addresses = look(move || listening::own_addresses(&tree, port)).await;
    for address in addresses.map_err(unseen)? {
        if let Some(stream) = connect_to(tree, address).await.map_err(unseen)? {
            return Ok(PortStream::from_socket(stream));
        }
    }
    Err(closed())
}

/// Connects to an address, if a process of the tree is what answers there.
async fn connect_to(tree: ProcessTree, address: SocketAddr) -> io::Result<Option<TcpStream>> {
    let Ok(Ok(stream)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await else { return Ok(None) };
    let ours = stream.local_addr()?;
    // Nor is a connection in another network namespace than the tree's found among those of the tree's.
    let is_its = look(move || listening::leads_to(&tree, ours, address)).await?;
    if !is_its {
        tracing::warn!(%address, "a port of the sandbox led to another program, and nothing was sent there");
        return Ok(None);
    }
    let _ = stream.set_nodelay(true); // slower without, and no worse
    Ok(Some(stream))
}

/// Reads files of processes on another thread.
async fn look<T: Send + 'static>(look: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(look).await.expect("a look does not panic")
}
