//! Traffic out of a sandbox, in a network that the tests make.

mod bypass;
mod changes;
mod clients;
mod floods;
mod kept_secrets;
mod owners;
mod results;
mod secrets;

pub(crate) use bypass::documented;
