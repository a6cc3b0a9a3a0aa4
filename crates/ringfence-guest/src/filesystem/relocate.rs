//! `Move`: renames or moves a file.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use ringfence_proto::code::{Code, Failure};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, fchmod, openat, readlinkat, renameat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

use super::path::{NameInDirectory, path_failure};

/// Moves the file at a resolved path to another path. Replaces a file there as rename(2) does, and
/// creates the missing parent directories of the destination.
pub(super) fn relocate(source: &Path, destination: &Path) -> Result<(), Failure> {
    let from =
        NameInDirectory::from_path(source).map_err(|error| path_failure("find", source, &error))?;
    statat(&from.directory, &from.name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| path_failure("find", source, &error.into()))?;
    let to = NameInDirectory::with_parents(destination)
        .map_err(|error| path_failure("make the directory of", destination, &error))?;
    let moved = match renameat(&from.directory, &from.name, &to.directory, &to.name) {
        // The directories of a sandbox are often separate mounts, whereas E2B has one disk.
        Err(Errno::XDEV) => move_across(&from, &to),
        renamed => renamed.map_err(io::Error::from),
    };
    moved.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::XDEV) => {
            let message = format!(
                "cannot move the directory `{}` to another file system at `{}`; copy it and \
                 remove it",
                source.display(),
                destination.display()
            );
            Failure::new(Code::FailedPrecondition, message)
        }
        _ => path_failure(&format!("move `{}` to", source.display()), destination, &error),
    })
}

/// Moves a regular file or a symbolic link to another file system. The copy gets a temporary name
/// in the destination directory first, so that the destination never contains part of a file.
fn move_across(from: &NameInDirectory, to: &NameInDirectory) -> io::Result<()> {
    let stat = statat(&from.directory, &from.name, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut beside = std::ffi::OsString::from(format!(".ringfence-{:016x}-", stat.st_ino));
    beside.push(std::process::id().to_string());
    let copied = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => copy_entry(from, &to.directory, &beside),
        FileType::Symlink => {
            let target = readlinkat(&from.directory, &from.name, Vec::new())?;
            symlinkat(target, &to.directory, &beside).map_err(io::Error::from)
        }
        _ => return Err(Errno::XDEV.into()),
    };
    let placed =
        copied.and_then(|()| Ok(renameat(&to.directory, &beside, &to.directory, &to.name)?));
    if let Err(error) = placed {
        let _ = unlinkat(&to.directory, &beside, AtFlags::empty()); // the copy may not exist
        return Err(error);
    }
    Ok(unlinkat(&from.directory, &from.name, AtFlags::empty())?)
}

fn copy_entry(
    from: &NameInDirectory,
    directory: &OwnedFd,
    name: &std::ffi::OsStr,
) -> io::Result<()> {
    // The file may have been replaced by a FIFO meanwhile, and opening a FIFO must not block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source = openat(from.directory.as_fd(), &from.name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&source)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::XDEV.into());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy = openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?;
    fchmod(&copy, Mode::from_raw_mode(stat.st_mode & 0o777))?;
    let (mut source, mut copy) = (std::fs::File::from(source), std::fs::File::from(copy));
    io::copy(&mut source, &mut copy)?;
    copy.set_modified(source.metadata()?.modified()?)
}
