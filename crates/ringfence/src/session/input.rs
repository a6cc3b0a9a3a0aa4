//! Input, signals and terminal size of a running command.

use std::pin::pin;
use std::sync::{Arc, OnceLock};

use ringfence_proto::bytes::Base64Bytes;
use ringfence_proto::code::Code;
use ringfence_proto::process::{
    EmptyMessage, ProcessInput, ProcessRequest, ProcessSelector, Pty, PtySize, SendInputRequest,
    SendSignalRequest, Signal, UpdateRequest,
};
use serde::Serialize;
use tokio::time::timeout;

use super::error::Operation;
use super::{Session, SessionError, signal};

/// Highest number of input bytes in one message.
const MAX_INPUT_BYTES: usize = 1 << 20;
/// Byte that a terminal takes as the end of input, termios(3).
const END_OF_INPUT: &[u8] = b"\x04";

/// Handle to the input of a command, to its signals, and to the size of its terminal.
#[derive(Debug, Clone)]
pub struct ExecutionInput {
    pub(super) session: Session,
    pub(super) pid: u32,
    /// True if the command has a terminal. The value is unknown at first for a command that was
    /// found by its process id.
    pub(super) terminal: Arc<OnceLock<bool>>,
}

impl ExecutionInput {
    /// Writes to the command's input. Returns when the guest has taken the bytes. This function
    /// waits as long as the command takes to read earlier input, unless the guest stops answering.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), SessionError> {
        for piece in bytes.chunks(MAX_INPUT_BYTES) {
            let piece = Base64Bytes(piece.to_vec());
            if self.has_terminal().await? {
                self.send(ProcessInput::Pty(piece)).await?;
            } else {
                self.send(ProcessInput::Stdin(piece)).await?;
            }
        }
        Ok(())
    }

    /// Ends the command's input. On a terminal, types Ctrl-D.
    pub async fn close(&self) -> Result<(), SessionError> {
        if self.has_terminal().await? {
            return self.send(ProcessInput::Pty(Base64Bytes(END_OF_INPUT.to_vec()))).await;
        }
        let request = ProcessRequest { process: self.process() };
        self.call("end the input of the command", "/process.Process/CloseStdin", &request).await
    }

    /// Returns true if the command has a terminal. If that is unknown, asks the guest by writing no
    /// bytes.
    async fn has_terminal(&self) -> Result<bool, SessionError> {
        if let Some(known) = self.terminal.get() {
            return Ok(*known);
        }
        let found = match self.send(ProcessInput::Pty(Base64Bytes::default())).await {
            Ok(()) => true,
            Err(SessionError::Refused {
                code: Code::FailedPrecondition | Code::InvalidArgument,
                ..
            }) => false,
            Err(error) => return Err(error),
        };
        Ok(*self.terminal.get_or_init(|| found))
    }

    async fn send(&self, input: ProcessInput) -> Result<(), SessionError> {
        let request = SendInputRequest { process: self.process(), input };
        let name = self.pid.to_string();
        let operation = Operation { verb: "write to the command", object: &name };
        let transport = &self.session.transport;
        let mut sent = pin!(transport.unary_without_deadline(
            operation,
            "/process.Process/SendInput",
            &request
        ));
        let EmptyMessage {} = loop {
            match timeout(transport.answer_timeout, sent.as_mut()).await {
                Ok(answer) => break answer?,
                // The command does not read its input. That is allowed, as long as the guest still
                // answers.
                Err(_) => self.session.health().await?,
            }
        };
        Ok(())
    }

    /// Changes the size of the command's terminal.
    pub async fn resize(&self, size: PtySize) -> Result<(), SessionError> {
        let request =
            UpdateRequest { process: self.process(), pty: Some(Pty { size: Some(size) }) };
        self.call("resize the terminal of the command", "/process.Process/Update", &request).await
    }

    /// Sends a signal, by its number, to the command's process group. SIGKILL ends every process
    /// that the command started.
    pub async fn signal(&self, number: i32) -> Result<(), SessionError> {
        let signal =
            signal::signal_from_number(number).ok_or(SessionError::NoSuchSignal { number })?;
        let request = SendSignalRequest { process: self.process(), signal };
        self.call("signal the command", "/process.Process/SendSignal", &request).await
    }

    /// Ends the command and every process that it started.
    pub async fn kill(&self) -> Result<(), SessionError> {
        self.signal(Signal::Kill.number()).await
    }

    /// Checks that the guest answers. The guest of a paused sandbox does not.
    pub(crate) async fn health(&self) -> Result<(), SessionError> {
        self.session.health().await
    }

    fn process(&self) -> ProcessSelector {
        ProcessSelector::Pid(self.pid)
    }

    async fn call(
        &self,
        verb: &'static str,
        target: &str,
        request: &impl Serialize,
    ) -> Result<(), SessionError> {
        let name = self.pid.to_string();
        let EmptyMessage {} = self
            .session
            .transport
            .unary(Operation { verb, object: &name }, target, request)
            .await?;
        Ok(())
    }
}
