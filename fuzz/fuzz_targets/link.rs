//! Checks that any bytes on a carrier, split in any way, decode to the same frames or the same
//! error, and that both ends of a link take them without a panic and with bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringfence_proto::link::frame::LinkFrameDecoder;
use ringfence_proto::link::multiplexer::{Multiplexer, ReadResult, STREAM_WINDOW};
use ringfence_proto::link::resumption::{CarrierInput, ResumableStream};
use ringfence_proto::link::{LinkError, LinkSide};

/// Returns the encoding of the frames in `pieces`.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, LinkError> {
    let (mut decoder, mut encoded) = (LinkFrameDecoder::default(), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        while let Some(frame) = decoder.next_frame()? {
            frame.encode(&mut encoded);
        }
    }
    Ok(encoded)
}

/// Takes the bytes at one end, and reads from its first stream.
fn take(side: LinkSide, bytes: &[u8], size: usize) -> Result<(), LinkError> {
    let (mut stream, mut streams) = (ResumableStream::default(), Multiplexer::new(side));
    let (mut decoder, mut events, mut output) =
        (LinkFrameDecoder::default(), Vec::new(), Vec::new());
    streams.open(&mut stream);
    for piece in bytes.chunks(size) {
        output.clear();
        stream.take_output(&mut output, usize::MAX);
        decoder.push(piece);
        while let Some(frame) = decoder.next_frame()? {
            if let CarrierInput::Bytes(bytes) = stream.take_frame(&frame)? {
                streams.take_input(bytes, &mut stream, &mut events)?;
            }
        }
    }
    let (mut buffer, mut total) = ([0; 4096], 0);
    while let ReadResult::Read(count) = streams.read(1, &mut buffer, &mut stream) {
        total += count;
    }
    assert!(total <= STREAM_WINDOW as usize && total <= bytes.len());
    Ok(())
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let size = usize::from(size).max(1);
    let whole = decode([bytes]);
    assert_eq!(decode(bytes.chunks(size)), whole);
    if let Ok(encoded) = whole {
        assert!(bytes.starts_with(&encoded));
    }
    for side in [LinkSide::Host, LinkSide::Guest] {
        let _ = take(side, bytes, size); // an error is a refusal
    }
});
