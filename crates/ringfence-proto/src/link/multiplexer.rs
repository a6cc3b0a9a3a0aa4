//! Many streams over one resumable stream of bytes.
//!
//! Every message begins with one byte for its type, the number of a stream and a value, both as
//! four big-endian bytes. The value of `DATA` is the number of bytes that follow; the value of
//! `CREDIT` is a number of bytes that the peer may send in addition.
//!
//! A stream has a window in each direction. A sender never exceeds the window, so the receiver can
//! take every byte from the carrier at once, and a stream whose reader does not read delays no
//! other stream.

use std::collections::{HashMap, VecDeque};

use super::resumption::ResumableStream;
use super::{LinkError, LinkSide, MAX_LINK_STREAMS};

/// Number of bytes that a side may send on a stream before the peer has read any of them.
pub const STREAM_WINDOW: u32 = 512 << 10;
/// Number of bytes that must have been read before the peer gets credit for them.
const CREDIT_INTERVAL: u32 = STREAM_WINDOW / 2;
/// Maximum number of bytes in one `DATA` message.
const MAX_CHUNK_BYTES: usize = 64 << 10;
/// Length of a message's header in bytes: the type, the stream and the value.
const HEADER_BYTES: usize = 9;

const OPEN: u8 = 1;
const DATA: u8 = 2;
const CREDIT: u8 = 3;
const FINISH: u8 = 4;
const RESET: u8 = 5;

/// State of all streams of one link at one end.
#[derive(Debug)]
pub struct Multiplexer {
    side: LinkSide,
    streams: HashMap<u32, StreamState>,
    /// Number of the stream that was opened last. Numbers are not used again.
    last_opened: u32,
    /// Bytes of an incomplete header.
    header: Vec<u8>,
    /// Stream of the `DATA` message that is being received, and its remaining bytes.
    receiving: Option<(u32, usize)>,
}

/// State of one stream.
#[derive(Debug)]
struct StreamState {
    /// Bytes that the owner has not read.
    incoming: VecDeque<u8>,
    /// Number of bytes that the peer may still send.
    allowance: u32,
    /// Number of bytes that were read, and for which the peer has got no credit.
    uncredited: u32,
    /// Number of bytes that this side may still send.
    credit: u32,
    /// True after this side has sent its last byte.
    finished: bool,
    /// True after the peer has sent its last byte.
    peer_finished: bool,
    /// True after the peer has given up the stream.
    peer_reset: bool,
}

/// Change of a stream because of a message from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEvent {
    /// The peer has opened a stream.
    Opened(u32),
    /// A read from the stream may succeed now, or returns its end.
    Readable(u32),
    /// A write to the stream may succeed now, or fails.
    Writable(u32),
}

/// Result of a read from a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadResult {
    /// Number of bytes that were read.
    Read(usize),
    /// No byte has arrived yet.
    Wait,
    /// The peer sends no more.
    End,
    /// The peer has given up the stream.
    Reset,
}

/// Result of a write to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteResult {
    /// Number of bytes that were taken.
    Written(usize),
    /// The peer must read first.
    WaitForPeer,
    /// Bytes of other streams must be acknowledged first.
    WaitForRoom,
    /// The peer has given up the stream, or this side has finished it.
    Broken,
}

impl StreamState {
    fn new() -> StreamState {
        StreamState {
            incoming: VecDeque::new(),
            allowance: STREAM_WINDOW,
            uncredited: 0,
            credit: STREAM_WINDOW,
            finished: false,
            peer_finished: false,
            peer_reset: false,
        }
    }
}

impl Multiplexer {
    /// Returns the state of a link without streams.
    pub fn new(side: LinkSide) -> Multiplexer {
        Multiplexer {
            side,
            streams: HashMap::new(),
            last_opened: 0,
            header: Vec::with_capacity(HEADER_BYTES),
            receiving: None,
        }
    }

    /// Returns the number of streams that this side has not released.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Opens a stream and returns its number, or `None` if there are as many streams as there can
    /// be.
    pub fn open(&mut self, output: &mut ResumableStream) -> Option<u32> {
        if self.side != LinkSide::Host || self.streams.len() >= MAX_LINK_STREAMS {
            return None;
        }
        self.last_opened = self.last_opened.checked_add(1)?;
        self.streams.insert(self.last_opened, StreamState::new());
        append_message(output, OPEN, self.last_opened, 0);
        Some(self.last_opened)
    }

    /// Reads bytes that have arrived on a stream into `buffer`, which is not empty.
    pub fn read(
        &mut self,
        stream: u32,
        buffer: &mut [u8],
        output: &mut ResumableStream,
    ) -> ReadResult {
        let Some(state) = self.streams.get_mut(&stream) else { return ReadResult::Reset };
        if state.incoming.is_empty() {
            return match state {
                StreamState { peer_finished: true, .. } => ReadResult::End,
                StreamState { peer_reset: true, .. } => ReadResult::Reset,
                _ => ReadResult::Wait,
            };
        }
        let (front, _) = state.incoming.as_slices();
        let count = front.len().min(buffer.len());
        buffer[..count].copy_from_slice(&front[..count]);
        state.incoming.drain(..count);
        state.uncredited += u32::try_from(count).expect("a window fits");
        if state.uncredited >= CREDIT_INTERVAL && !state.peer_finished && !state.peer_reset {
            let credit = std::mem::take(&mut state.uncredited);
            state.allowance += credit;
            append_message(output, CREDIT, stream, credit);
        }
        ReadResult::Read(count)
    }

    /// Writes bytes to a stream, as many as its window and the replay buffer have room for.
    pub fn write(
        &mut self,
        stream: u32,
        bytes: &[u8],
        output: &mut ResumableStream,
    ) -> WriteResult {
        let Some(state) = self.streams.get_mut(&stream) else { return WriteResult::Broken };
        if state.finished || state.peer_reset {
            return WriteResult::Broken;
        }
        if state.credit == 0 {
            return WriteResult::WaitForPeer;
        }
        let Some(room) = output.room().checked_sub(HEADER_BYTES).filter(|room| *room > 0) else {
            return WriteResult::WaitForRoom;
        };
        let count = bytes.len().min(state.credit as usize).min(room).min(MAX_CHUNK_BYTES);
        let length = u32::try_from(count).expect("a chunk is small");
        if count > 0 {
            state.credit -= length;
            append_message(output, DATA, stream, length);
            output.append(&bytes[..count]);
        }
        WriteResult::Written(count)
    }

    /// Tells the peer that this side sends no more on a stream.
    pub fn finish(&mut self, stream: u32, output: &mut ResumableStream) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        if !std::mem::replace(&mut state.finished, true) && !state.peer_reset {
            append_message(output, FINISH, stream, 0);
        }
    }

    /// Forgets a stream. The peer is told so unless both sides have finished.
    pub fn release(&mut self, stream: u32, output: &mut ResumableStream) {
        let Some(state) = self.streams.remove(&stream) else { return };
        let is_over = state.peer_reset || state.finished && state.peer_finished;
        if !is_over {
            append_message(output, RESET, stream, 0);
        }
    }

    /// Takes bytes of the resumable stream, and reports what changed to `events`.
    pub fn take_input(
        &mut self,
        bytes: &[u8],
        output: &mut ResumableStream,
        events: &mut Vec<StreamEvent>,
    ) -> Result<(), LinkError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            if let Some((stream, remaining)) = self.receiving {
                let (now, later) = rest.split_at(remaining.min(rest.len()));
                // The bytes of a stream that was released meanwhile are dropped.
                if let Some(state) = self.streams.get_mut(&stream) {
                    state.incoming.extend(now);
                    events.push(StreamEvent::Readable(stream));
                }
                self.receiving = Some((stream, remaining - now.len())).filter(|left| left.1 > 0);
                rest = later;
                continue;
            }
            let missing = HEADER_BYTES - self.header.len();
            let (now, later) = rest.split_at(missing.min(rest.len()));
            self.header.extend_from_slice(now);
            rest = later;
            if let Ok(&[kind, s0, s1, s2, s3, v0, v1, v2, v3]) =
                <&[u8; HEADER_BYTES]>::try_from(&self.header[..])
            {
                self.header.clear();
                let stream = u32::from_be_bytes([s0, s1, s2, s3]);
                let value = u32::from_be_bytes([v0, v1, v2, v3]);
                self.take_message(kind, stream, value, output, events)?;
            }
        }
        output.check_backlog()
    }

    fn take_message(
        &mut self,
        kind: u8,
        stream: u32,
        value: u32,
        output: &mut ResumableStream,
        events: &mut Vec<StreamEvent>,
    ) -> Result<(), LinkError> {
        if kind == OPEN {
            if self.side != LinkSide::Guest || stream <= self.last_opened {
                return Err(LinkError::Opening { stream });
            }
            self.last_opened = stream;
            if self.streams.len() >= MAX_LINK_STREAMS {
                append_message(output, RESET, stream, 0);
                return Ok(());
            }
            self.streams.insert(stream, StreamState::new());
            events.push(StreamEvent::Opened(stream));
            return Ok(());
        }
        if stream == 0 || stream > self.last_opened {
            return Err(LinkError::NeverOpened { stream });
        }
        if kind == DATA {
            // Also for a stream that this side has released, because its bytes must be skipped.
            if value == 0 || value as usize > MAX_CHUNK_BYTES {
                return Err(LinkError::Window { stream });
            }
            self.receiving = Some((stream, value as usize));
        }
        let Some(state) = self.streams.get_mut(&stream) else {
            return match kind {
                DATA | CREDIT | FINISH | RESET => Ok(()),
                kind => Err(LinkError::Kind { kind }),
            };
        };
        let outside = LinkError::Window { stream };
        match kind {
            DATA if state.peer_finished || state.peer_reset => return Err(outside),
            DATA => state.allowance = state.allowance.checked_sub(value).ok_or(outside)?,
            CREDIT => {
                let credit = state.credit.checked_add(value).filter(|sum| *sum <= STREAM_WINDOW);
                state.credit = credit.ok_or(outside)?;
                events.push(StreamEvent::Writable(stream));
            }
            FINISH => {
                state.peer_finished = true;
                events.push(StreamEvent::Readable(stream));
            }
            RESET => {
                state.peer_reset = true;
                events.extend([StreamEvent::Readable(stream), StreamEvent::Writable(stream)]);
            }
            kind => return Err(LinkError::Kind { kind }),
        }
        Ok(())
    }
}

fn append_message(output: &mut ResumableStream, kind: u8, stream: u32, value: u32) {
    let mut header = [kind; HEADER_BYTES];
    header[1..5].copy_from_slice(&stream.to_be_bytes());
    header[5..].copy_from_slice(&value.to_be_bytes());
    output.append(&header);
}

#[cfg(test)]
mod tests;
