//! How a command's first process is talked to: its control socket, without waiting.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net;

use ringfence_linux::{Order, Report, Started, control};
use rustix::net::RecvFlags;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// The first process of a command. It ends, and all that is left below it, when this is dropped.
#[derive(Debug)]
pub(super) struct Control {
    started: Started,
    /// The same socket, which the runtime waits on. It is no datagram socket, but is like one in having messages.
    socket: UnixDatagram,
}

impl Control {
    pub(super) fn new(started: Started) -> io::Result<Control> {
        let socket = net::UnixDatagram::from(started.control.try_clone()?);
        // One that is stopped takes no orders, and nobody may wait for it.
        socket.set_nonblocking(true)?;
        Ok(Control { started, socket: UnixDatagram::from_std(socket)? })
    }

    /// The first process's id.
    pub(super) fn first(&self) -> i32 {
        self.started.launched.pid
    }

    /// Its next word; `None` when it has gone.
    pub(super) async fn report(&self) -> Option<Report> {
        let receive = || control::receive(&self.socket, RecvFlags::DONTWAIT);
        // What cannot be understood is not from it.
        self.socket.async_io(Interest::READABLE, receive).await.ok().flatten()
    }

    /// Waits until it has gone.
    pub(super) async fn gone(&self) {
        while self.report().await.is_some() {}
    }

    /// Gives it an order.
    pub(super) fn order(&self, order: Order) -> io::Result<()> {
        control::send(&self.socket, &order)
    }

    /// Kills it, which leaves what is below it to the launcher.
    pub(super) fn kill(&self) {
        let _ = pidfd_send_signal(self.started.launched.pidfd.as_fd(), Signal::KILL); // it may have gone
    }
}
