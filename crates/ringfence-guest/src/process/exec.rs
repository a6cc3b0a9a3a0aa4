//! Running command: its subscribers, and the operations on it.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::join_all;
use ringfence_linux::ControlOrder;
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::process::{
    EventMessage, ListedProcess, ProcessConfig, ProcessEvent, ProcessInput, PtySize, StartEvent,
};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, oneshot, watch};

use super::first_process::FirstProcess;
use super::streams::{self, CommandInput};
use crate::connect_protocol::{self, StreamSender};

/// Client that receives the events of a command.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) sender: StreamSender<EventMessage>,
    /// Receives the outcome of the stream when there is nothing more to send.
    pub(super) done: oneshot::Sender<Result<(), Failure>>,
    pub(super) origin: SubscribingCall,
}

/// Call by which a client subscribed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubscribingCall {
    /// The call that started the command. Its deadline is the command's deadline.
    Start,
    /// A later call, whose deadline ends only its own stream.
    Connect,
}

/// Running command, in the form that the service keeps.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) pid: u32,
    pub(super) tag: Option<String>,
    config: ProcessConfig,
    pub(super) control: Rc<FirstProcess>,
    input: CommandInput,
    subscribers: RefCell<Vec<Subscriber>>,
    /// True once the command has ended.
    over: watch::Sender<bool>,
    /// Wakes the task that checks that an order to end is obeyed.
    end_ordered: Notify,
}

impl Exec {
    pub(super) fn new(
        pid: u32,
        tag: Option<String>,
        config: ProcessConfig,
        control: Rc<FirstProcess>,
        input: CommandInput,
    ) -> Exec {
        let (subscribers, over, end_ordered) =
            (RefCell::default(), watch::Sender::new(false), Notify::new());
        Exec { pid, tag, config, control, input, subscribers, over, end_ordered }
    }

    pub(super) fn listed(&self) -> ListedProcess {
        ListedProcess { config: self.config.clone(), pid: self.pid, tag: self.tag.clone() }
    }

    /// Adds a subscriber, which receives the start event, and from then on all output of the
    /// command.
    pub(super) fn subscribe(&self, subscriber: Subscriber) {
        subscriber
            .sender
            .send_first(&EventMessage { event: ProcessEvent::Start(StartEvent { pid: self.pid }) });
        self.subscribers.borrow_mut().push(subscriber);
    }

    /// Returns true if the command has no subscriber.
    pub(super) fn has_no_subscriber(&self) -> bool {
        self.subscribers.borrow().is_empty()
    }

    /// Sends a message to all subscribers, as fast as the slowest of them reads. Subscribers that
    /// have disconnected are removed.
    pub(super) async fn send_to_all(&self, message: Bytes) {
        let senders: Vec<_> =
            self.subscribers.borrow().iter().map(|subscriber| subscriber.sender.clone()).collect();
        let mut has_gone = false;
        for sender in senders {
            has_gone |= sender.send_encoded(message.clone()).await.is_err();
        }
        if has_gone {
            self.subscribers.borrow_mut().retain(|subscriber| !subscriber.sender.is_closed());
        }
    }

    /// Sends the end event to all subscribers and ends their streams. If the deadline has passed,
    /// the stream of the `Start` call ends with `deadline_exceeded` instead of the event.
    pub(super) async fn finish(&self, end: ProcessEvent, deadline_passed: bool) {
        let subscribers = self.subscribers.take();
        let end = connect_protocol::encode(&EventMessage { event: end });
        let farewells = subscribers.into_iter().map(async |Subscriber { sender, done, origin }| {
            let outcome = match origin {
                SubscribingCall::Start if deadline_passed => {
                    Err(connect_protocol::deadline_failure())
                }
                _ => sender
                    .send_encoded(end.clone())
                    .await
                    .map_err(|_| Failure::new(Code::Canceled, "nobody reads")),
            };
            let _ = done.send(outcome); // the client may have disconnected
        });
        join_all(farewells).await;
    }

    /// Marks the command as ended, which wakes all calls that wait to write to its input.
    pub(super) fn mark_ended(&self) {
        self.over.send_replace(true);
    }

    /// Sends an order to the first process. Fails if the socket takes no more orders, because the
    /// first process is stopped, or if the first process has ended.
    pub(super) fn send_order(&self, order: ControlOrder) -> Result<(), Failure> {
        self.control.send_order(order).map_err(|_| {
            Failure::new(
                Code::Unavailable,
                format!("the command {} was stopped together with its supervisor", self.pid),
            )
        })
    }

    /// Ends the command with every process that it started. Kills the first process if the order
    /// cannot be sent.
    pub(super) fn order_end(&self) {
        if self.control.send_order(ControlOrder::End).is_err() {
            self.control.kill();
        }
        self.end_ordered.notify_one();
    }

    /// Waits until a call has ordered the end of the command.
    pub(super) async fn wait_until_end_ordered(&self) {
        self.end_ordered.notified().await;
    }

    /// Writes to the command's input pipe or terminal, as fast as the command reads.
    pub(super) async fn write_input(&self, input: ProcessInput) -> Result<(), Failure> {
        let write = async {
            match (&self.input, &input) {
                (CommandInput::Pipe(pipe), ProcessInput::Stdin(bytes)) => {
                    match &mut *pipe.lock().await {
                        Some(pipe) => pipe
                            .write_all(&bytes.0)
                            .await
                            .map_err(|error| self.write_failure(&error)),
                        None => Err(self.unsupported_failure("its input was closed")),
                    }
                }
                (CommandInput::Terminal { writer, .. }, ProcessInput::Pty(bytes)) => {
                    let written = writer.lock().await.write_all(&bytes.0).await;
                    written.map_err(|error| self.write_failure(&error))
                }
                (CommandInput::Nothing, ProcessInput::Stdin(_)) => {
                    Err(self.unsupported_failure("it was started without input"))
                }
                (CommandInput::Terminal { .. }, ProcessInput::Stdin(_)) => {
                    Err(self.unsupported_failure("its input is its terminal"))
                }
                (CommandInput::Nothing | CommandInput::Pipe(_), ProcessInput::Pty(_)) => {
                    Err(self.unsupported_failure("it has no terminal"))
                }
            }
        };
        let mut over = self.over.subscribe();
        tokio::select! {
            written = write => written,
            _ = over.wait_for(|over| *over) => {
                Err(Failure::new(Code::NotFound, "the command has ended"))
            }
        }
    }

    /// Closes the command's input pipe, after the writes that are in progress.
    pub(super) async fn close_input(&self) -> Result<(), Failure> {
        match &self.input {
            CommandInput::Pipe(pipe) => {
                let mut over = self.over.subscribe();
                tokio::select! {
                    mut pipe = pipe.lock() => *pipe = None,
                    _ = over.wait_for(|over| *over) => {}
                }
                Ok(())
            }
            CommandInput::Nothing => Ok(()),
            CommandInput::Terminal { .. } => {
                Err(self.unsupported_failure("its input is its terminal: send it Ctrl-D (0x04)"))
            }
        }
    }

    /// Changes the size of the command's terminal.
    pub(super) fn resize(&self, size: PtySize) -> Result<(), Failure> {
        match &self.input {
            CommandInput::Terminal { size: terminal, .. } => {
                streams::resize_terminal(terminal, size).map_err(|error| self.write_failure(&error))
            }
            CommandInput::Nothing | CommandInput::Pipe(_) => {
                Err(self.unsupported_failure("it has no terminal"))
            }
        }
    }

    fn write_failure(&self, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => self.unsupported_failure("it has closed its input"),
            _ => self.unsupported_failure(&error.to_string()),
        }
    }

    fn unsupported_failure(&self, why: &str) -> Failure {
        Failure::new(
            Code::FailedPrecondition,
            format!("the command {} takes no such thing: {why}", self.pid),
        )
    }
}
