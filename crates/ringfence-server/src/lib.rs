//! The server of `ringfence serve`: E2B's API on top of the library, so that E2B's SDKs work with
//! sandboxes of this host.
//!
//! The server only translates. `ringfence up` creates a sandbox, in a process of its own that
//! outlives the server. Calls to envd are forwarded to the guest of the sandbox, which speaks
//! envd's protocol itself. The crate must never isolate anything itself, decide what a policy
//! means, or trust what a guest or a client says: a sandbox is at most what its template allows.
//!
//! Start with [`PreparedServer`]. Reading order: `api` accepts connections and has the calls of
//! the control plane, `server` finds the owner and the target of a request, `tenants` has the
//! keys and limits of owners, `lifecycle` creates, pauses and ends sandboxes, `forwarding`
//! brings requests to sandboxes, `storage` keeps what outlives the server, and `page` is the
//! web page with what it shows.

mod api;
mod error;
mod forwarding;
mod lifecycle;
mod page;
mod secret;
mod server;
mod storage;
mod tenants;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Once};

use ringfence::Host;
use ringfence_service::telemetry::Telemetry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

pub use api::tls::{DOMAIN, TlsIdentity};
pub use error::ServerError;
pub use lifecycle::template::{ServerConfig, Template, TemplateConfig};
pub use server::Audience;
pub use tenants::keys::{Key, KeyFile};
pub use tenants::quota::Quota;

/// Request bodies of the control plane, which a fuzz target parses.
#[doc(hidden)]
pub mod requests {
    pub use crate::api::requests::{
        LeaseRequest, NetworkChange, NetworkRequest, NewSandbox, NewSnapshot, PauseRequest,
    };
}

use api::idempotency::IdempotencyCache;
use api::{control, listen};
use lifecycle::pool::WarmPool;
use lifecycle::registry::Registry;
use page::counters::Counters;
use server::Server;
use storage::snapshots::Snapshots;
use tenants::fair_semaphore::FairSemaphore;
use tenants::keys::Keys;

/// Maximum number of sandboxes that start at once; further requests wait.
const MOST_STARTING: u32 = 16;

/// Runs `work` to completion even if the client disconnects, because half-done work would be of no
/// use.
async fn run_to_completion<Work>(work: Work) -> Work::Output
where
    Work: Future<Output: Send + 'static> + Send + 'static,
{
    tokio::spawn(work).await.expect("what clients have done does not panic")
}

/// Server that knows its sandboxes and does not listen yet.
#[derive(Debug)]
pub struct PreparedServer {
    server: Arc<Server>,
}

impl PreparedServer {
    /// Opens the server that keeps its data in `directory`, and finds its existing sandboxes and
    /// snapshots.
    pub async fn open(
        host: Host,
        directory: &Path,
        templates: BTreeMap<String, Template>,
        largest_snapshot: u64,
        audience: Audience,
        telemetry: Telemetry,
    ) -> Result<PreparedServer, ServerError> {
        let keys = Keys::open(KeyFile::in_directory(directory)).map_err(|error| {
            ServerError::failed(
                format!("cannot read the keys: {error}"),
                "check the owner and the permissions of that file",
            )
        })?;
        let registry = Registry::open(host, directory, telemetry).await?;
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
            directory,
            largest_snapshot,
            is_there,
        )
        .await?;
        let starting = FairSemaphore::new(MOST_STARTING);
        let (pool, warned_open, counters) = (WarmPool::default(), Once::new(), Counters::default());
        let (connection_limits, idempotency_cache, ending) =
            (Arc::default(), IdempotencyCache::default(), watch::Sender::default());
        let server = Arc::new(Server {
            keys,
            registry,
            snapshots,
            templates,
            audience,
            pool,
            starting,
            connection_limits,
            idempotency_cache,
            counters,
            warned_open,
            ending,
        });
        let counted = Arc::downgrade(&server);
        server
            .registry
            .telemetry
            .measure(move || counted.upgrade().map(|server| server.measures()).unwrap_or_default());
        Ok(PreparedServer { server })
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
            server.registry.measure_usage(server.registry.all()).await;
            server.store_usage().await;
        };
        tokio::join!(serving, server.pool.keep_full(&server.registry, &server.templates));
        server.registry.close().await;
    }
}
