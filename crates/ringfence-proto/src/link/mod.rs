//! Guest link: many streams over one carrier connection that may be lost and dialled again.
//!
//! The host dials a carrier, which is any stream of bytes to the guest. [`frame`] splits the
//! carrier's bytes into frames. [`resumption`] makes a stream of bytes from them that survives the
//! loss of carriers: bytes that the peer has not acknowledged are kept and sent again.
//! [`multiplexer`] divides this stream of bytes into streams with a window each, so that a reader
//! that does not read delays no other stream.
//!
//! Nothing here does I/O or reads a clock. `ringfence-link` moves the bytes.

pub mod frame;
pub mod multiplexer;
pub mod resumption;

use std::fmt;

/// Version of the link protocol.
pub const LINK_VERSION: u8 = 1;

/// Maximum number of streams that are open at once.
pub const MAX_LINK_STREAMS: usize = 1024;

/// Identifier of a link: random bytes that the host chooses.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkId(pub [u8; 16]);

impl fmt::Debug for LinkId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "LinkId({:032x})", u128::from_be_bytes(self.0))
    }
}

/// Side of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkSide {
    /// Side that dials carriers and opens streams.
    Host,
    /// Side that accepts carriers and streams.
    Guest,
}

/// Violation of the link protocol by the peer. The link cannot be used any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A frame has an unknown type.
    #[error("a frame has the type {kind:#04x}, which is not understood")]
    Kind {
        /// Type of the frame.
        kind: u8,
    },
    /// A frame announces a payload that its type does not allow.
    #[error("a frame of the type {kind:#04x} has a payload of {length} bytes")]
    Length {
        /// Type of the frame.
        kind: u8,
        /// Length of the payload in bytes, as the header announces it.
        length: usize,
    },
    /// A greeting or a refusal holds text that is not UTF-8 or a code that is not known.
    #[error("a frame of the type {kind:#04x} has an invalid payload")]
    Payload {
        /// Type of the frame.
        kind: u8,
    },
    /// A frame arrived at a time at which it has no meaning.
    #[error("a frame of the type {kind:#04x} arrived at the wrong time")]
    Unexpected {
        /// Type of the frame.
        kind: u8,
    },
    /// The peer claims to have received bytes that were never sent, or that it denied before.
    #[error("the peer claims to have received {offset} bytes, of {earliest} to {latest}")]
    Offset {
        /// Number of bytes that the peer claims to have received.
        offset: u64,
        /// Smallest number that was possible.
        earliest: u64,
        /// Largest number that was possible.
        latest: u64,
    },
    /// The peer opened a stream that it may not open.
    #[error("the peer opened the stream {stream}, which it may not open")]
    Opening {
        /// Number of the stream.
        stream: u32,
    },
    /// The peer used a stream that was never opened.
    #[error("the peer used the stream {stream}, which was never opened")]
    NeverOpened {
        /// Number of the stream.
        stream: u32,
    },
    /// The peer sent more on a stream than the stream's window, or after its end.
    #[error("the peer sent more than it may on the stream {stream}")]
    Window {
        /// Number of the stream.
        stream: u32,
    },
    /// The peer makes this side send control frames and acknowledges none of them.
    #[error("the peer does not acknowledge what it is sent")]
    Backlog,
}
