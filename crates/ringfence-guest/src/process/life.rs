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

use super::control::Control;
use super::exec::{Exec, Subscriber};
use super::streams::{Output, Streams};
use super::{Service, description, ending};
use crate::{connect, log};

/// Time after a command's end during which output of other processes that hold its streams is still
/// forwarded.
const GRACE: Duration = Duration::from_millis(100);
/// Maximum capacity of a pipe in bytes, for an unprivileged user (pipe(7)). A command can leave
/// that much output in each pipe.
const PIPE: usize = 1 << 20;
/// Time limit for a command to start, until execve(2) has succeeded or failed.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for a first process to obey an order to end. The first process itself gives its
/// process tree five seconds.
const PATIENCE: Duration = Duration::from_secs(7);

/// State from which the task of a command starts.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) service: Rc<Service>,
    /// Sequence number of the command, in the order of starts.
    pub(super) number: u64,
    pub(super) control: Rc<Control>,
    pub(super) deadline: Option<Instant>,
    pub(super) request: StartRequest,
}

impl Life {
    pub(super) async fn live(self, streams: Streams, first: Subscriber) {
        let Life { service, number, control, deadline, request } = self;
        let StartRequest { process: config, tag, .. } = request;
        let program = config.cmd.clone();
        let lost = match started(&control, &program, deadline).await {
            Ok(pid) => {
                let exec = Rc::new(Exec::new(pid, tag, config, control.clone(), streams.input));
                service.execs.borrow_mut().insert(number, exec.clone());
                exec.subscribe(first);
                log::line(format_args!("start {} pid {pid}", name(&program)));
                run(&service, number, exec, deadline, streams.outputs, &name(&program)).await
            }
            Err(NotStarted { failure, lost }) => {
                let _ = first.done.send(Err(failure)); // the client may have disconnected
                control.gone().await;
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
    service: &Service,
    number: u64,
    exec: Rc<Exec>,
    deadline: Option<Instant>,
    mut outputs: Vec<Output>,
    name: &str,
) -> bool {
    let exit = Exit::default();
    let watch = async {
        let (ending, deadline_passed) = watch(&exec, deadline).await;
        service.execs.borrow_mut().remove(&number);
        exec.set_over();
        exit.set();
        (ending, deadline_passed)
    };
    let ((ending, deadline_passed), ()) = tokio::join!(watch, pump(&mut outputs, &exec, &exit));
    let event = ending::event(ending.as_ref());
    log::line(format_args!("end {name} pid {}: {}", exec.pid, event.status));
    exec.finish(ProcessEvent::End(event), deadline_passed).await;
    let control = exec.control.clone();
    drop(exec);
    // Keep reading the streams and drop the output. If the streams were closed, the next write
    // would kill the processes that the command left running (SIGPIPE).
    let discard = async {
        while next(&mut outputs).await.is_some() {}
        std::future::pending().await
    };
    tokio::select! {
        () = control.gone() => {}
        () = discard => {}
    }
    ending.is_none()
}

/// Result of a command that did not start.
struct NotStarted {
    failure: Failure,
    /// True if the first process was killed, so some of its processes may be left.
    lost: bool,
}

/// Waits until the command has started, and returns its process id.
async fn started(
    control: &Control,
    program: &str,
    deadline: Option<Instant>,
) -> Result<u32, NotStarted> {
    let refused = |failure| Err(NotStarted { failure, lost: false });
    let lost = |failure| {
        control.kill();
        Err(NotStarted { failure, lost: true })
    };
    let longest = Instant::now() + START_PATIENCE;
    // The wait needs a limit, because a command can stop its first process before the first report.
    match timeout_at(deadline.map_or(longest, |deadline| deadline.min(longest)), control.report())
        .await
    {
        Ok(Some(ControlReport::Started { pid })) => Ok(pid.cast_unsigned()),
        Ok(Some(ControlReport::ExecFailed { errno })) => {
            refused(description::not_executed(program, errno))
        }
        Ok(Some(ControlReport::SetupFailed { step, errno: 0 })) => {
            refused(Failure::new(Code::Internal, format!("cannot {step}")))
        }
        Ok(Some(ControlReport::SetupFailed { step, errno })) => {
            refused(description::system(&step, &std::io::Error::from_raw_os_error(errno)))
        }
        Ok(Some(ControlReport::Stopped { .. } | ControlReport::Ended(_)) | None) => {
            lost(Failure::new(
                Code::Internal,
                "the command's supervisor was killed before it could tell of it",
            ))
        }
        Err(_) => lost(connect::too_late()),
    }
}

/// Waits for the end of the command. Orders the end when the deadline has passed, and kills a first
/// process that does not obey an order to end. Returns the ending, which is `None` if the first
/// process was killed, and whether the deadline had passed.
async fn watch(exec: &Exec, deadline: Option<Instant>) -> (Option<CommandEnding>, bool) {
    let (mut deadline, mut patience, mut deadline_passed) = (deadline, None, false);
    loop {
        let wake = patience.or(deadline);
        tokio::select! {
            report = exec.control.report() => match report {
                Some(ControlReport::Ended(ending)) => return (Some(ending), deadline_passed),
                Some(_) => {}
                None => return (None, deadline_passed),
            },
            () = exec.end_ordered() => patience = patience.or(Some(Instant::now() + PATIENCE)),
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                if patience.take().is_some() {
                    // A process inside the sandbox has stopped the first process. Kill the first
                    // process. The service then finds the processes that were below the first
                    // process, because these are below no first process any more.
                    exec.control.kill();
                } else {
                    deadline_passed = true;
                    exec.end();
                }
                deadline = None;
            }
        }
    }
}

/// Time at which a command ended.
#[derive(Debug, Default)]
struct Exit {
    at: Cell<Option<Instant>>,
    happened: Notify,
}

impl Exit {
    fn set(&self) {
        self.at.set(Some(Instant::now()));
        self.happened.notify_one();
    }
}

/// Forwards the output of a command to its subscribers. After the command's end, forwards what the
/// command left in the pipes, and for the time of [`GRACE`] what other processes write that hold
/// the pipes. No process can delay the end of the stream for longer.
async fn pump(outputs: &mut [Output], exec: &Exec, exit: &Exit) {
    let mut late = 0;
    loop {
        let data = match exit.at.get() {
            None => tokio::select! {
                data = next(outputs) => data,
                () = exit.happened.notified() => continue,
            },
            Some(at) if Instant::now() < at + GRACE => {
                match timeout_at(at + GRACE, next(outputs)).await {
                    Ok(data) => data,
                    Err(_) => continue,
                }
            }
            // After the grace period, forward at most what the pipes could hold at the end of the
            // command.
            Some(_) if late > PIPE * outputs.len() => return,
            Some(_) => outputs.iter_mut().find_map(|output| output.now()),
        };
        let Some(data) = data else {
            if exit.at.get().is_some() {
                return;
            }
            exit.happened.notified().await;
            continue;
        };
        if exit.at.get().is_some_and(|at| Instant::now() >= at + GRACE) {
            late += length(&data);
        }
        if !exec.is_alone() {
            exec.tell(data.to_frame().into()).await;
        }
    }
}

/// Returns the next output of any of the streams, or `None` when no process can write to any of
/// them.
async fn next(outputs: &mut [Output]) -> Option<DataEvent> {
    loop {
        let mut open = outputs.iter_mut().filter(|output| !output.is_over());
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

fn length(data: &DataEvent) -> usize {
    let (DataEvent::Stdout(bytes) | DataEvent::Stderr(bytes) | DataEvent::Pty(bytes)) = data;
    bytes.0.len()
}

/// Returns a program's name for the log: the last component of its path, at most 64 characters,
/// printable.
fn name(program: &str) -> String {
    program
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .chars()
        .take(64)
        .flat_map(char::escape_debug)
        .collect()
}
