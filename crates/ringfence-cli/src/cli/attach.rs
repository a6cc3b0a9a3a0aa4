//! What every command over a sandbox that stays begins with.

use std::future::Future;

use clap::Args;
use ringfence::{Host, Sandbox, SessionError};
use ringfence_core::terminal::clean_line;

use crate::report::Failure;

/// Names a sandbox that is up.
#[derive(Debug, Clone, Args)]
pub(crate) struct Named {
    /// Which sandbox; `ringfence ps` lists them.
    #[arg(id = "sandbox", value_name = "NAME")]
    pub(super) name: String,
}

impl Named {
    /// Reaches it.
    pub(super) async fn attach(&self, host: &Host) -> Result<Sandbox, Failure> {
        Ok(Sandbox::attach(host, &self.name).await?)
    }

    /// Tells of a call to it that failed.
    pub(super) fn failed(&self, error: SessionError) -> Failure {
        Failure::of_session(&error, &self.name)
    }
}

/// Does something that waits, on this thread.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::failed(format!("cannot wait for anything: {error}"), "look at the limits of this shell: ulimit -n")
    })?;
    let done = runtime.block_on(future);
    // What nobody waits for any more is not waited for here, either.
    runtime.shutdown_background();
    done
}

/// Text of which a terminal obeys nothing.
pub(super) fn plain(text: &str) -> String {
    clean_line(text).into_owned()
}
