//! OCI images, written without a container engine.

mod image;
mod layer;

pub(crate) use self::image::OciImage;
pub(crate) use self::layer::{entry_header, write_program_layer};
