//! Watching over one run from the launching side: reports, output, signals, the terminal and the deadline, in
//! one loop. The command line runs it on its only thread; the library runs it on a thread per run.

mod foreground;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_linux::cgroup::{Group, Limit};
use ringfence_linux::control;
use ringfence_linux::sys::signal::pending;
use ringfence_linux::{Ending, Order, Report, Started};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Signal;

use crate::last_word::LastWord;
use crate::output::Kept;
use crate::streams::StreamRelay;
pub(crate) use foreground::Foreground;

/// How long a tree that was told to end may take before its first process is killed outright.
const GRACE: Duration = Duration::from_secs(6);
/// How many times a processor is told to pause, between two looks of somebody who stays awake: some microseconds.
const PAUSES: usize = 300;
/// The time between two looks at the limits of a control group that somebody else may change.
const LIMIT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// What is read at once.
const CHUNK: usize = 128 * 1024;
/// What a pipe can hold: fewer switches between writer and reader (pipe(7)).
pub(crate) const PIPE_SIZE: usize = 1024 * 1024;

/// Which stream a chunk of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A terminal of the command's own, where the two cannot be told apart.
    Terminal,
}

/// What a run is watched for.
#[derive(Debug, Default)]
pub(crate) struct Watch<'a> {
    /// When it must have ended.
    pub(crate) deadline: Option<Instant>,
    /// Pipes with its standard output and error, and how much of each is kept.
    pub(crate) capture: Option<&'a mut Capture>,
    /// Becomes readable, or closes, when it is to end at once.
    pub(crate) cancel: Option<BorrowedFd<'a>>,
    /// Signals to us are passed on, and the terminal is handed over and taken back.
    pub(crate) foreground: Option<Foreground>,
    /// Its cgroup.
    pub(crate) group: Option<&'a Group>,
    /// Whether the cgroup alone can end a tree that forks as it is killed.
    pub(crate) ends_by_group: bool,
    /// Where the command itself says what it is about to exit with.
    pub(crate) last_word: Option<LastWord<'a>>,
    /// Until when nobody sleeps over it, for to wake up takes as long as short code; its output stays in the pipes
    /// meanwhile.
    pub(crate) awake_until: Option<Instant>,
    /// Pipes between the command and files of the caller's.
    pub(crate) relays: Vec<StreamRelay>,
}

/// Output that is read. Lent to whoever watches: to close a pipe and to give memory back takes longer than to answer.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) limit: u64,
    /// What it is read into. Made beforehand, for it is more than the allocator has at hand.
    scratch: Vec<u8>,
}

impl Capture {
    /// Reads these, and keeps so many bytes of each.
    pub(crate) fn new([stdout, stderr]: [OwnedFd; 2], limit: u64) -> Capture {
        Capture { stdout, stderr, limit, scratch: vec![0; CHUNK] }
    }
}

/// What became of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    pub(crate) timed_out: bool,
    /// A limit that somebody took away, for which the run was ended.
    pub(crate) lost_limit: Option<Limit>,
    pub(crate) duration: Duration,
    pub(crate) stdout: (String, u64),
    pub(crate) stderr: (String, u64),
}

/// How a run came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The command ended.
    Ended(Ending),
    /// The sandbox could not be set up.
    SetupFailed { step: String, errno: i32 },
    /// The command could not be executed.
    ExecFailed { errno: i32 },
    /// The first process was gone without a word: it was killed.
    Vanished,
}

/// A run being watched.
struct Supervision<'a> {
    started: &'a Started,
    watch: Watch<'a>,
    /// What the first process said, when it has said its last.
    end: Option<End>,
    ending: bool,
    timed_out: bool,
    lost_limit: Option<Limit>,
    /// The next look at the limits.
    limits_due: Option<Instant>,
    relays: Vec<StreamRelay>,
    /// Whether the command has said its last word, and so written all that it will write.
    is_written: bool,
}

/// The pipes that are still read.
type Pipes<'a> = [Option<BorrowedFd<'a>>; 2];

/// Sees every chunk of output, kept or not.
pub(crate) type Listener<'a> = &'a mut dyn FnMut(Stream, &[u8]);

/// Watches over a run to its end.
pub(crate) fn supervise<'a>(
    started: &'a Started,
    mut watch: Watch<'a>,
    mut on_output: Option<Listener<'_>>,
) -> Result<Outcome, io::Error> {
    let begun = Instant::now();
    let listens = on_output.is_some();
    let (mut pipes, limit, scratch): (Pipes<'_>, u64, &mut [u8]) = match watch.capture.take() {
        Some(Capture { stdout, stderr, limit, scratch }) => {
            let (stdout, stderr): (&OwnedFd, &OwnedFd) = (stdout, stderr);
            ([Some(stdout.as_fd()), Some(stderr.as_fd())], *limit, scratch)
        }
        None => ([None, None], 0, &mut []),
    };
    let mut kept = [Kept::new(limit), Kept::new(limit)];
    let limits_due = watch.group.filter(|group| group.can_lose_limits()).map(|_| begun + LIMIT_CHECK_INTERVAL);
    let relays = std::mem::take(&mut watch.relays);
    let mut run = Supervision {
        started,
        watch,
        end: None,
        ending: false,
        timed_out: false,
        lost_limit: None,
        limits_due,
        relays,
        is_written: false,
    };
    let mut relayed = Vec::new();
    let mut relay_failure = None;

    while run.end.is_none()
        || pipes.iter().any(Option::is_some)
        || run.relays.iter().any(StreamRelay::is_unfinished_output)
    {
        let ready = run.wait(&pipes)?;
        // First: what has ended by itself was not ended by us, however late we look.
        if ready.control {
            run.hear()?;
        }
        if ready.timer && run.is_late() {
            run.deadline_passed(&mut pipes);
        }
        run.check_limits()?;
        for (relay, is_ready) in run.relays.iter_mut().zip(&ready.relays) {
            if *is_ready && let Err(error) = relay.copy(&mut relayed) {
                relay_failure.get_or_insert(error);
            }
        }
        if ready.signals {
            run.forward_signals()?;
        }
        if ready.cancelled {
            run.end_all()?;
        }
        if ready.last_word {
            run.hear_last_word();
        }
        for (index, stream) in [Stream::Stdout, Stream::Stderr].into_iter().enumerate() {
            let (true, Some(pipe)) = (ready.pipes[index] || run.is_written, pipes[index]) else { continue };
            // Somebody who listens sees every byte; else a flood need not pass through our memory.
            if !listens && kept[index].divert(pipe)? {
                continue;
            }
            match kept[index].read(pipe, scratch) {
                Ok([]) => pipes[index] = None,
                Ok(bytes) => on_output.iter_mut().for_each(|listener| listener(stream, bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if run.is_written {
                        pipes[index] = None;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
    run.relays.iter_mut().for_each(StreamRelay::finish);
    if let Some(error) = relay_failure {
        return Err(error);
    }
    let [stdout, stderr] = kept.map(Kept::finish);
    let (stdout, stderr) = (stdout?, stderr?);
    let end = run.end.unwrap_or(End::Vanished);
    Ok(Outcome { end, timed_out: run.timed_out, lost_limit: run.lost_limit, duration: begun.elapsed(), stdout, stderr })
}

/// What is to be looked at.
struct Ready {
    timer: bool,
    signals: bool,
    cancelled: bool,
    control: bool,
    last_word: bool,
    pipes: [bool; 2],
    relays: Vec<bool>,
}

impl Supervision<'_> {
    fn wait(&self, pipes: &Pipes<'_>) -> io::Result<Ready> {
        let now = Instant::now();
        let awake_until = self.watch.awake_until.filter(|until| !self.is_written && *until > now);
        let left = match self.is_written || awake_until.is_some() {
            true => Some(Duration::ZERO),
            false => {
                let limits_due = self.limits_due.filter(|_| !self.ending && self.end.is_none());
                let next = self.watch.deadline.into_iter().chain(limits_due).min();
                next.map(|next| next.saturating_duration_since(now))
            }
        };
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let listened: [Option<BorrowedFd<'_>>; 6] = [
            self.watch.foreground.as_ref().map(|foreground| foreground.signals.as_fd()),
            self.watch.cancel.filter(|_| !self.ending),
            self.end.is_none().then(|| self.started.control.as_fd()),
            self.watch.last_word.as_ref().map(LastWord::channel),
            pipes[0].filter(|_| awake_until.is_none()),
            pipes[1].filter(|_| awake_until.is_none()),
        ];
        let mut fds: Vec<PollFd<'_>> =
            listened.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let relays = self.relays.iter().filter_map(StreamRelay::interest);
        fds.extend(relays.map(|(fd, event)| PollFd::from_borrowed_fd(fd, event)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) if awake_until.is_some() => {
                // What else is done here slows the command down, which may have the other half of this core.
                (0..PAUSES).for_each(|_| std::hint::spin_loop());
                std::thread::yield_now();
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut polled = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut is_ready = |is_listened: bool| is_listened && polled.next().unwrap_or(false);
        let mut is_slot_ready = |slot: usize| is_ready(listened[slot].is_some());
        Ok(Ready {
            // By the clock: after a pause of our own there may be more to look at than the time.
            timer: self.is_late(),
            signals: is_slot_ready(0),
            cancelled: is_slot_ready(1),
            control: is_slot_ready(2),
            last_word: is_slot_ready(3),
            pipes: [is_slot_ready(4), is_slot_ready(5)],
            relays: self.relays.iter().map(|relay| is_ready(relay.interest().is_some())).collect(),
        })
    }

    /// Ends the run if somebody took a limit away: a command that is not limited as its policy says does not go on.
    fn check_limits(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let (Some(due), Some(group)) = (self.limits_due, self.watch.group) else { return Ok(()) };
        if now < due || self.ending || self.end.is_some() {
            return Ok(());
        }
        self.limits_due = Some(now + LIMIT_CHECK_INTERVAL);
        self.lost_limit = group.lost_limit();
        if self.lost_limit.is_some() { self.end_all() } else { Ok(()) }
    }

    /// Whether the deadline has passed.
    fn is_late(&self) -> bool {
        self.watch.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The deadline of the command, or, when it has been told to end, of its ending.
    fn deadline_passed(&mut self, pipes: &mut Pipes<'_>) {
        if self.ending || self.end.is_some() {
            // It does not end although it was told to, or somebody outside holds its output open.
            if let Some(group) = self.watch.group {
                let _ = group.kill(); // what cannot be killed cannot be waited for, either
            }
            let _ = rustix::process::pidfd_send_signal(&self.started.launched.pidfd, Signal::KILL); // may be gone
            self.end.get_or_insert(End::Vanished);
            *pipes = [None, None];
            self.relays.iter_mut().for_each(StreamRelay::finish);
            self.watch.deadline = None;
        } else {
            self.timed_out = true;
            let _ = self.end_all(); // the first process is gone: then poll says so
        }
    }

    fn forward_signals(&mut self) -> io::Result<()> {
        let Some(foreground) = &self.watch.foreground else { return Ok(()) };
        for signal in pending(&foreground.signals) {
            // Continued in the foreground means that the command is to have the terminal again.
            let order = if signal == Signal::CONT.as_raw() {
                Order::Continue { foreground: foreground.lend() }
            } else {
                Order::Signal(signal)
            };
            control::send(&self.started.control, &order)?;
        }
        Ok(())
    }

    /// Tells the first process to end everything. It kills, reaps and reports; what it cannot end within the
    /// grace, the cgroup and the end of the first process itself do.
    fn end_all(&mut self) -> io::Result<()> {
        self.ending = true;
        self.watch.deadline = Some(Instant::now() + GRACE);
        if let Some(group) = self.watch.group.filter(|_| self.watch.ends_by_group) {
            let _ = group.kill(); // the first process is in it, and kills what it can all the same
        }
        control::send(&self.started.control, &Order::End)
    }

    /// Does what a shell's job does when its command is stopped. Only what a terminal stops a job by counts: any
    /// other stop is between the command and whoever sent it.
    fn stopped_by(&self, signal: i32, foreground: &Foreground) -> io::Result<()> {
        if signal == Signal::TSTP.as_raw() {
            foreground.stop();
        }
        if [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&signal) && foreground.come_to_front() {
            let foreground = foreground.lend();
            control::send(&self.started.control, &Order::Continue { foreground })?;
        }
        Ok(())
    }

    /// Takes the command at its word, where nothing else is left of it; else it is told to go on, and its end is waited
    /// for as that of any.
    fn hear_last_word(&mut self) {
        let Some(last_word) = self.watch.last_word.take() else { return };
        if self.end.is_some() || self.ending {
            return;
        }
        if let Some(ending) = last_word.hear() {
            self.end = Some(End::Ended(ending));
            self.ending = true;
            self.is_written = true;
            // Whoever claims to have ended may go on writing: that is read no longer than anybody's.
            self.watch.deadline = Some(Instant::now() + GRACE);
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        let report = match control::receive(&self.started.control, RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            report => report?,
        };
        match report {
            Some(Report::Started { .. }) => {}
            Some(Report::Stopped { signal }) => {
                if let Some(foreground) = &self.watch.foreground {
                    self.stopped_by(signal, foreground)?;
                }
            }
            Some(Report::SetupFailed { step, errno }) => self.end = Some(End::SetupFailed { step, errno }),
            Some(Report::ExecFailed { errno }) => self.end = Some(End::ExecFailed { errno }),
            Some(Report::Ended(ending)) => {
                // The first process has a clock of its own, and ends the command when we do not.
                self.timed_out |= !self.ending && ending.exit_code.is_none() && self.is_late();
                self.end = Some(End::Ended(ending));
            }
            None => self.end = Some(End::Vanished),
        }
        if self.end.is_some() {
            // Output that is still in the pipes is read; what holds them open beyond this is not waited for.
            self.ending = true;
            self.watch.deadline = Some(Instant::now() + GRACE);
        }
        Ok(())
    }
}
