//! Task that accompanies a command from the first report of its first process to the end of the
//! last process that the command left running.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ringfence_linux::{CommandEnding, ControlReport};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::process::{DataEvent, ProcessEvent, StartRequest};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::exec::{Exec, Subscriber};
use super::first_process::FirstProcess;
use super::streams::{CommandOutput, CommandStreams};
use super::{ProcessService, end_event, launch_description};
use crate::{connect_protocol, log};

/// Time after a command's end during which output of other processes that hold its streams is still
/// forwarded.
const OUTPUT_GRACE_PERIOD: Duration = Duration::from_millis(100);
/// Maximum capacity of a pipe in bytes, for an unprivileged user (pipe(7)). A command can leave
/// that much output in each pipe.
const MAX_PIPE_BYTES: usize = 1 << 20;
/// Time limit for a command to start, until execve(2) has succeeded or failed.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a first process to obey an order to end. The first process itself gives its
/// process tree five seconds.
const END_TIMEOUT: Duration = Duration::from_secs(7);

/// State from which the task of a command starts.
#[derive(Debug)]
pub(super) struct CommandTask {
    pub(super) service: Rc<ProcessService>,
    /// Sequence number of the command, in the order of starts.
    pub(super) number: u64,
    pub(super) control: Rc<FirstProcess>,
    pub(super) deadline: Option<Instant>,
    pub(super) request: StartRequest,
}

impl CommandTask {
    pub(super) async fn run(self, streams: CommandStreams, first: Subscriber) {
        let CommandTask { service, number, control, deadline, request } = self;
        let StartRequest { process: config, tag, .. } = request;
        let program = config.cmd.clone();
        let lost = match wait_until_started(&control, &program, deadline).await {
            Ok(pid) => {
                let exec = Rc::new(Exec::new(pid, tag, config, control.clone(), streams.input));
                service.execs.borrow_mut().insert(number, exec.clone());
                exec.subscribe(first);
                log::write_line(format_args!("start {} pid {pid}", program_name(&program)));
                run(&service, number, exec, deadline, streams.outputs, &program_name(&program))
                    .await
            }
            Err(StartFailure { failure, lost }) => {
                let _ = first.done.send(Err(failure)); // the client may have disconnected
                control.wait_until_ended().await;
                lost
            }
        };
        service.firsts.borrow_mut().remove(&number);
        drop(control);
        if lost {
            service.end_strays();
        }
    }
}

/// Waits for the end of a running command, then for the end of the processes that it left running.
/// Returns true if the first process was killed.
async fn run(
    service: &ProcessService,
    number: u64,
    exec: Rc<Exec>,
    deadline: Option<Instant>,
    mut outputs: Vec<CommandOutput>,
    name: &str,
) -> bool {
    let exit = ExitTime::default();
    let watch = async {
        let (ending, deadline_passed) = wait_for_end(&exec, deadline).await;
        service.execs.borrow_mut().remove(&number);
        exec.mark_ended();
        exit.set();
        (ending, deadline_passed)
    };
    let ((ending, deadline_passed), ()) =
        tokio::join!(watch, forward_output(&mut outputs, &exec, &exit));
    let event = end_event::end_event(ending.as_ref());
    log::write_line(format_args!("end {name} pid {}: {}", exec.pid, event.status));
    exec.finish(ProcessEvent::End(event), deadline_passed).await;
    let control = exec.control.clone();
    drop(exec);
    // Keep reading the streams and drop the output. If the streams were closed, the next write
    // would kill the processes that the command left running (SIGPIPE).
    let discard = async {
        while next_output(&mut outputs).await.is_some() {}
        std::future::pending().await
    };
    tokio::select! {
        () = control.wait_until_ended() => {}
        () = discard => {}
    }
    ending.is_none()
}

/// Result of a command that did not start.
struct StartFailure {
    failure: Failure,
    /// True if the first process was killed, so some of its processes may be left.
    lost: bool,
}

/// Waits until the command has started, and returns its process id.
async fn wait_until_started(
    control: &FirstProcess,
    program: &str,
    deadline: Option<Instant>,
) -> Result<u32, StartFailure> {
    let refused = |failure| Err(StartFailure { failure, lost: false });
    let lost = |failure| {
        control.kill();
        Err(StartFailure { failure, lost: true })
    };
    let longest = Instant::now() + START_TIMEOUT;
    // The wait needs a limit, because a command can stop its first process before the first report.
    match timeout_at(
        deadline.map_or(longest, |deadline| deadline.min(longest)),
        control.next_report(),
    )
    .await
    {
        Ok(Some(ControlReport::Started { pid })) => Ok(pid.cast_unsigned()),
        Ok(Some(ControlReport::ExecFailed { errno })) => {
            refused(launch_description::exec_failure(program, errno))
        }
        Ok(Some(ControlReport::SetupFailed { step, errno: 0 })) => {
            refused(Failure::new(Code::Internal, format!("cannot {step}")))
        }
        Ok(Some(ControlReport::SetupFailed { step, errno })) => refused(
            launch_description::system_failure(&step, &std::io::Error::from_raw_os_error(errno)),
        ),
        Ok(Some(ControlReport::Stopped { .. } | ControlReport::Ended(_)) | None) => {
            lost(Failure::new(
                Code::Internal,
                "the command's supervisor was killed before it could tell of it",
            ))
        }
        Err(_) => lost(connect_protocol::deadline_failure()),
    }
}

/// Waits for the end of the command. Orders the end when the deadline has passed, and kills a first
/// process that does not obey an order to end. Returns the ending, which is `None` if the first
/// process was killed, and whether the deadline had passed.
async fn wait_for_end(exec: &Exec, deadline: Option<Instant>) -> (Option<CommandEnding>, bool) {
    let (mut deadline, mut kill_deadline, mut deadline_passed) = (deadline, None, false);
    loop {
        let wake = kill_deadline.or(deadline);
        tokio::select! {
            report = exec.control.next_report() => match report {
                Some(ControlReport::Ended(ending)) => return (Some(ending), deadline_passed),
                Some(_) => {}
                None => return (None, deadline_passed),
            },
            () = exec.wait_until_end_ordered() => {
                kill_deadline = kill_deadline.or(Some(Instant::now() + END_TIMEOUT));
            }
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                if kill_deadline.take().is_some() {
                    // A process inside the sandbox has stopped the first process. Kill the first
                    // process. The service then finds the processes that were below the first
                    // process, because these are below no first process any more.
                    exec.control.kill();
                } else {
                    deadline_passed = true;
                    exec.order_end();
                }
                deadline = None;
            }
        }
    }
}

/// Time at which a command ended.
#[derive(Debug, Default)]
struct ExitTime {
    at: Cell<Option<Instant>>,
    happened: Notify,
}

impl ExitTime {
    fn set(&self) {
        self.at.set(Some(Instant::now()));
        self.happened.notify_one();
    }
}

/// Forwards the output of a command to its subscribers. After the command's end, forwards what the
/// command left in the pipes, and for the time of [`OUTPUT_GRACE_PERIOD`] what other processes
/// write that hold the pipes. No process can delay the end of the stream for longer.
async fn forward_output(outputs: &mut [CommandOutput], exec: &Exec, exit: &ExitTime) {
    let mut late = 0;
    loop {
        let data = match exit.at.get() {
            None => tokio::select! {
                data = next_output(outputs) => data,
                () = exit.happened.notified() => continue,
            },
            Some(at) if Instant::now() < at + OUTPUT_GRACE_PERIOD => {
                match timeout_at(at + OUTPUT_GRACE_PERIOD, next_output(outputs)).await {
                    Ok(data) => data,
                    Err(_) => continue,
                }
            }
            // After the grace period, forward at most what the pipes could hold at the end of the
            // command.
            Some(_) if late > MAX_PIPE_BYTES * outputs.len() => return,
            Some(_) => outputs.iter_mut().find_map(|output| output.now()),
        };
        let Some(data) = data else {
            if exit.at.get().is_some() {
                return;
            }
            exit.happened.notified().await;
            continue;
        };
        if exit.at.get().is_some_and(|at| Instant::now() >= at + OUTPUT_GRACE_PERIOD) {
            late += data_length(&data);
        }
        if !exec.has_no_subscriber() {
            exec.send_to_all(data.to_frame().into()).await;
        }
    }
}

/// Returns the next output of any of the streams, or `None` when no process can write to any of
/// them.
async fn next_output(outputs: &mut [CommandOutput]) -> Option<DataEvent> {
    loop {
        let mut open = outputs.iter_mut().filter(|output| !output.is_closed());
        let data = match (open.next(), open.next()) {
            (Some(first), Some(second)) => tokio::select! {
                data = first.next() => data,
                data = second.next() => data,
            },
            (Some(only), None) => only.next().await,
            (None, _) => return None,
        };
        if data.is_some() {
            return data;
        }
    }
}

fn data_length(data: &DataEvent) -> usize {
    let (DataEvent::Stdout(bytes) | DataEvent::Stderr(bytes) | DataEvent::Pty(bytes)) = data;
    bytes.0.len()
}

/// Returns a program's name for the log: the last component of its path, at most 64 characters,
/// printable.
fn program_name(program: &str) -> String {
    program
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .chars()
        .take(64)
        .flat_map(char::escape_debug)
        .collect()
}
