//! OCI images of one layer, and their import by a program that reads an OCI layout.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Start of the media types of OCI images.
const MEDIA_TYPE: &str = "application/vnd.oci.image";
const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An image of one layer.
pub(crate) struct OciImage<'a> {
    pub(crate) name: &'a str,
    /// Uncompressed tarball of the files.
    pub(crate) layer: &'a Path,
    /// Configuration, as instructions of a Containerfile.
    pub(crate) instructions: &'a [&'a str],
}

impl OciImage<'_> {
    /// Imports the image by `import`, a command that reads an OCI layout from its standard input.
    pub(crate) fn import_by(&self, import: &mut Command) -> Result<()> {
        let mut child = import
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run ctr")?;
        let stdin = child.stdin.take().context("the input of ctr is not piped")?;
        let written = self.write_layout(stdin);
        let output = child.wait_with_output()?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ctr ended with {}: {}", output.status, words.trim());
        written
    }

    fn write_layout(&self, to: impl Write) -> Result<()> {
        let layer = Blob::of_file(self.layer)?;
        let config = serde_json::to_vec(&self.configuration(&layer)?)?;
        let config_blob = Blob::of_bytes(&config);
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": format!("{MEDIA_TYPE}.manifest.v1+json"),
            "config": config_blob.descriptor("config.v1+json"),
            "layers": [layer.descriptor("layer.v1.tar")],
        }))?;
        let manifest_blob = Blob::of_bytes(&manifest);
        let mut reference = manifest_blob.descriptor("manifest.v1+json");
        reference["annotations"] = json!({ "io.containerd.image.name": self.name });
        let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": [reference] }))?;

        let mut archive = tar::Builder::new(to);
        let mut append = |path: String, size: u64, content: &mut dyn Read| {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o644);
            header.set_size(size);
            archive.append_data(&mut header, path, content)
        };
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#.as_slice();
        append("oci-layout".to_owned(), layout.len() as u64, &mut &*layout)?;
        append("index.json".to_owned(), index.len() as u64, &mut &*index)?;
        append(manifest_blob.path(), manifest_blob.size, &mut &*manifest)?;
        append(config_blob.path(), config_blob.size, &mut &*config)?;
        append(layer.path(), layer.size, &mut fs_err::File::open(self.layer)?)?;
        archive.into_inner()?;
        Ok(())
    }

    fn configuration(&self, layer: &Blob) -> Result<Value> {
        let mut config = json!({ "Env": [DEFAULT_PATH] });
        for instruction in self.instructions {
            let (key, value) =
                instruction.split_once(' ').context("an instruction has no value")?;
            match key {
                "CMD" => config["Cmd"] = serde_json::from_str(value)?,
                "ENV" => config["Env"] = json!([DEFAULT_PATH, value]),
                "USER" => config["User"] = value.into(),
                "WORKDIR" => config["WorkingDir"] = value.into(),
                _ => bail!("no image of the tests has the instruction `{instruction}`"),
            }
        }
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Ok(json!({
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": [layer.digest()] },
        }))
    }
}

/// Digest and size of a part of an image.
struct Blob {
    hash: String,
    size: u64,
}

impl Blob {
    fn of_file(path: &Path) -> Result<Self> {
        let mut file = fs_err::File::open(path)?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        let mut size = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Self { hash: hexadecimal(&hasher.finalize()), size }),
                read => {
                    hasher.update(&buffer[..read]);
                    size += read as u64;
                }
            }
        }
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        Self { hash: hexadecimal(&Sha256::digest(bytes)), size: bytes.len() as u64 }
    }

    fn digest(&self) -> String {
        format!("sha256:{}", self.hash)
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.hash)
    }

    fn descriptor(&self, kind: &str) -> Value {
        json!({
            "mediaType": format!("{MEDIA_TYPE}.{kind}"),
            "digest": self.digest(),
            "size": self.size,
        })
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_configuration_of_its_instructions() {
        let image = OciImage {
            name: "localhost/a:1",
            layer: Path::new("/dev/null"),
            instructions: &["ENV LANG=C", "USER dev", "WORKDIR /home/dev", "CMD [\"zsh\"]"],
        };
        let layer = Blob::of_file(image.layer).unwrap();
        let expected = json!({
            "Env": [DEFAULT_PATH, "LANG=C"],
            "User": "dev",
            "WorkingDir": "/home/dev",
            "Cmd": ["zsh"],
        });
        assert_eq!(image.configuration(&layer).unwrap()["config"], expected);
    }

    #[test]
    fn a_layout_names_its_blobs_by_their_hashes() {
        let directory = tempfile::tempdir().unwrap();
        let layer = directory.path().join("layer");
        fs_err::write(&layer, "some bytes").unwrap();
        let image = OciImage { name: "localhost/a:1", layer: &layer, instructions: &[] };
        let mut layout = Vec::new();
        image.write_layout(&mut layout).unwrap();
        let mut blobs = 0;
        for entry in tar::Archive::new(layout.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if let Some(hash) = path.strip_prefix("blobs/sha256/") {
                assert_eq!(hash, Blob::of_bytes(&content).hash);
                blobs += 1;
            }
        }
        assert_eq!(blobs, 3);
    }
}
