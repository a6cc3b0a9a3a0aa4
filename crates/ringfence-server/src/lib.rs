//! The server: E2B's API on top of the library, so that E2B's SDKs work with sandboxes of this
//! host.
//!
//! The server only translates. `ringfence up` creates a sandbox, in a process of its own that
//! outlives the server. Calls to envd are forwarded to the guest of the sandbox, which speaks
//! envd's protocol itself. Nothing in this module isolates anything.
//!
//! Reading order: [`listen`] accepts connections ([`ringfence_service`]), [`server`] finds the owner
//! and the target of a request ([`place`]), [`control`] and [`create`] create and end sandboxes
//! ([`registry`], [`launch`], [`rest`], [`store`], [`pool`], [`turns`], [`removal`]), [`save`]
//! keeps their files ([`snapshots`]), [`carry`] forwards requests to sandboxes, [`interpreter`]
//! runs cells of code in them, [`meter`] measures their resource use, [`executions`] and
//! [`counters`] report their activity. [`web`] is the web page; the calls that it needs beyond
//! E2B's API are in [`facts`] and [`events`].

mod activity;
mod carry;
mod control;
mod counters;
mod create;
mod error;
mod events;
mod executions;
mod facts;
mod idempotency;
mod interpreter;
mod keys;
mod launch;
mod life;
mod listen;
mod messages;
mod meter;
mod network;
mod page;
mod place;
mod pool;
mod quota;
mod registry;
mod removal;
mod reply;
mod requests;
mod rest;
mod save;
mod seats;
mod secret;
mod server;
mod skim;
mod snapshots;
mod store;
mod template;
mod tls;
mod turns;
mod web;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Once};

use ringfence::Host;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

pub use error::ServerError;
pub use keys::{Key, KeyFile};
pub use launch::FOR_SERVER;
pub use quota::Quota;
pub use server::Audience;
pub use template::{ServerConfig, Template, TemplateConfig};
pub use tls::{DOMAIN, Identity};

use counters::Counters;
use idempotency::Repeats;
use keys::Keys;
use pool::Pool;
use registry::Registry;
use ringfence_service::telemetry::Telemetry;
use server::Server;
use snapshots::Snapshots;
use turns::Turns;

/// Maximum number of sandboxes that start at once; further requests wait.
const MOST_STARTING: u32 = 16;

/// Runs `work` to completion even if the client disconnects, because half-done work would be of no
/// use.
async fn to_its_end<Work>(work: Work) -> Work::Output
where
    Work: Future<Output: Send + 'static> + Send + 'static,
{
    tokio::spawn(work).await.expect("what clients have done does not panic")
}

/// Server that knows its sandboxes and does not listen yet.
#[derive(Debug)]
pub struct Ready {
    server: Arc<Server>,
}

impl Ready {
    /// Opens the server whose directory is `place`, and finds its existing sandboxes and snapshots.
    pub async fn open(
        host: Host,
        place: &Path,
        templates: BTreeMap<String, Template>,
        largest_snapshot: u64,
        audience: Audience,
        telemetry: Telemetry,
    ) -> Result<Ready, ServerError> {
        let keys = Keys::open(KeyFile::in_directory(place)).map_err(|error| {
            ServerError::failed(
                format!("cannot read the keys: {error}"),
                "look at the permissions of that file",
            )
        })?;
        let registry = Registry::open(host, place, telemetry).await?;
        // A revoked key never comes back, and nobody else can reach its snapshots, so those can be
        // removed.
        let known = keys.all();
        let is_there = |owner: &control::Owner| match owner {
            Some(id) => !keys.were_made() || known.iter().any(|key| key.id == *id),
            None => true,
        };
        let snapshots = Snapshots::open(
            registry.store().clone(),
            registry.removals().clone(),
            place,
            largest_snapshot,
            is_there,
        )
        .await?;
        let starting = Turns::new(MOST_STARTING);
        let (pool, said_open, counters) = (Pool::default(), Once::new(), Counters::default());
        let (seats, repeats, ending) =
            (Arc::default(), Repeats::default(), watch::Sender::default());
        let server = Arc::new(Server {
            keys,
            registry,
            snapshots,
            templates,
            audience,
            pool,
            starting,
            seats,
            repeats,
            counters,
            said_open,
            ending,
        });
        let counted = Arc::downgrade(&server);
        server
            .registry
            .telemetry
            .measure(move || counted.upgrade().map(|server| server.measures()).unwrap_or_default());
        Ok(Ready { server })
    }

    /// Serves until `ended` completes, with TLS if `tls` is given. The sandboxes keep running after
    /// the end, except those that wait for a client.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        ended: impl Future<Output = ()>,
    ) {
        let server = &self.server;
        let ended = async {
            ended.await;
            server.ending.send_replace(true);
            server.snapshots.end();
            server.pool.close();
        };
        let serving = async {
            tokio::select! {
                () = listen::serve(listener, tls, Arc::clone(server), ended) => {}
                () = server.keep_looking() => {}
            }
            server.snapshots.ended().await;
            server.registry.look_at(server.registry.all()).await;
            server.note_use().await;
        };
        tokio::join!(serving, server.pool.keep_full(&server.registry, &server.templates));
        server.registry.close().await;
    }
}
