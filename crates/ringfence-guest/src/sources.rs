//! Directory of the guest's sources.
//!
//! The guest is a program. The library `ringfence` embeds it and has to build it with settings of
//! its own, so the build script of `ringfence` runs cargo on the manifest in this directory. The
//! directory is known here alone: it is a member of a workspace, or the place where cargo unpacked
//! the published crate.

/// Directory that contains the manifest of the guest.
pub const DIRECTORY: &str = env!("CARGO_MANIFEST_DIR");
