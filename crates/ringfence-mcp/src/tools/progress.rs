//! Progress notifications for clients that asked for them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;

/// Time between two notifications.
const NOTIFICATION_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of a line in a notification, in characters.
const LONGEST_LINE: usize = 120;

/// Progress of a call: its last message or line of output.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    last: Arc<Mutex<String>>,
}

impl Progress {
    /// Records output. The next notification contains its last line that is not blank.
    pub(crate) fn record_output(&self, output: &[u8]) {
        let end = &output[output.len().saturating_sub(4 * LONGEST_LINE)..];
        let text = String::from_utf8_lossy(end);
        if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
            self.record_message(line);
        }
    }

    /// Records a message that says what the call is doing.
    pub(crate) fn record_message(&self, message: &str) {
        let shown = message
            .trim()
            .chars()
            .filter(|character| !character.is_control())
            .take(LONGEST_LINE)
            .collect();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// Sends progress notifications to the client until this future is dropped.
    pub(crate) async fn send_notifications(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> std::convert::Infallible {
        let Some(token) = context.meta.get_progress_token() else {
            return std::future::pending().await;
        };
        let begun = Instant::now();
        loop {
            tokio::time::sleep(NOTIFICATION_INTERVAL).await;
            let seconds = begun.elapsed().as_secs();
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let message = if last.is_empty() {
                format!("{seconds} s")
            } else {
                format!("{seconds} s: {last}")
            };
            let progress =
                ProgressNotificationParam::new(token.clone(), seconds as f64).with_message(message);
            // A client that is gone cancels the call itself.
            let _ = context.peer.notify_progress(progress).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_output_is_reported_without_control_characters() {
        let progress = Progress::default();
        progress.record_output(b"one\ntwo\x1b[31m\n\n");
        assert_eq!(*progress.last.lock().unwrap(), "two[31m");
        progress.record_output(b"\n");
        assert_eq!(*progress.last.lock().unwrap(), "two[31m");
        progress.record_output("é".repeat(5000).as_bytes());
        assert_eq!(progress.last.lock().unwrap().chars().count(), LONGEST_LINE);
    }
}
