//! `ListDir`: lists a directory to a given depth, in sorted order.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use ringfence_proto::code::{Code, Failure};
use ringfence_proto::filesystem::EntryInfo;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::path::path_failure;
use super::{DirectoryWalk, describe_at};
use crate::user::AccountNames;

/// Maximum number of entries in a listing. Nobody reads a longer listing, and its message could
/// exceed the maximum length.
const MAX_LISTED_ENTRIES: usize = 20_000;

/// Lists the directory at a resolved path, which may be a symbolic link to a directory. Links in
/// the directory are listed, not followed.
pub(super) fn list(path: &Path, depth: u32) -> Result<Vec<EntryInfo>, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = match openat(CWD, path, flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOTDIR) => {
            let message = format!("path is not a directory: {}", path.display());
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        Err(error) => return Err(path_failure("list the directory", path, &error.into())),
    };
    let failed = |error: io::Error| path_failure("list the directory", path, &error);
    let too_many = || {
        let message = format!(
            "`{}` has more than {MAX_LISTED_ENTRIES} entries; list less of it, or less deep",
            path.display()
        );
        Failure::new(Code::ResourceExhausted, message)
    };

    let names = AccountNames::load();
    let mut entries = Vec::new();
    let mut descent = DirectoryWalk::from_directory(directory);
    let mut here = path.to_owned();
    let mut levels = vec![descent.names(MAX_LISTED_ENTRIES).map_err(failed)?.into_iter()];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.next() else {
            levels.pop();
            if descent.leave().map_err(failed)? {
                here.pop();
            }
            continue;
        };
        if entries.len() == MAX_LISTED_ENTRIES {
            return Err(too_many());
        }
        here.push(&name);
        let found = describe_at(descent.as_fd(), &name, &here, &names);
        match found {
            Ok(found) => entries.push(found),
            // The file was removed since its directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                here.pop();
                continue;
            }
            Err(error) => return Err(failed(error)),
        }
        let deeper = levels.len() < depth as usize && is_directory(&entries);
        if deeper && descent.enter(&name).is_ok() {
            levels.push(descent.names(MAX_LISTED_ENTRIES).map_err(failed)?.into_iter());
        } else {
            // The requested depth is reached, or the entry is not a directory that can be read. The
            // entry itself is listed.
            here.pop();
        }
    }
    Ok(entries)
}

fn is_directory(entries: &[EntryInfo]) -> bool {
    entries.last().is_some_and(|entry| {
        entry.kind == ringfence_proto::filesystem::FileType::Directory && !entry.is_symlink
    })
}
