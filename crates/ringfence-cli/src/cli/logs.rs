//! `ringfence logs`.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use clap::Args;
use fs_err::File;
use ringfence::{Host, Sandbox};
use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

use super::attach::{Named, block_on};
use crate::answer::print;
use crate::report::Failure;

/// How much is read at once.
const PIECE: usize = 64 << 10;

/// Prints the log of a sandbox: its guest's, and its monitor's.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    sandbox: Named,
    /// Goes on printing until the sandbox ends.
    #[arg(short, long)]
    follow: bool,
}

impl Logs {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        block_on(async {
            let sandbox = self.sandbox.attach(&host).await?;
            let mut log = File::open(sandbox.log()).map_err(|error| self.unreadable(&error))?;
            // From before the first look: nothing that is written after it is missed.
            let mut changes = self.follow.then(|| Changes::of(&sandbox)).transpose();
            self.copy(&mut log)?;
            if let Some(changes) = changes.as_mut().map_err(|error| self.unreadable(error))? {
                while changes.next(&sandbox).await {
                    self.copy(&mut log)?;
                }
                self.copy(&mut log)?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }

    fn unreadable(&self, error: &std::io::Error) -> Failure {
        Failure::failed(format!("cannot read the log of `{}`: {error}", self.sandbox.name), "ringfence ps")
    }

    /// Prints what there is to read.
    fn copy(&self, log: &mut File) -> Result<(), Failure> {
        let mut buffer = vec![0; PIECE];
        loop {
            match log.read(&mut buffer).map_err(|error| self.unreadable(&error))? {
                0 => return Ok(()),
                length => print(&harmless(&buffer[..length]))?,
            }
        }
    }
}

/// Lines of which a terminal obeys nothing: a guest is not trusted with ours.
fn harmless(bytes: &[u8]) -> String {
    let shown = |character: char| match character {
        '\n' | '\t' => character,
        character if character.is_control() => '\u{fffd}',
        character => character,
    };
    String::from_utf8_lossy(bytes).chars().map(shown).collect()
}

/// Tells when a log has grown, inotify(7).
struct Changes {
    watched: AsyncFd<OwnedFd>,
}

impl Changes {
    #[expect(deprecated, reason = "its successor is unsafe, for types that lie about their descriptor")]
    fn of(sandbox: &Sandbox) -> std::io::Result<Changes> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&inotify, sandbox.log(), inotify::WatchFlags::MODIFY)?;
        Ok(Changes { watched: AsyncFd::new(inotify)? })
    }

    /// Waits until there may be more to read; false when the sandbox has ended.
    async fn next(&mut self, sandbox: &Sandbox) -> bool {
        tokio::select! {
            ready = self.watched.readable() => {
                let Ok(mut ready) = ready else { return false };
                let mut buffer = [MaybeUninit::uninit(); 4096];
                let mut events = inotify::Reader::new(self.watched.get_ref(), &mut buffer);
                while events.next().is_ok() {}
                ready.clear_ready();
                true
            }
            () = sandbox.ended() => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_not_printed() {
        assert_eq!(harmless(b"a\tb\n\x1b]0;x\x07\r\xc2\x9b2J"), "a\tb\n\u{fffd}]0;x\u{fffd}\u{fffd}\u{fffd}2J");
    }
}
