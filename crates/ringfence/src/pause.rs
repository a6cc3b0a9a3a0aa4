//! A sandbox at rest: its processes keep their memory and their files, and none of them runs.

use std::io;
use std::path::Path;

use ringfence_core::Fault;
use ringfence_linux::pause::{Footprint, ProcessTree};

use crate::backends::engine;
use crate::room::{Name, RoomError};
use crate::{ContainerError, Sandbox};

/// The file of a room that says that its sandbox is at rest, and which of its processes were stopped before.
const FILE: &str = "paused";
/// Where it is written before it is there whole.
const TEMPORARY: &str = ".paused";

/// A sandbox could not be brought to rest, or not be let go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PauseError {
    /// It is not there, or a file of it cannot be written.
    #[error(transparent)]
    Room(#[from] RoomError),
    /// It was started by a ringfence that did not write down which processes it has, or in another pid namespace.
    #[error("cannot pause the sandbox `{name}`: its processes are not seen from here")]
    Unseen {
        /// Which.
        name: Name,
    },
    /// Some of its processes still ran after a while.
    #[error("cannot pause the sandbox `{name}`: its processes do not come to rest")]
    Restless {
        /// Which.
        name: Name,
        /// What came of it.
        source: io::Error,
    },
    /// What there is of it cannot be looked at.
    #[error("cannot look at the processes of the sandbox `{name}`")]
    Unread {
        /// Which.
        name: Name,
        /// Why.
        source: io::Error,
    },
    /// Its engine could not, or would not.
    #[error(transparent)]
    Container(#[from] ContainerError),
}

impl PauseError {
    /// Whose move it is.
    pub fn fault(&self) -> Fault {
        match self {
            PauseError::Room(RoomError::File { .. }) | PauseError::Unread { .. } => Fault::Host,
            PauseError::Room(_) => Fault::User,
            PauseError::Unseen { .. } | PauseError::Restless { .. } => Fault::Backend,
            PauseError::Container(error) => error.fault,
        }
    }

    /// The next things to type.
    pub fn hints(&self) -> Vec<String> {
        match self {
            PauseError::Room(error) => vec![error.hint()],
            PauseError::Unseen { name } => vec![format!("make it anew: ringfence up {name} --replace")],
            PauseError::Restless { name, .. } => vec![format!("look at what it does: ringfence exec {name} -- ps aux")],
            PauseError::Unread { .. } => vec!["look at the limits of this process: ulimit -n".to_owned()],
            PauseError::Container(error) => error.hints.clone(),
        }
    }
}

impl Sandbox {
    /// Brings all of its processes to rest, and waits for that: they keep what they have in memory, and use no time of
    /// a processor until [`Sandbox::resume`]. Its lease goes on, and so do the deadlines of its commands. A call to its
    /// guest is answered after that. Bringing one to rest that is at rest already changes nothing.
    pub async fn pause(&self) -> Result<(), PauseError> {
        self.require_kept()?;
        if self.is_paused() {
            return Ok(());
        }
        // Before anything is stopped: whatever becomes of us, it can be seen that it is to go on again.
        match engine::flavour(self.manifest().backend) {
            Some(flavour) => {
                self.mark(&[])?;
                let paused = engine::set_paused(&self.directory(), flavour, true).await;
                paused.inspect_err(|_| self.unmark())?;
            }
            None => {
                let tree = self.tree()?;
                self.mark(&self.aside(move || tree.stopped()).await?)?;
                self.aside(move || tree.stop()).await.inspect_err(|_| self.unmark())?;
            }
        }
        Ok(())
    }

    /// Lets its processes go on where they were. Letting one go on that is not at rest changes nothing.
    pub async fn resume(&self) -> Result<(), PauseError> {
        self.require_kept()?;
        let name = &self.manifest().name;
        let failed = |source| RoomError::File { what: "read of the pause", name: name.clone(), source };
        let Some(before) = stopped_before(&self.directory()).map_err(failed)? else { return Ok(()) };
        match engine::flavour(self.manifest().backend) {
            Some(flavour) => engine::set_paused(&self.directory(), flavour, false).await?,
            None => {
                let tree = self.tree()?;
                self.aside(move || tree.go_on(&before)).await?;
            }
        }
        self.unmark();
        Ok(())
    }

    /// Whether it is at rest.
    pub fn is_paused(&self) -> bool {
        self.directory().join(FILE).exists()
    }

    /// What each of some sandboxes uses at this moment; nothing where that is not seen from here. What processes used
    /// that nobody waited for is not in it.
    pub fn footprints<'a>(sandboxes: impl IntoIterator<Item = &'a Sandbox>) -> Vec<Option<Footprint>> {
        let trees: Vec<_> = sandboxes.into_iter().map(|sandbox| sandbox.witness().tree()).collect();
        Footprint::of_all(&trees)
    }

    fn tree(&self) -> Result<ProcessTree, PauseError> {
        let name = || self.manifest().name.clone();
        let tree = self.witness().tree().ok_or_else(|| PauseError::Unseen { name: name() })?;
        match tree.is_there() {
            Ok(true) => Ok(tree),
            Ok(false) => Err(PauseError::Unseen { name: name() }),
            Err(source) => Err(PauseError::Unread { name: name(), source }),
        }
    }

    /// Looks at its processes, or waits for them, on another thread.
    async fn aside<T: Send + 'static>(
        &self,
        done: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, PauseError> {
        let done = tokio::task::spawn_blocking(done).await.expect("looking at processes does not panic");
        done.map_err(|source| match (source.kind(), self.manifest().name.clone()) {
            (io::ErrorKind::TimedOut, name) => PauseError::Restless { name, source },
            (_, name) => PauseError::Unread { name, source },
        })
    }

    fn mark(&self, stopped: &[i32]) -> Result<(), RoomError> {
        let (room, name) = (self.directory(), self.manifest().name.clone());
        mark(&room, stopped).map_err(|source| RoomError::File { what: "write down the pause", name, source })
    }

    fn unmark(&self) {
        let _ = fs_err::remove_file(self.directory().join(FILE)); // it may have ended meanwhile, with its room
    }
}

fn mark(room: &Path, stopped: &[i32]) -> io::Result<()> {
    match fs_err::write(room.join(TEMPORARY), serde_json::to_vec(stopped)?) {
        // A full disk takes an empty file, which says what matters: nobody loses what a sandbox has in memory for that.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
        written => written?,
    }
    fs_err::rename(room.join(TEMPORARY), room.join(FILE))
}

/// The processes that were stopped before their sandbox was; nothing where it is not at rest.
fn stopped_before(room: &Path) -> io::Result<Option<Vec<i32>>> {
    match fs_err::read(room.join(FILE)) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text).unwrap_or_default())), // of what it does not say, all go on
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
