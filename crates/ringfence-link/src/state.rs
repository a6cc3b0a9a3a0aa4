//! State of one end of a link, which its streams and its carrier share.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use ringfence_proto::link::frame::LinkFrameDecoder;
use ringfence_proto::link::multiplexer::{Multiplexer, StreamEvent};
use ringfence_proto::link::resumption::{CarrierInput, REPLAY_WINDOW, ResumableStream};
use ringfence_proto::link::{LinkError, LinkSide};
use tokio::sync::Notify;

use crate::{LinkFailure, LinkStream};

/// Room in the replay buffer at which writers that wait for room are woken.
const WAKE_ROOM: usize = REPLAY_WINDOW / 4;

/// One end of a link. Clones share the state.
#[derive(Debug, Clone)]
pub struct Link {
    pub(crate) shared: Arc<LinkShared>,
}

#[derive(Debug)]
pub(crate) struct LinkShared {
    state: Mutex<LinkCore>,
    /// Notified when a stream can be opened or accepted, and when the link fails.
    changed: Notify,
}

#[derive(Debug)]
pub(crate) struct LinkCore {
    pub(crate) bytes: ResumableStream,
    pub(crate) streams: Multiplexer,
    pub(crate) failure: Option<LinkFailure>,
    /// Tasks that wait for a stream.
    pub(crate) wakers: HashMap<u32, StreamWakers>,
    /// Streams whose writers wait for room in the replay buffer.
    waiting_for_room: Vec<u32>,
    /// Streams that the peer opened and the owner has not accepted.
    opened: VecDeque<u32>,
    /// Task that moves bytes to and from the carrier.
    carrier_waker: Option<Waker>,
    /// Number of the carrier that is used last.
    carrier: u64,
    events: Vec<StreamEvent>,
}

/// Tasks that wait for one stream.
#[derive(Debug, Default)]
pub(crate) struct StreamWakers {
    pub(crate) reader: Option<Waker>,
    pub(crate) writer: Option<Waker>,
    pub(crate) waits_for_room: bool,
}

/// The right to use a carrier, until another carrier takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CarrierTurn(u64);

/// Frames that concern the task of a carrier.
#[derive(Debug, Default)]
pub(crate) struct CarrierNews {
    /// True if the peer showed that it receives what it is sent.
    pub(crate) proves_life: bool,
    /// True if the peer ended the link.
    pub(crate) closed: bool,
}

/// Reason why a carrier may not be used any more.
#[derive(Debug)]
pub(crate) enum CarrierStop {
    /// Another carrier has taken over.
    Replaced,
    /// The link has ended.
    Failed(LinkFailure),
    /// The peer violated the protocol.
    Violation(LinkError),
}

impl Link {
    /// Returns one end of a new link.
    pub fn new(side: LinkSide) -> Link {
        let state = LinkCore {
            bytes: ResumableStream::default(),
            streams: Multiplexer::new(side),
            failure: None,
            wakers: HashMap::new(),
            waiting_for_room: Vec::new(),
            opened: VecDeque::new(),
            carrier_waker: None,
            carrier: 0,
            events: Vec::new(),
        };
        Link { shared: Arc::new(LinkShared { state: Mutex::new(state), changed: Notify::new() }) }
    }

    /// Returns the number of bytes that arrived, for a greeting.
    pub fn received(&self) -> u64 {
        self.lock().bytes.received()
    }

    /// Returns the number of bytes that arrived and that the peer has acknowledged together. The
    /// number grows as long as carriers move bytes.
    pub fn progress(&self) -> u64 {
        let state = self.lock();
        state.bytes.received() + state.bytes.acknowledged()
    }

    /// Takes the right to use the carrier away from the present one, so that
    /// [`Link::received`] does not change until [`Link::begin_carrier`].
    pub fn stop_carrier(&self) {
        let mut state = self.lock();
        state.carrier += 1;
        state.wake_carrier();
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Begins to use a carrier, on which the peer said that it has received `offset` bytes. An
    /// earlier carrier is not used any more.
    pub fn begin_carrier(&self, offset: u64) -> Result<CarrierTurn, LinkError> {
        let mut state = self.lock();
        state.bytes.begin_carrier(offset)?;
        state.carrier += 1;
        state.wake_carrier();
        state.wake_writers();
        let turn = CarrierTurn(state.carrier);
        drop(state);
        self.shared.changed.notify_waiters();
        Ok(turn)
    }

    /// Opens a stream. Waits while too many bytes are unacknowledged.
    pub async fn open(&self) -> io::Result<LinkStream> {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if let Some(opened) = self.try_open() {
                return opened;
            }
            changed.await;
        }
    }

    fn try_open(&self) -> Option<io::Result<LinkStream>> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Some(Err(failure.io_error()));
        }
        if state.bytes.room() == 0 {
            return None;
        }
        let LinkCore { bytes, streams, .. } = &mut *state;
        let Some(number) = streams.open(bytes) else {
            return Some(Err(io::Error::other("the link has no room for one more stream")));
        };
        state.wakers.insert(number, StreamWakers::default());
        state.wake_carrier();
        Some(Ok(LinkStream::new(self.clone(), number)))
    }

    /// Returns the next stream that the peer opens, or the reason why there is none any more.
    pub async fn accept(&self) -> Result<LinkStream, LinkFailure> {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                if let Some(number) = state.opened.pop_front() {
                    return Ok(LinkStream::new(self.clone(), number));
                }
            }
            changed.await;
        }
    }

    /// Ends the link: its streams fail with `failure`, unless it has ended already.
    pub fn fail(&self, failure: LinkFailure) {
        let mut state = self.lock();
        if state.failure.is_none() {
            state.failure = Some(failure);
            state.wake_carrier();
            for wakers in state.wakers.values_mut() {
                wakers.wake_reader();
                wakers.wake_writer();
            }
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Returns the reason why the link has ended, if it has.
    pub fn failure(&self) -> Option<LinkFailure> {
        self.lock().failure.clone()
    }

    /// Returns the number of open streams.
    pub fn stream_count(&self) -> usize {
        self.lock().streams.stream_count()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LinkCore> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the task of the carrier. The task is woken when there are bytes to send, when
    /// another carrier takes over and when the link ends.
    pub(crate) fn watch(&self, turn: CarrierTurn, waker: &Waker) -> Result<(), CarrierStop> {
        let mut state = self.lock();
        state.check_turn(turn)?;
        if !state.carrier_waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            state.carrier_waker = Some(waker.clone());
        }
        Ok(())
    }

    /// Appends frames for the carrier to `output`.
    pub(crate) fn take_output(
        &self,
        turn: CarrierTurn,
        output: &mut Vec<u8>,
        limit: usize,
    ) -> Result<(), CarrierStop> {
        let mut state = self.lock();
        state.check_turn(turn)?;
        state.bytes.take_output(output, limit);
        Ok(())
    }

    /// Returns true if no other carrier has taken over, and the link has not ended.
    pub fn is_current(&self, turn: CarrierTurn) -> bool {
        self.lock().check_turn(turn).is_ok()
    }

    /// Waits until another carrier has taken over or the link has ended.
    pub async fn carrier_replaced(&self, turn: CarrierTurn) {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if self.lock().check_turn(turn).is_err() {
                return;
            }
            changed.await;
        }
    }

    /// Asks the peer whether the carrier works.
    pub(crate) fn ask(&self, turn: CarrierTurn, number: u64) {
        let mut state = self.lock();
        if state.check_turn(turn).is_ok() {
            state.bytes.ask(number);
        }
    }

    /// Takes the frames that are complete in `decoder`.
    pub(crate) fn take_frames(
        &self,
        turn: CarrierTurn,
        decoder: &mut LinkFrameDecoder,
        ping: u64,
    ) -> Result<CarrierNews, CarrierStop> {
        let mut state = self.lock();
        state.check_turn(turn)?;
        let mut news = CarrierNews::default();
        let taken = state.take_frames(decoder, ping, &mut news);
        let has_room = state.bytes.room() >= WAKE_ROOM;
        if has_room {
            state.wake_writers();
        }
        let has_opened = state.wake_streams();
        drop(state);
        if has_opened || has_room && news.proves_life {
            self.shared.changed.notify_waiters();
        }
        taken.map(|()| news).map_err(CarrierStop::Violation)
    }
}

impl LinkCore {
    fn check_turn(&self, turn: CarrierTurn) -> Result<(), CarrierStop> {
        match &self.failure {
            Some(failure) => Err(CarrierStop::Failed(failure.clone())),
            None if self.carrier != turn.0 => Err(CarrierStop::Replaced),
            None => Ok(()),
        }
    }

    fn take_frames(
        &mut self,
        decoder: &mut LinkFrameDecoder,
        ping: u64,
        news: &mut CarrierNews,
    ) -> Result<(), LinkError> {
        while let Some(frame) = decoder.next_frame()? {
            match self.bytes.take_frame(&frame)? {
                CarrierInput::Bytes(bytes) => {
                    self.streams.take_input(bytes, &mut self.bytes, &mut self.events)?;
                }
                CarrierInput::Acknowledged => news.proves_life = true,
                CarrierInput::Answered(number) => news.proves_life |= number == ping,
                CarrierInput::Closed => {
                    news.closed = true;
                    return Ok(());
                }
                CarrierInput::Nothing => {}
            }
        }
        Ok(())
    }

    pub(crate) fn wake_carrier(&mut self) {
        if let Some(waker) = self.carrier_waker.take() {
            waker.wake();
        }
    }

    /// Lets a stream wait for room in the replay buffer.
    pub(crate) fn wait_for_room(&mut self, number: u32) {
        if let Some(wakers) = self.wakers.get_mut(&number)
            && !std::mem::replace(&mut wakers.waits_for_room, true)
        {
            self.waiting_for_room.push(number);
        }
    }

    fn wake_writers(&mut self) {
        for number in self.waiting_for_room.drain(..) {
            if let Some(wakers) = self.wakers.get_mut(&number) {
                wakers.waits_for_room = false;
                wakers.wake_writer();
            }
        }
    }

    /// Wakes the tasks that the events concern. Returns true if the peer has opened a stream.
    fn wake_streams(&mut self) -> bool {
        let mut has_opened = false;
        for event in self.events.drain(..) {
            match event {
                StreamEvent::Opened(number) => {
                    self.wakers.insert(number, StreamWakers::default());
                    self.opened.push_back(number);
                    has_opened = true;
                }
                StreamEvent::Readable(number) => {
                    if let Some(wakers) = self.wakers.get_mut(&number) {
                        wakers.wake_reader();
                    }
                }
                StreamEvent::Writable(number) => {
                    if let Some(wakers) = self.wakers.get_mut(&number) {
                        wakers.wake_writer();
                    }
                }
            }
        }
        has_opened
    }
}

impl StreamWakers {
    fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }
}
