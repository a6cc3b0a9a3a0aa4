//! The egress proxy: decides which connections may leave a sandbox's network, and carries them.
//!
//! Code in a sandbox names the host that it wants to reach. [`Target`] parses that text once.
//! [`Rules`] judge the parsed target, and the proxy connects only to a target that was judged.
//! [`classify`] tells whether an address is public.
//!
//! [`Proxy`] accepts clients: HTTP, `CONNECT` and SOCKS5 on one listener. Connections to targets
//! begin only in the `connect` module, whose public entry is [`Proxy::connect`]: start reading
//! there. The proxy reports denials and allowed connections to its owner as [`EgressEvent`]s. The
//! owner can replace the rules while the proxy serves. The proxy then cuts every open connection
//! that the new rules do not allow.
//!
//! The proxy never trusts what a client sends, and never resolves a name that the rules and the
//! mode have not admitted. After the proxy has judged an address of a name, it connects without
//! looking up the name again.

mod address;
mod answer;
mod certificate_authority;
mod connect;
mod copy;
mod credential;
mod event;
mod hello;
mod http;
mod maybe_tls;
mod opening;
mod pass;
mod pem;
mod proxy;
mod refusal;
mod resolver;
mod rules;
mod socks;
mod stream;
mod target;
mod transparent;
mod tunnel;
mod upstream;
mod watch;

pub use address::{AddressClass, classify};
pub use certificate_authority::{CertificateAuthority, CertificateAuthorityError};
pub use connect::TargetConnection;
pub use credential::{Credential, CredentialError, Credentials};
pub use event::{AllowedConnection, Denial, EgressEvent, RequestKind};
pub use http::remove_hop_headers;
pub use pem::encode_pem;
pub use proxy::{ClientLimits, Proxy, ProxyListener, ProxyMode, ProxySettings};
pub use refusal::ConnectionRefusal;
pub use resolver::{ResolveError, Resolver};
pub use ringfence_core::policy::{HostName, HostRule};
pub use rules::{DenialReason, Rules, Verdict};
pub use stream::ByteStream;
pub use target::{Target, TargetError, TargetHost};
pub use transparent::Tunnel;
pub use upstream::{UpstreamError, UpstreamProxies};
