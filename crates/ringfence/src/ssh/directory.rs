//! Files of a sandbox's ssh on the host: a directory in the sandbox's sandbox directory, which is
//! removed with it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::SshError;
use crate::{Sandbox, make_private_directory, write_private_file};

/// Longest wait for another command that works on the same sandbox's server.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two attempts to take the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The server of a sandbox, as it was when it was first started. The key is not read again, because
/// a server that has another key later is not the one that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PinnedServer {
    /// Name that distinguishes the server's directory in the sandbox from all others.
    pub(super) identity: String,
    /// Name of the user that logs in.
    pub(super) user: String,
    /// Public key of the server.
    pub(super) key: String,
    /// Port inside on which the server listens.
    pub(super) port: u16,
}

/// Directory of a sandbox's ssh files on the host.
#[derive(Debug, Clone)]
pub(super) struct SshDirectory {
    pub(super) directory: PathBuf,
}

/// Lock that is held while a server is checked and started.
pub(super) struct ServerLock {
    _lock: OwnedFd,
}

impl SshDirectory {
    pub(super) fn for_sandbox(sandbox: &Sandbox) -> Result<SshDirectory, SshError> {
        let directory = sandbox.directory().join("ssh");
        make_private_directory(&directory).map_err(|source| SshError::File {
            doing: "make the directory",
            path: directory.clone(),
            source,
        })?;
        Ok(SshDirectory { directory })
    }

    /// Waits until no other command works on the same server.
    pub(super) async fn lock(&self) -> Result<ServerLock, SshError> {
        let path = self.directory.join("lock");
        let failed = |source: Errno| SshError::File {
            doing: "lock",
            path: path.clone(),
            source: source.into(),
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(ServerLock { _lock: lock }),
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    tokio::time::sleep(POLL_INTERVAL).await
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Returns the server as it was first started, if it was.
    pub(super) fn pinned(&self) -> Option<PinnedServer> {
        let text = fs_err::read_to_string(self.directory.join("server.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub(super) fn pin(&self, server: &PinnedServer) -> Result<(), SshError> {
        let text = serde_json::to_string(server).expect("a server is made of text and numbers");
        write(&self.directory.join("server.json"), &text)
    }

    /// Returns the port of the host's loopback that leads to the server, if a process serves one.
    pub(super) fn published(&self) -> Option<u16> {
        fs_err::read_to_string(self.directory.join("port")).ok()?.trim().parse().ok()
    }

    pub(super) fn publish(&self, port: u16) -> Result<(), SshError> {
        write(&self.directory.join("port"), &format!("{port}\n"))
    }
}

/// Writes a file that only its owner can read, completely or not at all.
pub(super) fn write(path: &Path, text: &str) -> Result<(), SshError> {
    write_private_file(path, text).map_err(|source| SshError::File {
        doing: "write",
        path: path.to_path_buf(),
        source,
    })
}
