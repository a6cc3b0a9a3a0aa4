//! Prepares what the attempts look for on the host: a process, listeners, shared memory, keys, and
//! things that the host has anyway.

use std::ffi::{CString, OsString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use fs_err as fs;
use ringfence_attempts::{
    AttemptContext, DirectoryIdentity, HostListeners, HostPaths, NeighbourProcess, SECRET,
};
use ringfence_core::Policy;
use ringfence_linux::sys::attempt::{MessageQueue, NamedMessageQueue, SharedSegment, UserKey};
use rustix::pty::OpenptFlags;

use super::tree::AttemptTree;
use crate::backends::PrivateDirectory;
use crate::{Engine, Host};

/// Programs that have the set-user-id bit on most hosts.
const SETUID_PROGRAMS: [&str; 6] = [
    "/usr/bin/su",
    "/bin/su",
    "/usr/bin/mount",
    "/usr/bin/passwd",
    "/usr/bin/sudo",
    "/usr/bin/newgrp",
];
/// Names of private files and directories of a home that are never part of a toolchain.
const PRIVATE_NAMES: [&str; 9] = [
    ".ssh",
    ".aws",
    ".gnupg",
    ".netrc",
    ".bash_history",
    ".config",
    ".profile",
    ".bashrc",
    ".cache",
];
/// Variables that a sandbox has under the same name as the caller.
const KEPT_VARIABLES: [&str; 8] =
    ["PATH", "HOME", "USER", "LOGNAME", "LANG", "TERM", "COLORTERM", "GIT_CONFIG_NOSYSTEM"];

/// The things that exist on the host while the attempts are made.
#[derive(Debug)]
pub(super) struct HostScene {
    context: AttemptContext,
    directory: PrivateDirectory,
    count: AtomicU32,
    neighbour: Child,
    /// A file that is open in this process and not closed on exec.
    inherited: fs::File,
    shared_memory: PathBuf,
    _listeners: (TcpListener, Option<TcpListener>, UdpSocket, UnixListener),
    _segment: Option<SharedSegment>,
    _queues: (Option<MessageQueue>, Option<NamedMessageQueue>),
    _key: Option<UserKey>,
    _terminal: Option<OwnedFd>,
}

impl HostScene {
    pub(super) fn prepare(engine: &Engine, policy: &Policy) -> io::Result<HostScene> {
        let host = &engine.settings().host;
        let directory = PrivateDirectory::create(host.user_id)?;
        let name = format!("ringfence-prove-{}", std::process::id());

        let home_of_neighbour = directory.path().join("neighbour");
        fs::create_dir(&home_of_neighbour)?;
        fs::write(home_of_neighbour.join("secret"), SECRET)?;
        let inherited = fs::File::open(home_of_neighbour.join("secret"))?;
        let neighbour = std::process::Command::new("sleep")
            .arg("600")
            .current_dir(&home_of_neighbour)
            .stdin(Stdio::from(inherited.try_clone()?.into_file()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty())?;

        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let tcp_v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).ok();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let shared_memory = Path::new("/dev/shm").join(&name);
        let _ = fs::write(&shared_memory, SECRET); // without `/dev/shm` the attempt finds nothing
        // A kernel may lack any of these. Then the attempt reports that it is impossible.
        let segment = SharedSegment::create().ok();
        let queue = MessageQueue::create().ok();
        let label = CString::new(name.clone()).map_err(io::Error::other)?;
        let named_queue = CString::new(format!("/{name}"))
            .map_err(io::Error::other)
            .and_then(NamedMessageQueue::create)
            .ok();
        let key = UserKey::add(&label, SECRET.as_bytes()).ok();

        let terminal =
            rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
                .ok();

        let context = AttemptContext {
            paths: HostPaths {
                private: find_private_path(host),
                other_home: find_other_home(host),
                terminal: terminal.as_ref().and_then(|master| terminal_name(master).ok()),
                disk: find_disk(),
                setuid: find_setuid_program(),
                run: DirectoryIdentity::at(Path::new("/run")).ok(),
                var: DirectoryIdentity::at(Path::new("/var/lib")).ok(),
                ..HostPaths::default()
            },
            neighbour: NeighbourProcess {
                process: i32::try_from(neighbour.id()).map_err(io::Error::other)?,
            },
            network: HostListeners {
                tcp: tcp.local_addr()?.port(),
                tcp_v6: tcp_v6
                    .as_ref()
                    .and_then(|listener| listener.local_addr().ok())
                    .map(|address| address.port()),
                udp: udp.local_addr()?.port(),
                abstract_name: name.clone(),
                name_server: find_name_server(),
            },
            segment: segment.as_ref().map(SharedSegment::id),
            queue: queue.as_ref().map(MessageQueue::id),
            name,
            mark: String::new(),
            variables: unpassed_variables(host, policy),
            descriptor: Some(inherited.as_raw_fd()),
        };
        Ok(HostScene {
            context,
            directory,
            count: AtomicU32::new(0),
            neighbour,
            inherited,
            shared_memory,
            _listeners: (tcp, tcp_v6, udp, unix),
            _segment: segment,
            _queues: (queue, named_queue),
            _key: key,
            _terminal: terminal,
        })
    }

    /// Creates the files for one attempt, and returns them with the attempt's context.
    pub(super) fn prepare_attempt(&self) -> io::Result<(AttemptTree, AttemptContext)> {
        let tree = AttemptTree::create(self.directory.path().join(self.next_number().to_string()))?;
        let context = self.context(&tree);
        Ok((tree, context))
    }

    /// Returns the context of an attempt that looks for the files of `tree`.
    pub(super) fn context(&self, tree: &AttemptTree) -> AttemptContext {
        let mut context = self.context.clone();
        context.mark = format!("{}-{}", context.name, self.next_number());
        context.paths.workspace = tree.workspace();
        context.paths.outside = tree.outside();
        context.paths.readable = tree.readable();
        context
    }

    fn next_number(&self) -> u32 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the file that attempts try to reach by an inherited descriptor.
    pub(super) fn inherited(&self) -> &fs::File {
        &self.inherited
    }
}

impl Drop for HostScene {
    fn drop(&mut self) {
        let _ = self.neighbour.kill(); // an attempt may have ended the process
        let _ = self.neighbour.wait(); // an attempt may have ended the process
        let _ = fs::remove_file(&self.shared_memory); // the host may lack `/dev/shm`
    }
}

/// Returns the names of the caller's variables that a sandbox must not have. Variables whose value
/// is an absolute path are left out, because those of toolchains are passed.
fn unpassed_variables(host: &Host, policy: &Policy) -> Vec<String> {
    let named = |name: &str| policy.env.pass.iter().flatten().any(|passed| passed == name);
    let is_kept = |name: &str| {
        KEPT_VARIABLES.contains(&name) || named(name) || policy.env.set.contains_key(name)
    };
    let variables = host.variables.iter().filter(|(_, value)| !Path::new(value).is_absolute());
    variables
        .filter_map(|(name, _)| name.to_str())
        .filter(|name| !is_kept(name))
        .map(str::to_owned)
        .collect()
}

fn find_private_path(host: &Host) -> Option<PathBuf> {
    let home = host.home.as_ref()?;
    PRIVATE_NAMES.iter().map(|name| home.join(name)).find(|path| path.exists())
}

fn find_other_home(host: &Host) -> Option<PathBuf> {
    let homes = fs::read_dir("/home").ok()?.flatten().map(|entry| entry.path());
    let is_other = |path: &PathBuf| Some(path) != host.home.as_ref();
    let has_entries =
        |path: &PathBuf| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    homes.chain([PathBuf::from("/root")]).filter(is_other).find(has_entries)
}

fn terminal_name(master: &OwnedFd) -> io::Result<PathBuf> {
    rustix::pty::grantpt(master)?;
    rustix::pty::unlockpt(master)?;
    let name = rustix::pty::ptsname(master, Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(name.into_bytes())))
}

fn find_disk() -> Option<PathBuf> {
    let names = fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.file_name());
    let is_readable = |path: &PathBuf| {
        let mut byte = [0];
        fs::File::open(path)
            .and_then(|mut disk| io::Read::read(&mut disk, &mut byte))
            .is_ok_and(|length| length > 0)
    };
    names.map(|name| Path::new("/dev").join(name)).find(is_readable)
}

fn find_setuid_program() -> Option<PathBuf> {
    let is_setuid = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|file| file.uid() == 0 && file.permissions().mode() & 0o4000 != 0)
    };
    SETUID_PROGRAMS.iter().map(PathBuf::from).find(is_setuid)
}

fn find_name_server() -> Option<IpAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").ok()?;
    text.lines()
        .filter_map(|line| line.strip_prefix("nameserver"))
        .find_map(|address| address.trim().parse().ok())
}
