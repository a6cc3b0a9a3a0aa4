//! The error of calls to a guest, and whose move it is after one.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_core::{ExitStatus, Fault};
use ringfence_proto::code::Code;
use ringfence_proto::frame::FrameError;
use rustix::io::Errno;

/// Longest excerpt of a guest's text that is shown, in characters.
const MAX_EXCERPT_CHARS: usize = 1024;

/// Reason why a call to the guest of a sandbox failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No stream to the guest could be opened.
    #[error("cannot reach the guest of the sandbox")]
    Unreachable {
        /// Error of the failed connection.
        source: io::Error,
    },
    /// The stream to the guest broke before the call was over.
    #[error("cannot {what}: the connection to the guest was lost")]
    Lost {
        /// Operation that was tried.
        what: String,
        /// Error of the broken stream.
        source: io::Error,
    },
    /// The guest sent nothing for too long.
    #[error(
        "cannot {what}: the guest did not answer for {seconds} s",
        seconds = timeout.as_secs_f64()
    )]
    NoAnswer {
        /// Operation that was tried.
        what: String,
        /// Time that the host waited.
        timeout: Duration,
    },
    /// The guest's answer is invalid.
    #[error("cannot {what}: the guest's answer is invalid: {why}")]
    InvalidAnswer {
        /// Operation that was tried.
        what: String,
        /// Description of what is wrong with the answer.
        why: String,
    },
    /// The guest's answer is longer than the limit.
    #[error("cannot {what}: the answer is longer than {limit} bytes")]
    TooLong {
        /// Operation that was tried.
        what: String,
        /// Longest answer that is accepted, in bytes.
        limit: u64,
    },
    /// The guest refused the call.
    #[error("cannot {what}: {message}")]
    Refused {
        /// Operation that was tried.
        what: String,
        /// Kind of the failure.
        code: Code,
        /// Message of the guest, without control characters.
        message: String,
    },
    /// The program of the command does not exist.
    #[error("cannot find the command `{program}` inside the sandbox")]
    NotFound {
        /// Program that was to be started.
        program: String,
    },
    /// The program of the command exists and cannot be executed.
    #[error("cannot execute `{program}` inside the sandbox")]
    NotExecutable {
        /// Program that was to be started.
        program: String,
    },
    /// Nothing listens on a port inside the sandbox.
    #[error("cannot connect to port {port} inside the sandbox: nothing listens there")]
    PortClosed {
        /// Port inside the sandbox.
        port: u16,
    },
    /// The guest does not pass on this signal.
    #[error(
        "cannot send signal {number}: the guest passes on KILL, TERM, INT, HUP, QUIT, USR1 and USR2"
    )]
    NoSuchSignal {
        /// Number of the signal.
        number: i32,
    },
    /// A file on the host could not be read or written.
    #[error("cannot {operation} `{path}`", path = path.display())]
    HostFile {
        /// Operation that was tried on the file.
        operation: &'static str,
        /// Path on the host.
        path: PathBuf,
        /// Error of the failed file operation.
        source: io::Error,
    },
    /// A stream on the host, which bytes come from or go to, failed.
    #[error("cannot {what}: the stream on the host failed")]
    HostStream {
        /// Operation that was tried.
        what: String,
        /// Error of the stream.
        source: io::Error,
    },
    /// A tree from the sandbox is invalid, or would be written outside its destination.
    #[error("cannot unpack `{name}` from the sandbox: {why}")]
    Tree {
        /// Name of the entry in the tree.
        name: String,
        /// Description of what is wrong with the entry.
        why: String,
    },
}

impl SessionError {
    /// Returns whose move it is after this error.
    pub fn fault(&self) -> Fault {
        match self {
            SessionError::NotFound { .. } | SessionError::NotExecutable { .. } => Fault::User,
            SessionError::PortClosed { .. }
            | SessionError::NoSuchSignal { .. }
            | SessionError::TooLong { .. } => Fault::User,
            SessionError::Refused { code, .. } => match code {
                Code::Internal
                | Code::Unknown
                | Code::Unavailable
                | Code::DataLoss
                | Code::Unimplemented => Fault::Backend,
                Code::ResourceExhausted => Fault::Host,
                _ => Fault::User,
            },
            SessionError::HostFile { .. } | SessionError::HostStream { .. } => Fault::Host,
            SessionError::Unreachable { .. }
            | SessionError::Lost { .. }
            | SessionError::NoAnswer { .. } => Fault::Backend,
            SessionError::InvalidAnswer { .. } | SessionError::Tree { .. } => Fault::Backend,
        }
    }

    /// Returns the exit status of a process that ends because of this error.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            SessionError::NotFound { .. } => ExitStatus::NotFound,
            SessionError::NotExecutable { .. } => ExitStatus::NotExecutable,
            error => error.fault().into(),
        }
    }

    /// Returns the kind of failure that the guest reported, if it reported one.
    pub fn code(&self) -> Option<Code> {
        match self {
            SessionError::Refused { code, .. } => Some(*code),
            SessionError::NotFound { .. } => Some(Code::NotFound),
            SessionError::NotExecutable { .. } => Some(Code::PermissionDenied),
            SessionError::PortClosed { .. } => Some(Code::Unavailable),
            _ => None,
        }
    }

    /// Returns the next commands to type.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            SessionError::Unreachable { .. } | SessionError::Lost { .. } => {
                "`ringfence ps` shows whether the sandbox is up, and `ringfence logs NAME` shows \
                 its log"
            }
            SessionError::NoAnswer { .. } => {
                "`ringfence logs NAME` may show what the guest waits for; `ringfence stop NAME` \
                 ends the sandbox"
            }
            SessionError::InvalidAnswer { .. } | SessionError::Tree { .. } => {
                "a process in the sandbox may pose as the guest; `ringfence stop NAME` ends the \
                 sandbox"
            }
            SessionError::TooLong { .. } => "copy it to a file instead: `ringfence cp NAME:PATH .`",
            SessionError::NotFound { .. } => {
                "`ringfence exec NAME -- sh -c 'echo $PATH'` shows where commands are looked for"
            }
            SessionError::NotExecutable { program } => {
                return vec![format!("ringfence exec NAME -- chmod +x '{program}'")];
            }
            SessionError::PortClosed { .. } => {
                "start the server first: `ringfence exec NAME -- CMD`"
            }
            SessionError::NoSuchSignal { .. } => {
                "send another one from inside: `ringfence exec NAME -- kill -N PID`"
            }
            SessionError::Refused { code: Code::ResourceExhausted, .. } => {
                "free some space: `ringfence exec NAME -- df -h` shows which file system is full"
            }
            // The host opens files so that no link is followed, and open(2) then fails with ELOOP.
            SessionError::HostFile { source, .. }
                if Errno::from_io_error(source) == Some(Errno::LOOP) =>
            {
                "a symbolic link is not followed; give the path of its target: `realpath PATH`"
            }
            SessionError::Refused { .. }
            | SessionError::HostFile { .. }
            | SessionError::HostStream { .. } => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}

/// Operation of a call, for its errors: a verb and its object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation<'a> {
    pub(super) verb: &'static str,
    pub(super) object: &'a str,
}

impl Display for Operation<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.object {
            "" => formatter.write_str(self.verb),
            object => write!(formatter, "{} `{object}`", self.verb),
        }
    }
}

impl Operation<'_> {
    pub(super) fn lost(
        self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> SessionError {
        SessionError::Lost { what: self.to_string(), source: io::Error::other(source) }
    }

    pub(super) fn invalid_answer(self, why: impl Display) -> SessionError {
        SessionError::InvalidAnswer { what: self.to_string(), why: clean(&why.to_string()) }
    }

    pub(super) fn no_answer(self, timeout: Duration) -> SessionError {
        SessionError::NoAnswer { what: self.to_string(), timeout }
    }

    pub(super) fn local(self, source: io::Error) -> SessionError {
        SessionError::HostStream { what: self.to_string(), source }
    }

    pub(super) fn refused(self, code: Code, message: &str) -> SessionError {
        SessionError::Refused { what: self.to_string(), code, message: clean(message) }
    }

    pub(super) fn frame(self, error: FrameError) -> SessionError {
        self.invalid_answer(error)
    }
}

/// Returns a guest's text in a form that may be shown. The text is cut to a length, and characters
/// that control a terminal or change the direction of text are replaced.
pub(crate) fn clean(text: &str) -> String {
    let shown = |character: char| {
        let turns = matches!(
            character,
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        );
        let breaks = matches!(character, '\u{2028}' | '\u{2029}');
        if character.is_control() || turns || breaks {
            char::REPLACEMENT_CHARACTER
        } else {
            character
        }
    };
    let mut words: String = text.chars().take(MAX_EXCERPT_CHARS).map(shown).collect();
    if text.chars().nth(MAX_EXCERPT_CHARS).is_some() {
        words.push('…');
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_guest_cannot_steer_a_terminal() {
        assert_eq!(clean("no such file: `a b`"), "no such file: `a b`");
        assert_eq!(
            clean("\x1b]0;owned\x07\r\n\u{9b}2J\u{202e}x"),
            "\u{fffd}]0;owned\u{fffd}\u{fffd}\u{fffd}\u{fffd}2J\u{fffd}x"
        );
        assert_eq!(clean(&"é".repeat(5000)).chars().count(), MAX_EXCERPT_CHARS + 1);
    }

    #[test]
    fn an_error_says_what_was_tried_and_whose_move_it_is() {
        let error = Operation { verb: "stat", object: "/a" }
            .refused(Code::NotFound, "no such file\x1b[31m");
        assert_eq!(error.to_string(), "cannot stat `/a`: no such file\u{fffd}[31m");
        assert_eq!(error.fault(), Fault::User);
        let error =
            Operation { verb: "list the commands", object: "" }.no_answer(Duration::from_secs(60));
        assert_eq!(
            error.to_string(),
            "cannot list the commands: the guest did not answer for 60 \
                                       s"
        );
        assert_eq!(error.fault(), Fault::Backend);
        assert!(!error.hints().is_empty());
        let error = SessionError::NotFound { program: "x".to_owned() };
        assert_eq!(error.exit_status(), ExitStatus::NotFound);
    }
}
