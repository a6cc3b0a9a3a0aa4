//! Commands in a sandbox: what reaches one that runs.

use std::pin::pin;
use std::sync::{Arc, OnceLock};

use ringfence_proto::bytes::Bytes;
use ringfence_proto::code::Code;
use ringfence_proto::process::{
    Empty, OneProcess, ProcessInput, ProcessSelector, Pty, PtySize, SendInputRequest, SendSignalRequest, Signal,
    UpdateRequest,
};
use serde::Serialize;
use tokio::time::timeout;

use super::error::What;
use super::{Session, SessionError, signal};

/// How much input is sent in one message.
const PIECE: usize = 1 << 20;
/// What a terminal takes for the end of input, termios(3).
const END_OF_INPUT: &[u8] = b"\x04";

/// The input of a command, its signals, and the size of its terminal.
#[derive(Debug, Clone)]
pub struct ExecutionInput {
    pub(super) session: Session,
    pub(super) pid: u32,
    /// Whether the command has a terminal; not known at first of one that was found.
    pub(super) terminal: Arc<OnceLock<bool>>,
}

impl ExecutionInput {
    /// Writes to the command's input, and waits until it is on its way to it: as long as the command takes to read
    /// what was written before, or until the guest no longer answers.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), SessionError> {
        for piece in bytes.chunks(PIECE) {
            let piece = Bytes(piece.to_vec());
            if self.has_terminal().await? {
                self.send(ProcessInput::Pty(piece)).await?;
            } else {
                self.send(ProcessInput::Stdin(piece)).await?;
            }
        }
        Ok(())
    }

    /// Ends the command's input; on a terminal, types Ctrl-D.
    pub async fn close(&self) -> Result<(), SessionError> {
        if self.has_terminal().await? {
            return self.send(ProcessInput::Pty(Bytes(END_OF_INPUT.to_vec()))).await;
        }
        let request = OneProcess { process: self.process() };
        self.tell("end the input of the command", "/process.Process/CloseStdin", &request).await
    }

    /// Asks by writing nothing, when it is not known.
    async fn has_terminal(&self) -> Result<bool, SessionError> {
        if let Some(known) = self.terminal.get() {
            return Ok(*known);
        }
        let found = match self.send(ProcessInput::Pty(Bytes::default())).await {
            Ok(()) => true,
            Err(SessionError::Refused { code: Code::FailedPrecondition | Code::InvalidArgument, .. }) => false,
            Err(error) => return Err(error),
        };
        Ok(*self.terminal.get_or_init(|| found))
    }

    async fn send(&self, input: ProcessInput) -> Result<(), SessionError> {
        let request = SendInputRequest { process: self.process(), input };
        let name = self.pid.to_string();
        let what = What { verb: "write to the command", of: &name };
        let transport = &self.session.transport;
        let mut sent = pin!(transport.patient_unary(what, "/process.Process/SendInput", &request));
        let Empty {} = loop {
            match timeout(transport.patience, sent.as_mut()).await {
                Ok(answer) => break answer?,
                // The command does not read. That is its right, as long as there is a guest that waits for it.
                Err(_) => self.session.health().await?,
            }
        };
        Ok(())
    }

    /// Changes the size of the command's terminal.
    pub async fn resize(&self, size: PtySize) -> Result<(), SessionError> {
        let request = UpdateRequest { process: self.process(), pty: Some(Pty { size: Some(size) }) };
        self.tell("resize the terminal of the command", "/process.Process/Update", &request).await
    }

    /// Sends the command's process group a signal by its number, or, with SIGKILL, ends all that it started.
    pub async fn signal(&self, number: i32) -> Result<(), SessionError> {
        let signal = signal::numbered(number).ok_or(SessionError::NoSuchSignal { number })?;
        let request = SendSignalRequest { process: self.process(), signal };
        self.tell("signal the command", "/process.Process/SendSignal", &request).await
    }

    /// Ends the command and all that it started.
    pub async fn kill(&self) -> Result<(), SessionError> {
        self.signal(Signal::Kill.number()).await
    }

    /// Asks whether the guest answers; one at rest does not.
    pub(crate) async fn health(&self) -> Result<(), SessionError> {
        self.session.health().await
    }

    fn process(&self) -> ProcessSelector {
        ProcessSelector::Pid(self.pid)
    }

    async fn tell(&self, verb: &'static str, target: &str, request: &impl Serialize) -> Result<(), SessionError> {
        let name = self.pid.to_string();
        let Empty {} = self.session.transport.unary(What { verb, of: &name }, target, request).await?;
        Ok(())
    }
}
