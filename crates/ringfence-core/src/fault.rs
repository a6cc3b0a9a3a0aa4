//! Fault: who can correct an error. The exit status of the process follows from the fault.

/// Party that can correct an error.
///
/// The fault alone decides the exit code, the HTTP status, and whether to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is wrong; the user must correct it.
    User,
    /// The host lacks something; the operator must change the host or the policy.
    Host,
    /// The backend failed; the log of the backend has the details.
    Backend,
    /// ringfence itself is wrong; the error should be reported.
    Bug,
}

/// Exit status of a ringfence process.
///
/// Every variant except `Code` has an exit code of its own. `Code` passes on the exit code of the
/// command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// Success, which is code 0, or the exit code of the command.
    Code(u8),
    /// A check found something broken; exits with 1.
    Broken,
    /// The command line, a policy or a setting is wrong; exits with 2.
    Usage,
    /// The deadline passed; exits with 124.
    Deadline,
    /// The sandbox could not be made, or the policy was refused; exits with 125.
    SandboxFailed,
    /// The command was found but cannot be executed; exits with 126.
    NotExecutable,
    /// The command was not found; exits with 127.
    NotFound,
    /// The signal with this number ended the command; exits with 128 plus the number, at most 255.
    Signal(u8),
}

impl ExitStatus {
    /// Returns the exit code of the process.
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
