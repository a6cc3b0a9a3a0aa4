//! Signals by number, and by the names in which a guest reports the end of a command.

use ringfence_proto::process::Signal;

/// The number of SIGKILL, signal(7).
pub(super) const SIGKILL_NUMBER: i32 = 9;

/// Envd's names of the signals of Linux, from 1 on: the names of Go's `syscall` package.
const SIGNAL_NAMES: [&str; 31] = [
    "hangup",
    "interrupt",
    "quit",
    "illegal instruction",
    "trace/breakpoint trap",
    "aborted",
    "bus error",
    "floating point exception",
    "killed",
    "user defined signal 1",
    "segmentation fault",
    "user defined signal 2",
    "broken pipe",
    "alarm clock",
    "terminated",
    "stack fault",
    "child exited",
    "continued",
    "stopped (signal)",
    "stopped",
    "stopped (tty input)",
    "stopped (tty output)",
    "urgent I/O condition",
    "CPU time limit exceeded",
    "file size limit exceeded",
    "virtual timer expired",
    "profiling timer expired",
    "window changed",
    "I/O possible",
    "power failure",
    "bad system call",
];

/// Returns the number of the signal with this name.
pub(super) fn number_from_name(name: &str) -> Option<i32> {
    let name = name.strip_suffix(" (core dumped)").unwrap_or(name);
    match SIGNAL_NAMES.iter().position(|known| *known == name) {
        Some(index) => i32::try_from(index + 1).ok(),
        // A signal without a name is reported by its number: `signal 34`.
        None => {
            name.strip_prefix("signal ")?.parse().ok().filter(|number| (1..=64).contains(number))
        }
    }
}

/// Returns the signal with this number, if a guest can send it.
pub(super) fn signal_from_number(number: i32) -> Option<Signal> {
    use Signal::{HangUp, Interrupt, Kill, Quit, Terminate, User1, User2};
    [Kill, Terminate, Interrupt, HangUp, Quit, User1, User2]
        .into_iter()
        .find(|signal| signal.number() == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_by_a_signal_gives_its_number() {
        for (name, number) in [
            ("hangup", Some(1)),
            ("killed", Some(9)),
            ("segmentation fault (core dumped)", Some(11)),
            ("terminated", Some(15)),
            ("bad system call", Some(31)),
            ("signal 34", Some(34)),
            ("signal 4000000000", None),
            ("signal 0", None),
            ("out of cheese", None),
        ] {
            assert_eq!(number_from_name(name), number, "{name}");
        }
    }

    #[test]
    fn a_signal_is_found_by_its_number() {
        assert_eq!(signal_from_number(2), Some(Signal::Interrupt));
        assert_eq!(signal_from_number(19), None);
    }
}
