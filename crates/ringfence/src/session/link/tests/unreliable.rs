//! A guest of a test, and carriers to it that break in every way.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::Sleep;

use super::super::{Carrier, LinkTimeouts};
use crate::sandbox::guest::install;
use crate::session::connector::GuestStream;

/// Token of every guest of these tests.
pub(super) const TOKEN: &str = "the token of this guest";

/// A guest that serves links alone, and is killed when the test ends.
pub(super) struct LinkedGuest {
    pub(super) process: Child,
    pub(super) directory: TempDir,
    pub(super) program: PathBuf,
}

impl LinkedGuest {
    pub(super) fn start() -> LinkedGuest {
        LinkedGuest::start_with(&[])
    }

    pub(super) fn start_with(more: &[&str]) -> LinkedGuest {
        let directory = TempDir::new_in("/var/tmp").unwrap();
        let program = install(directory.path()).unwrap().path;
        fs_err::write(directory.path().join("token"), TOKEN).unwrap();
        let process = spawn_guest(&program, directory.path(), more);
        LinkedGuest { process, directory, program }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.directory.path().join("link.sock")
    }

    /// Waits until the guest has ended by itself, and returns its exit code.
    pub(super) async fn wait_for_end(&mut self) -> Option<i32> {
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the guest and starts another one at the same place.
    pub(super) fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = spawn_guest(&self.program, self.directory.path(), &[]);
    }
}

fn spawn_guest(program: &Path, directory: &Path, more: &[&str]) -> Child {
    Command::new(program)
        .arg("--link-socket")
        .arg(directory.join("link.sock"))
        .arg("--token-file")
        .arg(directory.join("token"))
        .arg("--directory")
        .arg(directory)
        .args(more)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

impl Drop for LinkedGuest {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Time limits with which a test does not wait long.
pub(super) fn quick() -> LinkTimeouts {
    LinkTimeouts {
        ping_interval: Duration::from_millis(200),
        ping_answer: Duration::from_millis(300),
        dial: Duration::from_millis(500),
        outage: Duration::from_secs(20),
    }
}

/// Way in which a carrier breaks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CarrierFault {
    /// Number of bytes from the guest after which the carrier breaks.
    pub(super) read: Option<usize>,
    /// Number of bytes to the guest after which the carrier breaks.
    pub(super) write: Option<usize>,
    /// True if the carrier then stands still, and is not closed.
    pub(super) stalls: bool,
    /// Time by which all bytes from the guest are delayed.
    pub(super) delay: Option<Duration>,
}

/// Carriers to a Unix socket, each of which breaks as planned.
#[derive(Debug)]
pub(super) struct UnreliableCarrier {
    socket: PathBuf,
    plan: Mutex<VecDeque<CarrierFault>>,
    /// Fault of the carriers behind the plan.
    later: CarrierFault,
    pub(super) dials: AtomicUsize,
    /// Number of dials after which none succeeds.
    pub(super) last_dial: AtomicUsize,
    /// Copies of stalled streams, because of which the guest does not see their end.
    pub(super) stalled: Mutex<Vec<std::os::unix::net::UnixStream>>,
}

impl UnreliableCarrier {
    pub(super) fn new(
        socket: PathBuf,
        plan: impl IntoIterator<Item = CarrierFault>,
        later: CarrierFault,
    ) -> UnreliableCarrier {
        UnreliableCarrier {
            socket,
            plan: Mutex::new(plan.into_iter().collect()),
            later,
            dials: AtomicUsize::new(0),
            last_dial: AtomicUsize::new(usize::MAX),
            stalled: Mutex::default(),
        }
    }

    pub(super) fn reliable(socket: PathBuf) -> UnreliableCarrier {
        UnreliableCarrier::new(socket, [], CarrierFault::default())
    }

    pub(super) fn dials(&self) -> usize {
        self.dials.load(Ordering::SeqCst)
    }
}

impl Carrier for UnreliableCarrier {
    fn dial(&self) -> BoxFuture<'_, io::Result<Box<dyn GuestStream>>> {
        Box::pin(async {
            if self.dials.fetch_add(1, Ordering::SeqCst) >= self.last_dial.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let stream = std::os::unix::net::UnixStream::connect(&self.socket)?;
            stream.set_nonblocking(true)?;
            let fault = self.plan.lock().unwrap().pop_front().unwrap_or(self.later);
            if fault.stalls {
                self.stalled.lock().unwrap().push(stream.try_clone()?);
            }
            let stream = UnixStream::from_std(stream)?;
            let stream = BreakingStream { stream, fault, sleep: None };
            Ok(Box::new(stream) as Box<dyn GuestStream>)
        })
    }
}

/// Carrier that is the guest's program, executed with `--carry`.
#[derive(Debug)]
pub(super) struct ExecutedCarrier {
    pub(super) program: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) processes: Mutex<Vec<Child>>,
}

impl Carrier for ExecutedCarrier {
    fn dial(&self) -> BoxFuture<'_, io::Result<Box<dyn GuestStream>>> {
        Box::pin(async {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            let process = Command::new(&self.program)
                .arg("--carry")
                .arg(&self.socket)
                .stdin(OwnedFd::from(theirs.try_clone()?))
                .stdout(OwnedFd::from(theirs))
                .spawn()?;
            self.processes.lock().unwrap().push(process);
            ours.set_nonblocking(true)?;
            Ok(Box::new(UnixStream::from_std(ours)?) as Box<dyn GuestStream>)
        })
    }
}

struct BreakingStream {
    stream: UnixStream,
    fault: CarrierFault,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl BreakingStream {
    fn break_now<T>(&self) -> Poll<io::Result<T>> {
        match self.fault.stalls {
            true => Poll::Pending,
            false => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    fn is_broken(&self) -> bool {
        self.fault.read == Some(0) || self.fault.write == Some(0)
    }
}

impl AsyncRead for BreakingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_broken() {
            return self.break_now();
        }
        if let Some(delay) = self.fault.delay {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(delay)));
            ready!(sleep.as_mut().poll(context));
        }
        let limit = self.fault.read.unwrap_or(usize::MAX).min(buffer.remaining());
        let mut part = buffer.take(limit);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut part))?;
        let count = part.filled().len();
        // The bytes are in the memory that `buffer` lent, which `take` initialised.
        buffer.initialize_unfilled_to(count);
        buffer.advance(count);
        self.sleep = None;
        if let Some(left) = &mut self.fault.read {
            *left -= count;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BreakingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_broken() {
            return self.break_now();
        }
        let limit = self.fault.write.unwrap_or(usize::MAX).min(buffer.len());
        let count = ready!(Pin::new(&mut self.stream).poll_write(context, &buffer[..limit]))?;
        if let Some(left) = &mut self.fault.write {
            *left -= count;
        }
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
