//! What an attempt is told about the host it tries to reach.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What was laid out on the host for an attempt to find.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// Files.
    pub paths: Paths,
    /// A process outside.
    pub neighbour: Neighbour,
    /// Listeners outside.
    pub network: Network,
    /// A System V shared memory segment.
    pub segment: Option<i32>,
    /// A System V message queue.
    pub queue: Option<i32>,
    /// A name: of a POSIX message queue, of a file in `/dev/shm`, of a key in the user's keyring.
    pub name: String,
    /// Tells the processes of this attempt from those of others.
    pub mark: String,
    /// Variables of the caller that the policy does not pass.
    pub variables: Vec<String>,
    /// A descriptor that the caller has open and does not pass.
    pub descriptor: Option<i32>,
}

/// Files and directories on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Paths {
    /// The workspace.
    pub workspace: PathBuf,
    /// A directory outside the view, which holds `secret`, `victim` and `socket`.
    pub outside: PathBuf,
    /// A file that the policy lets be read.
    pub readable: PathBuf,
    /// Something private in the caller's home.
    pub private: Option<PathBuf>,
    /// The home of somebody else.
    pub other_home: Option<PathBuf>,
    /// A terminal of the caller, other than the one that ringfence runs on.
    pub terminal: Option<PathBuf>,
    /// A disk.
    pub disk: Option<PathBuf>,
    /// A program that belongs to root and has its set-user-id bit.
    pub setuid: Option<PathBuf>,
    /// The host's `/run`: a sandbox may have one of its own.
    pub run: Option<Directory>,
    /// The host's `/var/lib`.
    pub var: Option<Directory>,
}

/// A directory, by what tells it from all others on a host: the numbers of its device and of its inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory(u64, u64);

/// A process of the caller outside the sandbox, whose directory is [`Paths::outside`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    /// Its id.
    pub process: i32,
}

/// What listens on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// A TCP port on 127.0.0.1.
    pub tcp: u16,
    /// A TCP port on ::1.
    pub tcp_v6: Option<u16>,
    /// A UDP port on 127.0.0.1.
    pub udp: u16,
    /// The name of an abstract Unix socket.
    pub abstract_name: String,
    /// The first name server.
    pub name_server: Option<std::net::IpAddr>,
}

impl Directory {
    /// Which one is at a path.
    pub fn at(path: &Path) -> io::Result<Directory> {
        let found = fs_err::metadata(path)?;
        Ok(Directory(found.dev(), found.ino()))
    }
}

impl Paths {
    /// The file outside that must not be read.
    pub fn secret(&self) -> PathBuf {
        self.outside.join("secret")
    }

    /// The file outside that must not be changed.
    pub fn victim(&self) -> PathBuf {
        self.outside.join("victim")
    }
}

/// What the files that must not be read say.
pub const SECRET: &str = "the secret of ringfence's proof";
