//! Access by ssh: an sshd inside, which runs as the sandbox's own user, and the configuration of a
//! client on the host.
//!
//! The server listens on the sandbox's loopback alone and is reached through the guest. Therefore
//! it works with every network, even a closed one. Only keys of the caller are accepted. The
//! server's key is read once, when the server is first started, and kept on the host. The client
//! refuses a server that has another key later. Everything that the sandbox reports about itself is
//! checked before it becomes part of a client's configuration. The client offers nothing of its own
//! to the sandbox: no agent, no display, and no forwarding that was not asked for.
//!
//! Start with [`prepare`]. `keys` reads the caller's keys, `server` runs the server in the sandbox,
//! `client` writes the configuration of ssh, and `directory` holds the files on the host.

mod client;
mod directory;
mod keys;
mod server;

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_core::Fault;
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::session::{PortStream, SessionError};
use crate::{Host, Name, Sandbox};

pub use client::{SshAccess, forget, sweep};
use directory::{PinnedServer, SshDirectory};

/// Highest number of connections that are forwarded at once; further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// Pause before the next attempt when the process has no descriptor left for a connection.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Reason why a sandbox cannot be reached by ssh.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SshError {
    /// The caller has no public key.
    #[error(
        "cannot allow ssh logins to the sandbox: there is no public key in the ssh-agent or in \
         `~/.ssh`"
    )]
    NoKeys,
    /// There is no sshd inside.
    #[error("there is no sshd in the sandbox `{name}`")]
    NoServer {
        /// Name of the sandbox.
        name: Name,
    },
    /// Commands run as root inside.
    #[error("sshd is not run as root, and the commands of the sandbox `{name}` are")]
    Root {
        /// Name of the sandbox.
        name: Name,
    },
    /// The user that commands run as has no name inside.
    #[error(
        "nobody can log into the sandbox `{name}`: the user that its commands run as has no name \
         there"
    )]
    NoName {
        /// Name of the sandbox.
        name: Name,
    },
    /// The account of the user that commands run as is locked inside.
    #[error(
        "nobody can log into the sandbox `{name}`: the account of the user that its commands run \
         as is locked there"
    )]
    Locked {
        /// Name of the sandbox.
        name: Name,
    },
    /// The server does not start.
    #[error("sshd does not start in the sandbox `{name}`: {words}")]
    Start {
        /// Name of the sandbox.
        name: Name,
        /// Last lines of the server's output.
        words: String,
    },
    /// The sandbox's report about itself is invalid.
    #[error("the sandbox `{name}` reports invalid data about its {what}")]
    Nonsense {
        /// Name of the sandbox.
        name: Name,
        /// Part of the report that is invalid.
        what: &'static str,
    },
    /// No free port was found.
    #[error("cannot find a free port on 127.0.0.1")]
    Port {
        /// Error of the failed bind.
        source: io::Error,
    },
    /// The path cannot be named in a configuration of ssh.
    #[error(
        "cannot name `{path}` in a configuration of ssh: it has a quote, a dollar sign or a \
         control character in it",
        path = path.display()
    )]
    Unquotable {
        /// Path on the host.
        path: PathBuf,
    },
    /// A file with the name of the alias exists, and ringfence did not make it.
    #[error("`{path}` exists already, and ringfence did not make it", path = path.display())]
    NotOurs {
        /// Path of the file.
        path: PathBuf,
    },
    /// A file on the host could not be read or written.
    #[error("cannot {doing} `{path}`", path = path.display())]
    File {
        /// Operation that was tried on the file.
        doing: &'static str,
        /// Path on the host.
        path: PathBuf,
        /// Error of the failed file operation.
        source: io::Error,
    },
    /// A call to the guest failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl SshError {
    /// Returns whose move it is after this error.
    pub fn fault(&self) -> Fault {
        match self {
            SshError::NoKeys
            | SshError::NoServer { .. }
            | SshError::Root { .. }
            | SshError::NoName { .. } => Fault::User,
            SshError::Locked { .. } | SshError::Unquotable { .. } | SshError::NotOurs { .. } => {
                Fault::User
            }
            SshError::Port { .. } | SshError::File { .. } => Fault::Host,
            SshError::Start { .. } | SshError::Nonsense { .. } => Fault::Backend,
            SshError::Session(error) => error.fault(),
        }
    }

    /// Returns the next commands to type.
    pub fn hints(&self) -> Vec<String> {
        let enter = |name: &Name| format!("without ssh: ringfence enter {name}");
        match self {
            SshError::NoKeys => vec!["make one: ssh-keygen -t ed25519".to_owned()],
            SshError::NoServer { name } => {
                vec![
                    format!("the dev image has one: ringfence up {name} --container --replace"),
                    enter(name),
                ]
            }
            SshError::Root { name } => {
                vec!["start the sandbox as an ordinary user".to_owned(), enter(name)]
            }
            SshError::NoName { name } => {
                vec![
                    "use an image whose /etc/passwd names the user, as the dev image does"
                        .to_owned(),
                    enter(name),
                ]
            }
            SshError::Locked { name } => {
                vec![
                    "in its image, as the dev image does: useradd --password '*', instead of none"
                        .to_owned(),
                    enter(name),
                ]
            }
            SshError::Start { name, .. } => vec![enter(name)],
            SshError::Nonsense { name, .. } => vec![format!(
                "a process in the sandbox may pose as one of its programs; replace it: ringfence \
                 up {name} --replace"
            )],
            SshError::Port { .. } => vec!["list the ports in use: ss -ltn".to_owned()],
            SshError::Unquotable { .. } => {
                vec!["export XDG_STATE_HOME=/a/plain/directory".to_owned()]
            }
            SshError::NotOurs { path } => {
                vec![format!("move it away: mv '{0}' '{0}.old'", path.display())]
            }
            SshError::File { path, .. } => {
                let directory = path.parent().unwrap_or(path);
                vec![format!("check its owner and permissions: ls -ld '{}'", directory.display())]
            }
            SshError::Session(error) => error.hints(),
        }
    }
}

/// Makes sure that a server runs inside that accepts the caller's keys, and returns how it is
/// reached.
pub async fn prepare(sandbox: &Sandbox, host: &Host) -> Result<SshAccess, SshError> {
    let keys = keys::caller_keys(host).await;
    if keys.is_empty() {
        return Err(SshError::NoKeys);
    }
    let ssh_directory = SshDirectory::for_sandbox(sandbox)?;
    let _lock = ssh_directory.lock().await?;
    let server = server::ensure_running(sandbox, &ssh_directory, &keys).await?;
    SshAccess::new(sandbox, host, ssh_directory, server)
}

/// Connects to the server in the sandbox, and starts it if it does not run.
pub async fn connect(sandbox: &Sandbox, host: &Host) -> Result<PortStream, SshError> {
    if let Some(PinnedServer { port, .. }) = SshDirectory::for_sandbox(sandbox)?.pinned() {
        match sandbox.ports().connect(port).await {
            Err(SessionError::PortClosed { .. }) => {}
            answer => return Ok(answer?),
        }
    }
    let access = prepare(sandbox, host).await?;
    Ok(sandbox.ports().connect(access.port).await?)
}

/// Binds a port of the host's loopback for a sandbox, and records it for [`prepare`].
pub async fn listen(sandbox: &Sandbox) -> Result<TcpListener, SshError> {
    let failed = |source| SshError::Port { source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    SshDirectory::for_sandbox(sandbox)?.publish(listener.local_addr().map_err(failed)?.port())?;
    Ok(listener)
}

/// Forwards connections to the server in the sandbox, until this future is dropped. Clients of this
/// port need a key, as all clients do.
pub async fn serve(sandbox: &Sandbox, host: &Host, listener: TcpListener) {
    let mut carried = JoinSet::new();
    loop {
        while carried.try_join_next().is_some() {}
        if carried.len() >= MAX_CONNECTIONS {
            carried.join_next().await;
        }
        let Ok((mut outside, _)) = listener.accept().await else {
            // accept(2) failed because the client is gone or a limit is reached. The listener
            // itself stays usable.
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let (sandbox, host) = (sandbox.clone(), host.clone());
        carried.spawn(async move {
            match connect(&sandbox, &host).await {
                Ok(mut inside) => {
                    // Either side may just hang up.
                    let _ = copy_bidirectional(&mut outside, &mut inside).await;
                }
                Err(error) => tracing::warn!(
                    error = crate::chain(&error),
                    "an ssh connection was not forwarded"
                ),
            }
        });
    }
}
