//! Reads files that sandboxed code may have written. This module follows no link, waits for no
//! pipe, and reads no more than a given limit. The functions of [`copy`] copy whole trees of such
//! files.

mod copy;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fstat, seek};

pub use copy::{CopyError, CopyLimits, CopySummary, copy_untrusted};

/// Reads the regular file at `path`, which must not be a link and must not be longer than `limit`.
pub(crate) fn read(path: &Path, limit: u64) -> io::Result<String> {
    read_from(path, 0, limit)
}

/// Reads a file like [`read`], without its first `start` bytes.
pub(crate) fn read_from(path: &Path, start: u64, limit: u64) -> io::Result<String> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if start > 0 {
        seek(&file, SeekFrom::Start(start))?;
    }
    read_text(file, limit)
}

/// Reads the text of an open file from its position on. The file must be a regular file and no
/// longer than `limit`.
pub(crate) fn read_text(file: OwnedFd, limit: u64) -> io::Result<String> {
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    if u64::try_from(stat.st_size).is_ok_and(|size| size > limit) {
        return Err(io::Error::other(format!("it is longer than {limit} bytes")));
    }
    let mut text = String::new();
    File::from(file).take(limit).read_to_string(&mut text)?;
    Ok(text)
}

/// Replaces control characters with spaces, so that the text can be shown on a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_short_regular_file_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs_err::write(path("file"), "text").unwrap();
        fs_err::File::create(path("giant")).unwrap().set_len(1 << 40).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(read(&path("file"), 4).unwrap(), "text");
        assert!(read(&path("file"), 3).is_err());
        for name in ["giant", "link", "pipe", "."] {
            assert!(read(&path(name), 1 << 12).is_err(), "{name}");
        }
    }
}
