//! Paths of the host that a sandbox is given, and files that a sandbox leaves on the host.

pub(crate) mod granted;
pub(crate) mod private;
pub(crate) mod untrusted;
pub(crate) mod workspace;
