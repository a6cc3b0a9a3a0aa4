//! Directories that only their user can enter.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Creates a directory that only its user can enter, and the missing directories above it. A
/// directory that exists stays as it is.
pub fn make_private_directory(directory: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}
