//! Relay of a link: other processes of the host reach the guest through a socket of this process.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use ringfence_link::Link;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::super::connector::{GUEST_SOCKET, listen_in};
use super::LinkState;

/// Highest number of connections that are relayed at once; further ones wait.
const MAX_RELAYED: usize = 512;
/// Size in bytes of the buffer for each direction of a connection.
const COPY_BUFFER_BYTES: usize = 64 << 10;
/// Pause before the next attempt when a connection cannot be accepted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The task that joins connections of other processes to streams of a link. Dropping the relay
/// closes the connections.
#[derive(Debug)]
pub(crate) struct LinkRelay {
    task: AbortHandle,
}

impl LinkRelay {
    pub(super) fn start(
        link: Link,
        state: watch::Receiver<LinkState>,
        directory: &Path,
    ) -> io::Result<LinkRelay> {
        check_private(directory)?;
        let listener =
            std::os::unix::net::UnixListener::from(listen_in(directory, Path::new(GUEST_SOCKET))?);
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let task = tokio::spawn(relay_connections(link, state, listener)).abort_handle();
        Ok(LinkRelay { task })
    }
}

impl Drop for LinkRelay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Checks that only this user has access to the directory, because the relay authenticates nobody.
fn check_private(directory: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = fstat(openat(CWD, directory, flags, Mode::empty())?.as_fd())?;
    let is_own = found.st_uid == rustix::process::geteuid().as_raw();
    let others = Mode::from_raw_mode(found.st_mode) & (Mode::RWXG | Mode::RWXO);
    if is_own && others.is_empty() {
        return Ok(());
    }
    let text = format!("the directory `{}` is open to other users", directory.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

async fn relay_connections(
    link: Link,
    mut state: watch::Receiver<LinkState>,
    listener: UnixListener,
) {
    // Dropping the set aborts the tasks of the connections.
    let mut connections = JoinSet::new();
    let ended = async {
        // An error means that the keeper of the link is gone, and the link with it.
        let _ = state.wait_for(|state| matches!(state, LinkState::Ended(_))).await;
    };
    tokio::pin!(ended);
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            if connections.len() >= MAX_RELAYED {
                connections.join_next().await;
            }
            listener.accept().await
        };
        tokio::select! {
            () = &mut ended => return,
            accepted = accepted => match accepted {
                Ok((connection, _)) => {
                    connections.spawn(relay_connection(link.clone(), connection));
                }
                // Either the peer has disconnected already, or no descriptor is free.
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
            },
        }
    }
}

async fn relay_connection(link: Link, mut connection: UnixStream) {
    let Ok(mut stream) = link.open().await else { return };
    // Either side may hang up at any time.
    let _ = copy_bidirectional_with_sizes(
        &mut connection,
        &mut stream,
        COPY_BUFFER_BYTES,
        COPY_BUFFER_BYTES,
    )
    .await;
}
