//! Captured output of a command: its head and its tail, up to a limit.

use std::pin::pin;
use std::time::Duration;

use ringfence_core::result::DroppedBytes;
use tokio::time::timeout;

use super::{CommandEnd, Execution, SessionError};
use crate::Stream;
use crate::run::output::KeptOutput;

/// End of a command, and its output.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CapturedCommand {
    /// Status with which the command ended.
    pub ended: CommandEnd,
    /// Output of the command on its standard output, or on its terminal: head and tail.
    pub stdout: String,
    /// Output of the command on its standard error: head and tail.
    pub stderr: String,
    /// Number of bytes that were dropped between head and tail.
    pub dropped: DroppedBytes,
}

impl Execution {
    /// Waits for the command's end, and keeps up to `limit` bytes of each stream that are still to
    /// be read.
    pub async fn capture(self, limit: u64) -> Result<CapturedCommand, SessionError> {
        self.capture_with(limit, |_, _| ()).await
    }

    /// Captures the output of a command that was started without a deadline. After `time` from now,
    /// ends the command and every process that it started.
    pub(crate) async fn capture_within(
        self,
        limit: u64,
        time: Duration,
    ) -> Result<CapturedCommand, SessionError> {
        let (input, grace) = (self.input(), self.grace());
        let late = self.no_answer(time + grace);
        let mut capturing = pin!(self.capture(limit));
        if let Ok(captured) = timeout(time, &mut capturing).await {
            return captured;
        }
        let ending = async {
            let _ = input.kill().await; // the command may have ended meanwhile
            capturing.await
        };
        let mut captured = timeout(grace, ending).await.unwrap_or(Err(late))?;
        captured.ended.timed_out = captured.ended.exit_code.is_none();
        Ok(captured)
    }

    /// Captures output as [`Execution::capture`] does, and calls `on_output` for each chunk as it
    /// arrives.
    pub async fn capture_with(
        mut self,
        limit: u64,
        mut on_output: impl FnMut(Stream, &[u8]),
    ) -> Result<CapturedCommand, SessionError> {
        let (mut stdout, mut stderr) = (KeptOutput::new(limit), KeptOutput::new(limit));
        while let Some(chunk) = self.next().await {
            let chunk = chunk?;
            on_output(chunk.stream, &chunk.bytes);
            match chunk.stream {
                Stream::Stdout | Stream::Terminal => stdout.push(&chunk.bytes),
                Stream::Stderr => stderr.push(&chunk.bytes),
            }
        }
        let ended = self.ended()?;
        let text = |kept: KeptOutput| {
            kept.finish().expect("no pipe was diverted, so none is left to read")
        };
        let ((stdout, from_stdout), (stderr, from_stderr)) = (text(stdout), text(stderr));
        let dropped = DroppedBytes { stdout: from_stdout, stderr: from_stderr };
        Ok(CapturedCommand { ended, stdout, stderr, dropped })
    }
}
