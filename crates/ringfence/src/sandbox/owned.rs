//! Keeps a sandbox alive in the process that started it, and ends it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ringfence_core::sync_report::SyncReport;

use super::Stopped;
use super::workspace_copy::{CopiedWorkspace, SyncListener};
use crate::backends::{SandboxInstance, StopError};
use crate::egress::GateHolder;
use crate::sandbox::directory::SandboxDir;

/// The resources that the process that started a sandbox holds.
#[derive(Debug)]
pub(super) struct OwnedSandbox {
    held: Mutex<Option<OwnedResources>>,
    copied: OnceLock<KeptCopy>,
    pub(super) ended: tokio::sync::watch::Sender<bool>,
}

/// A workspace that was copied into a sandbox, and that is brought back at its end.
#[derive(Debug)]
pub(super) struct KeptCopy {
    pub(super) workspace: CopiedWorkspace,
    /// Report of the first sync.
    pub(super) sent: SyncReport,
    pub(super) listener: Option<SyncListener>,
}

#[derive(Debug)]
struct OwnedResources {
    instance: Box<dyn SandboxInstance>,
    sandbox_dir: SandboxDir,
    /// Holder of the gate of a container's network.
    _egress: Option<GateHolder>,
}

impl OwnedSandbox {
    pub(super) fn new(
        instance: Box<dyn SandboxInstance>,
        sandbox_dir: SandboxDir,
        egress: Option<GateHolder>,
    ) -> OwnedSandbox {
        let held = OwnedResources { instance, sandbox_dir, _egress: egress };
        let copied = OnceLock::new();
        OwnedSandbox { held: Mutex::new(Some(held)), copied, ended: Default::default() }
    }

    /// Has the changes in a copied workspace brought back before the sandbox ends.
    pub(super) fn keep_copied(&self, copied: KeptCopy) {
        let _ = self.copied.set(copied); // a workspace is sent only once
    }

    /// Spawns a task that notices when the sandbox ends by itself, and that ends the sandbox when
    /// its lease ends.
    pub(super) fn watch(self: &Arc<OwnedSandbox>, lease: Option<Duration>) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((ended, sandbox_dir)) =
            held.as_ref().map(|held| (held.instance.ended(), held.sandbox_dir.path.clone()))
        else {
            return;
        };
        let (owned, mut stopped) = (Arc::downgrade(self), self.ended.subscribe());
        tokio::spawn(async move {
            let expired = async {
                match lease {
                    Some(lease) => {
                        crate::sandbox::lease::wait_until_over(&sandbox_dir, lease).await
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended => {}
                () = expired => {}
                _ = stopped.changed() => return, // the sandbox was stopped or dropped elsewhere
            }
            if let Some(owned) = Weak::upgrade(&owned) {
                let _ = owned.end().await; // the next start sweeps what is left
            }
        });
    }

    fn take(&self) -> Option<OwnedResources> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends the sandbox and removes its directory.
    pub(super) async fn end(&self) -> Result<Stopped, StopError> {
        let Some(OwnedResources { instance, sandbox_dir, _egress }) = self.take() else {
            return Ok(Stopped::default());
        };
        sandbox_dir.remove_manifest();
        let workspace = bring_back(&self.copied).await;
        let ended = instance.stop().await;
        let mut planted = sandbox_dir.remove();
        self.ended.send_replace(true);
        planted.extend(workspace.iter().flat_map(|report| report.planted.clone()));
        ended.map(|()| Stopped { planted, workspace })
    }
}

impl Drop for OwnedSandbox {
    fn drop(&mut self) {
        let Some(OwnedResources { instance, sandbox_dir, _egress }) = self.take() else { return };
        let copied = std::mem::take(&mut self.copied);
        // Use a thread, because ending may take a while, and the caller may be a task that shares
        // its thread with others.
        std::thread::spawn(move || {
            if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build()
            {
                let _ = runtime.block_on(async {
                    bring_back(&copied).await;
                    instance.stop().await // the next start sweeps what is left
                });
            }
            sandbox_dir.remove();
        });
    }
}

/// Brings the changes in a copied workspace back, if there is one. A failure must not keep the
/// sandbox up, so it becomes a part of the report.
async fn bring_back(copied: &OnceLock<KeptCopy>) -> Option<SyncReport> {
    let KeptCopy { workspace, sent, listener } = copied.get()?;
    let mut on_sync = |progress| listener.iter().for_each(|listener| listener.tell(progress));
    let report = workspace.bring_back(&mut on_sync).await.unwrap_or_else(|error| {
        let failed = crate::chain(&error);
        tracing::error!(error = failed, "cannot bring the workspace back; its changes are lost");
        SyncReport { failed: Some(failed), ..SyncReport::default() }
    });
    for (paths, what) in [
        (&report.conflicts, "a path was changed on both sides, and did not come back"),
        (&report.refused, "a path that the policy guards was changed, and did not come back"),
    ] {
        for left in &paths.paths {
            tracing::warn!(path = left.path, why = left.why, "{what}");
        }
    }
    Some(report.after(sent.clone()))
}
