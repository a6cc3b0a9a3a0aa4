//! Watches on directories, with inotify(7). A watch reports changes to the files in a directory,
//! and in all directories below it if the request is recursive.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::filesystem::{EventType, FilesystemEvent, WatchMessage, WatchRequest};
use ringfence_proto::process::EmptyMessage;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, fstatfs, open};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use crate::connect_protocol::{
    Reply, StreamDeadline, StreamMessage, StreamSender, answer_server_stream,
};
use crate::filesystem::path::{path_failure, resolve};
use crate::filesystem::{DirectoryWalk, describe, run_blocking};
use crate::user::{AccountNames, SandboxUser};

/// Events that are requested for every watched directory.
const ENTRY_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR);
/// Events that are requested for the top directory in addition. For other directories, the watch on
/// the parent directory reports the same changes.
const SELF_EVENTS: WatchFlags = WatchFlags::DELETE_SELF.union(WatchFlags::MOVE_SELF);
/// Maximum number of directories in one watch.
const MAX_DIRECTORIES: usize = 16_384;
/// Number of events after which a batch is handed to the client. A batch can be somewhat larger.
const EVENTS_PER_BATCH: usize = 1_024;
/// Size in bytes of the buffer for read(2). Several hundred events fit.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Magic numbers of the file systems whose files can change without the knowledge of this kernel:
/// NFS, SMB in three versions, 9P, statfs(2). envd lists FUSE, too. FUSE is not listed here,
/// because the root directory of an unprivileged container can be on FUSE.
const NETWORK_FILE_SYSTEMS: [u32; 5] = [0x6969, 0xff53_4d42, 0x517b, 0xfe53_4d42, 0x0102_1997];

impl StreamMessage for WatchMessage {
    fn keepalive() -> WatchMessage {
        WatchMessage::Keepalive(EmptyMessage {})
    }
}

/// Answers `WatchDir`: streams events until the client disconnects or its time limit passes.
pub(crate) async fn stream_events(
    request: Request<Incoming>,
    user: Result<SandboxUser, Failure>,
) -> Reply {
    let method = async move |message: WatchRequest, sender: StreamSender<WatchMessage>| {
        let mut watch = run_blocking(move || DirectoryWatch::start(&message, &user?)).await?;
        let readiness = watch.readiness()?;
        // Results of sending are ignored, because this method is dropped when the client
        // disconnects.
        let _ = sender.send(&WatchMessage::Start(EmptyMessage {})).await;
        loop {
            let mut ready = readiness.readable().await.map_err(|error| watch_failure(&error))?;
            let (drained, happened);
            (watch, drained, happened) = run_blocking(move || {
                let (drained, happened) = watch.read_events()?;
                Ok((watch, drained, happened))
            })
            .await?;
            if drained {
                ready.clear_ready();
            }
            for event in happened {
                let _ = sender.send(&WatchMessage::Filesystem(event)).await;
            }
        }
    };
    answer_server_stream(request, StreamDeadline::EndsTheStream, method).await
}

/// True if all pending events were read.
pub(crate) type QueueDrained = bool;

/// Watch on a directory. Its methods block for a short time.
#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    inotify: Arc<OwnedFd>,
    root: PathBuf,
    /// Watch descriptor of the top directory.
    top: i32,
    recursive: bool,
    include_entry: bool,
    /// Paths of the watched directories relative to `root`, by watch descriptor.
    directories: HashMap<i32, PathBuf>,
    /// Entries of new directories that were reported because a scan found them. The kernel may
    /// report their creation, too.
    announced: HashSet<(i32, OsString)>,
}

impl DirectoryWatch {
    /// Starts a watch on the directory that the request names.
    pub(crate) fn start(
        request: &WatchRequest,
        user: &SandboxUser,
    ) -> Result<DirectoryWatch, Failure> {
        let root = resolve(&request.path, user)?;
        let directory =
            open_directory(&root).map_err(|error| path_failure("watch", &root, &error))?;
        let kind = fstatfs(&directory)
            .map_err(|error| path_failure("watch", &root, &error.into()))?
            .f_type;
        if !request.allow_network_mounts
            && NETWORK_FILE_SYSTEMS.iter().any(|&network| i64::from(network) == kind as i64)
        {
            let message = format!("cannot watch path on network filesystem: {}", root.display());
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(
            |error| match error {
                Errno::MFILE => exhausted_failure("instances", "fs.inotify.max_user_instances"),
                error => watch_failure(&error.into()),
            },
        )?;
        let mut watch = DirectoryWatch {
            inotify: Arc::new(inotify),
            root,
            top: -1,
            recursive: request.recursive,
            include_entry: request.include_entry,
            directories: HashMap::new(),
            announced: HashSet::new(),
        };
        watch.top = watch.add_directory(&directory, PathBuf::new())?;
        if watch.recursive {
            watch.watch_tree(DirectoryWalk::from_directory(directory), Path::new(""), &mut None)?;
        }
        Ok(watch)
    }

    /// Returns a handle that becomes readable when [`DirectoryWatch::read_events`] has events.
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types that lie about their descriptor: `OwnedFd` \
                  does not"
    )]
    pub(crate) fn readiness(&self) -> Result<AsyncFd<Arc<OwnedFd>>, Failure> {
        let readiness =
            AsyncFd::with_interest(Arc::clone(&self.inotify), tokio::io::Interest::READABLE);
        readiness.map_err(|error| watch_failure(&error))
    }

    /// Reads the pending events, about [`EVENTS_PER_BATCH`] at most.
    pub(crate) fn read_events(&mut self) -> Result<(QueueDrained, Vec<FilesystemEvent>), Failure> {
        let inotify = Arc::clone(&self.inotify);
        let mut buffer = vec![MaybeUninit::uninit(); READ_BUFFER_BYTES];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut events = Vec::new();
        let drained = loop {
            // Events in the buffer of the reader are lost when the reader is dropped, so the buffer
            // must be empty.
            if events.len() >= EVENTS_PER_BATCH && reader.is_buffer_empty() {
                break false;
            }
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    self.observe(event.wd(), event.events(), name, &mut events)?;
                }
                Err(Errno::AGAIN) => {
                    self.announced.clear();
                    break true;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(watch_failure(&error.into())),
            }
        };
        if self.include_entry {
            let names = AccountNames::load();
            for event in &mut events {
                event.entry = describe(&self.root.join(&event.name), &names).ok();
            }
        }
        Ok((drained, events))
    }

    fn observe(
        &mut self,
        watch: i32,
        flags: ReadFlags,
        name: Option<&OsStr>,
        events: &mut Vec<FilesystemEvent>,
    ) -> Result<(), Failure> {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Err(Failure::new(
                Code::DataLoss,
                "more happened than the kernel keeps: events were lost",
            ));
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&watch);
            return Ok(());
        }
        let kind = event_type(flags);
        let Some(name) = name else {
            if watch == self.top && kind != EventType::Unspecified {
                events.push(FilesystemEvent { name: ".".to_owned(), kind, entry: None });
            }
            return Ok(());
        };
        let Some(path) = self.directories.get(&watch).map(|directory| directory.join(name)) else {
            return Ok(());
        };
        let was_announced =
            self.announced.remove(&(watch, name.to_owned())) && kind == EventType::Create;
        if !was_announced {
            events.push(change_event(&path, kind));
        }
        if self.recursive && flags.contains(ReadFlags::ISDIR) {
            match kind {
                // Entries that were made before the new directory was watched cause no event, so
                // the scan must report them.
                EventType::Create if flags.contains(ReadFlags::CREATE) => {
                    self.watch_new_directory(&path, &mut Some(events))?
                }
                EventType::Create => self.watch_new_directory(&path, &mut None)?,
                EventType::Rename => self.forget_directory(&path),
                _ => {}
            }
        }
        Ok(())
    }

    /// Watches a directory that appeared below the root. A directory that is gone already is
    /// ignored.
    fn watch_new_directory(
        &mut self,
        path: &Path,
        found: &mut Option<&mut Vec<FilesystemEvent>>,
    ) -> Result<(), Failure> {
        let reached = open_directory(&self.root).and_then(|root| {
            let mut descent = DirectoryWalk::from_directory(root);
            path.iter().try_for_each(|name| descent.enter(name))?;
            Ok(descent)
        });
        match reached {
            Ok(descent) => self.watch_tree(descent, path, found),
            Err(_) => Ok(()),
        }
    }

    /// Watches a directory and all directories below it. Entries that are found there are reported
    /// if `found` is given.
    fn watch_tree(
        &mut self,
        mut descent: DirectoryWalk,
        path: &Path,
        found: &mut Option<&mut Vec<FilesystemEvent>>,
    ) -> Result<(), Failure> {
        let start = descent.depth();
        let mut here = path.to_owned();
        let mut levels = vec![self.watch_level(&descent, &here, found)?];
        while let Some(level) = levels.last_mut() {
            match level.pop() {
                Some(program_name) => {
                    // The directory is gone, replaced or not readable, so nothing in it can be
                    // watched.
                    if descent.enter(&program_name).is_err() {
                        continue;
                    }
                    here.push(program_name);
                    levels.push(self.watch_level(&descent, &here, found)?);
                }
                None => {
                    levels.pop();
                    here.pop();
                    // The directory was moved, which causes an event of its own.
                    if descent.depth() > start && descent.leave().is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Watches one directory, and returns the names of the directories in it. A directory that
    /// cannot be read counts as empty.
    fn watch_level(
        &mut self,
        descent: &DirectoryWalk,
        path: &Path,
        found: &mut Option<&mut Vec<FilesystemEvent>>,
    ) -> Result<Vec<OsString>, Failure> {
        let watch = self.add_directory(descent, path.to_owned())?;
        let mut directories = Vec::new();
        let Ok(entries) = descent.entries() else { return Ok(directories) };
        for (name, hint) in entries.map_while(Result::ok) {
            let name = OsStr::from_bytes(name.to_bytes()).to_owned();
            // A scan can find entries again that an earlier scan reported.
            if let Some(found) = found
                && self.announced.insert((watch, name.clone()))
            {
                found.push(change_event(&path.join(&name), EventType::Create));
            }
            if matches!(hint, FileType::Directory | FileType::Unknown) {
                directories.push(name);
            }
        }
        Ok(directories)
    }

    /// Watches one directory and returns its watch descriptor. A directory that is watched already
    /// keeps its descriptor, and `path` becomes its path.
    fn add_directory(&mut self, directory: impl AsFd, path: PathBuf) -> Result<i32, Failure> {
        if self.directories.len() == MAX_DIRECTORIES {
            let message = format!(
                "`{}` has more than {MAX_DIRECTORIES} directories; watch less",
                self.root.display()
            );
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let flags =
            if path.as_os_str().is_empty() { ENTRY_EVENTS | SELF_EVENTS } else { ENTRY_EVENTS };
        let reached = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
        let watch =
            inotify::add_watch(&*self.inotify, reached, flags).map_err(|error| match error {
                Errno::NOSPC => exhausted_failure("watches", "fs.inotify.max_user_watches"),
                error => path_failure("watch", &self.root.join(&path), &error.into()),
            })?;
        self.directories.insert(watch, path);
        Ok(watch)
    }

    /// Removes the watches on a directory that was moved away, and on all directories below it.
    fn forget_directory(&mut self, path: &Path) {
        let inotify = &self.inotify;
        self.directories.retain(|&watch, directory| {
            let moved = directory.starts_with(path);
            if moved {
                // Ignore the error, because the kernel may have removed the watch.
                let _ = inotify::remove_watch(&**inotify, watch);
            }
            !moved
        });
    }
}

/// Opens the watched directory, which may be given by a symbolic link. The descriptor must not be
/// kept open, because the kernel would not report the removal of an open directory.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn change_event(path: &Path, kind: EventType) -> FilesystemEvent {
    FilesystemEvent { name: path.to_string_lossy().into_owned(), kind, entry: None }
}

fn event_type(flags: ReadFlags) -> EventType {
    if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        EventType::Create
    } else if flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF) {
        EventType::Rename
    } else if flags.intersects(ReadFlags::DELETE | ReadFlags::DELETE_SELF) {
        EventType::Remove
    } else if flags.contains(ReadFlags::MODIFY) {
        EventType::Write
    } else if flags.contains(ReadFlags::ATTRIB) {
        EventType::Chmod
    } else {
        EventType::Unspecified
    }
}

fn exhausted_failure(what: &str, setting: &str) -> Failure {
    let message =
        format!("this user has no more inotify {what}; raise `{setting}` on the host with sysctl");
    Failure::new(Code::ResourceExhausted, message)
}

fn watch_failure(error: &io::Error) -> Failure {
    Failure::new(Code::Internal, format!("cannot watch: {error}"))
}
