//! Images that containers are created from.

use std::collections::HashMap;

use bollard::models::{BuildInfo, CreateImageInfo, ProgressDetail};
use bollard::query_parameters::{BuildImageOptionsBuilder, CreateImageOptionsBuilder};
use futures_util::StreamExt;

use super::client::EngineClient;
use super::error::{ContainerFailure, printable};
use crate::backends::facets::OnPull;
use crate::images::{OWN_IMAGE, PullProgress};
use crate::{ContainerSpec, Preset, Pull};

/// Image that an engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EngineImage {
    /// Name by which the image was requested.
    pub(super) reference: String,
    /// Hash of the image at the engine.
    pub(super) id: String,
    /// Hash of the image at its registry, if it came from one.
    pub(super) digest: Option<String>,
    /// User that the image specifies for its processes.
    pub(super) user: Option<String>,
    /// Directories that an engine would make writable, without a limit, on its own disk.
    pub(super) volumes: Vec<String>,
}

/// Returns the name of the requested image.
pub(super) fn reference(spec: &ContainerSpec) -> &str {
    spec.image.as_deref().unwrap_or(OWN_IMAGE)
}

/// Finds an image that the engine has. Returns `None` if there is no such image.
pub(super) async fn find(
    client: &EngineClient,
    reference: &str,
) -> Result<Option<EngineImage>, ContainerFailure> {
    let inspected = match client.api.inspect_image(reference).await {
        Ok(inspected) => inspected,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(source) => return Err(ContainerFailure::Engine { what: "look for the image", source }),
    };
    let id = inspected.id.unwrap_or_else(|| reference.to_owned());
    let digest = inspected.repo_digests.unwrap_or_default().into_iter().next();
    let config = inspected.config.unwrap_or_default();
    let user = config.user.filter(|user| !user.is_empty());
    let volumes = config.volumes.unwrap_or_default();
    Ok(Some(EngineImage { reference: reference.to_owned(), id, digest, user, volumes }))
}

/// Finds an image, and fetches it first if `spec` says so. If an image cannot be fetched, an
/// existing copy is used.
pub(super) async fn provide(
    client: &EngineClient,
    spec: &ContainerSpec,
    progress: OnPull<'_>,
) -> Result<EngineImage, ContainerFailure> {
    let reference = reference(spec);
    let there = find(client, reference).await?;
    // No registry has images that were made on this host.
    let is_own = reference.starts_with("localhost/");
    let policy = spec.pull.unwrap_or(match spec.preset {
        Preset::Agent => Pull::Missing,
        Preset::Dev => Pull::Always,
    });
    match (policy, there) {
        (Pull::Always, there) if !is_own => {
            match (pull(client, reference, progress).await, there) {
                (Ok(()), _) => {}
                (Err(failure), Some(there)) => {
                    tracing::warn!(
                        image = reference,
                        error = crate::chain(&failure),
                        "the image could not be fetched; the local copy is used"
                    );
                    return Ok(there);
                }
                (Err(failure), None) => return Err(failure),
            }
        }
        (_, Some(there)) => return Ok(there),
        (Pull::Missing, None) if !is_own => pull(client, reference, progress).await?,
        (_, None) => return Err(ContainerFailure::NoImage { image: reference.to_owned(), is_own }),
    }
    find(client, reference)
        .await?
        .ok_or_else(|| ContainerFailure::NoImage { image: reference.to_owned(), is_own })
}

async fn pull(
    client: &EngineClient,
    reference: &str,
    progress: OnPull<'_>,
) -> Result<(), ContainerFailure> {
    let failed = |source| ContainerFailure::Pull { image: reference.to_owned(), source };
    let (name, tag) = split(reference);
    let options = CreateImageOptionsBuilder::default().from_image(name).tag(tag).build();
    let mut answers = Box::pin(client.api.create_image(Some(options), None, None));
    while let Some(answer) = answers.next().await {
        let CreateImageInfo { id, status, progress_detail, .. } = answer.map_err(failed)?;
        let ProgressDetail { current, total } = progress_detail.unwrap_or_default();
        let size = |size: Option<i64>| size.and_then(|size| u64::try_from(size).ok());
        progress(PullProgress {
            layer: id,
            status: printable(&status.unwrap_or_default()),
            done: size(current),
            total: size(total),
        });
    }
    Ok(())
}

/// Splits a reference into its name and its tag or digest. The default tag is "latest", because
/// without a tag an engine would fetch all tags.
fn split(reference: &str) -> (&str, &str) {
    if let Some(parts) = reference.split_once('@') {
        return parts;
    }
    // A colon before the last slash separates a registry's port.
    match reference.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (reference, "latest"),
    }
}

/// Builds an image from a Containerfile without further files, and calls `on_line` with each line
/// of the engine's output.
pub(super) async fn build(
    client: &EngineClient,
    containerfile: &str,
    tag: &str,
    on_line: &mut (dyn FnMut(&str) + Send),
) -> Result<(), ContainerFailure> {
    const NAME: &str = "Containerfile";
    let failed = |why: String| ContainerFailure::Build { image: tag.to_owned(), why };
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(containerfile.len() as u64);
    header.set_mode(0o644);
    archive
        .append_data(&mut header, NAME, containerfile.as_bytes())
        .and_then(|()| archive.finish())
        .map_err(|error| failed(error.to_string()))?;
    let context = archive.into_inner().map_err(|error| failed(error.to_string()))?;
    let options =
        BuildImageOptionsBuilder::default().dockerfile(NAME).t(tag).rm(true).forcerm(true).build();
    let context = bollard::body_full(context.into());
    let mut answers =
        Box::pin(client.api.build_image(options, None::<HashMap<_, _>>, Some(context)));
    while let Some(answer) = answers.next().await {
        let BuildInfo { stream, status, error_detail, .. } =
            answer.map_err(|error| failed(printable(&crate::chain(&error))))?;
        for line in stream.iter().chain(&status).flat_map(|text| text.lines()) {
            on_line(&printable(line));
        }
        if let Some(message) = error_detail.and_then(|detail| detail.message) {
            return Err(failed(printable(&message)));
        }
    }
    match find(client, tag).await? {
        Some(_) => Ok(()),
        None => Err(failed("the engine ended the build without an image".to_owned())),
    }
}

pub(super) fn is_missing(error: &bollard::errors::Error) -> bool {
    matches!(error, bollard::errors::Error::DockerResponseServerError { status_code: 404, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_split_where_its_tag_begins() {
        assert_eq!(split("debian"), ("debian", "latest"));
        assert_eq!(split("debian:12"), ("debian", "12"));
        assert_eq!(split("host:5000/a/b"), ("host:5000/a/b", "latest"));
        assert_eq!(split("host:5000/a/b:c"), ("host:5000/a/b", "c"));
        assert_eq!(split("a@sha256:00"), ("a", "sha256:00"));
    }
}
