//! The `ringfence logs` command, which prints the log of a sandbox.

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

/// Number of bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Prints the log of a sandbox, which its guest and its monitor write.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    sandbox: Named,
    /// Continues to print new lines until the sandbox ends.
    #[arg(short, long)]
    follow: bool,
}

impl Logs {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        block_on(async {
            let sandbox = self.sandbox.attach(&host).await?;
            let mut log = File::open(sandbox.log()).map_err(|error| self.unreadable(&error))?;
            // Watch the log before the first read, so that nothing written after that read is
            // missed.
            let mut changes = self.follow.then(|| LogWatch::for_sandbox(&sandbox)).transpose();
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
        Failure::failed(
            format!("cannot read the log of `{}`: {error}", self.sandbox.name),
            "ringfence ps",
        )
    }

    /// Prints the part of the log that has not been printed yet.
    fn copy(&self, log: &mut File) -> Result<(), Failure> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match log.read(&mut buffer).map_err(|error| self.unreadable(&error))? {
                0 => return Ok(()),
                // The guest is not trusted with our terminal, so `print` escapes control
                // characters.
                length => print(&String::from_utf8_lossy(&buffer[..length]))?,
            }
        }
    }
}

/// Notifier of growth of a log, by way of inotify(7).
struct LogWatch {
    watched: AsyncFd<OwnedFd>,
}

impl LogWatch {
    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types that lie about their descriptor"
    )]
    fn for_sandbox(sandbox: &Sandbox) -> std::io::Result<LogWatch> {
        let inotify =
            inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&inotify, sandbox.log(), inotify::WatchFlags::MODIFY)?;
        Ok(LogWatch { watched: AsyncFd::new(inotify)? })
    }

    /// Waits until there may be more to read. Returns `false` when the sandbox has ended.
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
