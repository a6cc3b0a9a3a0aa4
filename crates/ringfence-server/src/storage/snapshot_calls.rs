//! Calls that take, list and delete snapshots.

use std::sync::Arc;

use hyper::{Request, StatusCode};
use ringfence::{CopyError, CopySummary, Fault};
use ringfence_proto::query::percent_decode;
use ringfence_service::exchange::RequestBody;
use tokio::time::timeout;

use crate::api::control::{OwnerCalls, body, query, with_next};
use crate::api::messages::SnapshotInfo;
use crate::api::network::{self, network_of};
use crate::api::pagination::{Page, PageRequest};
use crate::api::reply::{Refusal, Reply, bare, json};
use crate::api::requests::NewSnapshot;
use crate::lifecycle::registry::ManagedSandbox;
use crate::run_to_completion;
use crate::server::Server;
use crate::storage::snapshots::{KeptSnapshot, Snapshot, checked_name};
use crate::tenants::fair_semaphore::PERMIT_TIMEOUT;
use crate::tenants::quota::Quota;

impl OwnerCalls<'_> {
    /// Takes a snapshot of the files of a sandbox.
    pub(crate) async fn save(
        &self,
        id: &str,
        request: Request<RequestBody>,
    ) -> Result<Reply, Refusal> {
        let managed = self.find(id)?;
        let NewSnapshot { name, memory } = body(request).await?;
        if memory != Some(false) {
            return Err(Refusal::unsupported(
                "this server cannot copy the memory of a sandbox: take a snapshot of its files, \
                 with mode=\"filesystem\" (`memory`: false)",
            ));
        }
        let name =
            name.filter(|name| !name.is_empty()).map(|name| checked_name(&name)).transpose()?;
        if let Some(name) = name.as_ref().filter(|name| self.server.templates.contains_key(*name)) {
            return Err(Refusal::wrong(format!(
                "`{name}` is a template of this server: give the snapshot another name"
            )));
        }
        let template = self.server.templates.get(&managed.record.template);
        let mut network =
            network::narrowing(&network_of(&managed)?, template.map(|template| &template.network));
        if managed.record.traffic_token.is_some() {
            network.get_or_insert_default().allow_public_traffic = Some(false);
        }
        let snapshot = Snapshot::new(name, &managed.record, network);
        let snapshots = &self.server.snapshots;
        snapshots.check_limit(&snapshot, &self.quota)?;
        // A sandbox has one snapshot at a time, because it is paused meanwhile. Wait for that
        // before taking a permit, so that the wait does not block other owners.
        let alone = timeout(PERMIT_TIMEOUT, Arc::clone(&managed.saving).lock_owned()).await;
        let alone = alone.map_err(|_| {
            Refusal::busy(
                format!("another snapshot of sandbox `{id}` is in progress"),
                PERMIT_TIMEOUT.as_secs(),
            )
        })?;
        let permit = snapshots.take_copy_permit(&self.owner).await?;
        // If the client stops waiting, the snapshot still completes, and the client finds it in its
        // list.
        let (server, quota) = (Arc::clone(self.server), self.quota);
        let saving = run_to_completion(async move {
            let saved = server.save(&managed, snapshot, &quota).await;
            drop((permit, alone));
            saved
        });
        let kept = saving.await?;
        Ok(json(StatusCode::CREATED, &SnapshotInfo::from_snapshot(&kept.snapshot)))
    }

    /// Lists the snapshots of this owner, newest first.
    pub(crate) fn snapshots(&self, request: &Request<RequestBody>) -> Result<Reply, Refusal> {
        let query = query(request)?;
        let cursor = PageRequest::from_query(&query)?;
        let wanted = |name: &str| query.get(name).filter(|text| !text.is_empty());
        let (sandbox, name) = (wanted("sandboxID"), wanted("name"));
        let mut all = self.server.snapshots.list_for_owner(&self.owner);
        all.retain(|kept| {
            let snapshot = &kept.snapshot;
            sandbox.is_none_or(|sandbox| snapshot.sandbox == sandbox)
                && name.is_none_or(|name| snapshot.is_called(name))
        });
        let Page { shown, next } =
            cursor.page(all, |kept| (kept.snapshot.taken, kept.snapshot.id.as_str()));
        let listed: Vec<SnapshotInfo<'_>> =
            shown.iter().map(|kept| SnapshotInfo::from_snapshot(&kept.snapshot)).collect();
        Ok(with_next(json(StatusCode::OK, &listed), next))
    }

    /// Deletes a snapshot. E2B's API treats snapshots as templates.
    pub(crate) async fn delete_template(&self, escaped: &str) -> Result<Reply, Refusal> {
        let which = percent_decode(escaped).ok_or_else(|| {
            Refusal::wrong("the path of the URL is not valid percent-encoded text")
        })?;
        if let Some(kept) = self.server.snapshots.find(&self.owner, &which) {
            let (server, found) = (Arc::clone(self.server), Arc::clone(&kept));
            if run_to_completion(async move { server.snapshots.remove(&found).await }).await? {
                tracing::info!(id = kept.snapshot.id, "deleted a snapshot");
                return Ok(bare(StatusCode::NO_CONTENT));
            }
        }
        if self.server.templates.contains_key(&which) {
            let message = format!(
                "`{which}` is a template in the settings of this server, and cannot be deleted \
                 with the API"
            );
            return Err(Refusal::new(StatusCode::FORBIDDEN, message));
        }
        Err(Refusal::new(StatusCode::NOT_FOUND, format!("snapshot `{which}` was not found")))
    }
}

impl Server {
    /// Takes a snapshot of the files of a sandbox while its processes are paused, and keeps it.
    /// Leaves nothing behind if the snapshot fails.
    async fn save(
        &self,
        managed: &Arc<ManagedSandbox>,
        snapshot: Snapshot,
        quota: &Quota,
    ) -> Result<Arc<KeptSnapshot>, Refusal> {
        let saved = async {
            let copied = self.copy_in(managed, &snapshot).await?;
            let kept = self.snapshots.keep(snapshot.clone(), quota).await?;
            let (id, sandbox) = (&kept.snapshot.id, &managed.record.id);
            let CopySummary { bytes, entries, left_out, .. } = copied;
            tracing::info!(id, sandbox, bytes, entries, left_out, "took a snapshot");
            Ok(kept)
        };
        let saved = saved.await;
        if saved.is_err() {
            self.snapshots.discard(&snapshot).await;
        }
        saved
    }

    async fn copy_in(
        &self,
        managed: &Arc<ManagedSandbox>,
        snapshot: &Snapshot,
    ) -> Result<CopySummary, Refusal> {
        let id = &managed.record.id;
        let copying = self.snapshots.copy_in(self.registry.workspace(id), snapshot);
        let copied = self.registry.while_paused(managed, copying).await;
        // The removal of a directory takes the sandbox off the list first. If the sandbox is still
        // on the list, the copy is complete.
        if !self.registry.has(managed) {
            return Err(Refusal::no_sandbox(id));
        }
        let copied = copied.map_err(|failure| {
            tracing::error!(
                id,
                error = failure.message(),
                "cannot pause or resume a sandbox for its snapshot"
            );
            Refusal::failed(format!(
                "sandbox `{id}` could not be paused and resumed for its snapshot; the log of the \
                 server says why"
            ))
        })?;
        copied.map_err(|error| not_copied(id, &error))
    }
}

fn not_copied(id: &str, error: &CopyError) -> Refusal {
    let message = ringfence::chain(error);
    let (status, next) = match error {
        CopyError::TooLarge { .. } | CopyError::TooMany { .. } => {
            (StatusCode::PAYLOAD_TOO_LARGE, "remove files that are not needed")
        }
        CopyError::Write { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            tracing::error!(id, error = message, "cannot take a snapshot");
            return Refusal::new(
                StatusCode::INSUFFICIENT_STORAGE,
                "the server's disk is full: delete snapshots",
            );
        }
        error if error.fault() == Fault::User => (StatusCode::BAD_REQUEST, "change the files"),
        _ => {
            tracing::error!(id, error = message, "cannot take a snapshot");
            return Refusal::failed(format!(
                "the files of sandbox `{id}` could not be copied; the log of the server says why"
            ));
        }
    };
    Refusal::new(
        status,
        format!("{message}: {next} in sandbox `{id}`, and take the snapshot again"),
    )
}
