//! One TCP connection of the tunnel, as a stream.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{RecvError, State};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::packet::TcpFlow;
use super::stack::NetworkStack;

/// Network stack of a tunnel, shared by the tasks that carry its connections.
pub(super) struct SharedStack {
    stack: Mutex<NetworkStack>,
    /// Notification that the stack may have packets to send.
    pub(super) moved: Notify,
}

impl SharedStack {
    pub(super) fn new(stack: NetworkStack) -> Arc<SharedStack> {
        Arc::new(SharedStack { stack: Mutex::new(stack), moved: Notify::new() })
    }

    pub(super) fn stack(&self) -> MutexGuard<'_, NetworkStack> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One TCP connection. A connection that is dropped before its end was sent is aborted.
pub(super) struct StackConnection {
    shared: Arc<SharedStack>,
    flow: TcpFlow,
    handle: SocketHandle,
    /// True if the end of our stream was sent.
    ended: bool,
}

impl StackConnection {
    /// Opens the connection that the packet `opening` asked for.
    pub(super) fn accept(
        shared: &Arc<SharedStack>,
        flow: TcpFlow,
        opening: &[u8],
    ) -> Option<StackConnection> {
        let handle = shared.stack().accept(flow, opening)?;
        shared.moved.notify_one();
        Some(StackConnection { shared: Arc::clone(shared), flow, handle, ended: false })
    }

    /// Waits until the program in the sandbox has completed the handshake.
    pub(super) async fn wait_until_established(&mut self) -> io::Result<()> {
        poll_fn(|cx| {
            let mut stack = self.shared.stack();
            let socket = stack.socket(self.handle);
            match socket.state() {
                State::SynReceived => {
                    socket.register_send_waker(cx.waker());
                    Poll::Pending
                }
                State::Closed | State::Listen => {
                    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
                }
                _ => Poll::Ready(Ok(())),
            }
        })
        .await
    }
}

impl AsyncRead for StackConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut stack = self.shared.stack();
        let socket = stack.socket(self.handle);
        match socket.recv_slice(into.initialize_unfilled()) {
            Ok(0) if into.remaining() > 0 => {
                socket.register_recv_waker(cx.waker());
                return Poll::Pending;
            }
            Ok(read) => into.advance(read),
            Err(RecvError::Finished) => return Poll::Ready(Ok(())),
            Err(RecvError::InvalidState) => {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
        drop(stack);
        self.shared.moved.notify_one(); // the receive buffer has room again
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for StackConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut stack = self.shared.stack();
        let socket = stack.socket(self.handle);
        match socket.send_slice(bytes) {
            Ok(0) if !bytes.is_empty() => {
                socket.register_send_waker(cx.waker());
                Poll::Pending
            }
            Ok(written) => {
                drop(stack);
                self.shared.moved.notify_one();
                Poll::Ready(Ok(written))
            }
            Err(_) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.stack().socket(self.handle).close();
        self.ended = true;
        self.shared.moved.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for StackConnection {
    fn drop(&mut self) {
        self.shared.stack().release_connection(self.flow, self.handle, self.ended);
        self.shared.moved.notify_one();
    }
}
