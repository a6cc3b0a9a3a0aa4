//! Syncs of a sandbox whose workspace is a copy of the host's.

use ringfence_core::Fault;
use ringfence_core::sync_report::SyncReport;

use super::start::WorkspaceGuard;
use super::workspace_copy::{CopiedWorkspace, SyncError, SyncListener, SyncMode, SyncProgress};
use super::{AttachError, Sandbox};
use crate::backends::WorkspaceSource;
use crate::sandbox::directory::Manifest;

impl Sandbox {
    /// Carries the changes of the workspace between the host and a sandbox that has a copy of it.
    pub async fn sync(&self) -> Result<SyncReport, SyncError> {
        self.sync_with(SyncMode::Both, |_| ()).await
    }

    /// Syncs like [`Sandbox::sync`], or reports what that would do. Calls `progress` with the files
    /// and bytes that were carried so far.
    pub async fn sync_with(
        &self,
        mode: SyncMode,
        mut progress: impl FnMut(SyncProgress) + Send,
    ) -> Result<SyncReport, SyncError> {
        match self.copied_workspace() {
            Some(copied) => copied.sync(mode, &mut progress).await,
            None => Err(SyncError::NotCopied { name: self.manifest.name.to_string() }),
        }
    }

    /// Returns the workspace that was copied into the sandbox, or `None` if the sandbox works on
    /// the host's own files.
    pub(super) fn copied_workspace(&self) -> Option<CopiedWorkspace> {
        match self.facets.workspace {
            WorkspaceSource::HostDir(_) => None,
            WorkspaceSource::Copy => {
                Some(CopiedWorkspace::new(self.session.clone(), self.directory()))
            }
        }
    }

    /// Sends the workspace into the sandbox, which was just started.
    pub(super) async fn send_workspace(
        &self,
        copied: &CopiedWorkspace,
        guard: WorkspaceGuard,
        listener: Option<&SyncListener>,
    ) -> Result<SyncReport, SyncError> {
        let Manifest { workspace, workspace_inside, .. } = &*self.manifest;
        let WorkspaceGuard { rules, watched } = guard;
        let mut on_sync = |progress| listener.iter().for_each(|listener| listener.tell(progress));
        let sent = copied.send(workspace, workspace_inside, rules, watched, &mut on_sync).await?;
        let (files, bytes, left_out) = (sent.sent.count, sent.sent.bytes, sent.left_out.count);
        tracing::info!(files, bytes, left_out, "the workspace was sent into the sandbox");
        Ok(sent)
    }

    /// Brings the changes in a copied workspace back before another process is told to stop the
    /// sandbox, so that the caller learns what came back. That process does the same once more.
    pub(super) async fn bring_back_before_stop(&self) -> Result<Option<SyncReport>, AttachError> {
        let Some(copied) = self.copied_workspace() else { return Ok(None) };
        match copied.bring_back(&mut |_| ()).await {
            Ok(report) => Ok(Some(report)),
            // The user can correct the error, and then stop the sandbox without a loss.
            Err(source) if source.fault() == Fault::Host => {
                let Manifest { name, owner, .. } = &*self.manifest;
                Err(AttachError::Workspace { name: name.clone(), pid: owner.pid, source })
            }
            Err(error) => {
                let failed = Some(crate::chain(&error));
                Ok(Some(SyncReport { failed, ..SyncReport::default() }))
            }
        }
    }
}
