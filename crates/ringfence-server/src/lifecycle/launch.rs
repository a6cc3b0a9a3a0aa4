//! Start of the process that keeps a sandbox, and the end of a sandbox that no client received.

use std::future::ready;
use std::path::Path;
use std::time::Duration;

use ringfence::monitor::{MonitorAnswer, MonitorHandle, MonitorRequest};
use ringfence::{Policy, Sandbox, Settings, StartRequest, make_private_directory};
use tokio::time::timeout;

use crate::error::ServerError;
use crate::lifecycle::registry::Registry;

/// Path of the sandbox's own directory in the sandbox, as E2B's clients expect it.
const HOME: &str = "/home/user";
/// Verbosity of the monitors: warnings alone.
const MONITOR_VERBOSITY: u8 = 0;
/// Maximum time for the start of a sandbox, because an image may have to be downloaded first.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// Started sandbox and the process that keeps it.
#[derive(Debug)]
pub(crate) struct LaunchedSandbox {
    pub(crate) sandbox: Sandbox,
    pub(crate) monitor: MonitorHandle,
}

impl Registry {
    /// Makes the request for a sandbox of a template. `change` changes the policy of the template.
    pub(crate) fn request(
        &self,
        id: &str,
        lease: Duration,
        template: &Settings,
        change: impl FnOnce(&mut Policy),
    ) -> Result<MonitorRequest, ServerError> {
        let settings = template.clone().for_client(&self.workspace(id), Path::new(HOME));
        let mut policy = settings.policy.clone();
        policy.env.set.insert("HOME".to_owned(), HOME.to_owned());
        change(&mut policy);
        let start = StartRequest {
            // Round up, so that the server ends the sandbox before the lease of the monitor is
            // over.
            lease: Some(Duration::from_secs(lease.as_secs() + 1)),
            container: settings.container.clone(),
            ..StartRequest::new(policy).name(id)
        };
        Ok(MonitorRequest::new(&settings, start, MONITOR_VERBOSITY)?)
    }

    /// Starts a sandbox. Gives up if `given_up` completes first. Removes everything if the start
    /// fails.
    pub(crate) async fn launch(
        &self,
        id: &str,
        request: MonitorRequest,
        given_up: impl Future<Output = ()>,
    ) -> Result<LaunchedSandbox, ServerError> {
        let workspace = self.workspace(id);
        // Use a blocking thread, because the start waits for the new process to run and to read its
        // request.
        let begun = tokio::task::spawn_blocking(move || {
            let unmade = |error| {
                ServerError::failed(
                    format!("cannot create a workspace: {error}"),
                    "check the disk: df -h",
                )
            };
            make_private_directory(&workspace).map_err(unmade)?;
            MonitorHandle::start(&request, &workspace).map_err(ServerError::from)
        });
        let begun = begun.await.expect("starting a process does not panic");
        let mut monitor = begun.inspect_err(|_| self.remove_workspace(id, ready(())))?;
        let answer = tokio::select! {
            answer = timeout(START_TIMEOUT, monitor.answer()) => match answer {
                Ok(answer) => answer.map_err(ServerError::from),
                Err(_) => {
                    let message = "a sandbox did not start in time";
                    Err(ServerError::failed(message, "ringfence doctor"))
                }
            },
            () = given_up => {
                let message = "the start of a sandbox was cancelled";
                Err(ServerError::failed(message, "ringfence serve"))
            }
        };
        let launched = match answer {
            Ok(MonitorAnswer::Ready { .. }) => {
                Sandbox::attach(self.host(), id).await.map_err(ServerError::from)
            }
            Ok(MonitorAnswer::Failed(error)) => Err(error.into()),
            Err(failure) => Err(failure),
        };
        match launched {
            Ok(sandbox) => Ok(LaunchedSandbox { sandbox, monitor }),
            Err(failure) => {
                monitor.ask_to_end();
                self.remove_workspace(id, end_of(monitor));
                Err(failure)
            }
        }
    }

    /// Ends a sandbox that no client received.
    pub(crate) async fn discard(&self, id: &str, launched: LaunchedSandbox) {
        let LaunchedSandbox { sandbox, monitor } = launched;
        if let Err(error) = sandbox.stop().await {
            tracing::error!(id, error = ringfence::chain(&error), "cannot end a sandbox");
            monitor.ask_to_end();
        }
        self.remove_workspace(id, end_of(monitor));
    }
}

/// Waits for the end of the process that keeps a sandbox.
pub(crate) async fn end_of(monitor: MonitorHandle) {
    let waited = tokio::task::spawn_blocking(|| monitor.wait()).await;
    waited.expect("waiting does not panic");
}
