//! The service `process.Process`, which runs commands. Each command has a process tree of its own,
//! and the first process of the tree is part of ringfence.
//!
//! Reading order: `launch_description` translates a request for the launcher. `streams` creates the
//! pipes or the terminal of a command. `first_process` is the connection to the first process.
//! `exec` is a running command. `command_task` is the task that accompanies the command to its end.
//! `end_event` describes the end to clients.

mod command_task;
mod end_event;
mod exec;
mod first_process;
mod launch_description;
mod streams;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use ringfence_linux::{ControlOrder, LaunchError, LaunchFiles, Launcher};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::process::{
    EmptyMessage, EventMessage, InitRequest, ListResponse, ProcessEvent, ProcessRequest,
    ProcessSelector, SendInputRequest, SendSignalRequest, Signal, StartRequest, StreamInputRequest,
    UpdateRequest,
};
use tokio::sync::{Semaphore, oneshot};

use crate::connect_protocol::{self, Reply, StreamDeadline, StreamMessage, StreamSender};
use crate::slices::refuse_unread;
use crate::{authentication, log, user};
use command_task::CommandTask;
use exec::{Exec, Subscriber, SubscribingCall};
use first_process::FirstProcess;

/// Maximum number of commands at once. A command counts until the processes that it left running
/// have ended.
const MAX_COMMANDS: usize = 512;

impl StreamMessage for EventMessage {
    fn keepalive() -> Self {
        EventMessage { event: ProcessEvent::Keepalive(EmptyMessage {}) }
    }
}

/// State of the service: the launcher, and the commands of the sandbox.
#[derive(Debug)]
pub(crate) struct ProcessService {
    launcher: Launcher,
    /// Environment variables of every command: the name, and the whole entry `NAME=value`.
    environment: RefCell<BTreeMap<Vec<u8>, CString>>,
    /// Directory in which a command starts if its request names none.
    directory: PathBuf,
    semaphore: Arc<Semaphore>,
    /// Running commands by sequence number, which is the order of their start.
    execs: RefCell<BTreeMap<u64, Rc<Exec>>>,
    next: Cell<u64>,
    /// Process ids of the first processes by sequence number. A first process outlives its command
    /// while processes that the command left are running.
    firsts: RefCell<BTreeMap<u64, i32>>,
}

impl ProcessService {
    /// Creates the service without any command.
    pub(crate) fn new(launcher: Launcher, directory: PathBuf) -> Rc<ProcessService> {
        Rc::new(ProcessService {
            launcher,
            environment: RefCell::new(launch_description::base_environment()),
            directory,
            semaphore: Arc::new(Semaphore::new(MAX_COMMANDS)),
            execs: RefCell::default(),
            next: Cell::default(),
            firsts: RefCell::default(),
        })
    }

    /// Answers `POST /init`: adds variables to the environment of every command that is started
    /// from now on.
    pub(crate) async fn init(self: Rc<Self>, request: Request<Incoming>) -> Reply {
        connect_protocol::answer_unary(request, async |InitRequest { env_vars }| {
            let more = launch_description::check_variables(&env_vars)?;
            self.environment.borrow_mut().extend(more);
            if let Some(home) = env_vars.get("HOME") {
                user::move_home(home);
            }
            Ok(EmptyMessage {})
        })
        .await
    }

    /// Answers `GET /envs` with the variables that every command gets.
    pub(crate) fn variables(&self) -> Reply {
        let environment = self.environment.borrow();
        let pair = |(name, variable): (&Vec<u8>, &CString)| {
            let value = variable.as_bytes().get(name.len() + 1..).unwrap_or_default();
            (
                String::from_utf8_lossy(name).into_owned(),
                String::from_utf8_lossy(value).into_owned(),
            )
        };
        connect_protocol::json_reply(
            StatusCode::OK,
            &environment.iter().map(pair).collect::<BTreeMap<_, _>>(),
        )
    }

    /// Answers a call of a method of the service.
    pub(crate) async fn answer_call(
        self: Rc<Self>,
        method: &str,
        request: Request<Incoming>,
    ) -> Reply {
        match method {
            "Start" => self.start_command(request).await,
            "Connect" => {
                connect_protocol::answer_server_stream(
                    request,
                    StreamDeadline::EndsTheStream,
                    move |ProcessRequest { process }, sender| async move {
                        let (done, outcome) = oneshot::channel();
                        self.find_process(&process)?.subscribe(Subscriber {
                            sender,
                            done,
                            origin: SubscribingCall::Connect,
                        });
                        wait_for_outcome(outcome).await
                    },
                )
                .await
            }
            "List" => {
                connect_protocol::answer_unary(request, async |EmptyMessage {}| {
                    Ok(self.list_processes())
                })
                .await
            }
            "SendInput" => {
                connect_protocol::answer_unary(
                    request,
                    async |SendInputRequest { process, input }| {
                        self.find_process(&process)?
                            .write_input(input)
                            .await
                            .map(|()| EmptyMessage {})
                    },
                )
                .await
            }
            "StreamInput" => {
                connect_protocol::answer_client_stream(request, async |messages| {
                    self.stream_input(messages).await
                })
                .await
            }
            "SendSignal" => {
                connect_protocol::answer_unary(
                    request,
                    async |SendSignalRequest { process, signal }| {
                        let exec = self.find_process(&process)?;
                        match signal {
                            Signal::Kill => exec.order_end(),
                            other => exec.send_order(ControlOrder::Signal(other.number()))?,
                        }
                        Ok(EmptyMessage {})
                    },
                )
                .await
            }
            "CloseStdin" => {
                connect_protocol::answer_unary(request, async |ProcessRequest { process }| {
                    self.find_process(&process)?.close_input().await.map(|()| EmptyMessage {})
                })
                .await
            }
            "Update" => {
                connect_protocol::answer_unary(request, async |UpdateRequest { process, pty }| {
                    let exec = self.find_process(&process)?;
                    if let Some(size) = pty.and_then(|pty| pty.size) {
                        exec.resize(size)?;
                    }
                    Ok(EmptyMessage {})
                })
                .await
            }
            other => {
                let message =
                    format!("`{}` has no method `{other}`", ringfence_proto::process::SERVICE);
                refuse_unread(
                    request,
                    connect_protocol::failure_reply(&Failure::new(Code::Unimplemented, message)),
                )
                .await
            }
        }
    }

    async fn start_command(self: Rc<Self>, request: Request<Incoming>) -> Reply {
        let (user, time) = (
            authentication::requested_user(request.headers()),
            connect_protocol::call_timeout(request.headers()),
        );
        let method = move |request: StartRequest, sender: StreamSender<EventMessage>| async move {
            user?;
            let (done, outcome) = oneshot::channel();
            self.launch_command(
                request,
                time?,
                Subscriber { sender, done, origin: SubscribingCall::Start },
            )?;
            wait_for_outcome(outcome).await
        };
        connect_protocol::answer_server_stream(request, StreamDeadline::IsTheMethods, method).await
    }

    /// Starts a command. The command continues to run when its client disconnects.
    fn launch_command(
        self: &Rc<Self>,
        request: StartRequest,
        time: Option<Duration>,
        first: Subscriber,
    ) -> Result<(), Failure> {
        let permit = self.semaphore.clone().try_acquire_owned();
        let permit = permit.map_err(|_| {
            Failure::new(Code::ResourceExhausted, format!("{MAX_COMMANDS} commands run already"))
        })?;
        let (launch, streams, stdio) = launch_description::describe_launch(self, &request)?;
        let files = LaunchFiles { stdio, ..LaunchFiles::default() };
        let started = self
            .launcher
            .start(&launch, files, None)
            .map_err(|error| self.launch_failure(&error))?;
        let control = FirstProcess::new(started)
            .map_err(|error| launch_description::system_failure("talk to a new process", &error))?;
        let number = self.next.replace(self.next.get() + 1);
        self.firsts.borrow_mut().insert(number, control.pid());
        let deadline = time.and_then(|time| tokio::time::Instant::now().checked_add(time));
        let life = CommandTask {
            service: self.clone(),
            number,
            control: Rc::new(control),
            deadline,
            request,
        };
        tokio::task::spawn_local(async move {
            life.run(streams, first).await;
            drop(permit);
        });
        Ok(())
    }

    fn launch_failure(&self, error: &LaunchError) -> Failure {
        let (LaunchError::Clone { source } | LaunchError::Ask { source }) = error;
        if matches!(source.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            // Only a process inside the sandbox can have killed the launcher. Without the launcher,
            // the guest cannot find the processes that commands leave behind. The guest therefore
            // exits, and the first processes end with the guest.
            log::write_line(format_args!(
                "error: the launcher process was killed; the sandbox ends"
            ));
            std::process::exit(1);
        }
        launch_description::system_failure("start a process", source)
    }

    /// Ends the processes that killed first processes left behind: all processes below the launcher
    /// that are below none of the living first processes.
    fn end_strays(&self) {
        let firsts: Vec<i32> = self.firsts.borrow().values().copied().collect();
        if !self.launcher.end_strays(&firsts) {
            log::write_line(format_args!("error: a killed command left processes that do not end"));
        }
    }

    async fn stream_input(
        &self,
        messages: &mut connect_protocol::ClientMessages<StreamInputRequest>,
    ) -> Result<EmptyMessage, Failure> {
        let Some(StreamInputRequest::Start(ProcessRequest { process })) = messages.next().await?
        else {
            return Err(Failure::new(
                Code::InvalidArgument,
                "the first message of an input names its command",
            ));
        };
        let exec = self.find_process(&process)?;
        while let Some(message) = messages.next().await? {
            match message {
                StreamInputRequest::Data(data) => exec.write_input(data.input).await?,
                StreamInputRequest::Keepalive(EmptyMessage {}) => {}
                StreamInputRequest::Start(_) => {
                    return Err(Failure::new(
                        Code::InvalidArgument,
                        "an input names its command once",
                    ));
                }
            }
        }
        Ok(EmptyMessage {})
    }

    fn list_processes(&self) -> ListResponse {
        ListResponse { processes: self.execs.borrow().values().map(|exec| exec.listed()).collect() }
    }

    fn find_process(&self, selector: &ProcessSelector) -> Result<Rc<Exec>, Failure> {
        let execs = self.execs.borrow();
        let found = match selector {
            ProcessSelector::Pid(pid) => execs.values().find(|exec| exec.pid == *pid),
            // The latest command counts, because a tag can be used again.
            ProcessSelector::Tag(tag) => {
                execs.values().rev().find(|exec| exec.tag.as_ref() == Some(tag))
            }
        };
        found.cloned().ok_or_else(|| {
            let which = match selector {
                ProcessSelector::Pid(pid) => format!("the id {pid}"),
                ProcessSelector::Tag(tag) => format!("the tag `{tag}`"),
            };
            Failure::new(Code::NotFound, format!("no command runs with {which}"))
        })
    }
}

async fn wait_for_outcome(outcome: oneshot::Receiver<Result<(), Failure>>) -> Result<(), Failure> {
    outcome.await.unwrap_or_else(|_| Err(Failure::new(Code::Internal, "the command was lost")))
}
