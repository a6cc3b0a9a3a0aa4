//! Contexts that outlive the process that started them, and that the next process finds again.

use std::io;
use std::sync::{Arc, OnceLock};

use ringfence_proto::code::Code;
use ringfence_proto::process::ListedProcess;
use tokio::sync::{OwnedMutexGuard, watch};

use super::cell::{CellPhase, ContextProcess, HarnessState, in_time};
use super::harness::Harness;
use super::notes::{ContextNote, ContextNotes, NotedContext, ProcessTrace};
use super::process::{HarnessFailure, HarnessProcess, IDLE_TIMEOUT};
use super::{ContextError, ContextSlot, ContextUse, Contexts, accept_ended};
use crate::session::Session;
use crate::{SandboxDirError, SessionError};

/// Prefix of the tags of context processes.
const PROCESS_TAG: &str = "ringfence-context-";
/// Reason that is reported for a context whose process is not found again.
const ENDED_ALONE: &str = "its process ended while no ringfence process watched it";

/// Returns a tag that no other process has.
pub(super) fn new_tag() -> String {
    format!("{PROCESS_TAG}{}", crate::run::identity())
}

impl Contexts<'_> {
    /// Makes the contexts that are started from now on outlive this process, and takes over the
    /// contexts that an earlier process left. A cell that still runs in one of these is
    /// interrupted, because nobody reads its events. The next cell waits for its end.
    ///
    /// The contexts have notes in the state directory, and end with the sandbox or when they are
    /// removed. Only one process at a time can have the contexts of a sandbox. If this process has
    /// them already, nothing happens. Contexts that were started before this call are not kept.
    pub async fn keep(&self) -> Result<(), ContextError> {
        self.sandbox.kept_contexts().notes.get_or_try_init(|| self.take_over()).await?;
        Ok(())
    }

    async fn take_over(&self) -> Result<Arc<ContextNotes>, ContextError> {
        let (sandbox, name) = (self.sandbox, &self.sandbox.manifest().name);
        if !sandbox.is_up() {
            return Err(SandboxDirError::Absent { name: name.clone() }.into());
        }
        let failed = |source| SandboxDirError::File {
            what: "read the contexts",
            name: name.clone(),
            source,
        };
        let notes =
            ContextNotes::take(&sandbox.directory()).await.map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => ContextError::Held { name: name.clone() },
                _ => failed(error).into(),
            })?;
        let left = notes.all().map_err(failed)?;
        let running = sandbox.session().processes().await?;
        let is_noted =
            |process: &ListedProcess| left.iter().any(|note| is_noted_process(process, note));
        for stray in
            running.iter().filter(|process| is_context_process(process) && !is_noted(process))
        {
            // A stray process has no note, because its starter ended during the start.
            accept_ended(sandbox.session().input(stray.pid).kill().await)?;
        }
        let notes = Arc::new(notes);
        // Nothing fails from here on, because a second call would otherwise find the same contexts
        // again.
        for note in left {
            let runs = running.iter().any(|process| is_noted_process(process, &note));
            self.adopt_context(note, runs, &notes);
        }
        Ok(notes)
    }

    /// Makes a context of an earlier process one of this process. Callers that use the context wait
    /// until its process is found.
    fn adopt_context(&self, note: ContextNote, runs: bool, notes: &Arc<ContextNotes>) {
        let session = self.sandbox.session();
        let input = session.input(note.process.pid);
        let (spec, permit) =
            match (self.spec(&note.language, note.directory.as_deref()), self.acquire_permit()) {
                (Ok(spec), Ok(permit)) => (spec, permit),
                (Err(error), _) | (_, Err(error)) => {
                    tracing::warn!(
                        id = note.id,
                        error = crate::chain(&error),
                        "a context cannot continue, and is removed"
                    );
                    let _ = notes.remove(&note.id); // the next process removes the note
                    if runs {
                        // Otherwise the next process kills it.
                        tokio::spawn(async move { input.kill().await });
                    }
                    return;
                }
            };
        let state = Arc::new(tokio::sync::Mutex::new(HarnessState::Gone(ENDED_ALONE.to_owned())));
        let phase = watch::Sender::new(if runs { CellPhase::Sent } else { CellPhase::Idle });
        let state_lock = Arc::clone(&state).try_lock_owned().expect("nobody else knows of it yet");
        let used = if note.is_usual { ContextUse::Usual } else { ContextUse::Named };
        let (id, directory, harness) = (note.id.clone(), note.directory.clone(), spec.harness);
        let trace = note.process.clone();
        let noted = Some(Arc::new(NotedContext::new(Arc::clone(notes), note)));
        let context_process = ContextProcess { input, phase, state, why: OnceLock::new() };
        let slot = self.slot(id, spec, directory.as_deref(), context_process, permit);
        let context = self.add(ContextSlot { used, noted, ..slot });
        if runs {
            // The task ends when `in_time` gives up, at the latest.
            tokio::spawn(find(
                session.clone(),
                harness,
                trace,
                context.context_process(),
                state_lock,
            ));
        }
    }
}

/// Finds the process of a context, so that the context takes cells again. If that fails, ends the
/// process and records the reason.
async fn find(
    session: Session,
    harness: Harness,
    trace: ProcessTrace,
    context_process: Arc<ContextProcess>,
    mut state: OwnedMutexGuard<HarnessState>,
) {
    let found = match trace.is_partly_sent {
        true => {
            Err("it had received half of a cell when the process that kept it ended".to_owned())
        }
        false => {
            match in_time(
                &context_process.input,
                IDLE_TIMEOUT,
                HarnessProcess::find(&session, harness, trace),
            )
            .await
            {
                Ok(Ok(process)) => Ok(process),
                Ok(Err(HarnessFailure::Session(SessionError::Refused {
                    code: Code::NotFound,
                    ..
                }))) => Err(ENDED_ALONE.to_owned()),
                Ok(Err(HarnessFailure::Ended(how))) => Err(how),
                Ok(Err(HarnessFailure::Nonsense(why))) => {
                    Err(format!("the output of its harness is invalid: {why}"))
                }
                Ok(Err(HarnessFailure::Session(error))) => {
                    Err(format!("the connection to it was lost: {}", crate::chain(&error)))
                }
                Err(how) => Err(how),
            }
        }
    };
    *state = match found {
        Ok(process) => HarnessState::Alive(Box::new(process)),
        Err(how) => {
            // The process may have ended, and it ends with its sandbox.
            let _ = context_process.input.kill().await;
            HarnessState::Gone(how)
        }
    };
    context_process.phase.send_replace(CellPhase::Idle);
}

/// Returns true if a process of a sandbox was started as a context that outlives its starter.
fn is_context_process(process: &ListedProcess) -> bool {
    process.tag.as_deref().is_some_and(|tag| tag.starts_with(PROCESS_TAG))
}

/// Returns true if `process` is the process of the noted context. The process id is not enough,
/// because another process may have it by now.
fn is_noted_process(process: &ListedProcess, note: &ContextNote) -> bool {
    process.pid == note.process.pid && process.tag.as_deref() == Some(note.process.tag.as_str())
}
