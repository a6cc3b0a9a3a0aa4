//! Description of a command's end, in the words of Go's library, which envd's clients expect.

use ringfence_linux::CommandEnding;
use ringfence_proto::process::{EndEvent, UsageReport};

/// Returns the event that reports an end. `None` means that the first process was killed, and the
/// command with it.
pub(super) fn end_event(ending: Option<&CommandEnding>) -> EndEvent {
    let code = ending.and_then(|ending| ending.exit_code);
    let status = match (code, ending.and_then(|ending| ending.signal)) {
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => format!("signal: {}", signal_name(signal.unwrap_or(9))),
    };
    EndEvent {
        exit_code: code.unwrap_or(-1),
        exited: code.is_some(),
        error: (code != Some(0)).then(|| status.clone()),
        status,
        usage: ending.map(|ending| UsageReport {
            cpu_micros: i64::try_from(ending.usage.cpu_micros).unwrap_or(i64::MAX),
            max_rss: i64::try_from(ending.usage.max_rss).unwrap_or(i64::MAX),
        }),
    }
}

/// Returns the name of a signal, as Go's package `syscall` has it for Linux.
fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(exit_code: Option<i32>, signal: Option<i32>) -> CommandEnding {
        CommandEnding { exit_code, signal, usage: Default::default(), swept: true }
    }

    #[test]
    fn an_exit_is_reported_as_envd_reports_it() {
        let event = end_event(Some(&ending(Some(3), None)));
        assert_eq!((event.exit_code, event.exited), (3, true));
        assert_eq!(
            (event.status.as_str(), event.error.as_deref()),
            ("exit status 3", Some("exit status 3"))
        );
    }

    #[test]
    fn a_success_has_no_error() {
        let event = end_event(Some(&ending(Some(0), None)));
        assert_eq!((event.exit_code, event.exited, event.error), (0, true, None));
        assert_eq!(event.status, "exit status 0");
    }

    #[test]
    fn a_signal_is_reported_as_envd_reports_it() {
        for (number, words) in
            [(9, "signal: killed"), (15, "signal: terminated"), (35, "signal: signal 35")]
        {
            let event = end_event(Some(&ending(None, Some(number))));
            assert_eq!((event.exit_code, event.exited, event.status.as_str()), (-1, false, words));
            assert_eq!(event.error.as_deref(), Some(words));
        }
    }

    #[test]
    fn a_lost_command_counts_as_killed() {
        assert_eq!(end_event(None).status, "signal: killed");
    }
}
