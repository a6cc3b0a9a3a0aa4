//! The guest: the agent inside a sandbox that starts commands, handles files and forwards ports.
//!
//! The guest speaks E2B's envd protocol (`ringfence-proto`) over HTTP/1.1, on a listening socket
//! that the guest inherits, receives from another process or creates. The guest trusts the callers
//! that connect to this socket and nothing else in the sandbox: output of commands is only bytes,
//! and each call resolves its paths anew.
//!
//! Reading order: `options` parses the command line, `first_process` is the part that runs as
//! process 1, `server` accepts connections, `authentication` checks the access token,
//! `connect_protocol` implements the kinds of calls. The services follow: `process`, `filesystem`,
//! `files`, `tree`, `ports`, `metrics`. `link` serves connections that arrive as streams of a link,
//! and `carry` joins an executed process to the socket for links.
//! In a pod, `install` copies the program, and `network_trial` tries the network before any code
//! runs.

mod authentication;
mod carry;
mod connect_protocol;
mod files;
mod filesystem;
mod first_process;
mod gzip;
mod install;
mod link;
mod log;
mod metrics;
mod network_trial;
mod options;
mod ports;
mod process;
mod server;
mod slices;
mod tree;
mod user;
mod watch;

use std::process::ExitCode;

use options::GuestMode;

/// Exit code for a command line that is not valid.
const USAGE_EXIT_CODE: u8 = 2;

fn main() -> ExitCode {
    ringfence_linux::launcher::serve_if_asked();
    let options = match GuestMode::parse(std::env::args_os().skip(1)) {
        Ok(GuestMode::Serve(options)) => options,
        Ok(GuestMode::Carry(path)) => return carry::carry_streams(&path),
        Ok(GuestMode::Install(path)) => return install::install_guest(&path),
        Ok(GuestMode::TryNetwork(limit)) => return network_trial::try_network(limit),
        Err(error) => {
            log::write_line(format_args!("error: {error}\nhint: {}", options::USAGE));
            return ExitCode::from(USAGE_EXIT_CODE);
        }
    };
    if rustix::process::getpid() == rustix::process::Pid::INIT {
        return first_process::run_first_process(options.leash.as_deref());
    }
    // The parent may have blocked the signals that ask the guest to stop, as process 1 does, and a
    // child inherits the signal mask (signal(7)). Setting a valid mask cannot fail.
    let _ = ringfence_linux::sys::signal::SignalMask::empty().set();
    if let Some(limit) = options.hold_until_denied
        && let Err(why) = network_trial::hold_until_denied(limit)
    {
        log::write_line(format_args!("error: {why}"));
        return ExitCode::FAILURE;
    }
    match server::run_server(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::write_failure(&error);
            ExitCode::FAILURE
        }
    }
}
