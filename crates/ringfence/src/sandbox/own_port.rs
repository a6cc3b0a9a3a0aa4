//! Connects to a port of a sandbox that shares its host's network.
//!
//! This process makes the connection, not the guest. The connection goes to an address at which
//! only processes of the sandbox listen. Before anything is sent, this module checks that one of
//! these processes has the other end of the connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ringfence_linux::listening;
use ringfence_linux::pause::ProcessTree;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::session::{PortStream, SessionError};

/// Longest time that a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a process of a tree that listens on a port.
pub(super) async fn connect(tree: ProcessTree, port: u16) -> Result<PortStream, SessionError> {
    let closed = || SessionError::PortClosed { port };
    let unknown = |error: io::Error| {
        tracing::warn!(port, %error, "cannot determine the owner of the port");
        closed()
    };
    let addresses = run_blocking(move || listening::own_addresses(&tree, port)).await;
    for address in addresses.map_err(unknown)? {
        if let Some(stream) = connect_to(tree, address).await.map_err(unknown)? {
            return Ok(PortStream::from_socket(stream));
        }
    }
    Err(closed())
}

/// Connects to an address. Returns `None` unless a process of the tree accepts the connection.
async fn connect_to(tree: ProcessTree, address: SocketAddr) -> io::Result<Option<TcpStream>> {
    let Ok(Ok(stream)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await else {
        return Ok(None);
    };
    let ours = stream.local_addr()?;
    // A connection in another network namespace is not found among those of the tree, either.
    let is_of_tree = run_blocking(move || listening::leads_to(&tree, ours, address)).await?;
    if !is_of_tree {
        tracing::warn!(
            %address,
            "a port of the sandbox led to another program, and nothing was sent there"
        );
        return Ok(None);
    }
    let _ = stream.set_nodelay(true); // without this option the connection is slower, but works
    Ok(Some(stream))
}

/// Runs a function that reads files of processes on another thread.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.expect("a look does not panic")
}
