//! Fetches and builds images from which containers are made.

use ringfence_core::{Backend, Fault};

use crate::backends::{self, ImageStore, Unavailable};
use crate::{ContainerError, ContainerSpec, Host};

pub use crate::backends::{OWN_IMAGE, PullProgress};

/// Fetches the image that `spec` names, when `spec.pull` asks for that, and reports progress. If
/// fetching fails, an existing copy of the image is enough.
pub async fn provide(
    host: &Host,
    backend: Backend,
    spec: &ContainerSpec,
    progress: &mut (dyn FnMut(PullProgress) + Send),
) -> Result<(), ContainerError> {
    image_store(backend)?.provide(host, spec, progress).await
}

/// Builds an image named `tag` from a Containerfile, and calls `on_line` with each line that the
/// engine prints.
pub async fn build(
    host: &Host,
    backend: Backend,
    containerfile: &str,
    tag: &str,
    on_line: &mut (dyn FnMut(&str) + Send),
) -> Result<(), ContainerError> {
    image_store(backend)?.build(host, containerfile, tag, on_line).await
}

fn image_store(backend: Backend) -> Result<&'static dyn ImageStore, ContainerError> {
    let found = backends::get(backend).map(backends::Backend::images);
    let refuse = |summary: String| ContainerError {
        summary,
        fault: Fault::User,
        hints: vec!["name an engine: --backend podman, or --backend docker".to_owned()],
        source: None,
    };
    found
        .map_err(|Unavailable { why, .. }| refuse(why))?
        .ok_or_else(|| refuse(format!("backend `{backend}` has no images")))
}
