//! `cargo xtask oci`: writes the images of ringfence as archives, without a container engine.
//!
//! The test cluster gets its images from the same writer.

mod image;
mod layer;

use std::path::{Path, PathBuf};

use anyhow::Result;

pub(crate) use self::image::OciImage;
pub(crate) use self::layer::{entry_header, write_program_layer};
use crate::arguments::ChoreArguments;
use crate::dist;
use crate::workspace::Workspace;

/// Labels of the images of ringfence.
const LABELS: &[&str] = &[
    concat!("LABEL org.opencontainers.image.version=", env!("CARGO_PKG_VERSION")),
    concat!("LABEL org.opencontainers.image.source=", env!("CARGO_PKG_REPOSITORY")),
    concat!("LABEL org.opencontainers.image.licenses=", env!("CARGO_PKG_LICENSE")),
];

/// An image of ringfence. Its only program is its entry point, and the name of its archive.
struct ReleaseImage {
    name: &'static str,
    program: &'static str,
}

/// Image from which pods of the Kubernetes backend copy the guest.
const GUEST: ReleaseImage = ReleaseImage {
    name: concat!("ringfence-guest:", env!("CARGO_PKG_VERSION")),
    program: "ringfence-guest",
};
/// Image of the sweeper of the Kubernetes backend.
const SERVER: ReleaseImage =
    ReleaseImage { name: concat!("ringfence:", env!("CARGO_PKG_VERSION")), program: "ringfence" };

pub(crate) fn run(workspace: &Workspace, arguments: ChoreArguments) -> Result<()> {
    arguments.end(&[])?;
    let server = dist::build(workspace)?;
    let guest = dist::embedded_guest(workspace)?;
    let directory = workspace.root.join("dist/oci");
    fs_err::create_dir_all(&directory)?;
    for (image, program) in [(GUEST, guest), (SERVER, server)] {
        let (archive, digest) = image.write_archive(&program, &directory)?;
        let size = fs_err::metadata(&archive)?.len() as f64 / 1e6;
        println!("{}: {}, {size:.2} MB, {digest}", archive.display(), image.name);
    }
    Ok(())
}

impl ReleaseImage {
    /// Writes the image with the built `program`. Returns the path of the archive and the digest of
    /// the image.
    fn write_archive(&self, program: &Path, directory: &Path) -> Result<(PathBuf, String)> {
        let layer = tempfile::NamedTempFile::new()?;
        write_program_layer(layer.as_file(), self.program, program)?;
        let entry_point = format!("ENTRYPOINT [\"/{}\"]", self.program);
        let instructions = [&["USER 1000", entry_point.as_str()], LABELS].concat();
        let image = OciImage { name: self.name, layer: layer.path(), instructions: &instructions };

        let archive = directory.join(format!("{}.tar", self.program));
        let unfinished = archive.with_extension("tar.unfinished");
        let digest = image.write_layout(fs_err::File::create(&unfinished)?)?;
        fs_err::rename(unfinished, &archive)?;
        Ok((archive, digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_have_the_names_that_the_kubernetes_backend_uses() {
        let backend = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../crates/ringfence/src/backends/kubernetes");
        for (image, file, constant) in
            [(GUEST, "mod.rs", "GUEST_IMAGE"), (SERVER, "manifest.rs", "SERVER_IMAGE")]
        {
            let source = fs_err::read_to_string(backend.join(file)).unwrap();
            let name = format!(
                r#"const {constant}: &str = concat!("{}:", env!("CARGO_PKG_VERSION"));"#,
                image.program
            );
            assert!(source.contains(&name), "{file} has another {constant}");
            assert_eq!(image.name, format!("{}:{}", image.program, env!("CARGO_PKG_VERSION")));
        }
    }

    #[test]
    fn equal_programs_make_equal_archives() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        let mut written = Vec::new();
        for content in ["a program", "a program", "another one"] {
            fs_err::write(&program, content).unwrap();
            let (archive, digest) = GUEST.write_archive(&program, directory.path()).unwrap();
            assert!(archive.ends_with("ringfence-guest.tar"));
            written.push((fs_err::read(archive).unwrap(), digest));
        }
        assert_eq!(written[0], written[1]);
        assert_ne!(written[0], written[2]);
    }
}
