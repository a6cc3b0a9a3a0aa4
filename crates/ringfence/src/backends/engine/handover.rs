//! How a guest in a container comes by the socket that it takes calls on.
//!
//! The host makes it, in the sandbox's room, and hands it over: nothing of the room has to be written inside.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ringfence_linux::{Gate, passing};
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::net::UnixListener;

use super::container::Reach;
use super::error::Failure;
use crate::instance::listen;
use crate::session::SOCKET;

/// A socket that is to be handed to whoever comes for it first. Nothing but the guest runs in a container by then.
#[derive(Debug)]
pub(super) struct Handover {
    /// Where the guest comes.
    door: UnixListener,
    /// What it gets.
    socket: OwnedFd,
}

impl Handover {
    /// Listens in the channel of a room for the guest, and at `door` for it to come. A room is its owner's alone, and
    /// whoever the guest is inside may come through the mount of that one file.
    pub(super) fn at(door: &Path, channel: &Path) -> Result<Handover, Failure> {
        for left in [door.to_path_buf(), channel.join(SOCKET)] {
            let _ = fs_err::remove_file(left); // of an attempt that failed, if there was one
        }
        let make = || Ok(Handover { door: self::door(door)?, socket: listen(channel, SOCKET.as_ref())? });
        make().map_err(|source| Failure::Files { what: "listen for the guest", source })
    }

    /// Waits for the guest, hands it over, and gets the gate of the container's network for it, if there is to be one.
    /// Nobody is heard there any more. The guest's process is not known in a pid namespace that cannot be seen from here.
    pub(super) async fn done(self, reach: Reach) -> Result<(Option<Pid>, Option<Gate>), Failure> {
        let hand = async || -> io::Result<(Option<Pid>, Option<Gate>)> {
            let (guest, _) = self.door.accept().await?;
            passing::send(&guest, b"!", &[self.socket.as_fd()])?;
            let process = guest.peer_cred()?.pid().and_then(Pid::from_raw);
            if reach != Reach::Gated {
                return Ok((process, None));
            }
            // That it can be read is what tokio believes, until it is tried.
            let gate = guest.async_io(Interest::READABLE, || Gate::receive(&guest)).await?;
            let gate = gate.ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok((process, Some(gate)))
        };
        hand().await.map_err(|source| Failure::Files { what: "hand the guest its socket", source })
    }
}

/// Listens at a path for a process of ours in a container, whoever that is inside.
pub(super) fn door(path: &Path) -> io::Result<UnixListener> {
    let (directory, name) = (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default());
    let listener = std::os::unix::net::UnixListener::from(listen(directory, name.as_ref())?);
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
        let place = tempfile::tempdir().unwrap();
        let (door, channel) = (place.path().join("handover"), place.path().join("channel"));
        fs_err::create_dir(&channel).unwrap();
        let handover = Handover::at(&door, &channel).unwrap();
        let guest = net::UnixStream::connect(&door).unwrap();
        let (process, gate) = handover.done(Reach::Closed).await.unwrap();
        assert_eq!(process, Some(rustix::process::getpid()));
        assert!(gate.is_none());
        assert!(net::UnixStream::connect(&door).is_err(), "nobody is there any more");

        let (_, mut handed) = passing::receive(&guest, &mut [0]).unwrap();
        let listener = net::UnixListener::from(handed.pop().unwrap());
        let mut caller = net::UnixStream::connect(channel.join(SOCKET)).unwrap();
        let (mut called, _) = listener.accept().unwrap();
        caller.write_all(b"hello").unwrap();
        drop(caller);
        let mut heard = String::new();
        called.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hello");
    }

    #[tokio::test]
    async fn a_gate_that_is_still_being_made_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let (door, channel) = (place.path().join("handover"), place.path().join("channel"));
        fs_err::create_dir(&channel).unwrap();
        let handover = Handover::at(&door, &channel).unwrap();
        let guest = net::UnixStream::connect(&door).unwrap();
        let making = std::thread::spawn(move || {
            passing::receive(&guest, &mut [0]).unwrap();
            let gate = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            passing::send(&guest, &[0], &[gate.as_fd()]).unwrap();
        });
        let (_, gate) = handover.done(Reach::Gated).await.unwrap();
        assert!(gate.is_some());
        making.join().unwrap();
    }
}
