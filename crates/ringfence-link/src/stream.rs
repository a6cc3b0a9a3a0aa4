//! One stream of a link.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use ringfence_proto::link::multiplexer::{ReadResult, WriteResult};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::Link;
use crate::state::{LinkCore, StreamWakers};

/// One stream of a link. Each direction ends on its own; dropping the stream ends both.
#[derive(Debug)]
pub struct LinkStream {
    link: Link,
    number: u32,
}

impl LinkStream {
    pub(crate) fn new(link: Link, number: u32) -> LinkStream {
        LinkStream { link, number }
    }
}

impl LinkCore {
    fn wakers_of(&mut self, number: u32) -> &mut StreamWakers {
        self.wakers.entry(number).or_default()
    }
}

impl AsyncRead for LinkStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.link.lock();
        let LinkCore { bytes, streams, .. } = &mut *state;
        let unsent = bytes.room();
        let result = streams.read(self.number, buffer.initialize_unfilled(), bytes);
        if bytes.room() != unsent {
            state.wake_carrier();
        }
        match result {
            ReadResult::Read(count) => {
                buffer.advance(count);
                Poll::Ready(Ok(()))
            }
            ReadResult::End => Poll::Ready(Ok(())),
            ReadResult::Reset => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            ReadResult::Wait => {
                if let Some(failure) = &state.failure {
                    return Poll::Ready(Err(failure.io_error()));
                }
                state.wakers_of(self.number).reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for LinkStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.link.lock();
        if let Some(failure) = &state.failure {
            return Poll::Ready(Err(failure.io_error()));
        }
        let LinkCore { bytes, streams, .. } = &mut *state;
        match streams.write(self.number, buffer, bytes) {
            WriteResult::Written(count) => {
                state.wake_carrier();
                Poll::Ready(Ok(count))
            }
            WriteResult::Broken => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            WriteResult::WaitForPeer => {
                state.wakers_of(self.number).writer = Some(context.waker().clone());
                Poll::Pending
            }
            WriteResult::WaitForRoom => {
                state.wakers_of(self.number).writer = Some(context.waker().clone());
                state.wait_for_room(self.number);
                Poll::Pending
            }
        }
    }

    /// Returns at once: the carrier sends what was written as soon as it can.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.link.lock();
        let LinkCore { bytes, streams, .. } = &mut *state;
        streams.finish(self.number, bytes);
        state.wake_carrier();
        Poll::Ready(Ok(()))
    }
}

impl Drop for LinkStream {
    fn drop(&mut self) {
        let mut state = self.link.lock();
        let LinkCore { bytes, streams, wakers, .. } = &mut *state;
        streams.release(self.number, bytes);
        wakers.remove(&self.number);
        state.wake_carrier();
    }
}
