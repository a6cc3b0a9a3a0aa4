//! The service `filesystem.Filesystem`, which works on files by path, with the semantics of envd.
//!
//! All operations use descriptors of open directories, so that a symbolic link that appears
//! meanwhile is not followed. All operations block, so they run on the blocking threads of the
//! runtime.

mod directory_walk;
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
use ringfence_proto::process::EmptyMessage;
use rustix::fs::{Mode, OFlags};
use serde::de::IgnoredAny;

pub(crate) use self::directory_walk::DirectoryWalk;
pub(crate) use self::entry::{describe, describe_at};
pub(crate) use self::watchers::WatcherTable;
use crate::authentication;
use crate::connect_protocol::{Reply, answer_unary};
use crate::user::{AccountNames, SandboxUser};
use crate::watch;

/// Answers a call of a method of the service.
pub(crate) async fn answer_call(
    method: &str,
    request: Request<Incoming>,
    watchers: &WatcherTable,
) -> Reply {
    let user = authentication::requested_user(request.headers());
    match method {
        "Stat" => {
            answer_unary(request, async |message| {
                run_blocking(move || stat_path(&message, &user?)).await
            })
            .await
        }
        "MakeDir" => {
            answer_unary(request, async |message| {
                run_blocking(move || make_directory(&message, &user?)).await
            })
            .await
        }
        "Move" => {
            answer_unary(request, async |message| {
                run_blocking(move || relocate_path(&message, &user?)).await
            })
            .await
        }
        "ListDir" => {
            answer_unary(request, async |message| {
                run_blocking(move || list_directory(&message, &user?)).await
            })
            .await
        }
        "Remove" => {
            answer_unary(request, async |message| {
                run_blocking(move || remove_path(&message, &user?)).await
            })
            .await
        }
        "WatchDir" => watch::stream_events(request, user).await,
        "CreateWatcher" => {
            answer_unary(request, async |message| watchers.create(message, user?).await).await
        }
        "GetWatcherEvents" => {
            answer_unary(request, async |message| watchers.events(message).await).await
        }
        "RemoveWatcher" => answer_unary(request, async |message| watchers.remove(&message)).await,
        _ => {
            let failure = Failure::new(
                Code::Unimplemented,
                format!("the filesystem has no method `{method}`"),
            );
            answer_unary(request, async |_: IgnoredAny| Err::<EmptyMessage, _>(failure)).await
        }
    }
}

/// Runs blocking work on a blocking thread of the runtime.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|error| {
        Err(Failure::new(Code::Internal, format!("the guest failed: {error}")))
    })
}

fn stat_path(request: &PathRequest, user: &SandboxUser) -> Result<EntryResponse, Failure> {
    let path = path::resolve(&request.path, user)?;
    Ok(EntryResponse { entry: entry::describe(&path, &AccountNames::load())? })
}

fn make_directory(request: &PathRequest, user: &SandboxUser) -> Result<EntryResponse, Failure> {
    let path = path::resolve(&request.path, user)?;
    let failed = |error: std::io::Error| path::path_failure("make the directory", &path, &error);
    let place = path::NameInDirectory::with_parents(&path).map_err(failed)?;
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
    Ok(EntryResponse { entry: entry::describe(&path, &AccountNames::load())? })
}

fn relocate_path(request: &MoveRequest, user: &SandboxUser) -> Result<EntryResponse, Failure> {
    let source = path::resolve(&request.source, user)?;
    let destination = path::resolve(&request.destination, user)?;
    relocate::relocate(&source, &destination)?;
    Ok(EntryResponse { entry: entry::describe(&destination, &AccountNames::load())? })
}

fn list_directory(
    request: &ListDirRequest,
    user: &SandboxUser,
) -> Result<EntriesResponse, Failure> {
    let path = path::resolve(&request.path, user)?;
    Ok(EntriesResponse { entries: list::list(&path, request.depth.max(1))? })
}

fn remove_path(request: &PathRequest, user: &SandboxUser) -> Result<EmptyMessage, Failure> {
    let path = path::resolve(&request.path, user)?;
    remove::remove(&path)?;
    Ok(EmptyMessage {})
}
