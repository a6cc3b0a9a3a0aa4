//! Supervises one run from the launching side: handles reports, output, signals, the terminal and
//! the deadline in one loop. The command line runs this loop on its only thread; the library runs
//! it on a thread for each run.

mod foreground;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringfence_linux::cgroup::{Cgroup, CgroupLimit};
use ringfence_linux::control;
use ringfence_linux::sys::signal::read_pending;
use ringfence_linux::{CommandEnding, ControlOrder, ControlReport, StartedSandbox};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Signal;

use crate::caller::streams::{StreamFailure, StreamRelays};
use crate::run::end_report::EndReport;
use crate::run::output::KeptOutput;
pub(crate) use foreground::Foreground;

/// Longest time that a process tree that was told to end may take before its first process is
/// killed.
const TREE_END_TIMEOUT: Duration = Duration::from_secs(6);
/// Longest time in which readers may still take the output of a run that was told to end.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Signals with which a caller ends a run.
const ENDING_SIGNALS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
/// Number of pause instructions between two polls of a thread that does not sleep. All pauses
/// together take some microseconds.
const PAUSES_PER_POLL: usize = 300;
/// Time between two checks of the limits of a control group that another process may change.
const LIMIT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of bytes that are read at once.
const CHUNK: usize = 128 * 1024;
/// Capacity of a pipe, in bytes. A large pipe needs fewer switches between writer and reader
/// (pipe(7)).
pub(crate) const PIPE_SIZE: usize = 1024 * 1024;

/// The stream that a chunk of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output of the command.
    Stdout,
    /// Standard error of the command.
    Stderr,
    /// A terminal of the command's own, where standard output and standard error cannot be told
    /// apart.
    Terminal,
}

/// The events and resources that the supervision of a run handles.
#[derive(Debug, Default)]
pub(crate) struct SupervisionInputs<'a> {
    /// Time at which the run must have ended.
    pub(crate) deadline: Option<Instant>,
    /// Pipes of standard output and standard error, and the number of bytes of each that are kept.
    pub(crate) capture: Option<&'a mut Capture>,
    /// Descriptor that becomes readable, or closes, when the run is to end at once.
    pub(crate) cancel: Option<BorrowedFd<'a>>,
    /// Terminal and signals of the caller: signals are forwarded to the command, and the terminal
    /// is lent to the command and taken back.
    pub(crate) foreground: Option<Foreground>,
    /// Control group of the run.
    pub(crate) group: Option<&'a Cgroup>,
    /// True if only the control group can end a process tree that forks while it is killed.
    pub(crate) ends_by_group: bool,
    /// Socket on which the command itself tells its exit code before it exits.
    pub(crate) end_report: Option<EndReport<'a>>,
    /// Time until which the supervising thread polls without sleeping, because waking up takes as
    /// long as short code. The output stays in the pipes meanwhile.
    pub(crate) awake_until: Option<Instant>,
    /// Pipes between the command and files of the caller.
    pub(crate) relays: StreamRelays,
}

/// Pipes from which output is captured. The supervision borrows this value, because closing a pipe
/// and freeing memory takes longer than returning the result.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) limit: u64,
    /// Buffer for reading. Allocated in advance, because it is larger than what the allocator has
    /// ready.
    scratch: Vec<u8>,
}

impl Capture {
    /// Captures these two streams, and keeps `limit` bytes of each.
    pub(crate) fn new([stdout, stderr]: [OwnedFd; 2], limit: u64) -> Capture {
        Capture { stdout, stderr, limit, scratch: vec![0; CHUNK] }
    }
}

/// SupervisedEnd of a run.
#[derive(Debug)]
pub(crate) struct SupervisedEnd {
    pub(crate) end: End,
    pub(crate) timed_out: bool,
    /// A limit that another process removed, for which the run was ended.
    pub(crate) lost_limit: Option<CgroupLimit>,
    pub(crate) duration: Duration,
    pub(crate) stdout: (String, u64),
    pub(crate) stderr: (String, u64),
    /// Standard stream whose bytes could not be copied, with the error.
    pub(crate) stream_failure: Option<StreamFailure>,
}

/// The way in which a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The command ended.
    Ended(CommandEnding),
    /// The sandbox could not be set up.
    SetupFailed { step: String, errno: i32 },
    /// The command could not be executed.
    ExecFailed { errno: i32 },
    /// The first process ended without a report, because it was killed.
    Vanished,
}

/// State of the supervision of a run.
struct Supervision<'a> {
    started: &'a StartedSandbox,
    watch: SupervisionInputs<'a>,
    /// End of the run, set when the first process has sent its last report.
    end: Option<End>,
    ending: bool,
    timed_out: bool,
    lost_limit: Option<CgroupLimit>,
    /// Time of the next check of the limits.
    limits_due: Option<Instant>,
    relays: StreamRelays,
    /// True if the run was told to end, for example by its deadline or by the caller.
    is_told_to_end: bool,
    /// True if the command has told its exit code on `end_report`, and so has written all of its
    /// output.
    is_written: bool,
}

/// The output pipes that have not ended yet.
type Pipes<'a> = [Option<BorrowedFd<'a>>; 2];

/// Function that is called with every chunk of output, even if the chunk is not kept.
pub(crate) type Listener<'a> = &'a mut dyn FnMut(Stream, &[u8]);

/// Tells the first process of a sandbox to end everything, and kills `group`, the cgroup of a tree
/// that the first process alone cannot end.
pub(crate) fn order_end(started: &StartedSandbox, group: Option<&Cgroup>) -> io::Result<()> {
    if let Some(group) = group {
        let _ = group.kill(); // the first process also kills what it can
    }
    control::send(&started.control, &ControlOrder::End)
}

/// Supervises a run to its end.
pub(crate) fn supervise<'a>(
    started: &'a StartedSandbox,
    mut watch: SupervisionInputs<'a>,
    mut on_output: Option<Listener<'_>>,
) -> Result<SupervisedEnd, io::Error> {
    let begun = Instant::now();
    let listens = on_output.is_some();
    let (mut pipes, limit, scratch): (Pipes<'_>, u64, &mut [u8]) = match watch.capture.take() {
        Some(Capture { stdout, stderr, limit, scratch }) => {
            let (stdout, stderr): (&OwnedFd, &OwnedFd) = (stdout, stderr);
            ([Some(stdout.as_fd()), Some(stderr.as_fd())], *limit, scratch)
        }
        None => ([None, None], 0, &mut []),
    };
    let mut kept = [KeptOutput::new(limit), KeptOutput::new(limit)];
    let limits_due =
        watch.group.filter(|group| group.can_lose_limits()).map(|_| begun + LIMIT_CHECK_INTERVAL);
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
        is_told_to_end: false,
        is_written: false,
    };

    while run.end.is_none() || pipes.iter().any(Option::is_some) || run.relays.is_unfinished() {
        let ready = run.wait(&pipes)?;
        // Read reports first: a run that has ended by itself was not ended by us, even if we notice
        // that late.
        if ready.control {
            run.hear()?;
        }
        if ready.timer && run.is_late() {
            run.deadline_passed(&mut pipes);
        }
        run.check_limits()?;
        run.relays.copy(&ready.relays);
        if run.end.is_some() {
            run.relays.drain();
        }
        if ready.signals {
            run.forward_signals()?;
        }
        if ready.cancelled {
            run.end_all()?;
        }
        if ready.end_report {
            run.hear_last_word();
        }
        for (index, stream) in [Stream::Stdout, Stream::Stderr].into_iter().enumerate() {
            let (true, Some(pipe)) = (ready.pipes[index] || run.is_written, pipes[index]) else {
                continue;
            };
            // A listener gets every byte. Without a listener, large output need not be copied
            // through our memory.
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
    run.relays.finish();
    let [stdout, stderr] = kept.map(KeptOutput::finish);
    let (stdout, stderr) = (stdout?, stderr?);
    let end = run.end.unwrap_or(End::Vanished);
    Ok(SupervisedEnd {
        end,
        timed_out: run.timed_out,
        lost_limit: run.lost_limit,
        duration: begun.elapsed(),
        stdout,
        stderr,
        stream_failure: run.relays.take_failure(),
    })
}

/// The event sources that are ready.
struct ReadySources {
    timer: bool,
    signals: bool,
    cancelled: bool,
    control: bool,
    end_report: bool,
    pipes: [bool; 2],
    relays: Vec<bool>,
}

impl Supervision<'_> {
    fn wait(&self, pipes: &Pipes<'_>) -> io::Result<ReadySources> {
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
            self.watch.end_report.as_ref().map(EndReport::channel),
            pipes[0].filter(|_| awake_until.is_none()),
            pipes[1].filter(|_| awake_until.is_none()),
        ];
        let mut fds: Vec<PollFd<'_>> = listened
            .iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        let relays = self.relays.interests().flatten();
        fds.extend(relays.map(|(fd, event)| PollFd::from_borrowed_fd(fd, event)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) if awake_until.is_some() => {
                // Only pause here. Other work would slow down the command, which may run on the
                // other hardware thread of this core.
                (0..PAUSES_PER_POLL).for_each(|_| std::hint::spin_loop());
                std::thread::yield_now();
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut polled = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut is_ready = |is_listened: bool| is_listened && polled.next().unwrap_or(false);
        let mut is_slot_ready = |slot: usize| is_ready(listened[slot].is_some());
        Ok(ReadySources {
            // Use the clock and not the result of poll, because other events may be ready besides
            // the timeout when this process was suspended.
            timer: self.is_late(),
            signals: is_slot_ready(0),
            cancelled: is_slot_ready(1),
            control: is_slot_ready(2),
            end_report: is_slot_ready(3),
            pipes: [is_slot_ready(4), is_slot_ready(5)],
            relays: self.relays.interests().map(|interest| is_ready(interest.is_some())).collect(),
        })
    }

    /// Ends the run if another process removed a limit, because a command must not run without the
    /// limits of its policy.
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

    /// Tells whether the deadline has passed.
    fn is_late(&self) -> bool {
        self.watch.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Handles a deadline that has passed: that of the command or, if the run was told to end, that
    /// of its end.
    fn deadline_passed(&mut self, pipes: &mut Pipes<'_>) {
        if self.ending || self.end.is_some() {
            // The run does not end although it was told to, or a process outside holds its output
            // open.
            if let Some(group) = self.watch.group {
                let _ = group.kill(); // a process that cannot be killed cannot be waited for
            }
            // The process may be gone already.
            let _ = rustix::process::pidfd_send_signal(&self.started.launched.pidfd, Signal::KILL);
            // A command whose output was not taken in time is late, even if the command itself
            // ended in time.
            self.timed_out |=
                self.end.is_some() && !self.is_told_to_end && self.relays.is_unfinished();
            self.end.get_or_insert(End::Vanished);
            *pipes = [None, None];
            self.relays.finish();
            self.watch.deadline = None;
        } else {
            self.timed_out = true;
            let _ = self.end_all(); // on failure the first process is gone, and poll reports that
        }
    }

    fn forward_signals(&mut self) -> io::Result<()> {
        let Some(foreground) = &self.watch.foreground else { return Ok(()) };
        for signal in read_pending(&foreground.signals) {
            let is_ending = ENDING_SIGNALS.iter().any(|ending| ending.as_raw() == signal);
            self.is_told_to_end |= is_ending;
            if self.end.is_some() {
                // The command has ended, and the loop waits only for the readers of its output.
                if is_ending {
                    self.relays.finish();
                }
                continue;
            }
            // A SIGCONT in the foreground means that the command is to have the terminal again.
            let order = if signal == Signal::CONT.as_raw() {
                ControlOrder::Continue { foreground: foreground.lend() }
            } else {
                ControlOrder::Signal(signal)
            };
            control::send(&self.started.control, &order)?;
        }
        Ok(())
    }

    /// Tells the first process to end everything: it kills, reaps and reports. Processes that it
    /// cannot end within the grace period are ended by the control group, and by the end of the
    /// first process itself.
    fn end_all(&mut self) -> io::Result<()> {
        self.ending = true;
        self.is_told_to_end = true;
        self.watch.deadline = Some(Instant::now() + TREE_END_TIMEOUT);
        order_end(self.started, self.watch.group.filter(|_| self.watch.ends_by_group))
    }

    /// Reacts as a shell's job does when its command is stopped. Only the signals with which a
    /// terminal stops a job count: any other stop is between the command and the process that sent
    /// the signal.
    fn stopped_by(&self, signal: i32, foreground: &Foreground) -> io::Result<()> {
        if signal == Signal::TSTP.as_raw() {
            foreground.stop();
        }
        if [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&signal)
            && foreground.come_to_front()
        {
            let foreground = foreground.lend();
            control::send(&self.started.control, &ControlOrder::Continue { foreground })?;
        }
        Ok(())
    }

    /// Accepts the exit code that the command itself tells, if the command is the only process that
    /// is left. Otherwise the command is told to exit, and its end is awaited as usual.
    fn hear_last_word(&mut self) {
        let Some(end_report) = self.watch.end_report.take() else { return };
        if self.end.is_some() || self.ending {
            return;
        }
        if let Some(ending) = end_report.hear() {
            self.end = Some(End::Ended(ending));
            self.ending = true;
            self.is_written = true;
            // A command that claims to have ended may continue to write. Its output is read no
            // longer than that of any other run.
            self.watch.deadline = Some(Instant::now() + TREE_END_TIMEOUT);
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        let report = match control::receive(&self.started.control, RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            report => report?,
        };
        match report {
            Some(ControlReport::Started { .. }) => {}
            Some(ControlReport::Stopped { signal }) => {
                if let Some(foreground) = &self.watch.foreground {
                    self.stopped_by(signal, foreground)?;
                }
            }
            Some(ControlReport::SetupFailed { step, errno }) => {
                self.end = Some(End::SetupFailed { step, errno })
            }
            Some(ControlReport::ExecFailed { errno }) => self.end = Some(End::ExecFailed { errno }),
            Some(ControlReport::Ended(ending)) => {
                // The first process has its own clock, and ends the command if we do not.
                self.timed_out |= !self.ending && ending.exit_code.is_none() && self.is_late();
                self.end = Some(End::Ended(ending));
            }
            None => self.end = Some(End::Vanished),
        }
        if self.end.is_some() {
            // Read the output that is still in the pipes, but do not wait longer than this for
            // processes that hold the pipes open.
            self.ending = true;
            self.watch.deadline = match (self.relays.is_empty(), self.is_told_to_end) {
                (true, _) => Some(Instant::now() + TREE_END_TIMEOUT),
                (false, true) => Some(Instant::now() + LAST_OUTPUT_TIMEOUT),
                // The reader of a named pipe may be slow. The command itself could wait for the
                // reader until its deadline.
                (false, false) => self.watch.deadline,
            };
        }
        Ok(())
    }
}
