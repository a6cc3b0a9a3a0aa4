//! Tests of the guest from the view of its clients. Each test runs the built binary on a socket of
//! its own.
// Clippy takes the shared code of these tests for test code, which may unwrap, only with this
// attribute.
#![cfg(test)]

mod carry;
mod files;
mod filesystem;
mod guest;
mod hostile;
mod input;
mod leftovers;
mod ports;
mod process;
mod terminal;
mod tree;
mod watch;
