//! Connections to ports inside a sandbox.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::connector::GuestStream;
use super::error::Operation;
use super::{Session, SessionError};

/// Highest number of connections that are forwarded at once; further ones wait.
const MAX_FORWARDED: usize = 512;
/// Pause before the next attempt when the process has no descriptor left for a connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The ports of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct SandboxPorts<'a> {
    pub(super) session: &'a Session,
}

impl SandboxPorts<'_> {
    /// Connects to a port on the sandbox's own loopback.
    pub async fn connect(&self, port: u16) -> Result<PortStream, SessionError> {
        let name = port.to_string();
        let operation = Operation { verb: "connect to the port", object: &name };
        self.session.transport.tunnel(operation, port).await
    }

    /// Accepts connections and forwards each to a port of the sandbox, until this future is
    /// dropped. A connection that the sandbox refuses is closed.
    pub async fn forward(&self, listener: TcpListener, port: u16) -> io::Result<()> {
        let mut forwarded = JoinSet::new();
        loop {
            while forwarded.try_join_next().is_some() {}
            if forwarded.len() >= MAX_FORWARDED {
                forwarded.join_next().await;
            }
            let mut outside = match listener.accept().await {
                Ok((outside, _)) => outside,
                Err(error) if is_temporary(&error) => {
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let session = self.session.clone();
            forwarded.spawn(async move {
                match session.ports().connect(port).await {
                    Ok(mut inside) => {
                        // Either side may just hang up.
                        let _ = copy_bidirectional(&mut outside, &mut inside).await;
                    }
                    Err(error) => tracing::warn!(
                        port,
                        error = crate::chain(&error),
                        "a connection was not forwarded"
                    ),
                }
            });
        }
    }
}

/// Returns true if accept(2) may succeed the next time.
fn is_temporary(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let Some(errno) = Errno::from_io_error(error) else { return false };
    [Errno::CONNABORTED, Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::INTR]
        .contains(&errno)
}

/// Stream of bytes to and from a port inside a sandbox.
pub struct PortStream {
    /// Bytes that arrived together with the guest's answer.
    early: Bytes,
    stream: Box<dyn GuestStream>,
}

impl PortStream {
    pub(super) fn new(early: Bytes, stream: Box<dyn GuestStream>) -> PortStream {
        PortStream { early, stream }
    }

    /// Returns a stream for a connection that was made without the guest.
    pub(crate) fn from_socket(stream: TcpStream) -> PortStream {
        PortStream::new(Bytes::new(), Box::new(stream))
    }
}

impl std::fmt::Debug for PortStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("PortStream").finish_non_exhaustive()
    }
}

impl AsyncRead for PortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, into);
        }
        let length = self.early.len().min(into.remaining());
        into.put_slice(&self.early[..length]);
        self.early.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
