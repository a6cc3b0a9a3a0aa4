//! The `ringfence sync` command, which carries changes between a workspace on the host and its copy
//! in a sandbox.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ringfence::sync_report::{CarriedPaths, SyncReport, UncarriedPaths};
use ringfence::{ExitStatus, Host, SyncListener, SyncMode, SyncProgress};

use super::attach::{Named, block_on};
use super::run::warn_of_planted;
use crate::answer::{Form, print_json, print_lines};
use crate::report::{Failure, warn};

const EXAMPLES: &str = "\
Examples:
  ringfence sync demo
  ringfence sync demo --dry-run";

/// Carries changes between the workspace and its copy in a sandbox, in both directions.
///
/// Only a sandbox that does not share the host's files has a copy. Files that changed on one side
/// since the last sync are carried to the other side. A file that changed on both sides is a
/// conflict: neither side wins, and both files stay. Changes to paths that the policy hides or
/// protects do not come back. `ringfence stop` brings changes back, too. With a conflict, the exit
/// status is 1.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Sync {
    #[command(flatten)]
    sandbox: Named,
    /// Prints what a sync would do, and changes nothing.
    #[arg(long)]
    dry_run: bool,
    /// Prints the report as one line of JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Sync {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let mode = if self.dry_run { SyncMode::DryRun } else { SyncMode::Both };
        let report = block_on(async {
            let sandbox = self.sandbox.attach(&host).await?;
            let bar = progress_bar();
            let synced = sandbox.sync_with(mode, |progress| show(&bar, progress)).await;
            bar.finish_and_clear();
            Ok(synced?)
        })?;
        match Form::from_flag(self.json) {
            Form::Json => print_json(&report)?,
            Form::Text => print_lines(sentences(&report))?,
        }
        warn_of_planted(&format!("the sandbox `{}`", self.sandbox.name), &report.planted);
        let is_settled = report.conflicts.count == 0;
        Ok(if is_settled { ExitCode::SUCCESS } else { ExitStatus::Code(1).code().into() })
    }
}

/// Returns a listener that shows the progress of syncs at the start and the end of a sandbox.
pub(super) fn sync_listener() -> SyncListener {
    let shown: Mutex<Option<ProgressBar>> = Mutex::new(None);
    SyncListener::new(move |progress| {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.files_done == progress.files_total {
            shown.take().iter().for_each(ProgressBar::finish_and_clear);
        } else {
            show(shown.get_or_insert_with(progress_bar), progress);
        }
    })
}

/// Creates a progress bar, which is visible only on a terminal.
fn progress_bar() -> ProgressBar {
    let template = "{bar:40} {bytes} of {total_bytes}, {msg}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is fixed text");
    ProgressBar::new(0).with_style(style)
}

fn show(bar: &ProgressBar, progress: SyncProgress) {
    bar.set_length(progress.bytes_total);
    bar.set_position(progress.bytes_done);
    bar.set_message(format!("{} of {} files", progress.files_done, progress.files_total));
}

/// Returns the report of a sync as sentences.
fn sentences(report: &SyncReport) -> Vec<String> {
    let will = |done: &'static str, foretold: &'static str| match report.dry_run {
        true => foretold,
        false => done,
    };
    let mut lines = Vec::new();
    for (carried, what) in [
        (&report.received, will("came back to the host", "would come back to the host")),
        (&report.deleted, will("was removed on the host", "would be removed on the host")),
        (&report.sent, will("was sent into the sandbox", "would be sent into the sandbox")),
        (
            &report.deleted_inside,
            will("was removed in the sandbox", "would be removed in the sandbox"),
        ),
    ] {
        lines.extend(carried_lines(carried, what));
    }
    for (uncarried, what) in [
        (&report.conflicts, "is a conflict"),
        (&report.refused, "did not come back"),
        (&report.left_out, "was left out"),
    ] {
        lines.extend(uncarried_lines(uncarried, what));
    }
    if lines.is_empty() {
        lines.push("nothing changed since the last sync".to_owned());
    }
    lines
}

fn carried_lines(carried: &CarriedPaths, what: &str) -> Vec<String> {
    let more = carried.count.saturating_sub(carried.paths.len() as u64);
    let named = carried.paths.iter().map(|path| format!("`{path}` {what}"));
    named.chain((more > 0).then(|| format!("{more} more paths: each {what}"))).collect()
}

fn uncarried_lines(uncarried: &UncarriedPaths, what: &str) -> Vec<String> {
    let more = uncarried.count.saturating_sub(uncarried.paths.len() as u64);
    let named = uncarried.paths.iter().map(|left| format!("`{}` {what}: {}", left.path, left.why));
    named.chain((more > 0).then(|| format!("{more} more paths: each {what}"))).collect()
}

/// Warns about changes in a copied workspace that did not come back.
pub(super) fn warn_of_workspace(report: &SyncReport) {
    if let Some(failed) = &report.failed {
        warn(&format!("the workspace of the sandbox was not brought back: {failed}"));
    }
    let conflicts = uncarried_lines(&report.conflicts, "is a conflict, and did not come back");
    let refused = uncarried_lines(&report.refused, "did not come back");
    conflicts.into_iter().chain(refused).for_each(|line| warn(&line));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_told_in_sentences() {
        let mut report = SyncReport::default();
        assert_eq!(sentences(&report), ["nothing changed since the last sync"]);
        report.received.add("a".to_owned(), 1);
        report.received.count += 2;
        report.conflicts.add("b".to_owned(), "both changed");
        report.refused.add("c".to_owned(), "the policy hides this path");
        assert_eq!(
            sentences(&report),
            [
                "`a` came back to the host",
                "2 more paths: each came back to the host",
                "`b` is a conflict: both changed",
                "`c` did not come back: the policy hides this path",
            ]
        );
        report.dry_run = true;
        assert_eq!(sentences(&report)[0], "`a` would come back to the host");
    }
}
