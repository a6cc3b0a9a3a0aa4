//! A stream of bytes in each direction that survives the loss of carriers.

use std::collections::VecDeque;

use super::LinkError;
use super::frame::{LinkFrame, encode_data};

/// Number of unacknowledged bytes at which writers must wait.
pub const REPLAY_WINDOW: usize = 4 << 20;
/// Number of bytes above [`REPLAY_WINDOW`] for control frames, which do not wait.
const CONTROL_RESERVE: usize = 1 << 20;
/// Maximum number of bytes in one frame that is sent. A frame that does not arrive whole counts for
/// nothing, so frames are short enough for carriers that are lost soon.
const FRAME_BYTES: usize = 16 << 10;
/// Number of received bytes after which an acknowledgement is sent even if nothing else is sent.
const ACK_INTERVAL: u64 = 64 << 10;

/// One end of a resumable stream of bytes.
#[derive(Debug, Default)]
pub struct ResumableStream {
    /// Bytes that the peer has not acknowledged.
    replay: VecDeque<u8>,
    /// Offset of the first byte of `replay`.
    acknowledged: u64,
    /// Offset of the next byte for the current carrier.
    next: u64,
    /// Largest offset up to which bytes were ever put on a carrier.
    furthest: u64,
    /// Number of bytes that arrived.
    received: u64,
    /// Number of received bytes that the peer was told of.
    reported: u64,
    ping: Option<u64>,
    pong: Option<u64>,
}

/// Meaning of a frame for the owner of a [`ResumableStream`].
#[derive(Debug, PartialEq, Eq)]
pub enum CarrierInput<'a> {
    /// Next bytes of the stream, which count as received.
    Bytes(&'a [u8]),
    /// The peer has received more bytes.
    Acknowledged,
    /// The peer has answered the ping with this number.
    Answered(u64),
    /// The frame needs nothing of the owner.
    Nothing,
    /// The peer ends the link.
    Closed,
}

impl ResumableStream {
    /// Returns the number of bytes that writers may append now.
    pub fn room(&self) -> usize {
        REPLAY_WINDOW.saturating_sub(self.replay.len())
    }

    /// Returns the number of bytes that arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of bytes that the peer has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Appends bytes to what is sent. The caller keeps to [`ResumableStream::room`], except for
    /// control frames.
    pub fn append(&mut self, bytes: &[u8]) {
        self.replay.extend(bytes);
    }

    /// Checks that control frames have not used up their reserve.
    pub fn check_backlog(&self) -> Result<(), LinkError> {
        match self.replay.len() > REPLAY_WINDOW + CONTROL_RESERVE {
            true => Err(LinkError::Backlog),
            false => Ok(()),
        }
    }

    /// Begins to use a new carrier, on which the peer said that it has received `offset` bytes and
    /// was told [`ResumableStream::received`].
    pub fn begin_carrier(&mut self, offset: u64) -> Result<(), LinkError> {
        self.acknowledge(offset)?;
        self.next = offset;
        self.reported = self.received;
        self.ping = None;
        self.pong = None;
        Ok(())
    }

    /// Lets the peer be asked whether the carrier works.
    pub fn ask(&mut self, number: u64) {
        self.ping = Some(number);
    }

    /// Appends frames for the carrier to `output` until `output` has `limit` bytes or there is
    /// nothing to send.
    pub fn take_output(&mut self, output: &mut Vec<u8>, limit: usize) {
        let has_more = self.next < self.end() || self.ping.is_some() || self.pong.is_some();
        let unreported = self.received - self.reported;
        if unreported >= ACK_INTERVAL || unreported > 0 && has_more {
            LinkFrame::Ack(self.received).encode(output);
            self.reported = self.received;
        }
        if let Some(number) = self.pong.take() {
            LinkFrame::Pong(number).encode(output);
        }
        if let Some(number) = self.ping.take() {
            LinkFrame::Ping(number).encode(output);
        }
        while self.next < self.end() && output.len() < limit {
            let start = self.position(self.next);
            let end = self.replay.len().min(start + FRAME_BYTES);
            let (front, back) = self.replay.as_slices();
            let first = &front[start.min(front.len())..end.min(front.len())];
            let second = &back[start.saturating_sub(front.len())..end.saturating_sub(front.len())];
            encode_data([first, second], output);
            self.next += (end - start) as u64;
            self.furthest = self.furthest.max(self.next);
        }
    }

    /// Takes a frame that arrived after the greetings.
    pub fn take_frame<'a>(&mut self, frame: &LinkFrame<'a>) -> Result<CarrierInput<'a>, LinkError> {
        match *frame {
            LinkFrame::Data(bytes) => {
                self.received += bytes.len() as u64;
                Ok(CarrierInput::Bytes(bytes))
            }
            LinkFrame::Ack(offset) => match self.acknowledge(offset)? {
                0 => Ok(CarrierInput::Nothing),
                _ => Ok(CarrierInput::Acknowledged),
            },
            LinkFrame::Ping(number) => {
                self.pong = Some(number);
                Ok(CarrierInput::Nothing)
            }
            LinkFrame::Pong(number) => Ok(CarrierInput::Answered(number)),
            LinkFrame::Close => Ok(CarrierInput::Closed),
            LinkFrame::Hello(_)
            | LinkFrame::Resume(_)
            | LinkFrame::Welcome(_)
            | LinkFrame::Refused(..) => Err(LinkError::Unexpected { kind: frame.kind() }),
        }
    }

    /// Drops the bytes up to `offset`, and returns their number.
    fn acknowledge(&mut self, offset: u64) -> Result<usize, LinkError> {
        if offset < self.acknowledged || offset > self.furthest {
            let (earliest, latest) = (self.acknowledged, self.furthest);
            return Err(LinkError::Offset { offset, earliest, latest });
        }
        let count = self.position(offset);
        self.replay.drain(..count);
        self.acknowledged = offset;
        Ok(count)
    }

    /// Returns the offset behind the last byte.
    fn end(&self) -> u64 {
        self.acknowledged + self.replay.len() as u64
    }

    fn position(&self, offset: u64) -> usize {
        usize::try_from(offset - self.acknowledged).expect("the buffer is in memory")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::frame::LinkFrameDecoder;
    use super::*;

    /// One end, what it wants to send, and what it got.
    #[derive(Default)]
    struct TestEnd {
        stream: ResumableStream,
        unsent: VecDeque<u8>,
        got: Vec<u8>,
        decoder: LinkFrameDecoder,
        /// Bytes on the carrier from this end.
        wire: VecDeque<u8>,
    }

    impl TestEnd {
        fn with_bytes(bytes: &[u8]) -> TestEnd {
            TestEnd { unsent: bytes.iter().copied().collect(), ..TestEnd::default() }
        }

        fn send(&mut self, count: usize) {
            let count = count.min(self.unsent.len()).min(self.stream.room());
            let bytes: Vec<u8> = self.unsent.drain(..count).collect();
            self.stream.append(&bytes);
            let mut output = Vec::new();
            self.stream.take_output(&mut output, 1000);
            self.wire.extend(output);
        }

        fn take(&mut self, bytes: &[u8]) {
            self.decoder.push(bytes);
            while let Some(frame) = self.decoder.next_frame().unwrap() {
                if let CarrierInput::Bytes(bytes) = self.stream.take_frame(&frame).unwrap() {
                    self.got.extend_from_slice(bytes);
                }
            }
        }

        fn lose_carrier(&mut self) {
            self.wire.clear();
            self.decoder = LinkFrameDecoder::default();
        }
    }

    fn reconnect(ends: &mut [TestEnd; 2]) {
        ends.iter_mut().for_each(TestEnd::lose_carrier);
        let [first, second] = [ends[0].stream.received(), ends[1].stream.received()];
        ends[0].stream.begin_carrier(second).unwrap();
        ends[1].stream.begin_carrier(first).unwrap();
    }

    /// Moves up to `count` bytes over the carrier from the end `from` to the other one.
    fn deliver(ends: &mut [TestEnd; 2], from: usize, count: usize) {
        let count = count.min(ends[from].wire.len());
        let bytes: Vec<u8> = ends[from].wire.drain(..count).collect();
        ends[1 - from].take(&bytes);
    }

    proptest! {
        #[test]
        fn bytes_arrive_once_and_in_order_whatever_is_cut(
            one in prop::collection::vec(any::<u8>(), 0..3000),
            other in prop::collection::vec(any::<u8>(), 0..3000),
            steps in prop::collection::vec((0u8..9, 0usize..2, 1usize..700), 0..200),
        ) {
            let mut ends = [TestEnd::with_bytes(&one), TestEnd::with_bytes(&other)];
            for (kind, side, count) in steps {
                match kind {
                    0 => reconnect(&mut ends),
                    1..5 => ends[side].send(count),
                    _ => deliver(&mut ends, side, count),
                }
            }
            reconnect(&mut ends);
            for _ in 0..1000 {
                for side in [0, 1] {
                    ends[side].send(100);
                    deliver(&mut ends, side, usize::MAX);
                }
            }
            prop_assert_eq!(&ends[1].got, &one);
            prop_assert_eq!(&ends[0].got, &other);
        }
    }

    #[test]
    fn an_acknowledgement_of_bytes_that_were_not_sent_is_refused() {
        let mut stream = ResumableStream::default();
        stream.append(b"abcdef");
        let mut output = Vec::new();
        assert!(stream.take_frame(&LinkFrame::Ack(1)).is_err());
        stream.take_output(&mut output, usize::MAX);
        assert_eq!(stream.take_frame(&LinkFrame::Ack(4)), Ok(CarrierInput::Acknowledged));
        for offset in [3, 7, u64::MAX] {
            let error = LinkError::Offset { offset, earliest: 4, latest: 6 };
            assert_eq!(stream.take_frame(&LinkFrame::Ack(offset)), Err(error.clone()));
            assert_eq!(stream.begin_carrier(offset), Err(error));
        }
        assert_eq!(stream.begin_carrier(5), Ok(()));
    }

    #[test]
    fn a_writer_has_room_again_after_an_acknowledgement() {
        let mut stream = ResumableStream::default();
        stream.append(&vec![0; REPLAY_WINDOW]);
        assert_eq!(stream.room(), 0);
        stream.take_output(&mut Vec::new(), usize::MAX);
        stream.take_frame(&LinkFrame::Ack(1000)).unwrap();
        assert_eq!(stream.room(), 1000);
        stream.append(&vec![0; CONTROL_RESERVE + 1000]);
        assert_eq!(stream.check_backlog(), Ok(()));
        stream.append(&[0]);
        assert_eq!(stream.check_backlog(), Err(LinkError::Backlog));
    }

    #[test]
    fn a_ping_is_answered_with_its_number_and_an_acknowledgement() {
        let mut stream = ResumableStream::default();
        stream.take_frame(&LinkFrame::Data(b"x")).unwrap();
        let mut output = Vec::new();
        stream.take_output(&mut output, usize::MAX);
        assert!(output.is_empty(), "one byte alone is not worth an acknowledgement");
        stream.take_frame(&LinkFrame::Ping(3)).unwrap();
        stream.take_output(&mut output, usize::MAX);
        let mut expected = Vec::new();
        LinkFrame::Ack(1).encode(&mut expected);
        LinkFrame::Pong(3).encode(&mut expected);
        assert_eq!(output, expected);
    }
}
