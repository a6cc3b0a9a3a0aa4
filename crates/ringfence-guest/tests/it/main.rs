//! The guest as its clients see it: the built binary, on a socket of each test's own.
// What the tests share is test code, too, and may unwrap: clippy knows it by this.
#![cfg(test)]

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
