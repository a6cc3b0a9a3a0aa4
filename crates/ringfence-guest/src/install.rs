//! Copies the guest's program, so that it can run in a container of another image.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use crate::log;

/// Copies the program of this process to `path`, with permission to execute it.
pub(crate) fn install_guest(path: &Path) -> ExitCode {
    match copy_program(path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::write_line(format_args!("error: cannot install the guest: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn copy_program(path: &Path) -> io::Result<()> {
    let mut program = fs_err::File::open("/proc/self/exe")?;
    let mut copy = fs_err::File::create(path)?;
    io::copy(&mut program, &mut copy)?;
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}
