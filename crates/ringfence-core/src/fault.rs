//! Whose move it is after a failure, and what the process says of it.

/// Who can do something about an error. This alone decides exit code, HTTP status and retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is wrong: correct it.
    User,
    /// The host lacks something: change the host or the policy.
    Host,
    /// The backend failed: its own log tells more.
    Backend,
    /// ringfence is wrong.
    Bug,
}

/// The exit codes that are ours; every other is the command's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// Everything went well, or the command's own code.
    Code(u8),
    /// A check found something broken.
    Broken,
    /// The command line, a policy or a setting is wrong.
    Usage,
    /// The deadline passed.
    Deadline,
    /// The sandbox could not be made, or the policy was refused.
    SandboxFailed,
    /// The command was found but cannot be executed.
    NotExecutable,
    /// The command was not found.
    NotFound,
    /// The command was ended by this signal.
    Signal(u8),
}

impl ExitStatus {
    /// The number the process exits with.
    pub const fn code(self) -> u8 {
        match self {
            ExitStatus::Code(code) => code,
            ExitStatus::Broken => 1,
            ExitStatus::Usage => 2,
            ExitStatus::Deadline => 124,
            ExitStatus::SandboxFailed => 125,
            ExitStatus::NotExecutable => 126,
            ExitStatus::NotFound => 127,
            ExitStatus::Signal(signal) => 128u8.saturating_add(signal),
        }
    }
}

impl From<Fault> for ExitStatus {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::User => ExitStatus::Usage,
            Fault::Host | Fault::Backend | Fault::Bug => ExitStatus::SandboxFailed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_documented_code() {
        let codes = [
            (ExitStatus::Code(7), 7),
            (ExitStatus::Broken, 1),
            (ExitStatus::Usage, 2),
            (ExitStatus::Deadline, 124),
            (ExitStatus::SandboxFailed, 125),
            (ExitStatus::NotExecutable, 126),
            (ExitStatus::NotFound, 127),
            (ExitStatus::Signal(9), 137),
            (ExitStatus::Signal(200), 255),
        ];
        for (status, code) in codes {
            assert_eq!(status.code(), code, "{status:?}");
        }
        assert_eq!(ExitStatus::from(Fault::User), ExitStatus::Usage);
        assert_eq!(ExitStatus::from(Fault::Host), ExitStatus::SandboxFailed);
        assert_eq!(ExitStatus::from(Fault::Bug), ExitStatus::SandboxFailed);
    }
}
