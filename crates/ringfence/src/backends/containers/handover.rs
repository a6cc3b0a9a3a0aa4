//! Handover of the listening socket to a guest in a container.
//!
//! The host creates the socket in the sandbox's directory and hands it to the guest, so that
//! nothing in the sandbox directory has to be writable in the container.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ringfence_linux::{Gate, fd_passing};
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::net::UnixListener;

use super::container::ContainerNetwork;
use super::error::ContainerFailure;
use crate::session::GUEST_SOCKET;
use crate::session::listen_in;

/// Socket to be handed to the first process that connects. At that time, only the guest runs in the
/// container.
#[derive(Debug)]
pub(super) struct GuestHandover {
    /// Listener to which the guest connects.
    listener: UnixListener,
    /// Socket that the guest receives.
    socket: OwnedFd,
}

impl GuestHandover {
    /// Creates the guest's socket in the channel of a sandbox directory, and listens at `path` for
    /// the guest to connect.
    ///
    /// A sandbox directory is accessible only to its owner. The guest reaches `path` through a
    /// mount of that one file, whatever user the guest runs as.
    pub(super) fn listen(path: &Path, channel: &Path) -> Result<GuestHandover, ContainerFailure> {
        for left in [path.to_path_buf(), channel.join(GUEST_SOCKET)] {
            let _ = fs_err::remove_file(left); // left by an earlier attempt that failed
        }
        let make = || {
            Ok(GuestHandover {
                listener: listen_for_container(path)?,
                socket: listen_in(channel, GUEST_SOCKET.as_ref())?,
            })
        };
        make().map_err(|source| ContainerFailure::Files { what: "listen for the guest", source })
    }

    /// Waits for the guest, hands it the socket, and receives the gate of the container's network
    /// if `network` asks for a gate. Then the path no longer accepts connections.
    ///
    /// The process ID is `None` if the guest is in a pid namespace that cannot be seen from here.
    pub(super) async fn hand_over(
        self,
        network: ContainerNetwork,
    ) -> Result<(Option<Pid>, Option<Gate>), ContainerFailure> {
        let hand = async || -> io::Result<(Option<Pid>, Option<Gate>)> {
            let (guest, _) = self.listener.accept().await?;
            fd_passing::send(&guest, b"!", &[self.socket.as_fd()])?;
            let process = guest.peer_cred()?.pid().and_then(Pid::from_raw);
            if network != ContainerNetwork::Gated {
                return Ok((process, None));
            }
            // `async_io` retries: tokio may report the socket as readable when it is not.
            let gate = guest.async_io(Interest::READABLE, || Gate::receive(&guest)).await?;
            let gate = gate.ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok((process, Some(gate)))
        };
        hand()
            .await
            .map_err(|source| ContainerFailure::Files { what: "hand the guest its socket", source })
    }
}

/// Listens at a path for the program of ringfence in a container. Every user may connect.
pub(super) fn listen_for_container(path: &Path) -> io::Result<UnixListener> {
    let (directory, name) =
        (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default());
    let listener = std::os::unix::net::UnixListener::from(listen_in(directory, name.as_ref())?);
    fs_err::set_permissions(path, PermissionsExt::from_mode(0o666))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net;

    use super::*;

    #[tokio::test]
    async fn whoever_comes_first_is_handed_the_channels_socket_and_nobody_after() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("handover");
        let channel = directory.path().join("channel");
        fs_err::create_dir(&channel).unwrap();
        let handover = GuestHandover::listen(&path, &channel).unwrap();
        let guest = net::UnixStream::connect(&path).unwrap();
        let (process, gate) = handover.hand_over(ContainerNetwork::Closed).await.unwrap();
        assert_eq!(process, Some(rustix::process::getpid()));
        assert!(gate.is_none());
        assert!(net::UnixStream::connect(&path).is_err(), "nobody is there any more");

        let (_, mut handed) = fd_passing::receive(&guest, &mut [0]).unwrap();
        let listener = net::UnixListener::from(handed.pop().unwrap());
        let mut caller = net::UnixStream::connect(channel.join(GUEST_SOCKET)).unwrap();
        let (mut called, _) = listener.accept().unwrap();
        caller.write_all(b"hello").unwrap();
        drop(caller);
        let mut heard = String::new();
        called.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hello");
    }

    #[tokio::test]
    async fn a_gate_that_is_still_being_made_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("handover");
        let channel = directory.path().join("channel");
        fs_err::create_dir(&channel).unwrap();
        let handover = GuestHandover::listen(&path, &channel).unwrap();
        let guest = net::UnixStream::connect(&path).unwrap();
        let making = std::thread::spawn(move || {
            fd_passing::receive(&guest, &mut [0]).unwrap();
            let gate = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            fd_passing::send(&guest, &[0], &[gate.as_fd()]).unwrap();
        });
        let (_, gate) = handover.hand_over(ContainerNetwork::Gated).await.unwrap();
        assert!(gate.is_some());
        making.join().unwrap();
    }
}
