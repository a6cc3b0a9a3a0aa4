//! The use of one carrier: moves bytes between the link and the carrier until the carrier is lost.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use ringfence_proto::link::LinkError;
use ringfence_proto::link::frame::{LinkFrame, LinkFrameDecoder};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::state::CarrierStop;
use crate::{CarrierTurn, Link, LinkFailure};

/// Number of bytes that are handed to the carrier at once.
const OUTPUT_BYTES: usize = 128 << 10;
/// Number of bytes that are read from the carrier at once.
const INPUT_BYTES: usize = 128 << 10;
/// Number of reads and writes after which other tasks get a turn.
const MAX_ROUNDS: usize = 16;
/// Number of times that the answer to a ping may take longer than its limit while other bytes
/// arrive, because bytes that were sent before the answer delay it.
const BUSY_FACTOR: u32 = 6;

/// Times after which a silent carrier counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarrierTimeouts {
    /// This side asks the peer whether the carrier works.
    Ask {
        /// Time between two pings.
        interval: Duration,
        /// Longest time until the answer.
        answer: Duration,
    },
    /// The peer asks, so silence means that the carrier is lost.
    Listen {
        /// Longest time without a byte from the peer.
        silence: Duration,
    },
}

/// Reason why a carrier is not used any more.
#[derive(Debug)]
pub enum CarrierEnd {
    /// The carrier failed, or ended if there is no error.
    Lost(Option<io::Error>),
    /// The peer did not answer in time.
    Silent,
    /// Another carrier has taken over.
    Replaced,
    /// The link has ended.
    Failed(LinkFailure),
}

/// Uses a carrier until it is lost or the link ends. `decoder` has the bytes that followed the
/// greeting. A violation of the protocol and the peer's end of the link end the link.
pub async fn run_carrier<S: AsyncRead + AsyncWrite + Unpin>(
    link: &Link,
    turn: CarrierTurn,
    carrier: S,
    decoder: LinkFrameDecoder,
    timeouts: CarrierTimeouts,
) -> CarrierEnd {
    let now = Instant::now();
    let mut pump = CarrierPump {
        link,
        turn,
        carrier,
        decoder,
        output: Vec::with_capacity(OUTPUT_BYTES),
        written: 0,
        is_flushed: true,
        input: vec![0; INPUT_BYTES].into_boxed_slice(),
        watch: CarrierWatch { timeouts, last_input: now, asked: None, next_ping: now, ping: 0 },
    };
    pump.watch.next_ping = now + pump.watch.first_delay();
    let mut sleep = Box::pin(tokio::time::sleep_until(pump.watch.next_ping));
    if let Err(end) = pump.take_frames() {
        return end;
    }
    std::future::poll_fn(|context| pump.poll(context, sleep.as_mut())).await
}

struct CarrierPump<'a, S: AsyncRead + AsyncWrite + Unpin> {
    link: &'a Link,
    turn: CarrierTurn,
    carrier: S,
    decoder: LinkFrameDecoder,
    output: Vec<u8>,
    /// Number of bytes of `output` that the carrier has taken.
    written: usize,
    is_flushed: bool,
    input: Box<[u8]>,
    watch: CarrierWatch,
}

/// Watch over the silence of a carrier.
struct CarrierWatch {
    timeouts: CarrierTimeouts,
    last_input: Instant,
    /// Time of the ping that was not answered yet.
    asked: Option<Instant>,
    next_ping: Instant,
    /// Number of the last ping.
    ping: u64,
}

/// Step that is due because of the time.
enum WatchStep {
    WaitUntil(Instant),
    Ping,
    Dead,
}

impl CarrierWatch {
    fn first_delay(&self) -> Duration {
        match self.timeouts {
            CarrierTimeouts::Ask { interval, .. } => interval,
            CarrierTimeouts::Listen { silence } => silence,
        }
    }

    fn step(&self, now: Instant) -> WatchStep {
        let (deadline, due) = match (self.timeouts, self.asked) {
            (CarrierTimeouts::Listen { silence }, _) => {
                (self.last_input + silence, WatchStep::Dead)
            }
            (CarrierTimeouts::Ask { .. }, None) => (self.next_ping, WatchStep::Ping),
            (CarrierTimeouts::Ask { answer, .. }, Some(asked)) => {
                let deadline = asked.max(self.last_input) + answer;
                (deadline.min(asked + answer * BUSY_FACTOR), WatchStep::Dead)
            }
        };
        if now < deadline { WatchStep::WaitUntil(deadline) } else { due }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> CarrierPump<'_, S> {
    fn poll(&mut self, context: &mut Context<'_>, mut sleep: Pin<&mut Sleep>) -> Poll<CarrierEnd> {
        if let Err(stop) = self.link.watch(self.turn, context.waker()) {
            return Poll::Ready(self.end(stop));
        }
        for _ in 0..MAX_ROUNDS {
            let wrote = match self.poll_write(context) {
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Ready(Ok(())) => true,
                Poll::Pending => false,
            };
            let read = match self.poll_read(context) {
                Poll::Ready(Err(end)) => return Poll::Ready(end),
                Poll::Ready(Ok(())) => true,
                Poll::Pending => false,
            };
            if wrote || read {
                continue;
            }
            ready!(sleep.as_mut().poll(context));
            match self.watch.step(Instant::now()) {
                WatchStep::Dead => return Poll::Ready(CarrierEnd::Silent),
                WatchStep::WaitUntil(time) => sleep.as_mut().reset(time),
                WatchStep::Ping => {
                    let now = Instant::now();
                    self.watch.ping += 1;
                    self.watch.asked = Some(now);
                    self.watch.next_ping = now + self.watch.first_delay();
                    self.link.ask(self.turn, self.watch.ping);
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Hands bytes to the carrier. Pending also if there is nothing to send.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CarrierEnd>> {
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
            let taken = self.link.take_output(self.turn, &mut self.output, OUTPUT_BYTES);
            if let Err(stop) = taken {
                return Poll::Ready(Err(self.end(stop)));
            }
        }
        if self.written < self.output.len() {
            self.is_flushed = false;
            let bytes = &self.output[self.written..];
            return match ready!(Pin::new(&mut self.carrier).poll_write(context, bytes)) {
                Ok(0) => Poll::Ready(Err(CarrierEnd::Lost(None))),
                Ok(count) => {
                    self.written += count;
                    Poll::Ready(Ok(()))
                }
                Err(error) => Poll::Ready(Err(CarrierEnd::Lost(Some(error)))),
            };
        }
        if !self.is_flushed {
            if let Err(error) = ready!(Pin::new(&mut self.carrier).poll_flush(context)) {
                return Poll::Ready(Err(CarrierEnd::Lost(Some(error))));
            }
            self.is_flushed = true;
        }
        Poll::Pending
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CarrierEnd>> {
        let mut buffer = ReadBuf::new(&mut self.input);
        if let Err(error) = ready!(Pin::new(&mut self.carrier).poll_read(context, &mut buffer)) {
            return Poll::Ready(Err(CarrierEnd::Lost(Some(error))));
        }
        let bytes = buffer.filled();
        if bytes.is_empty() {
            return Poll::Ready(Err(CarrierEnd::Lost(None)));
        }
        self.decoder.push(bytes);
        self.watch.last_input = Instant::now();
        Poll::Ready(self.take_frames())
    }

    fn take_frames(&mut self) -> Result<(), CarrierEnd> {
        let taken = self.link.take_frames(self.turn, &mut self.decoder, self.watch.ping);
        let news = taken.map_err(|stop| self.end(stop))?;
        if news.proves_life {
            self.watch.asked = None;
        }
        if news.closed {
            self.link.fail(LinkFailure::ClosedByPeer);
            return Err(CarrierEnd::Failed(LinkFailure::ClosedByPeer));
        }
        Ok(())
    }

    fn end(&self, stop: CarrierStop) -> CarrierEnd {
        match stop {
            CarrierStop::Replaced => CarrierEnd::Replaced,
            CarrierStop::Failed(failure) => CarrierEnd::Failed(failure),
            CarrierStop::Violation(error) => self.fail(error),
        }
    }

    fn fail(&self, error: LinkError) -> CarrierEnd {
        let failure = LinkFailure::Violation(error);
        self.link.fail(failure.clone());
        CarrierEnd::Failed(failure)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Drop for CarrierPump<'_, S> {
    /// Tells the peer that this side has ended the link, as far as the carrier takes bytes now. If
    /// it takes none, the peer ends the link when its time without a carrier is over.
    fn drop(&mut self) {
        if self.link.failure() != Some(LinkFailure::Closed) {
            return;
        }
        LinkFrame::Close.encode(&mut self.output);
        let mut context = Context::from_waker(Waker::noop());
        while self.written < self.output.len() {
            let bytes = &self.output[self.written..];
            match Pin::new(&mut self.carrier).poll_write(&mut context, bytes) {
                Poll::Ready(Ok(count @ 1..)) => self.written += count,
                _ => return,
            }
        }
        let _ = Pin::new(&mut self.carrier).poll_flush(&mut context); // the last chance
    }
}
