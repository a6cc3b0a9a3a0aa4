//! Fetches and builds images from which containers are made.

use ringfence_core::{Backend, Fault};

use crate::backends::{self, ImageStore, Unavailable};
use crate::{ContainerError, ContainerSpec, Host};

/// Name of the image that `ringfence image build` makes.
pub const OWN_IMAGE: &str = "localhost/ringfence-dev:latest";

/// Progress of fetching an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullProgress {
    /// ID of the layer that this report is about, or `None` for the whole image.
    pub layer: Option<String>,
    /// Status text of the engine, such as "Downloading".
    pub status: String,
    /// Number of bytes of the layer that are done, if known.
    pub done: Option<u64>,
    /// Size of the layer in bytes, if known.
    pub total: Option<u64>,
}

/// Returns the container engines: the backends whose sandboxes are made from images, in the order
/// in which they are tried.
pub fn engines() -> impl Iterator<Item = Backend> {
    let have_images = backends::BACKENDS.iter().filter(|(_, backend)| backend.images().is_some());
    have_images.map(|(name, _)| *name)
}

/// Tells whether a backend is a container engine.
pub fn is_engine(backend: Backend) -> bool {
    engines().any(|engine| engine == backend)
}

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
