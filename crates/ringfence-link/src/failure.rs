//! The reason why a link cannot be used any more.

use std::fmt;
use std::io;
use std::time::Duration;

use ringfence_proto::link::LinkError;
use ringfence_proto::link::frame::RefusalReason;

/// Reason why a link, and all of its streams with it, has ended. The streams return it as the inner
/// error of an [`io::Error`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkFailure {
    /// No carrier could be dialled for too long.
    #[error("the stream to the guest was lost for {}", SpelledDuration(*time))]
    Lost {
        /// Time without a carrier after which the link was given up.
        time: Duration,
    },
    /// The guest does not accept the link.
    #[error("the guest refused the link: {}", describe_refusal(*reason))]
    Refused {
        /// Reason that the guest gave.
        reason: RefusalReason,
    },
    /// No carrier can reach the guest any more.
    #[error("the guest cannot be reached: {why}")]
    Unreachable {
        /// Reason, such as the end of the guest's sandbox.
        why: String,
    },
    /// The peer violated the protocol.
    #[error("the other end of the link violated the protocol")]
    Violation(#[source] LinkError),
    /// This side has ended the link.
    #[error("the link to the guest was closed")]
    Closed,
    /// The other side has ended the link.
    #[error("the other end closed the link")]
    ClosedByPeer,
}

impl LinkFailure {
    /// Returns the link failure that is the inner error of `error`, if there is one.
    pub fn from_io_error(error: &io::Error) -> Option<&LinkFailure> {
        error.get_ref()?.downcast_ref()
    }

    /// Returns the error of a stream that fails for this reason.
    pub fn io_error(&self) -> io::Error {
        let kind = match self {
            LinkFailure::Refused { .. } => io::ErrorKind::PermissionDenied,
            LinkFailure::Violation(_) => io::ErrorKind::InvalidData,
            LinkFailure::Lost { .. } => io::ErrorKind::TimedOut,
            LinkFailure::Closed | LinkFailure::ClosedByPeer | LinkFailure::Unreachable { .. } => {
                io::ErrorKind::ConnectionAborted
            }
        };
        io::Error::new(kind, self.clone())
    }
}

fn describe_refusal(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Token => "the access token is not this guest's",
        RefusalReason::Version => "the guest speaks another version of the link protocol",
        RefusalReason::UnknownLink => {
            "the guest does not know the link, because the link was lost for too long or the guest \
             was started again"
        }
        RefusalReason::TooManyLinks => "the guest keeps as many links as it can",
        _ => "the guest and this process disagree about the bytes that were sent",
    }
}

/// Duration in whole minutes or seconds, and in milliseconds if it is shorter than a second.
struct SpelledDuration(Duration);

impl fmt::Display for SpelledDuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = match self.0.as_secs() {
            0 => return write!(formatter, "{} ms", self.0.as_millis()),
            seconds if seconds % 60 == 0 => (seconds / 60, "minute"),
            seconds => (seconds, "second"),
        };
        let plural = if count == 1 { "" } else { "s" };
        write!(formatter, "{count} {unit}{plural}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_link_says_for_how_long() {
        let lost = |time| LinkFailure::Lost { time }.to_string();
        assert_eq!(
            lost(Duration::from_secs(300)),
            "the stream to the guest was lost for 5 minutes"
        );
        assert_eq!(lost(Duration::from_secs(60)), "the stream to the guest was lost for 1 minute");
        assert_eq!(lost(Duration::from_secs(1)), "the stream to the guest was lost for 1 second");
        assert_eq!(
            lost(Duration::from_secs(90)),
            "the stream to the guest was lost for 90 seconds"
        );
        assert_eq!(lost(Duration::from_millis(20)), "the stream to the guest was lost for 20 ms");
    }
}
