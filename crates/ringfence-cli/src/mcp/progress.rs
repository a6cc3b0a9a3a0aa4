//! How far a call is, for clients that asked to be told.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;

/// How often it is told.
const PAUSE: Duration = Duration::from_secs(1);
/// How much of a line of output is shown.
const LONGEST_LINE: usize = 120;

/// How far a call is: how long it takes, and what it said last.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    last: Arc<Mutex<String>>,
}

impl Progress {
    /// Takes note of output: its last line is what is told.
    pub(super) fn heard(&self, output: &[u8]) {
        let end = &output[output.len().saturating_sub(4 * LONGEST_LINE)..];
        let text = String::from_utf8_lossy(end);
        if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
            self.says(line);
        }
    }

    /// Takes note of what is being done.
    pub(super) fn says(&self, words: &str) {
        let shown = words.trim().chars().filter(|character| !character.is_control()).take(LONGEST_LINE).collect();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// Tells the client of it until this future is dropped.
    pub(super) async fn tell(&self, context: &RequestContext<RoleServer>) -> std::convert::Infallible {
        let Some(token) = context.meta.get_progress_token() else { return std::future::pending().await };
        let begun = Instant::now();
        loop {
            tokio::time::sleep(PAUSE).await;
            let seconds = begun.elapsed().as_secs();
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let message = if last.is_empty() { format!("{seconds} s") } else { format!("{seconds} s: {last}") };
            let progress = ProgressNotificationParam::new(token.clone(), seconds as f64).with_message(message);
            let _ = context.peer.notify_progress(progress).await; // a client that has gone cancels the call itself
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_output_is_told_without_what_a_terminal_obeys() {
        let progress = Progress::default();
        progress.heard(b"one\ntwo\x1b[31m\n\n");
        assert_eq!(*progress.last.lock().unwrap(), "two[31m");
        progress.heard(b"\n");
        assert_eq!(*progress.last.lock().unwrap(), "two[31m");
        progress.heard("é".repeat(5000).as_bytes());
        assert_eq!(progress.last.lock().unwrap().chars().count(), LONGEST_LINE);
    }
}
