//! Control socket of a command's first process, with calls that never block the runtime.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net;

use ringfence_linux::{ControlOrder, ControlReport, StartedSandbox, control};
use rustix::net::RecvFlags;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// Handle to the first process of a command. When the handle is dropped, the first process ends,
/// together with every process that is left below it.
#[derive(Debug)]
pub(super) struct FirstProcess {
    started: StartedSandbox,
    /// Duplicate of the control socket, on which the runtime waits. The socket is of type
    /// `SOCK_SEQPACKET`, which preserves message boundaries as a datagram socket does.
    socket: UnixDatagram,
}

impl FirstProcess {
    pub(super) fn new(started: StartedSandbox) -> io::Result<FirstProcess> {
        let socket = net::UnixDatagram::from(started.control.try_clone()?);
        // A first process that is stopped reads no orders, and the guest must not block on sending
        // to it.
        socket.set_nonblocking(true)?;
        Ok(FirstProcess { started, socket: UnixDatagram::from_std(socket)? })
    }

    /// Returns the process id of the first process.
    pub(super) fn pid(&self) -> i32 {
        self.started.launched.pid
    }

    /// Receives the next report of the first process; `None` if the first process has ended.
    pub(super) async fn next_report(&self) -> Option<ControlReport> {
        let receive = || control::receive(&self.socket, RecvFlags::DONTWAIT);
        // Only the first process writes to this socket. A message that cannot be parsed counts as
        // its end.
        self.socket.async_io(Interest::READABLE, receive).await.ok().flatten()
    }

    /// Waits until the first process has ended.
    pub(super) async fn wait_until_ended(&self) {
        while self.next_report().await.is_some() {}
    }

    /// Sends an order to the first process.
    pub(super) fn send_order(&self, order: ControlOrder) -> io::Result<()> {
        control::send(&self.socket, &order)
    }

    /// Kills the first process. The launcher then becomes the parent of the processes below it.
    pub(super) fn kill(&self) {
        // Ignore the error, because the first process may have ended already.
        let _ = pidfd_send_signal(self.started.launched.pidfd.as_fd(), Signal::KILL);
    }
}
