//! The server: E2B's API over the library, so that its SDKs run against sandboxes of this host.
//!
//! A thin translator. A sandbox is made by `ringfence up`, in a process of its own that outlives the server; calls to
//! envd are carried to the sandbox's guest, which speaks it itself. Nothing here isolates anything.
//!
//! Reading order: [`listen`] takes connections, [`server`] says whose a request is and where it goes ([`place`]),
//! [`control`] makes and ends sandboxes ([`registry`], [`store`]), [`carry`] brings requests to them.

mod carry;
mod control;
mod keys;
mod listen;
mod messages;
mod network;
mod page;
mod place;
mod quota;
mod registry;
mod reply;
mod secret;
mod server;
mod store;
mod template;
mod tls;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Once};

use ringfence::Host;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

pub(crate) use keys::{Key, KeyFile};
pub(crate) use quota::Quota;
pub(crate) use server::Audience;
pub(crate) use template::{ServerConfig, Template};
pub(crate) use tls::{DOMAIN, Identity};

use crate::report::Failure;
use keys::Keys;
use registry::Registry;
use server::Server;

/// How many sandboxes are started at once; whoever asks for one then waits.
const MOST_STARTING: usize = 16;

/// A server that knows its sandboxes and does not listen yet.
#[derive(Debug)]
pub(crate) struct Ready {
    server: Arc<Server>,
}

impl Ready {
    /// Finds the sandboxes that are there, of the server whose directory is `place`.
    pub(crate) async fn open(
        host: Host,
        place: &Path,
        templates: BTreeMap<String, Template>,
        audience: Audience,
    ) -> Result<Ready, Failure> {
        let keys = Keys::open(KeyFile::in_directory(place)).map_err(|error| {
            Failure::failed(format!("cannot read the keys: {error}"), "look at the permissions of that file")
        })?;
        let registry = Registry::open(host, place).await?;
        let starting = Semaphore::new(MOST_STARTING);
        let server =
            Server { keys, registry, templates, audience, starting, tallies: Arc::default(), said_open: Once::new() };
        Ok(Ready { server: Arc::new(server) })
    }

    /// Serves until `ended`, in TLS if there is something that speaks it. The sandboxes stay.
    pub(crate) async fn serve(self, listener: TcpListener, tls: Option<TlsAcceptor>, ended: impl Future<Output = ()>) {
        listen::serve(listener, tls, self.server, ended).await;
    }
}
