//! Tests of properties of the whole crate, and of the files that are generated from it.

mod monotone;
mod schema;
