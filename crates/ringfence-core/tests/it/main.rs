//! Properties of the whole crate, and the files that are generated from it.

mod monotone;
mod schema;
