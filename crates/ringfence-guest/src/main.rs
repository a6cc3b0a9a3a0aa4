//! The agent inside a sandbox: it starts commands, handles files and forwards ports for whoever holds its socket.
//!
//! It speaks E2B's envd protocol (`ringfence-proto`) over HTTP/1.1, on a socket that it inherits, binds or listens on. It
//! trusts its caller, and nothing else in the sandbox: what commands write is bytes, and paths are resolved anew.
//!
//! Reading order: `options` is how it is started, `first` is its life as process 1, `server` takes connections,
//! `caller` is who may call, `connect` is the shape of a call; then the services: `process`, `filesystem`, `files`,
//! `tree`, `ports`, `metrics`.

mod caller;
mod connect;
mod files;
mod filesystem;
mod first;
mod log;
mod metrics;
mod options;
mod ports;
mod process;
mod server;
mod slices;
mod tree;
mod user;
mod watch;

use std::process::ExitCode;

use options::Options;

/// What it exits with when its command line makes no sense.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    ringfence_linux::launcher::serve_if_asked();
    let options = match Options::parse(std::env::args_os().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            log::line(format_args!("error: {error}\nhint: {}", options::USAGE));
            return ExitCode::from(USAGE);
        }
    };
    if rustix::process::getpid() == rustix::process::Pid::INIT {
        return first::live(options.leash.as_deref());
    }
    // Whoever started us may have blocked the order to stop, as process 1 does, and a mask is inherited (signal(7)).
    let _ = ringfence_linux::sys::signal::Mask::empty().set(); // cannot fail with a valid mask
    match server::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::failure(&error);
            ExitCode::FAILURE
        }
    }
}
