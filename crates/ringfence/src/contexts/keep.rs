//! Contexts that outlive the process that started them, and are found again by the next one.

use std::io;
use std::sync::{Arc, OnceLock};

use ringfence_proto::code::Code;
use ringfence_proto::process::ListedProcess;
use tokio::sync::{OwnedMutexGuard, watch};

use super::cell::{Life, Phase, State, in_time};
use super::harness::Harness;
use super::notes::{Note, Noted, Notes, Trace};
use super::process::{Failure, IDLE_PATIENCE, Process};
use super::{ContextError, Contexts, Slot, Use, unless_gone};
use crate::session::Session;
use crate::{RoomError, SessionError};

/// What the tags of their processes begin with.
const TAG: &str = "ringfence-context-";
/// What is said of one that is not found again.
const ENDED_ALONE: &str = "its process ended while nobody looked";

/// A tag that no other process has.
pub(super) fn new_tag() -> String {
    format!("{TAG}{}", crate::run::identity())
}

impl Contexts<'_> {
    /// Has the contexts that are started from now on outlive this process, and takes over those that one before it left.
    /// A cell that still runs in one of these is interrupted, for nobody listens to it; the next one waits for its end.
    ///
    /// They are written down in the state directory, and end with the sandbox or when they are removed. One process at a
    /// time has them; when it is this one already, nothing happens. What was started before is not among them.
    pub async fn keep(&self) -> Result<(), ContextError> {
        self.sandbox.kept_contexts().notes.get_or_try_init(|| self.take_over()).await?;
        Ok(())
    }

    async fn take_over(&self) -> Result<Arc<Notes>, ContextError> {
        let (sandbox, name) = (self.sandbox, &self.sandbox.manifest().name);
        if !sandbox.is_up() {
            return Err(RoomError::Absent { name: name.clone() }.into());
        }
        let failed = |source| RoomError::File { what: "read the contexts", name: name.clone(), source };
        let notes = Notes::take(&sandbox.directory()).await.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => ContextError::Held { name: name.clone() },
            _ => failed(error).into(),
        })?;
        let left = notes.all().map_err(failed)?;
        let running = sandbox.session().processes().await?;
        let is_noted = |process: &ListedProcess| left.iter().any(|note| is_its(process, note));
        for stray in running.iter().filter(|process| is_ours(process) && !is_noted(process)) {
            unless_gone(sandbox.session().input(stray.pid).kill().await)?; // it was just being started
        }
        let notes = Arc::new(notes);
        // From here on nothing fails: whoever asks again must not find them twice.
        for note in left {
            let runs = running.iter().any(|process| is_its(process, &note));
            self.take_up(note, runs, &notes);
        }
        Ok(notes)
    }

    /// Has a context be one of this process's. Whoever wants to use it waits until that is known to be possible.
    fn take_up(&self, note: Note, runs: bool, notes: &Arc<Notes>) {
        let session = self.sandbox.session();
        let input = session.input(note.process.pid);
        let (recipe, room) = match (self.recipe(&note.language, note.directory.as_deref()), self.room()) {
            (Ok(recipe), Ok(room)) => (recipe, room),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(id = note.id, error = crate::chain(&error), "a context cannot go on, and is removed");
                let _ = notes.remove(&note.id); // it is removed next time
                if runs {
                    tokio::spawn(async move { input.kill().await }); // or else it is killed next time
                }
                return;
            }
        };
        let state = Arc::new(tokio::sync::Mutex::new(State::Gone(ENDED_ALONE.to_owned())));
        let phase = watch::Sender::new(if runs { Phase::Told } else { Phase::Idle });
        let turn = Arc::clone(&state).try_lock_owned().expect("nobody else knows of it yet");
        let used = if note.is_usual { Use::Usual } else { Use::Named };
        let (id, directory, harness) = (note.id.clone(), note.directory.clone(), recipe.harness);
        let trace = note.process.clone();
        let noted = Some(Arc::new(Noted::new(Arc::clone(notes), note)));
        let life = Life { input, phase, state, why: OnceLock::new() };
        let slot = self.slot(id, recipe, directory.as_deref(), life, room);
        let context = self.add(Slot { used, noted, ..slot });
        if runs {
            // It ends with its patience at the latest.
            tokio::spawn(find(session.clone(), harness, trace, context.life(), turn));
        }
    }
}

/// Finds the process of a context, which then takes cells; or ends it, and says why.
async fn find(session: Session, harness: Harness, trace: Trace, life: Arc<Life>, mut state: OwnedMutexGuard<State>) {
    let found = match trace.is_half_told {
        true => Err("it was told half of a cell when the process that kept it ended".to_owned()),
        false => match in_time(&life.input, IDLE_PATIENCE, Process::find(&session, harness, trace)).await {
            Ok(Ok(process)) => Ok(process),
            Ok(Err(Failure::Session(SessionError::Refused { code: Code::NotFound, .. }))) => {
                Err(ENDED_ALONE.to_owned())
            }
            Ok(Err(Failure::Ended(how))) => Err(how),
            Ok(Err(Failure::Nonsense(why))) => Err(format!("what its harness says makes no sense: {why}")),
            Ok(Err(Failure::Session(error))) => Err(format!("it was lost sight of: {}", crate::chain(&error))),
            Err(how) => Err(how),
        },
    };
    *state = match found {
        Ok(process) => State::Alive(Box::new(process)),
        Err(how) => {
            let _ = life.input.kill().await; // it may have ended, and ends with its sandbox
            State::Gone(how)
        }
    };
    life.phase.send_replace(Phase::Idle);
}

/// Whether a process of a sandbox was started as a context that outlives its starter.
fn is_ours(process: &ListedProcess) -> bool {
    process.tag.as_deref().is_some_and(|tag| tag.starts_with(TAG))
}

/// Whether it is the one of a context: its id alone may be another's by now.
fn is_its(process: &ListedProcess, note: &Note) -> bool {
    process.pid == note.process.pid && process.tag.as_deref() == Some(note.process.tag.as_str())
}
