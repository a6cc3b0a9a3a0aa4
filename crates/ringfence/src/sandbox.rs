//! A sandbox that stays: many commands, files and ports, until it is stopped.

mod error;
mod kept;
mod own_port;

use std::future::pending;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ringfence_core::ExecutionResult;
use ringfence_core::policy::Network;
use ringfence_core::settings::Code as CodeSettings;
use rustix::fs::fstat;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::Interest;

use crate::contexts::Kept as KeptContexts;
use crate::instance::StopError;
use crate::room::{Manifest, Name, RoomError, Rooms};
use crate::session::{Captured, ChannelDoor, Exec, PortStream, Session, SessionError};
use crate::start::Started;
use crate::witness::{Observation, Witness};
use crate::{Engine, Existing, Host, Interruption, Spec, Stream};
pub use error::{AttachError, StartError};
use kept::Kept;

/// How long a command may take when nobody says.
pub const DEFAULT_TIME: Duration = Duration::from_secs(30);
/// How much of each stream is kept when nobody says.
const DEFAULT_OUTPUT: u64 = 10 << 20;
/// How long a guest may take to answer for the first time.
const GUEST_PATIENCE: Duration = Duration::from_secs(20);
/// How long another process may take to start a sandbox that we want, too.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked at.
const MOMENT: Duration = Duration::from_millis(10);
/// How long to wait when the system has no descriptor left.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a sandbox that does not answer may take to turn out to be ending.
const ENDING_PATIENCE: Duration = Duration::from_secs(3);
/// How long a monitor may take to end its sandbox before it is killed.
const MONITOR_PATIENCE: Duration = Duration::from_secs(15);

/// A sandbox that stays. It can be used by many tasks at once, and be cloned: the last one that is dropped ends it, in
/// the process that started it. Stopping it waits for that, and tells if it failed.
#[derive(Debug, Clone)]
pub struct Sandbox {
    session: Session,
    manifest: Arc<Manifest>,
    witness: Arc<Witness>,
    rooms: Rooms,
    /// The manifest's file, once it was found to be this sandbox's.
    found: Arc<OnceLock<fs_err::File>>,
    /// What keeps it going, in the process that started it.
    kept: Option<Arc<Kept>>,
    /// How code is run in it.
    code: Arc<CodeSettings>,
    contexts: Arc<KeptContexts>,
}

impl Deref for Sandbox {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Engine {
    /// Starts a sandbox that stays, or finds the one of that name.
    ///
    /// It ends when [`Sandbox::stop`] is called, when the last copy of it is dropped, when its lease ends, and when this
    /// process does.
    pub async fn start(&self, mut spec: Spec) -> Result<Sandbox, StartError> {
        let image = &mut spec.container.image;
        *image = image.take().or_else(|| self.core.settings.image.clone());
        let rooms = Rooms::of(&self.core.settings.host)?;
        let name = spec.name.as_deref().map_or_else(|| Ok(Name::unique()), Name::new).map_err(RoomError::Name)?;
        let asked = crate::start::hash(&self.core, &spec);
        let room = match rooms.claim(name.clone()) {
            Ok(room) => room,
            Err(RoomError::Taken { .. }) => match spec.existing {
                Existing::Refuse => return Err(RoomError::Taken { name }.into()),
                Existing::Reuse => match Sandbox::reuse(rooms.clone(), &name, &asked).await {
                    // It was just ending: then its name is free in a moment.
                    Err(StartError::Room(_) | StartError::Attach(_))
                        if tokio::time::timeout(ENDING_PATIENCE, left(&rooms, &name)).await.is_ok() =>
                    {
                        rooms.claim(name)?
                    }
                    outcome => return outcome.map(|sandbox| sandbox.with_code(self.core.settings.code.clone())),
                },
                Existing::Replace => {
                    match made(&rooms, &name).await {
                        Ok(manifest) => stop_kept(&rooms, &manifest).await?,
                        Err(RoomError::Absent { .. }) => {} // it has just ended
                        Err(error) => return Err(error.into()),
                    }
                    rooms.claim(name)?
                }
            },
            Err(error) => return Err(error.into()),
        };
        let started = crate::start::start(&self.core, &spec, &room, asked).await;
        let Started { instance, manifest, egress, variables } = match started {
            Ok(started) => started,
            Err(error) => {
                room.leave();
                return Err(error);
            }
        };
        let kept = Arc::new(Kept::new(instance, room, egress));
        let sandbox = Sandbox::of(rooms, manifest, Some(Arc::clone(&kept))).map_err(AttachError::from)?;
        let sandbox = sandbox.with_code(self.core.settings.code.clone());
        if let Err(source) = sandbox.session.greet(GUEST_PATIENCE, variables).await {
            let log = last_words(&sandbox.rooms, &sandbox.manifest.name);
            let name = sandbox.manifest.name.clone();
            let _ = sandbox.stop().await; // the first error tells more
            return Err(StartError::Guest { name, log, source });
        }
        kept.watch(spec.lease);
        Ok(sandbox)
    }

    /// Starts a sandbox, has it used, and stops it whatever came of that.
    pub async fn scoped<T>(&self, spec: Spec, used: impl AsyncFnOnce(&Sandbox) -> T) -> Result<T, StartError> {
        Ok(self.scoped_with_report(spec, used).await?.0)
    }

    /// Does the same, and returns the paths that the sandbox planted up to its end.
    pub(crate) async fn scoped_with_report<T>(
        &self,
        spec: Spec,
        used: impl AsyncFnOnce(&Sandbox) -> T,
    ) -> Result<(T, Stopped), StartError> {
        let sandbox = self.start(spec).await?;
        let witness = Arc::clone(&sandbox.witness);
        let outcome = used(&sandbox).await;
        let stopped = sandbox.stop().await.unwrap_or_else(|error| {
            tracing::warn!(error = crate::chain(&error), "a sandbox was not stopped; the next start sweeps it");
            Stopped { planted: witness.planted() }
        });
        Ok((outcome, stopped))
    }
}

impl Sandbox {
    fn of(rooms: Rooms, manifest: Manifest, kept: Option<Arc<Kept>>) -> Result<Sandbox, RoomError> {
        let door = ChannelDoor::of(&rooms.channel(&manifest.name));
        let failed = |source| RoomError::File { what: "open the channel", name: manifest.name.clone(), source };
        let session = Session::new(Arc::new(door.map_err(failed)?)).sharing(&manifest.workspace);
        let witness = Arc::new(rooms.witness(&manifest.name)?);
        Ok(Sandbox {
            session,
            manifest: Arc::new(manifest),
            witness,
            rooms,
            found: Arc::default(),
            kept,
            code: Arc::default(),
            contexts: Arc::default(),
        })
    }

    /// Runs code as some settings say: languages and the lint. One that an engine started has the engine's; one that was
    /// attached to has what is built in.
    #[must_use]
    pub fn with_code(self, code: CodeSettings) -> Sandbox {
        Sandbox { code: Arc::new(code), ..self }
    }

    /// How code is run in it.
    pub(crate) fn code(&self) -> &CodeSettings {
        &self.code
    }

    /// The contexts that this process has in it.
    pub(crate) fn kept_contexts(&self) -> &KeptContexts {
        &self.contexts
    }

    /// Reaches a sandbox that this or another process keeps.
    pub async fn attach(host: &Host, name: &str) -> Result<Sandbox, AttachError> {
        let name = Name::new(name).map_err(RoomError::Name)?;
        let rooms = Rooms::of(host)?;
        let manifest = rooms.manifest(&name)?;
        Ok(Sandbox::of(rooms, manifest, None)?)
    }

    /// The same, and of one that is just being made its start is waited for.
    pub async fn attach_when_made(host: &Host, name: &str) -> Result<Sandbox, AttachError> {
        let name = Name::new(name).map_err(RoomError::Name)?;
        let rooms = Rooms::of(host)?;
        let manifest = made(&rooms, &name).await?;
        Ok(Sandbox::of(rooms, manifest, None)?)
    }

    /// Finds the sandbox of that name, if it is what is asked for.
    async fn reuse(rooms: Rooms, name: &Name, asked: &str) -> Result<Sandbox, StartError> {
        loop {
            let manifest = made(&rooms, name).await?;
            let difference = match manifest.spec == asked {
                true if manifest.is_changed => Some("what it may reach was changed since it was started".to_owned()),
                true => None,
                false => Some(format!("it was started with other settings, on backend {}", manifest.backend)),
            };
            if let Some(difference) = difference {
                return Err(StartError::Different { name: name.clone(), difference });
            }
            let sandbox = Sandbox::of(rooms.clone(), manifest, None)?;
            match sandbox.session.health().await {
                Ok(()) => return Ok(sandbox),
                Err(_) if !sandbox.is_up() => {} // it has just ended: another may be there, or be made
                Err(source) => return Err(AttachError::Guest { name: name.clone(), source }.into()),
            }
        }
    }

    /// The manifests of all sandboxes that somebody keeps.
    pub fn list(host: &Host) -> Result<Vec<Manifest>, RoomError> {
        let rooms = Rooms::of(host)?;
        Ok(rooms.names().iter().filter_map(|name| rooms.manifest(name).ok()).collect())
    }

    /// Removes what sandboxes left whose process was killed.
    pub fn sweep(host: &Host) -> Result<(), RoomError> {
        Rooms::of(host)?.sweep();
        Ok(())
    }

    /// What was known of it when it was started, or reached.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What is known of it now: what it may reach can be changed while it runs.
    pub fn current_manifest(&self) -> Result<Arc<Manifest>, RoomError> {
        // What has no gate keeps what it was started with.
        if !matches!(self.manifest.policy.network, Some(Network::Allow(_))) {
            return Ok(Arc::clone(&self.manifest));
        }
        let name = &self.manifest.name;
        let failed = |source| RoomError::File { what: "read the rules", name: name.clone(), source };
        let Some(changed) = crate::egress::changed(&self.directory()).map_err(failed)? else {
            return Ok(Arc::clone(&self.manifest));
        };
        let mut manifest = Manifest::clone(&self.manifest);
        changed.tell(&mut manifest);
        Ok(Arc::new(manifest))
    }

    /// The host's end of the stream to its guest.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The host's own look at it.
    pub(crate) fn witness(&self) -> &Witness {
        &self.witness
    }

    /// Whether somebody keeps it; an error where nobody does.
    pub(crate) fn require_kept(&self) -> Result<(), RoomError> {
        let name = &self.manifest.name;
        if self.rooms.is_kept(name) { Ok(()) } else { Err(RoomError::Absent { name: name.clone() }) }
    }

    /// Where its room is.
    pub(crate) fn directory(&self) -> PathBuf {
        self.rooms.path(&self.manifest.name)
    }

    /// Connects to a process of its own that listens on a port, and to nobody else: of a network that it shares with its
    /// host, others have ports, too.
    pub async fn connect_own_port(&self, port: u16) -> Result<PortStream, SessionError> {
        let manifest = &self.manifest;
        let is_shared = match crate::backends::engine::flavour(manifest.backend) {
            Some(_) => manifest.network == "host",
            None => ["host", "open"].contains(&manifest.network.as_str()),
        };
        if !is_shared {
            return self.ports().connect(port).await;
        }
        let tree = self.witness.tree().ok_or(SessionError::PortClosed { port })?;
        own_port::connect(tree, port).await
    }

    /// Where its log is.
    pub fn log(&self) -> PathBuf {
        self.rooms.log(&self.manifest.name)
    }

    /// Runs a line of shell and returns what became of it; 30 seconds are enough unless `timeout` or the policy says
    /// otherwise. It is not an error that it fails.
    pub async fn execute(&self, line: &str, timeout: Option<Duration>) -> Result<ExecutionResult, SessionError> {
        let policy = self.manifest.limits.time.map(|time| time.duration());
        let exec = Exec::shell(line);
        self.capture(exec.time(timeout.or(policy).unwrap_or(DEFAULT_TIME))).await
    }

    /// Runs a command and returns what became of it, with its output, head and tail.
    pub async fn capture(&self, exec: Exec) -> Result<ExecutionResult, SessionError> {
        self.capture_with(exec, pending(), |_, _| ()).await
    }

    /// The same; an interruption ends the command.
    pub async fn capture_unless(
        &self,
        exec: Exec,
        interruption: &Interruption,
    ) -> Result<ExecutionResult, SessionError> {
        self.capture_with(exec, interruption.awaited(), |_, _| ()).await
    }

    /// The same, ended when `cancelled` is ready, and tells of output as it comes.
    pub(crate) async fn capture_with(
        &self,
        exec: Exec,
        cancelled: impl Future<Output = ()>,
        on_output: impl FnMut(Stream, &[u8]),
    ) -> Result<ExecutionResult, SessionError> {
        let limit = self.most_output();
        let before = self.observe();
        let execution = self.session.exec(&exec).await?;
        let input = execution.input();
        let killed = async {
            cancelled.await;
            let _ = input.kill().await; // it may have ended, and then its end comes
            pending().await
        };
        let captured = tokio::select! {
            captured = execution.capture_with(limit, on_output) => captured?,
            never = killed => never,
        };
        let Captured { ended, stdout, stderr, dropped } = captured;
        Ok(ExecutionResult { stdout, stderr, dropped, ..before.result(ended) })
    }

    /// How much of each stream is kept.
    pub(crate) fn most_output(&self) -> u64 {
        self.manifest.limits.output.map_or(DEFAULT_OUTPUT, |size| size.bytes())
    }

    /// Looks at the sandbox before a command whose output goes elsewhere, for the command's result.
    pub fn observe(&self) -> Observation {
        // A result tells of the policy that holds; of what cannot be read, the one of the start.
        let manifest = self.current_manifest().unwrap_or_else(|_| Arc::clone(&self.manifest));
        self.witness.observe(&manifest)
    }

    /// Has its lease end after `lease` from now. Whoever keeps it looks every half a minute, so one that is cut short may
    /// end that much later. A sandbox that has no lease stays until it is stopped, as before.
    pub fn renew(&self, lease: Duration) -> Result<(), RoomError> {
        self.require_kept()?;
        let name = &self.manifest.name;
        let failed = |source| RoomError::File { what: "renew the lease", name: name.clone(), source };
        crate::lease::renew(&self.directory(), lease).map_err(failed)
    }

    /// Whether somebody still keeps it, and lets others in.
    pub fn is_up(&self) -> bool {
        let name = &self.manifest.name;
        // A file that still has its name is read once: whoever ends a sandbox, or has its place, takes the name away.
        if self.found.get().is_some_and(|file| fstat(file).is_ok_and(|found| found.st_nlink > 0)) {
            return self.rooms.is_kept(name);
        }
        let (manifest, file) = match self.rooms.open_manifest(name) {
            Ok(found) => found,
            Err(RoomError::Absent { .. }) => return false,
            Err(_) => return true, // it is kept, and there may be no descriptor left to look closer
        };
        let is_this = manifest.owner == self.manifest.owner && manifest.started == self.manifest.started;
        if is_this {
            let _ = self.found.set(file); // another thread may have found it, too
        }
        is_this
    }

    /// Waits until it has ended: stopped, by itself, or at the end of its lease.
    pub async fn ended(&self) {
        match &self.kept {
            Some(kept) => {
                let _ = kept.ended.subscribe().wait_for(|ended| *ended).await; // we hold the sender
            }
            None => loop {
                match self.manifest.owner.open() {
                    Ok(Some(owner)) => return ended(&owner).await,
                    Ok(None) if !self.is_up() => return,
                    // It is kept by a process that is not seen from here, or there is no descriptor left to look.
                    Ok(None) | Err(_) => tokio::time::sleep(PAUSE).await,
                }
            },
        }
    }

    /// Ends every process of it, removes what was made for it, and waits for that.
    pub async fn stop(self) -> Result<Stopped, AttachError> {
        match &self.kept {
            Some(kept) => Ok(kept.end().await?),
            None => {
                stop_kept(&self.rooms, &self.manifest).await?;
                Ok(Stopped { planted: self.witness.planted() })
            }
        }
    }
}

/// A sandbox that was stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Paths that the sandbox made, changed or removed since its start and that programs on the host act
    /// on. Processes in the background may have done so after the result of the last command.
    pub planted: Vec<String>,
}

/// The manifest of a sandbox that another process keeps, or is just making.
async fn made(rooms: &Rooms, name: &Name) -> Result<Manifest, RoomError> {
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        match rooms.manifest(name) {
            Err(RoomError::Absent { .. }) if rooms.is_kept(name) => match Instant::now() < deadline {
                true => tokio::time::sleep(MOMENT).await,
                false => return Err(RoomError::Pending { name: name.clone() }),
            },
            manifest => return manifest,
        }
    }
}

/// Waits until nobody keeps a sandbox. No thread does it: our caller may be about to fork.
async fn left(rooms: &Rooms, name: &Name) {
    while rooms.is_kept(name) {
        tokio::time::sleep(MOMENT).await;
    }
}

/// Waits until a process has ended; for good when it cannot be watched.
async fn ended(process: &OwnedFd) {
    match crate::readiness::watch(process.as_fd(), Interest::READABLE) {
        Ok(process) => drop(process.readable().await), // the reactor lives as long as we wait
        Err(_) => std::future::pending().await,
    }
}

/// Has the process that keeps a sandbox end it, and waits for that.
async fn stop_kept(rooms: &Rooms, manifest: &Manifest) -> Result<(), AttachError> {
    let (name, pid) = (&manifest.name, manifest.owner.pid);
    let refuse = |why: String, hint: String| AttachError::Stop(StopError { name: name.to_string(), why, hint });
    if !manifest.owner.is_monitor {
        let why = format!("it belongs to the program with process id {pid}, which uses it");
        return Err(refuse(why, format!("end that program: kill {pid}")));
    }
    let owner = match manifest.owner.open() {
        Ok(Some(owner)) => owner,
        Ok(None) if rooms.manifest(name).is_ok_and(|now| now.owner == manifest.owner) => {
            let why = format!("its monitor, process {pid}, is not seen from here");
            return Err(refuse(why, "stop it where it was started: in another container, perhaps".to_owned()));
        }
        Ok(None) => return Ok(()), // it has ended
        Err(error) => {
            let why = format!("its monitor, process {pid}, cannot be looked at: {error}");
            return Err(refuse(why, "look at the limits of this process: ulimit -n".to_owned()));
        }
    };
    for signal in [Signal::TERM, Signal::KILL] {
        let _ = pidfd_send_signal(&owner, signal); // it may have ended meanwhile
        if tokio::time::timeout(MONITOR_PATIENCE, ended(&owner)).await.is_ok() {
            return Ok(());
        }
    }
    Err(refuse(format!("its monitor, process {pid}, does not end"), format!("look at it: ps -fp {pid}")))
}

/// The end of a sandbox's log, in one line.
fn last_words(rooms: &Rooms, name: &Name) -> String {
    const MOST: usize = 400;
    let text = fs_err::read_to_string(rooms.log(name)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    let words: String = lines.into_iter().rev().collect::<Vec<_>>().join("; ");
    crate::untrusted::printable(&words).chars().take(MOST).collect()
}
