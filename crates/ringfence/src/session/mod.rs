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
//! [`files`] and [`tree`] for files, and [`ports`] for ports.

mod capture;
mod connector;
mod error;
mod exec;
mod execution;
mod files;
mod idle_connections;
mod input;
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

pub use capture::Captured;
#[cfg(test)]
pub(crate) use connector::GuestStream;
pub(crate) use connector::{GuestConnector, SOCKET, UnixConnector, listen_in};
pub use error::SessionError;
pub use exec::{Exec, Input, Leftovers};
pub use execution::{Ended, Execution};
pub use files::{Files, Reach, Watch};
pub use idle_connections::{IdleConnectionState, IdleConnections};
pub use input::ExecutionInput;
pub use ports::{PortStream, Ports};
pub use tree::{LeftOut, Transferred};

use error::What;
use transport::{Outgoing, Transport};
use tree::Here;

/// Name of a health check in errors.
const HEALTH: What<'static> = What { verb: "ask for the guest's health", of: "" };
/// First pause between two attempts to reach a guest that does not answer yet, and the longest
/// pause (`LONGEST_PAUSE`).
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The host's end of the stream to a sandbox's guest. Clones share their connections, and calls can
/// be made concurrently.
///
/// The calls need a tokio runtime with time and I/O enabled.
#[derive(Debug, Clone)]
pub struct Session {
    transport: Arc<Transport>,
    here: Here,
}

impl Session {
    /// Returns a session with the guest that `connector` leads to.
    pub(crate) fn new(connector: Arc<dyn GuestConnector>) -> Session {
        Session { transport: Arc::new(Transport::new(connector)), here: Here::default() }
    }

    /// Returns the session of a sandbox that can write the directory `workspace` of the host.
    pub(crate) fn sharing(self, workspace: &Path) -> Session {
        Session { here: Here::with(workspace), ..self }
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
        let what = What { verb: "list the commands", of: "" };
        let answer: ListResponse =
            self.transport.unary(what, "/process.Process/List", &EmptyMessage {}).await?;
        Ok(answer.processes)
    }

    /// Returns the files of the sandbox.
    pub fn files(&self) -> Files<'_> {
        Files { session: self }
    }

    /// Returns the ports of the sandbox.
    pub fn ports(&self) -> Ports<'_> {
        Ports { session: self }
    }

    /// Opens another stream to the guest, for a caller that speaks the envd protocol itself.
    pub async fn stream(
        &self,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, SessionError> {
        self.transport.open().await
    }

    /// Waits until the guest answers for the first time, and sets the variables of its commands.
    pub(crate) async fn greet(
        &self,
        patience: Duration,
        variables: BTreeMap<String, String>,
    ) -> Result<(), SessionError> {
        self.up(patience).await?;
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
        let what = What { verb: "give the sandbox its variables", of: "" };
        let _: EmptyMessage =
            self.transport.unary(what, "/init", &InitRequest { env_vars: variables }).await?;
        Ok(())
    }

    /// Waits until the guest answers for the first time.
    pub(crate) async fn up(&self, patience: Duration) -> Result<(), SessionError> {
        let deadline = Instant::now() + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match timeout_at(deadline, self.health()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error @ (SessionError::Unreachable { .. } | SessionError::Lost { .. }))) => {
                    error
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(HEALTH.silent(patience)),
            };
            if Instant::now() + pause > deadline {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Checks that the guest answers.
    pub async fn health(&self) -> Result<(), SessionError> {
        let request = self
            .transport
            .request(Method::GET, "/health")
            .body(Outgoing::Whole(bytes::Bytes::new()))
            .expect("the target is fixed text");
        let exchange = self.transport.send(HEALTH, request).await?.into_body();
        self.transport.keep(exchange);
        Ok(())
    }
}
