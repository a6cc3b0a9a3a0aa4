//! A stream of which some bytes were read already.

use std::any::Any;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::copy::End;

/// A byte stream that a connection can be carried on.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// A stream that is read from its beginning again.
#[derive(Debug)]
pub(crate) struct Rewound<S> {
    first: Bytes,
    rest: S,
}

impl<S> Rewound<S> {
    /// `rest`, with `first` in front of what it still has to say.
    pub(crate) fn new(first: Bytes, rest: S) -> Rewound<S> {
        Rewound { first, rest }
    }

    /// Puts bytes that were read back in front.
    pub(crate) fn put_back(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.first = [bytes, std::mem::take(&mut self.first)].concat().into();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.rest).poll_read(cx, into);
        }
        let length = self.first.len().min(into.remaining());
        into.put_slice(&self.first[..length]);
        self.first.advance(length);
        if self.first.is_empty() {
            // Otherwise the whole first read stays in memory for as long as the connection lives.
            self.first = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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

impl<S: Stream> End for Rewound<S> {
    fn tcp(&self) -> Option<&TcpStream> {
        (&self.rest as &dyn Any).downcast_ref().filter(|_| self.first.is_empty())
    }
}

/// How long, and for how many bytes, what a refused client still says is listened to.
const LINGER: (Duration, u64) = (Duration::from_secs(1), 16 * 1024 * 1024);

/// Ends a stream so that its last words arrive: closing it with bytes unread resets the connection, and the client's
/// side then throws away what it has not read (RFC 9112, 9.6).
pub(crate) async fn linger<S: Stream>(mut stream: S) {
    if stream.shutdown().await.is_ok() {
        let (time, most) = LINGER;
        let _ = timeout(time, tokio::io::copy(&mut stream.take(most), &mut tokio::io::sink())).await; // gone is well
    }
}
