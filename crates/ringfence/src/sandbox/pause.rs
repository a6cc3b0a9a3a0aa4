//! Pauses sandboxes: the processes of a paused sandbox keep their memory and their files, and none
//! of them runs.

use std::io;
use std::path::Path;

use ringfence_core::Fault;
use ringfence_linux::pause::TreeUsage;

use crate::backends::PauseControl;
use crate::sandbox::directory::{Name, SandboxDirError};
use crate::{ContainerError, Sandbox};

/// File of a sandbox directory that exists while the sandbox is paused. It lists the processes that
/// were stopped before the pause.
const PAUSED_FILE: &str = "paused";
/// Name of the file while it is written, before it is renamed.
const TEMPORARY_FILE: &str = ".paused";

/// Reason why a sandbox could not be paused or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PauseError {
    /// The sandbox does not exist, or a file of its directory cannot be written.
    #[error(transparent)]
    Directory(#[from] SandboxDirError),
    /// The observer of the sandbox has no process tree, because an older ringfence wrote it, or the
    /// processes are not visible from here, for example in another pid namespace.
    #[error("cannot pause the sandbox `{name}`: its processes are not visible from here")]
    Unseen {
        /// Name of the sandbox.
        name: Name,
    },
    /// The backend cannot pause its sandboxes.
    #[error("cannot pause the sandbox `{name}`: its backend cannot pause sandboxes")]
    Unsupported {
        /// Name of the sandbox.
        name: Name,
    },
    /// Some processes of the sandbox still ran after the time limit.
    #[error("cannot pause the sandbox `{name}`: its processes do not stop in time")]
    Restless {
        /// Name of the sandbox.
        name: Name,
        /// Error of the last try.
        source: io::Error,
    },
    /// The processes of the sandbox cannot be examined.
    #[error("cannot examine the processes of the sandbox `{name}`")]
    Unread {
        /// Name of the sandbox.
        name: Name,
        /// Error of the system call that failed.
        source: io::Error,
    },
    /// The container engine failed or refused.
    #[error(transparent)]
    Container(#[from] ContainerError),
}

impl PauseError {
    /// Returns the party that has to act on the error.
    pub fn fault(&self) -> Fault {
        match self {
            PauseError::Directory(SandboxDirError::File { .. }) | PauseError::Unread { .. } => {
                Fault::Host
            }
            PauseError::Directory(_) | PauseError::Unsupported { .. } => Fault::User,
            PauseError::Unseen { .. } | PauseError::Restless { .. } => Fault::Backend,
            PauseError::Container(error) => error.fault,
        }
    }

    /// Returns commands that the user can type next.
    pub fn hints(&self) -> Vec<String> {
        match self {
            PauseError::Directory(error) => vec![error.hint()],
            PauseError::Unsupported { name } => {
                vec![format!("stop it instead: ringfence stop {name}")]
            }
            PauseError::Unseen { name } => {
                vec![format!("replace it: ringfence up {name} --replace")]
            }
            PauseError::Restless { name, .. } => {
                vec![format!("list its processes: ringfence exec {name} -- ps aux")]
            }
            PauseError::Unread { .. } => {
                vec!["check the limits of this process: ulimit -n".to_owned()]
            }
            PauseError::Container(error) => error.hints.clone(),
        }
    }
}

impl Sandbox {
    /// Stops all processes of the sandbox, and waits until they are stopped. They keep their
    /// memory, and use no processor time until [`Sandbox::resume`]. The lease and the deadlines of
    /// commands continue to run. A call to the guest is answered only after the sandbox is resumed.
    /// Pausing a paused sandbox changes nothing.
    pub async fn pause(&self) -> Result<(), PauseError> {
        self.require_kept()?;
        if self.is_paused() {
            return Ok(());
        }
        let control = self.pause_control()?;
        // Write the mark before any process is stopped. Then it shows that the sandbox has to be
        // resumed, even if this process dies.
        self.write_paused_file(&control.stopped_processes().await?)?;
        control.pause().await.inspect_err(|_| self.remove_paused_file())
    }

    /// Lets the processes of the sandbox continue. Resuming a sandbox that is not paused changes
    /// nothing.
    pub async fn resume(&self) -> Result<(), PauseError> {
        self.require_kept()?;
        let name = &self.manifest().name;
        let failed = |source| SandboxDirError::File {
            what: "read the pause file",
            name: name.clone(),
            source,
        };
        let Some(before) = read_paused_file(&self.directory()).map_err(failed)? else {
            return Ok(());
        };
        self.pause_control()?.resume(before).await?;
        self.remove_paused_file();
        Ok(())
    }

    fn pause_control(&self) -> Result<&dyn PauseControl, PauseError> {
        let name = || self.manifest().name.clone();
        self.facets().pause.as_deref().ok_or_else(|| PauseError::Unsupported { name: name() })
    }

    /// Tells whether the sandbox is paused.
    pub fn is_paused(&self) -> bool {
        self.directory().join(PAUSED_FILE).exists()
    }

    /// Returns the current resource usage of each sandbox, or `None` if its processes are not
    /// visible from here. The usage of ended processes for which no process has waited is not
    /// included.
    pub fn footprints<'a>(
        sandboxes: impl IntoIterator<Item = &'a Sandbox>,
    ) -> Vec<Option<TreeUsage>> {
        let trees: Vec<_> = sandboxes.into_iter().map(|sandbox| sandbox.tree()).collect();
        TreeUsage::measure_all(&trees)
    }

    fn write_paused_file(&self, stopped: &[i32]) -> Result<(), SandboxDirError> {
        let (sandbox_dir, name) = (self.directory(), self.manifest().name.clone());
        write_paused_file(&sandbox_dir, stopped).map_err(|source| SandboxDirError::File {
            what: "write the pause file",
            name,
            source,
        })
    }

    fn remove_paused_file(&self) {
        // The sandbox may have ended.
        let _ = fs_err::remove_file(self.directory().join(PAUSED_FILE));
    }
}

fn write_paused_file(sandbox_dir: &Path, stopped: &[i32]) -> io::Result<()> {
    match fs_err::write(sandbox_dir.join(TEMPORARY_FILE), serde_json::to_vec(stopped)?) {
        // On a full disk the file is empty, but its existence is what matters. A full disk must not
        // be a reason to end a sandbox, which would lose its memory.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
        written => written?,
    }
    fs_err::rename(sandbox_dir.join(TEMPORARY_FILE), sandbox_dir.join(PAUSED_FILE))
}

/// Returns the processes that were stopped before their sandbox was paused, or `None` if the
/// sandbox is not paused.
fn read_paused_file(sandbox_dir: &Path) -> io::Result<Option<Vec<i32>>> {
    match fs_err::read(sandbox_dir.join(PAUSED_FILE)) {
        // Without a valid list, all processes continue on resume.
        Ok(text) => Ok(Some(serde_json::from_slice(&text).unwrap_or_default())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
