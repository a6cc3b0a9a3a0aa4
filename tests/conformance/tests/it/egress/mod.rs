//! What leaves a sandbox's network, in a world of the tests' own.

mod bypass;

pub(crate) use bypass::documented;
