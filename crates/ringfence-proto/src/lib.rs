//! The guest's protocol: E2B's public envd protocol, as messages and frames.
//!
//! Guest, engine and server share these types, so that a ringfence sandbox can be driven by E2B's own clients and
//! ringfence can drive E2B's cloud. Nothing here does I/O. Whatever comes from the other side is untrusted: sizes are
//! bounded before they are believed, unknown fields are ignored, and nothing panics.
//!
//! Reading order: [`process`] and [`filesystem`] are the two services, [`frame`] is how a stream of messages is cut
//! into pieces, [`code`] is how a call fails, [`query`] is what a URL says, [`signature`] what lets a bare one read or write
//! one file.

pub mod bytes;
pub mod code;
pub mod filesystem;
pub mod frame;
pub mod number;
pub mod process;
pub mod query;
pub mod signature;

/// The version of envd whose behaviour the guest has; clients choose features by it.
pub const ENVD_VERSION: &str = "0.6.4";

/// The port by whose number clients address the guest.
pub const ENVD_PORT: u16 = 49983;

/// The longest message that either side accepts: more than an input or a listing needs, less than hurts.
pub const LONGEST_MESSAGE: usize = 16 << 20;

/// Names of headers.
pub mod header {
    /// How long a call may take; on a stream that started a command, how long the command may take.
    pub const TIMEOUT: &str = "connect-timeout-ms";
    /// Which version of the Connect protocol is spoken.
    pub const PROTOCOL: &str = "connect-protocol-version";
    /// How many seconds of silence a client bears on a stream.
    pub const KEEPALIVE: &str = "keepalive-ping-interval";
    /// Proves that the caller may talk to the guest.
    pub const TOKEN: &str = "x-access-token";
    /// Proves that the caller may use the ports of a sandbox, and its code interpreter's contexts.
    pub const TRAFFIC: &str = "e2b-traffic-access-token";
    /// Which sandbox a request to a server is for.
    pub const SANDBOX: &str = "e2b-sandbox-id";
    /// Which port of that sandbox it is for.
    pub const PORT: &str = "e2b-sandbox-port";
    /// What a metadata header of an upload starts with.
    pub const METADATA: &str = "x-metadata-";
}

/// Types of content.
pub mod content {
    /// One message.
    pub const UNARY: &str = "application/json";
    /// A stream of messages in frames.
    pub const STREAM: &str = "application/connect+json";
    /// The bytes of a file.
    pub const OCTETS: &str = "application/octet-stream";
}
