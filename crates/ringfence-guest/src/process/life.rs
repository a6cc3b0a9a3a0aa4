//! The task that sees a command through: from its first word to the end of the last process that it left.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ringfence_linux::{Ending, Report};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::process::{DataEvent, ProcessEvent, StartRequest};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::control::Control;
use super::exec::{Exec, Subscriber};
use super::streams::{Output, Streams};
use super::{Service, description, ending};
use crate::{connect, log};

/// How long after a command's end others that hold its streams may still be heard.
const GRACE: Duration = Duration::from_millis(100);
/// The most that a pipe holds, for an ordinary user (pipe(7)): what a command may have left in it.
const PIPE: usize = 1 << 20;
/// How long a command may take to become its program.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long a first process may take to obey an order to end. It gives a tree five seconds.
const PATIENCE: Duration = Duration::from_secs(7);

/// What a command's task starts from.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) service: Rc<Service>,
    /// Its place in the order of starts.
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
                let _ = first.done.send(Err(failure)); // whoever asked may have gone
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

/// Sees a command that runs to its end, and what it left behind to theirs. True when its first process was killed.
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
    // What it left behind goes on, unheard: with its streams closed it would be killed by its next word.
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

/// A command does not run.
struct NotStarted {
    failure: Failure,
    /// Whether its first process was killed, so that something of it may be left.
    lost: bool,
}

/// Waits for the command itself: its id, or why it does not run.
async fn started(control: &Control, program: &str, deadline: Option<Instant>) -> Result<u32, NotStarted> {
    let refused = |failure| Err(NotStarted { failure, lost: false });
    let lost = |failure| {
        control.kill();
        Err(NotStarted { failure, lost: true })
    };
    let longest = Instant::now() + START_PATIENCE;
    // A command may stop its first process before that has said a word.
    match timeout_at(deadline.map_or(longest, |deadline| deadline.min(longest)), control.report()).await {
        Ok(Some(Report::Started { pid })) => Ok(pid.cast_unsigned()),
        Ok(Some(Report::ExecFailed { errno })) => refused(description::not_executed(program, errno)),
        Ok(Some(Report::SetupFailed { step, errno: 0 })) => {
            refused(Failure::new(Code::Internal, format!("cannot {step}")))
        }
        Ok(Some(Report::SetupFailed { step, errno })) => {
            refused(description::system(&step, &std::io::Error::from_raw_os_error(errno)))
        }
        Ok(Some(Report::Stopped { .. } | Report::Ended(_)) | None) => {
            lost(Failure::new(Code::Internal, "the command's supervisor was killed before it could tell of it"))
        }
        Err(_) => lost(connect::too_late()),
    }
}

/// Waits for the command's end, and sees to it when its deadline has passed or somebody has ordered it. Tells how it
/// ended, unless its first process was killed, and whether its deadline had passed.
async fn watch(exec: &Exec, deadline: Option<Instant>) -> (Option<Ending>, bool) {
    let (mut deadline, mut patience, mut deadline_passed) = (deadline, None, false);
    loop {
        let wake = patience.or(deadline);
        tokio::select! {
            report = exec.control.report() => match report {
                Some(Report::Ended(ending)) => return (Some(ending), deadline_passed),
                Some(_) => {}
                None => return (None, deadline_passed),
            },
            () = exec.end_ordered() => patience = patience.or(Some(Instant::now() + PATIENCE)),
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
                if patience.take().is_some() {
                    // Something inside has stopped it. It goes, and what was below it is found by its absence.
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

/// The moment of a command's end.
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

/// Passes on what a command writes. After its end what it left in the pipes is passed on, and for a moment what
/// others write who hold them; but nobody can hold the end up.
async fn pump(outputs: &mut [Output], exec: &Exec, exit: &Exit) {
    let mut late = 0;
    loop {
        let data = match exit.at.get() {
            None => tokio::select! {
                data = next(outputs) => data,
                () = exit.happened.notified() => continue,
            },
            Some(at) if Instant::now() < at + GRACE => match timeout_at(at + GRACE, next(outputs)).await {
                Ok(data) => data,
                Err(_) => continue,
            },
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

/// What is written next to any of them; `None` when nobody can write to one of them any more.
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

/// A program's name as the log tells it: the last part of its path, short and printable.
fn name(program: &str) -> String {
    program.rsplit('/').next().unwrap_or_default().chars().take(64).flat_map(char::escape_debug).collect()
}
