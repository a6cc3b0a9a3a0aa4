//! Information for attempts about the host that they try to reach.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Objects on the host that were prepared for attempts to find.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttemptContext {
    /// Files and directories on the host.
    pub paths: HostPaths,
    /// A process outside the sandbox.
    pub neighbour: NeighbourProcess,
    /// Listening sockets outside the sandbox.
    pub network: HostListeners,
    /// Identifier of a System V shared memory segment.
    pub segment: Option<i32>,
    /// Identifier of a System V message queue.
    pub queue: Option<i32>,
    /// Name of a POSIX message queue, of a file in `/dev/shm`, and of a key in the user's keyring.
    pub name: String,
    /// Text that distinguishes the processes of this attempt from those of other attempts.
    pub mark: String,
    /// Environment variables of the caller that the policy does not pass.
    pub variables: Vec<String>,
    /// Number of a descriptor that the caller has open and does not pass.
    pub descriptor: Option<i32>,
}

/// Files and directories on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostPaths {
    /// Workspace of the sandbox.
    pub workspace: PathBuf,
    /// Directory outside the view that holds `secret`, `victim` and `socket`.
    pub outside: PathBuf,
    /// File that the policy allows reading.
    pub readable: PathBuf,
    /// Private file or directory in the caller's home.
    pub private: Option<PathBuf>,
    /// Home directory of another user.
    pub other_home: Option<PathBuf>,
    /// Terminal of the caller, other than the one on which ringfence runs.
    pub terminal: Option<PathBuf>,
    /// Device file of a disk.
    pub disk: Option<PathBuf>,
    /// Program that belongs to root and has its set-user-id bit.
    pub setuid: Option<PathBuf>,
    /// Identity of the host's `/run`, because a sandbox may have a `/run` of its own.
    pub run: Option<DirectoryIdentity>,
    /// Identity of the host's `/var/lib`.
    pub var: Option<DirectoryIdentity>,
}

/// The identity of a directory on a host: the numbers of its device and of its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryIdentity(u64, u64);

/// A process of the caller outside the sandbox, whose working directory is [`HostPaths::outside`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NeighbourProcess {
    /// Process id outside the sandbox.
    pub process: i32,
}

/// Listening sockets on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostListeners {
    /// TCP port on 127.0.0.1.
    pub tcp: u16,
    /// TCP port on ::1.
    pub tcp_v6: Option<u16>,
    /// UDP port on 127.0.0.1.
    pub udp: u16,
    /// Name of an abstract Unix socket.
    pub abstract_name: String,
    /// Address of the host's first name server.
    pub name_server: Option<std::net::IpAddr>,
}

impl DirectoryIdentity {
    /// Returns the identity of the directory at a path.
    pub fn at(path: &Path) -> io::Result<DirectoryIdentity> {
        let found = fs_err::metadata(path)?;
        Ok(DirectoryIdentity(found.dev(), found.ino()))
    }
}

impl HostPaths {
    /// Returns the path of the file outside that must not be read.
    pub fn secret(&self) -> PathBuf {
        self.outside.join("secret")
    }

    /// Returns the path of the file outside that must not be changed.
    pub fn victim(&self) -> PathBuf {
        self.outside.join("victim")
    }
}

/// Contents of the files that must not be read.
pub const SECRET: &str = "the secret of ringfence's proof";
