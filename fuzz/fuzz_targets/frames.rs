//! Checks that any bytes, split in any way, decode to the same frames or the same error, and that
//! the frames hold no more bytes than the input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringfence_proto::frame::{Frame, FrameDecoder, FrameError};

fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Frame>, FrameError> {
    let (mut decoder, mut frames) = (FrameDecoder::default(), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        while let Some(frame) = decoder.next_frame()? {
            frames.push(frame);
        }
    }
    decoder.finish().map(|()| frames)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let whole = decode([bytes]);
    assert_eq!(decode(bytes.chunks(usize::from(size).max(1))), whole);
    let length = |frame: &Frame| match frame {
        Frame::Message(message) | Frame::End(message) => message.len(),
    };
    if let Ok(frames) = whole {
        assert!(frames.iter().map(length).sum::<usize>() <= bytes.len());
    }
});
