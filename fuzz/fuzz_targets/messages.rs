//! Checks that any bytes are a message or an error, for every message that either side reads, and
//! that a message parses again from its written form.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use ringfence_proto::code::{EndOfStream, Failure};
use ringfence_proto::frame::{self, Frame, FrameDecoder};
use ringfence_proto::{filesystem, process};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn read<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(message) = frame::parse::<T>(bytes) else { return };
    let mut decoder = FrameDecoder::default();
    decoder.push(&frame::encode_message(&message));
    let Ok(Some(Frame::Message(written))) = decoder.next_frame() else {
        panic!("a message has a frame")
    };
    assert_eq!(frame::parse::<T>(&written).as_ref(), Ok(&message));
}

fuzz_target!(|bytes: &[u8]| {
    read::<process::StartRequest>(bytes);
    read::<process::ProcessRequest>(bytes);
    read::<process::EventMessage>(bytes);
    read::<process::ListResponse>(bytes);
    read::<process::SendInputRequest>(bytes);
    read::<process::StreamInputRequest>(bytes);
    read::<process::SendSignalRequest>(bytes);
    read::<process::UpdateRequest>(bytes);
    read::<filesystem::PathRequest>(bytes);
    read::<filesystem::MoveRequest>(bytes);
    read::<filesystem::ListDirRequest>(bytes);
    read::<filesystem::WatchRequest>(bytes);
    read::<filesystem::Watcher>(bytes);
    read::<filesystem::EntryResponse>(bytes);
    read::<filesystem::EntriesResponse>(bytes);
    read::<filesystem::EventsResponse>(bytes);
    read::<filesystem::WatchMessage>(bytes);
    read::<filesystem::WrittenFile>(bytes);
    read::<EndOfStream>(bytes);
    read::<Failure>(bytes);
});
