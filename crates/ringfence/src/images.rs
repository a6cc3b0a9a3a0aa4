//! Fetches and builds images from which containers are made.

use ringfence_core::{Backend, Fault};

use crate::backends::engine::{self, Flavour};
use crate::{ContainerError, ContainerSpec, Host};

pub use crate::backends::engine::{OWN_IMAGE, PullProgress};

/// Fetches the image that `spec` names, when `spec.pull` asks for that, and reports progress. If
/// fetching fails, an existing copy of the image is enough.
pub async fn provide(
    host: &Host,
    backend: Backend,
    spec: &ContainerSpec,
    progress: &mut (dyn FnMut(PullProgress) + Send),
) -> Result<(), ContainerError> {
    engine::provide_image(host, flavour(backend)?, spec, progress).await
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
    engine::build_image(host, flavour(backend)?, containerfile, tag, on_line).await
}

fn flavour(backend: Backend) -> Result<Flavour, ContainerError> {
    engine::flavour(backend).ok_or_else(|| ContainerError {
        summary: format!("backend `{backend}` has no images"),
        fault: Fault::User,
        hints: vec!["name an engine: --backend podman, or --backend docker".to_owned()],
        source: None,
    })
}
