use proptest::prelude::*;

use super::super::frame::LinkFrameDecoder;
use super::super::resumption::CarrierInput;
use super::*;

/// One end of a link in a test.
struct MultiplexerEnd {
    bytes: ResumableStream,
    streams: Multiplexer,
    decoder: LinkFrameDecoder,
    events: Vec<StreamEvent>,
}

impl MultiplexerEnd {
    fn new(side: LinkSide) -> MultiplexerEnd {
        MultiplexerEnd {
            bytes: ResumableStream::default(),
            streams: Multiplexer::new(side),
            decoder: LinkFrameDecoder::default(),
            events: Vec::new(),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        self.decoder.push(bytes);
        while let Some(frame) = self.decoder.next_frame()? {
            if let CarrierInput::Bytes(bytes) = self.bytes.take_frame(&frame)? {
                self.streams.take_input(bytes, &mut self.bytes, &mut self.events)?;
            }
        }
        Ok(())
    }

    fn output(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        self.bytes.take_output(&mut output, usize::MAX);
        output
    }

    fn open(&mut self) -> u32 {
        self.streams.open(&mut self.bytes).unwrap()
    }

    fn write(&mut self, stream: u32, bytes: &[u8]) -> WriteResult {
        self.streams.write(stream, bytes, &mut self.bytes)
    }

    fn read(&mut self, stream: u32, buffer: &mut [u8]) -> ReadResult {
        self.streams.read(stream, buffer, &mut self.bytes)
    }

    /// Reads what there is, up to `limit` bytes.
    fn read_all(&mut self, stream: u32, limit: usize) -> (Vec<u8>, ReadResult) {
        let mut all = Vec::new();
        let mut buffer = vec![0; 4096];
        while all.len() < limit {
            match self.read(stream, &mut buffer) {
                ReadResult::Read(count) => all.extend_from_slice(&buffer[..count]),
                end => return (all, end),
            }
        }
        (all, ReadResult::Wait)
    }
}

/// The two ends of a link, and a carrier that delivers at once.
struct TestLink {
    host: MultiplexerEnd,
    guest: MultiplexerEnd,
}

impl TestLink {
    fn new() -> TestLink {
        TestLink {
            host: MultiplexerEnd::new(LinkSide::Host),
            guest: MultiplexerEnd::new(LinkSide::Guest),
        }
    }

    /// Delivers until nothing is left to deliver.
    fn deliver(&mut self) {
        loop {
            let there = self.host.output();
            self.guest.take(&there).unwrap();
            let back = self.guest.output();
            self.host.take(&back).unwrap();
            if there.is_empty() && back.is_empty() {
                return;
            }
        }
    }
}

#[test]
fn a_stream_carries_bytes_and_ends_in_each_direction() {
    let mut link = TestLink::new();
    let stream = link.host.open();
    assert_eq!(link.host.write(stream, b"hello"), WriteResult::Written(5));
    link.host.streams.finish(stream, &mut link.host.bytes);
    assert_eq!(link.host.write(stream, b"x"), WriteResult::Broken);
    link.deliver();
    assert_eq!(link.guest.events[0], StreamEvent::Opened(stream));
    assert_eq!(link.guest.read_all(stream, 100), (b"hello".to_vec(), ReadResult::End));
    assert_eq!(link.guest.write(stream, b"answer"), WriteResult::Written(6));
    link.guest.streams.finish(stream, &mut link.guest.bytes);
    link.guest.streams.release(stream, &mut link.guest.bytes);
    link.deliver();
    assert_eq!(link.host.read_all(stream, 100), (b"answer".to_vec(), ReadResult::End));
    link.host.streams.release(stream, &mut link.host.bytes);
    link.deliver();
    assert_eq!((link.host.streams.stream_count(), link.guest.streams.stream_count()), (0, 0));
}

#[test]
fn a_stream_that_is_dropped_is_reset_after_its_bytes() {
    let mut link = TestLink::new();
    let stream = link.host.open();
    link.deliver();
    assert_eq!(link.guest.write(stream, b"last"), WriteResult::Written(4));
    link.guest.streams.release(stream, &mut link.guest.bytes);
    link.deliver();
    assert_eq!(link.host.write(stream, b"x"), WriteResult::Broken);
    assert_eq!(link.host.read_all(stream, 100), (b"last".to_vec(), ReadResult::Reset));
}

#[test]
fn a_reader_that_does_not_read_delays_no_other_stream() {
    let mut link = TestLink::new();
    let stuck = link.host.open();
    let chunk = vec![7; 64 << 10];
    let mut sent = 0;
    while let WriteResult::Written(count) = link.host.write(stuck, &chunk) {
        sent += count;
        link.deliver();
    }
    assert_eq!(sent, STREAM_WINDOW as usize);
    assert_eq!(link.host.write(stuck, &chunk), WriteResult::WaitForPeer);
    let other = link.host.open();
    assert_eq!(link.host.write(other, b"through"), WriteResult::Written(7));
    link.deliver();
    assert_eq!(link.guest.read_all(other, 100), (b"through".to_vec(), ReadResult::Wait));
    let half = CREDIT_INTERVAL as usize;
    assert_eq!(link.guest.read_all(stuck, half).0.len(), half);
    link.deliver();
    assert!(link.host.events.contains(&StreamEvent::Writable(stuck)));
    assert!(matches!(link.host.write(stuck, &chunk), WriteResult::Written(_)));
}

#[test]
fn a_side_opens_no_more_streams_than_there_may_be() {
    let mut link = TestLink::new();
    let numbers: Vec<u32> = (0..MAX_LINK_STREAMS).map(|_| link.host.open()).collect();
    assert_eq!(link.host.streams.open(&mut link.host.bytes), None);
    link.host.streams.release(numbers[0], &mut link.host.bytes);
    let next = link.host.open();
    // The guest still holds the first stream, so it has no room for the new one.
    link.deliver();
    assert_eq!(link.host.read_all(next, 1), (Vec::new(), ReadResult::Reset));
}

#[test]
fn a_peer_that_breaks_the_rules_is_refused() {
    #[track_caller]
    fn check(messages: &[(u8, u32, u32)], expected: LinkError) {
        let mut host = MultiplexerEnd::new(LinkSide::Host);
        host.open();
        host.open();
        let mut peer = ResumableStream::default();
        for (kind, stream, value) in messages {
            append_message(&mut peer, *kind, *stream, *value);
            if *kind == DATA {
                peer.append(&vec![0; *value as usize]);
            }
        }
        let mut bytes = Vec::new();
        peer.take_output(&mut bytes, usize::MAX);
        assert_eq!(host.take(&bytes), Err(expected));
    }
    let chunk = u32::try_from(MAX_CHUNK_BYTES).unwrap();
    let window: Vec<_> = (0..STREAM_WINDOW / chunk).map(|_| (DATA, 1, chunk)).collect();
    check(&[(OPEN, 3, 0)], LinkError::Opening { stream: 3 });
    check(&[(DATA, 3, 1)], LinkError::NeverOpened { stream: 3 });
    check(&[(CREDIT, 0, 1)], LinkError::NeverOpened { stream: 0 });
    check(&[(DATA, 1, 0)], LinkError::Window { stream: 1 });
    check(&[(DATA, 1, chunk + 1)], LinkError::Window { stream: 1 });
    check(&[&window[..], &[(DATA, 1, 1)]].concat(), LinkError::Window { stream: 1 });
    check(&[(FINISH, 1, 0), (DATA, 1, 1)], LinkError::Window { stream: 1 });
    check(&[(CREDIT, 1, 1)], LinkError::Window { stream: 1 });
    check(&[(6, 1, 0)], LinkError::Kind { kind: 6 });
}

proptest! {
    #[test]
    fn any_input_keeps_the_memory_bounded_and_never_panics(
        messages in prop::collection::vec((0u8..7, 0u32..5, 0u32..70_000), 0..60),
        size in 1usize..5000,
    ) {
        for side in [LinkSide::Host, LinkSide::Guest] {
            let mut end = MultiplexerEnd::new(side);
            if side == LinkSide::Host {
                (0..3).for_each(|_| { end.open(); });
            }
            let mut peer = ResumableStream::default();
            for (kind, stream, value) in &messages {
                append_message(&mut peer, *kind, *stream, *value);
                if *kind == DATA {
                    peer.append(&vec![1; *value as usize]);
                }
            }
            let mut bytes = Vec::new();
            peer.take_output(&mut bytes, usize::MAX);
            for piece in bytes.chunks(size) {
                if end.take(piece).is_err() {
                    break;
                }
            }
            for state in end.streams.streams.values() {
                prop_assert!(state.incoming.len() <= STREAM_WINDOW as usize);
            }
        }
    }
}
