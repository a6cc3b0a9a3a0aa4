//! Protocol of the guest: E2B's public envd protocol, as messages and frames.
//!
//! Guest, engine and server share these types, so that E2B's own clients can drive a ringfence
//! sandbox and ringfence can drive E2B's cloud. Nothing in this crate does I/O. All input from the
//! other side is untrusted: the code checks a size against its limit before it uses the size,
//! ignores unknown fields, and never panics.
//!
//! Reading order: [`process`] and [`filesystem`] are the messages of the two services. [`frame`]
//! splits a stream into messages. [`code`] describes the failure of a call. [`query`] parses the
//! query of a URL. [`signature`] signs a URL so that its holder can read or write one file without
//! a token. [`tree`] has listings of trees and requests for parts of them. [`link`] carries many
//! streams to a guest over one connection that may be lost.

pub mod bytes;
pub mod code;
pub mod filesystem;
pub mod frame;
pub mod link;
pub mod number;
pub mod process;
pub mod query;
pub mod signature;
pub mod tree;

/// Version of envd whose behaviour the guest has. Clients choose their features by this version.
pub const ENVD_VERSION: &str = "0.6.4";

/// Port number by which clients address the guest.
pub const ENVD_PORT: u16 = 49983;

/// Maximum length of a message in bytes, for both sides. The value is more than any input or
/// listing needs, and small enough that a message of this length does no harm.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Names of the protocol's HTTP headers.
pub mod header {
    /// Time limit of a call in milliseconds. On a stream that started a command, the limit of the
    /// command.
    pub const TIMEOUT: &str = "connect-timeout-ms";
    /// Version of the Connect protocol that the client speaks.
    pub const PROTOCOL: &str = "connect-protocol-version";
    /// Maximum silence on a stream in seconds, after which the client expects a keep-alive message.
    pub const KEEPALIVE: &str = "keepalive-ping-interval";
    /// Access token, which proves that the caller may use the guest.
    pub const TOKEN: &str = "x-access-token";
    /// Traffic access token, which proves that the caller may use the ports of a sandbox and the
    /// contexts of its code interpreter.
    pub const TRAFFIC: &str = "e2b-traffic-access-token";
    /// Identifier of the sandbox that a request to a server is for.
    pub const SANDBOX: &str = "e2b-sandbox-id";
    /// Port of the sandbox that a request to a server is for.
    pub const PORT: &str = "e2b-sandbox-port";
    /// Prefix of the headers that carry metadata of an uploaded file.
    pub const METADATA: &str = "x-metadata-";
}

/// Content types of the protocol.
pub mod content {
    /// Content type of a single message as JSON.
    pub const UNARY: &str = "application/json";
    /// Content type of a stream of messages in frames.
    pub const STREAM: &str = "application/connect+json";
    /// Content type of a file's bytes.
    pub const OCTETS: &str = "application/octet-stream";
}
