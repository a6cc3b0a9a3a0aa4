//! The host's end of the stream to a guest: commands, files and ports of a sandbox, for every
//! backend.
//!
//! Everything that a guest sends is untrusted. Sizes are bounded before they are believed, every
//! wait has a deadline, the guest's text is cleaned before it can reach a terminal, and no path
//! that the guest names is used on the host.
//!
//! Reading order: [`connector`] opens streams, [`transport`] speaks HTTP over them,
//! [`idle_connections`] keeps connections for other requests, and [`messages`] reads streams of
//! messages. [`exec`], [`execution`] and [`input`] are for commands,
//! [`files`] and [`tree`] for files, and [`ports`] for ports. [`link`] is a connector for guests
//! that are reached through something unreliable.

mod capture;
mod connector;
mod error;
mod exec;
mod execution;
mod files;
mod idle_connections;
mod input;
#[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "few backends need links"))]
mod link;
mod messages;
mod ports;
mod signal;
mod transport;
mod tree;

#[cfg(test)]
mod hostile;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::Method;
use ringfence_proto::process::{EmptyMessage, InitRequest, ListResponse, ListedProcess};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};

pub use capture::CapturedCommand;
#[cfg(any(test, feature = "kubernetes"))]
pub(crate) use connector::GuestStream;
pub(crate) use connector::{GUEST_SOCKET, GuestConnector, UnixConnector, listen_in};
pub use error::SessionError;
pub(crate) use error::clean;
pub use exec::{CommandInput, Exec, Leftovers};
pub use execution::{CommandEnd, Execution};
pub use files::{DirectoryWatch, SandboxFiles, WatchDepth};
pub use idle_connections::{IdleConnectionState, IdleConnections};
pub use input::ExecutionInput;
#[cfg(feature = "kubernetes")]
pub(crate) use link::{Carrier, LinkConnector, LinkRelay, LinkState, LinkTimeouts};
pub use ports::{PortStream, SandboxPorts};
pub(crate) use tree::{FileStream, FileStreamEnd, stays_below};
pub use tree::{OmittedEntry, TransferSummary};

use error::Operation;
use transport::{RequestBody, Transport};
use tree::HostFiles;

/// Operation that errors of a health check name.
const HEALTH_CHECK: Operation<'static> = Operation { verb: "check the guest's health", object: "" };
/// First pause between two attempts to reach a guest that does not answer yet, and the longest
/// pause (`MAX_RETRY_DELAY`).
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(1);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The host's end of the stream to a sandbox's guest. Clones share their connections, and calls can
/// be made concurrently.
///
/// The calls need a tokio runtime with time and I/O enabled.
#[derive(Debug, Clone)]
pub struct Session {
    transport: Arc<Transport>,
    host_files: HostFiles,
}

impl Session {
    /// Returns a session with the guest that `connector` leads to.
    pub(crate) fn new(connector: Arc<dyn GuestConnector>) -> Session {
        Session { transport: Arc::new(Transport::new(connector)), host_files: HostFiles::default() }
    }

    /// Returns the session of a sandbox that can write the directory `workspace` of the host.
    pub(crate) fn with_shared_workspace(self, workspace: &Path) -> Session {
        Session { host_files: HostFiles::with_workspace(workspace), ..self }
    }

    /// Starts a command. Dropping the future ends the command.
    pub async fn exec(&self, exec: &Exec) -> Result<Execution, SessionError> {
        Execution::start(self.clone(), exec).await
    }

    /// Attaches to a command that runs already. Dropping the returned execution does not end the
    /// command.
    pub async fn reconnect(&self, pid: u32) -> Result<Execution, SessionError> {
        Execution::find(self.clone(), pid).await
    }

    /// Returns the input handle of a command that runs already and whose input is a pipe.
    pub(crate) fn input(&self, pid: u32) -> ExecutionInput {
        ExecutionInput { session: self.clone(), pid, terminal: Arc::new(OnceLock::from(false)) }
    }

    /// Lists the commands that run.
    pub async fn processes(&self) -> Result<Vec<ListedProcess>, SessionError> {
        let operation = Operation { verb: "list the commands", object: "" };
        let answer: ListResponse =
            self.transport.unary(operation, "/process.Process/List", &EmptyMessage {}).await?;
        Ok(answer.processes)
    }

    /// Returns the files of the sandbox.
    pub fn files(&self) -> SandboxFiles<'_> {
        SandboxFiles { session: self }
    }

    /// Returns the ports of the sandbox.
    pub fn ports(&self) -> SandboxPorts<'_> {
        SandboxPorts { session: self }
    }

    /// Opens another stream to the guest, for a caller that speaks the envd protocol itself.
    pub async fn stream(
        &self,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, SessionError> {
        self.transport.open().await
    }

    /// Waits until the guest answers for the first time, and sets the variables of its commands.
    pub(crate) async fn initialize(
        &self,
        timeout: Duration,
        variables: BTreeMap<String, String>,
    ) -> Result<(), SessionError> {
        self.wait_until_ready(timeout).await?;
        if !variables.is_empty() {
            self.add_variables(variables).await?;
        }
        Ok(())
    }

    /// Adds variables to the environment of every command that is started from now on.
    pub async fn add_variables(
        &self,
        variables: BTreeMap<String, String>,
    ) -> Result<(), SessionError> {
        let operation = Operation { verb: "set the variables of the sandbox", object: "" };
        let _: EmptyMessage =
            self.transport.unary(operation, "/init", &InitRequest { env_vars: variables }).await?;
        Ok(())
    }

    /// Waits until the guest answers for the first time.
    pub(crate) async fn wait_until_ready(&self, timeout: Duration) -> Result<(), SessionError> {
        let deadline = Instant::now() + timeout;
        let mut delay = FIRST_RETRY_DELAY;
        loop {
            let error = match timeout_at(deadline, self.health()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error @ (SessionError::Unreachable { .. } | SessionError::Lost { .. }))) => {
                    error
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(HEALTH_CHECK.no_answer(timeout)),
            };
            if Instant::now() + delay > deadline {
                return Err(error);
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Checks that the guest answers.
    pub async fn health(&self) -> Result<(), SessionError> {
        let request = self
            .transport
            .request(Method::GET, "/health")
            .body(RequestBody::Whole(bytes::Bytes::new()))
            .expect("the target is fixed text");
        let exchange = self.transport.send(HEALTH_CHECK, request).await?.into_body();
        self.transport.return_to_pool(exchange);
        Ok(())
    }
}
