//! Argument and helpers that commands on a running sandbox share.

use std::future::Future;

use clap::Args;
use ringfence::{Host, Sandbox, SessionError};
use ringfence_core::terminal::clean_line;

use crate::report::Failure;

/// Name of a sandbox that is up.
#[derive(Debug, Clone, Args)]
pub(crate) struct Named {
    /// Name of the sandbox; `ringfence ps` lists the names.
    #[arg(id = "sandbox", value_name = "NAME")]
    pub(super) name: String,
}

impl Named {
    /// Connects to the sandbox.
    pub(super) async fn attach(&self, host: &Host) -> Result<Sandbox, Failure> {
        Ok(Sandbox::attach(host, &self.name).await?)
    }

    /// Creates the failure for a failed call to the sandbox.
    pub(super) fn failed(&self, error: SessionError) -> Failure {
        Failure::from_session(&error, &self.name)
    }
}

/// Runs a future to its end on this thread.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
            Failure::failed(
                format!("cannot start the async runtime: {error}"),
                "check the limits of this shell: ulimit -n",
            )
        })?;
    let done = runtime.block_on(future);
    // Background tasks that nobody waits for must not delay the end.
    runtime.shutdown_background();
    done
}

/// Returns the text without characters that control a terminal.
pub(super) fn plain(text: &str) -> String {
    clean_line(text).into_owned()
}
