//! The service `filesystem.Filesystem`, which works on files by path, with the semantics of envd.
//!
//! All operations use descriptors of open directories, so that a symbolic link that appears
//! meanwhile is not followed. All operations block, so they run on the blocking threads of the
//! runtime.

mod descent;
mod entry;
mod list;
pub(crate) mod metadata;
pub(crate) mod path;
mod relocate;
mod remove;
mod watchers;

use hyper::Request;
use hyper::body::Incoming;
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::filesystem::{
    EntriesResponse, EntryResponse, ListDirRequest, MoveRequest, PathRequest,
};
use ringfence_proto::process::Empty;
use rustix::fs::{Mode, OFlags};
use serde::de::IgnoredAny;

pub(crate) use self::descent::Descent;
pub(crate) use self::entry::{describe, entry};
pub(crate) use self::watchers::Watchers;
use crate::caller;
use crate::connect::{Reply, unary};
use crate::user::{Names, User};
use crate::watch;

/// Answers a call of a method of the service.
pub(crate) async fn call(method: &str, request: Request<Incoming>, watchers: &Watchers) -> Reply {
    let user = caller::user(request.headers());
    match method {
        "Stat" => {
            unary(request, async |message| blocking(move || stat(&message, &user?)).await).await
        }
        "MakeDir" => {
            unary(request, async |message| blocking(move || make(&message, &user?)).await).await
        }
        "Move" => {
            unary(request, async |message| blocking(move || relocate(&message, &user?)).await).await
        }
        "ListDir" => {
            unary(request, async |message| blocking(move || list(&message, &user?)).await).await
        }
        "Remove" => {
            unary(request, async |message| blocking(move || remove(&message, &user?)).await).await
        }
        "WatchDir" => watch::stream(request, user).await,
        "CreateWatcher" => {
            unary(request, async |message| watchers.create(message, user?).await).await
        }
        "GetWatcherEvents" => unary(request, async |message| watchers.events(message).await).await,
        "RemoveWatcher" => unary(request, async |message| watchers.remove(&message)).await,
        _ => {
            let failure = Failure::new(
                Code::Unimplemented,
                format!("the filesystem has no method `{method}`"),
            );
            unary(request, async |_: IgnoredAny| Err::<Empty, _>(failure)).await
        }
    }
}

/// Runs blocking work on a blocking thread of the runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|error| {
        Err(Failure::new(Code::Internal, format!("the guest failed: {error}")))
    })
}

fn stat(request: &PathRequest, user: &User) -> Result<EntryResponse, Failure> {
    let path = path::resolve(&request.path, user)?;
    Ok(EntryResponse { entry: entry::describe(&path, &Names::now())? })
}

fn make(request: &PathRequest, user: &User) -> Result<EntryResponse, Failure> {
    let path = path::resolve(&request.path, user)?;
    let failed = |error: std::io::Error| path::failure("make the directory", &path, &error);
    let place = path::Place::made(&path).map_err(failed)?;
    match rustix::fs::mkdirat(&place.directory, &place.name, Mode::from_raw_mode(0o755)) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => {
            // The entry can change between mkdirat(2) and this openat(2). The answer then describes
            // the entry that openat(2) found; an entry that was removed meanwhile counts as not a
            // directory.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(&place.directory, &place.name, flags, Mode::empty());
            let (code, what) = match directory {
                Ok(_) => (Code::AlreadyExists, "directory already exists"),
                Err(_) => (Code::InvalidArgument, "path already exists but it is not a directory"),
            };
            return Err(Failure::new(code, format!("{what}: {}", path.display())));
        }
        Err(error) => return Err(failed(error.into())),
    }
    Ok(EntryResponse { entry: entry::describe(&path, &Names::now())? })
}

fn relocate(request: &MoveRequest, user: &User) -> Result<EntryResponse, Failure> {
    let source = path::resolve(&request.source, user)?;
    let destination = path::resolve(&request.destination, user)?;
    relocate::relocate(&source, &destination)?;
    Ok(EntryResponse { entry: entry::describe(&destination, &Names::now())? })
}

fn list(request: &ListDirRequest, user: &User) -> Result<EntriesResponse, Failure> {
    let path = path::resolve(&request.path, user)?;
    Ok(EntriesResponse { entries: list::list(&path, request.depth.max(1))? })
}

fn remove(request: &PathRequest, user: &User) -> Result<Empty, Failure> {
    let path = path::resolve(&request.path, user)?;
    remove::remove(&path)?;
    Ok(Empty {})
}
