//! Directories that only their user can enter, and files that only their user can read.

use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use fs_err::os::unix::fs::OpenOptionsExt;

/// Creates a directory that only its user can enter, and the missing directories above it. A
/// directory that exists stays as it is.
pub fn make_private_directory(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Writes a file that only its user can read, completely or not at all.
pub fn write_private_file(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let mut options = fs_err::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&temporary).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs_err::rename(&temporary, path)).inspect_err(|_| {
        let _ = fs_err::remove_file(&temporary); // the first error says more
    })
}
