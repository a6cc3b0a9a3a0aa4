//! Streams of which some bytes were already read.

use std::any::Any;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::copy::CopyEnd;

/// Byte stream that can carry a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for S {}

/// Stream that first returns bytes that were already read, and then the bytes that follow.
#[derive(Debug)]
pub(crate) struct RewoundStream<S> {
    first: Bytes,
    rest: S,
}

impl<S> RewoundStream<S> {
    /// Returns a stream that yields `first` and then the bytes of `rest`.
    pub(crate) fn new(first: Bytes, rest: S) -> RewoundStream<S> {
        RewoundStream { first, rest }
    }

    /// Puts bytes that were already read back to the front of the stream.
    pub(crate) fn put_back(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.first = [bytes, std::mem::take(&mut self.first)].concat().into();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RewoundStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.rest).poll_read(cx, into);
        }
        let length = self.first.len().min(into.remaining());
        into.put_slice(&self.first[..length]);
        self.first.advance(length);
        if self.first.is_empty() {
            // Release the buffer. Otherwise the whole first read stays in memory until the
            // connection ends.
            self.first = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RewoundStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.rest).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.rest).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.rest.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.rest).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.rest).poll_shutdown(cx)
    }
}

impl<S: ByteStream> CopyEnd for RewoundStream<S> {
    fn tcp(&self) -> Option<&TcpStream> {
        (&self.rest as &dyn Any).downcast_ref().filter(|_| self.first.is_empty())
    }
}

/// Longest time for which the proxy reads from a client after a refusal.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes that the proxy reads from a client after a refusal.
const MAX_LINGER_BYTES: u64 = 16 * 1024 * 1024;

/// Ends a stream so that its last bytes arrive. Closing a stream with unread bytes resets the
/// connection, and then the client's side discards what the client has not read (RFC 9112, 9.6).
pub(crate) async fn linger<S: ByteStream>(mut stream: S) {
    if stream.shutdown().await.is_ok() {
        let mut unread = stream.take(MAX_LINGER_BYTES);
        // Ignore errors, because the client may be gone.
        let _ = timeout(LINGER_TIMEOUT, tokio::io::copy(&mut unread, &mut tokio::io::sink())).await;
    }
}
