//! OCI images of one layer, and their import by a program that reads an OCI layout.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::entry_header;

/// Start of the media types of OCI images.
const MEDIA_TYPE: &str = "application/vnd.oci.image";
const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Creation time of every image, so that equal images have equal bytes.
const CREATION_TIME: &str = "1970-01-01T00:00:00Z";

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
        written.map(drop)
    }

    /// Writes the image as an OCI layout that `docker load` reads, too. Returns the digest of the
    /// image.
    ///
    /// Equal images have equal bytes: no entry has a time, an owner or a name of this machine.
    pub(crate) fn write_layout(&self, to: impl Write) -> Result<String> {
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
        let (_, tag) = self.name.rsplit_once(':').context("the name of an image has no tag")?;
        let mut reference = manifest_blob.descriptor("manifest.v1+json");
        reference["annotations"] = json!({
            "io.containerd.image.name": full_name(self.name),
            "org.opencontainers.image.ref.name": tag,
        });
        let index = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": format!("{MEDIA_TYPE}.index.v1+json"),
            "manifests": [reference],
        }))?;
        // Docker before version 25 reads only this list, and finds the blobs by it.
        let docker_list = serde_json::to_vec(&json!([{
            "Config": config_blob.path(),
            "RepoTags": [self.name],
            "Layers": [layer.path()],
        }]))?;

        let mut archive = tar::Builder::new(to);
        let mut append = |path: String, size: u64, content: &mut dyn Read| {
            let mut header = entry_header(tar::EntryType::Regular, 0o644);
            header.set_size(size);
            archive.append_data(&mut header, path, content)
        };
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#.as_slice();
        append("oci-layout".to_owned(), layout.len() as u64, &mut &*layout)?;
        append("index.json".to_owned(), index.len() as u64, &mut &*index)?;
        append("manifest.json".to_owned(), docker_list.len() as u64, &mut &*docker_list)?;
        append(manifest_blob.path(), manifest_blob.size, &mut &*manifest)?;
        append(config_blob.path(), config_blob.size, &mut &*config)?;
        append(layer.path(), layer.size, &mut fs_err::File::open(self.layer)?)?;
        archive.into_inner()?.flush()?;
        Ok(manifest_blob.digest())
    }

    fn configuration(&self, layer: &Blob) -> Result<Value> {
        let mut config = json!({ "Env": [DEFAULT_PATH] });
        let mut labels = serde_json::Map::new();
        for instruction in self.instructions {
            let (key, value) =
                instruction.split_once(' ').context("an instruction has no value")?;
            match key {
                "CMD" => config["Cmd"] = serde_json::from_str(value)?,
                "ENTRYPOINT" => config["Entrypoint"] = serde_json::from_str(value)?,
                "ENV" => config["Env"] = json!([DEFAULT_PATH, value]),
                "LABEL" => {
                    let (label, text) = value.split_once('=').context("a label has no value")?;
                    labels.insert(label.to_owned(), text.into());
                }
                "USER" => config["User"] = value.into(),
                "WORKDIR" => config["WorkingDir"] = value.into(),
                _ => bail!("the writer of images does not know the instruction `{instruction}`"),
            }
        }
        if !labels.is_empty() {
            config["Labels"] = labels.into();
        }
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Ok(json!({
            "created": CREATION_TIME,
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": [layer.digest()] },
        }))
    }
}

/// Returns the name by which containerd and Kubernetes know an image. Docker and Podman understand
/// this name, too.
fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some((host, _)) if host == "localhost" || host.contains(['.', ':']) => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
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
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_image_has_the_configuration_of_its_instructions() {
        let image = OciImage {
            name: "localhost/a:1",
            layer: Path::new("/dev/null"),
            instructions: &[
                "ENV LANG=C",
                "USER dev",
                "WORKDIR /home/dev",
                "ENTRYPOINT [\"/init\", \"--\"]",
                "CMD [\"zsh\"]",
                "LABEL version=1",
                "LABEL licenses=MIT OR Apache-2.0",
            ],
        };
        let layer = Blob::of_file(image.layer).unwrap();
        let expected = json!({
            "Env": [DEFAULT_PATH, "LANG=C"],
            "User": "dev",
            "WorkingDir": "/home/dev",
            "Entrypoint": ["/init", "--"],
            "Cmd": ["zsh"],
            "Labels": { "version": "1", "licenses": "MIT OR Apache-2.0" },
        });
        assert_eq!(image.configuration(&layer).unwrap()["config"], expected);
    }

    /// Writes the image `name` of one layer with `content`, and returns its digest and its files.
    fn write_image(name: &str, content: &str) -> (String, BTreeMap<String, Vec<u8>>) {
        let directory = tempfile::tempdir().unwrap();
        let layer = directory.path().join("layer");
        fs_err::write(&layer, content).unwrap();
        let mut layout = Vec::new();
        let image = OciImage { name, layer: &layer, instructions: &[] };
        let digest = image.write_layout(&mut layout).unwrap();
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(layout.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            assert_eq!(entry.header().mtime().unwrap(), 0);
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(path, content);
        }
        (digest, files)
    }

    fn parse(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Value {
        serde_json::from_slice(&files[path]).unwrap()
    }

    #[test]
    fn a_layout_names_its_blobs_by_their_hashes() {
        let (_, files) = write_image("localhost/a:1", "some bytes");
        let mut blobs = 0;
        for (path, content) in &files {
            if let Some(hash) = path.strip_prefix("blobs/sha256/") {
                assert_eq!(hash, Blob::of_bytes(content).hash);
                blobs += 1;
            }
        }
        assert_eq!(blobs, 3);
    }

    #[test]
    fn the_index_and_the_list_of_docker_name_the_same_image() {
        let (digest, files) = write_image("a:1", "some bytes");
        let reference = &parse(&files, "index.json")["manifests"][0];
        let annotations = json!({
            "io.containerd.image.name": "docker.io/library/a:1",
            "org.opencontainers.image.ref.name": "1",
        });
        assert_eq!(reference["digest"], digest);
        assert_eq!(reference["annotations"], annotations);

        let path = |digest: &Value| digest.as_str().unwrap().replace("sha256:", "blobs/sha256/");
        let manifest = parse(&files, &path(&reference["digest"]));
        let of_docker = json!([{
            "Config": path(&manifest["config"]["digest"]),
            "RepoTags": ["a:1"],
            "Layers": [path(&manifest["layers"][0]["digest"])],
        }]);
        assert_eq!(parse(&files, "manifest.json"), of_docker);
        assert_eq!(files[&path(&manifest["layers"][0]["digest"])], b"some bytes");
    }

    #[test]
    fn only_an_equal_image_has_the_same_bytes() {
        let first = write_image("a:1", "some bytes");
        assert_eq!(first, write_image("a:1", "some bytes"));
        assert_ne!(first, write_image("a:1", "other bytes"));
    }

    #[test]
    fn a_name_without_a_registry_gets_the_default_one() {
        for (name, full) in [
            ("a:1", "docker.io/library/a:1"),
            ("team/a:1", "docker.io/team/a:1"),
            ("localhost/a:1", "localhost/a:1"),
            ("registry.test/a:1", "registry.test/a:1"),
            ("registry:5000/a:1", "registry:5000/a:1"),
        ] {
            assert_eq!(full_name(name), full);
        }
    }
}
