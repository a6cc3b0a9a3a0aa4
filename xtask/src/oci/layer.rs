//! Layers of images: uncompressed tarballs.

use std::io::Write;
use std::path::Path;

use anyhow::Result;

const SHELL_LESS_USERS: &str = "root:x:0:0::/:/bin/false\ndev:x:1000:1000::/:/bin/false\n";

/// Writes the layer of an image without a shell, whose only files are the program `/name` and its
/// users.
pub(crate) fn write_program_layer(to: impl Write, name: &str, program: &Path) -> Result<()> {
    let mut archive = tar::Builder::new(to);
    let program = fs_err::read(program)?;
    for (path, mode, content) in
        [(name, 0o755, program.as_slice()), ("etc/passwd", 0o644, SHELL_LESS_USERS.as_bytes())]
    {
        let mut header = entry_header(tar::EntryType::Regular, mode);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content)?;
    }
    archive.into_inner()?;
    Ok(())
}

/// Returns the header of an empty entry that belongs to root.
pub(crate) fn entry_header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header
}
