//! What may leave a sandbox's network.
//!
//! Code in a sandbox says where it wants to go. That text is read once, by [`Target`]; what was read is judged by
//! [`Rules`], and nothing but what was judged is connected to. Whether an address is one of the outside world,
//! [`classify`] says.
//!
//! [`Proxy`] is where clients come to: HTTP, `CONNECT` and SOCKS5 on one listener. [`Proxy::connect`] is the only way out.
//! What was denied, and what went through, its owner is told in [`Event`]s. The rules can be replaced while it serves, and
//! what is open and no longer allowed is cut.
//!
//! Nothing here trusts what a client sends, resolves a name that is not allowed, or looks a name up a second time
//! after its address was judged.

mod address;
mod answer;
mod authority;
mod connect;
mod copy;
mod credential;
mod event;
mod hello;
mod http;
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
mod way;

pub use address::{AddressClass, classify};
pub use authority::{Authority, AuthorityError};
pub use connect::Connection;
pub use credential::{Credential, CredentialError, Credentials};
pub use event::{Denial, Event, Passage, Via};
pub use pem::pem;
pub use proxy::{Limits, Listener, Mode, Proxy, Settings};
pub use refusal::Refusal;
pub use resolver::{ResolveError, Resolver};
pub use ringfence_core::policy::{HostName, HostRule};
pub use rules::{Reason, Rules, Verdict};
pub use stream::Stream;
pub use target::{Target, TargetError, TargetHost};
pub use transparent::Tunnel;
pub use upstream::{Upstream, UpstreamError};
