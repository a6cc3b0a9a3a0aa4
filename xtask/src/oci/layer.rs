//! Layers of images: uncompressed tarballs.

use std::io::Write;
use std::path::Path;

use anyhow::Result;

const SHELL_LESS_USERS: &str = "root:x:0:0::/:/bin/false\ndev:x:1000:1000::/:/bin/false\n";

/// Writes the layer of an image without a shell, whose only files are the program `/name` and its
/// users.
pub(crate) fn write_program_layer(to: impl Write, name: &str, program: &Path) -> Result<()> {
    let mut archive = tar::Builder::new(to);
    let directory = &mut entry_header(tar::EntryType::Directory, 0o755);
    archive.append_data(directory, "etc", std::io::empty())?;
    let program = fs_err::read(program)?;
    for (path, mode, content) in
        [("etc/passwd", 0o644, SHELL_LESS_USERS.as_bytes()), (name, 0o755, program.as_slice())]
    {
        let mut header = entry_header(tar::EntryType::Regular, mode);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content)?;
    }
    archive.into_inner()?;
    Ok(())
}

/// Returns the header of an empty entry. The entry belongs to root and has no time.
pub(crate) fn entry_header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_depends_only_on_the_name_and_the_content_of_its_program() {
        let directory = tempfile::tempdir().unwrap();
        let write = |file: &str, content: &str| {
            let program = directory.path().join(file);
            fs_err::write(&program, content).unwrap();
            let mut layer = Vec::new();
            write_program_layer(&mut layer, "tool", &program).unwrap();
            layer
        };
        let layer = write("built", "a program");
        assert_eq!(layer, write("built-elsewhere", "a program"));
        assert_ne!(layer, write("built", "another one"));

        let mut archive = tar::Archive::new(layer.as_slice());
        let entry = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 0));
            (entry.path().unwrap().to_string_lossy().into_owned(), header.mode().unwrap())
        };
        let entries: Vec<_> = archive.entries().unwrap().map(entry).collect();
        let expected = [("etc", 0o755), ("etc/passwd", 0o644), ("tool", 0o755)];
        assert_eq!(entries, expected.map(|(path, mode)| (path.to_owned(), mode)));
    }
}
