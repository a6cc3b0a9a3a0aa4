//! What leaves a sandbox's network, in a world of the tests' own.

mod bypass;
mod changes;
mod clients;
mod floods;
mod kept_secrets;
mod owners;
mod results;
mod secrets;

pub(crate) use bypass::documented;
