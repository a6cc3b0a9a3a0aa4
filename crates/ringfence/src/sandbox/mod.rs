//! A sandbox that stays: runs many commands and handles files and ports, until it is stopped.

pub(crate) mod directory;
mod error;
pub(crate) mod guest;
pub(crate) mod host_observer;
pub(crate) mod lease;
pub mod monitor;
mod own_port;
mod owned;
pub(crate) mod pause;
pub(crate) mod start;
pub(crate) mod start_request;
mod sync;
pub(crate) mod workspace_copy;

use std::future::pending;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ringfence_core::ExecutionResult;
use ringfence_core::policy::Network;
use ringfence_core::settings::CodeSettings;
use ringfence_core::sync_report::SyncReport;
use ringfence_linux::pause::ProcessTree;
use rustix::fs::fstat;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::io::Interest;

use crate::backends::{
    self, KeptSandbox, PortRoute, SandboxFacets, StartedSandbox, StopError, Unavailable,
    WorkspaceSource,
};
#[cfg(feature = "code")]
use crate::contexts::KeptContexts;
use crate::run::plan::{PlannedRun, SandboxLifetime};
use crate::sandbox::directory::{Manifest, Name, SandboxDir, SandboxDirError, SandboxDirs};
use crate::sandbox::host_observer::Observation;
use crate::session::{CapturedCommand, Exec, PortStream, Session, SessionError};
use crate::{Engine, Existing, Host, Interruption, StartRequest, Stream};
pub use error::{AttachError, StartError};
use owned::{KeptCopy, OwnedSandbox};

/// Longest time that a command may take if neither the caller nor the policy says otherwise.
pub const DEFAULT_TIME: Duration = Duration::from_secs(30);
/// Number of bytes of each output stream that are kept if the policy does not say otherwise.
const DEFAULT_OUTPUT_BYTES: u64 = 10 << 20;
/// Longest time that a guest may take to answer for the first time.
const GUEST_START_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time that another process may take to start a sandbox that this process wants to use.
const SANDBOX_START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks of a sandbox that another process starts or ends.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time between two checks when the owner cannot be watched by a descriptor.
const OWNER_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Longest wait for the end of a sandbox that does not answer.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest time that a monitor may take to end its sandbox before the monitor is killed.
const MONITOR_STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// A sandbox that stays. Many tasks can use it at the same time, and it can be cloned. In the
/// process that started the sandbox, dropping the last clone ends it. [`Sandbox::stop`] also waits
/// for the end, and reports a failure.
#[derive(Debug, Clone)]
pub struct Sandbox {
    session: Session,
    manifest: Arc<Manifest>,
    facets: SandboxFacets,
    sandbox_dirs: SandboxDirs,
    /// File of the manifest, set when the file is known to describe this sandbox.
    manifest_file: Arc<OnceLock<fs_err::File>>,
    /// The resources that keep the sandbox alive, in the process that started it.
    owned: Option<Arc<OwnedSandbox>>,
    /// Settings for code that runs in the sandbox.
    code: Arc<CodeSettings>,
    #[cfg(feature = "code")]
    contexts: Arc<KeptContexts>,
}

impl Deref for Sandbox {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Engine {
    /// Starts a sandbox that stays, or finds the existing sandbox of the same name.
    ///
    /// The sandbox ends when [`Sandbox::stop`] is called, when its last clone is dropped, when its
    /// lease ends, or when this process ends.
    pub async fn start(&self, request: StartRequest) -> Result<Sandbox, StartError> {
        let request = self.with_default_image(request);
        let sandbox_dirs = SandboxDirs::for_host(&self.core.settings.host)?;
        let name = request
            .name
            .as_deref()
            .map_or_else(|| Ok(Name::unique()), Name::new)
            .map_err(SandboxDirError::Name)?;
        let request_hash = crate::sandbox::start::hash(&self.core, &request);
        let sandbox_dir = match sandbox_dirs.claim(name.clone()) {
            Err(SandboxDirError::Taken { .. }) => {
                match self
                    .handle_taken_name(&sandbox_dirs, name, &request_hash, request.existing)
                    .await?
                {
                    TakenName::Freed(sandbox_dir) => sandbox_dir,
                    TakenName::Reused(sandbox) => return Ok(*sandbox),
                }
            }
            claimed => claimed?,
        };
        match crate::sandbox::start::plan(&self.core, &request).await {
            Ok(context) => self.start_in(sandbox_dir, &request, request_hash, context).await,
            Err(error) => {
                sandbox_dir.remove();
                Err(error.into())
            }
        }
    }

    /// Starts a nameless sandbox for a run that has a plan, calls `used` with the sandbox, and
    /// stops it in any case. Also returns the paths that the sandbox planted up to its end.
    pub(crate) async fn scoped_for_run<T>(
        &self,
        request: StartRequest,
        mut context: PlannedRun,
        used: impl AsyncFnOnce(&Sandbox) -> T,
    ) -> Result<(T, Stopped), StartError> {
        let request = self.with_default_image(request);
        context.credentials = self.core.load_credentials(&context.plan)?;
        context.lifetime = SandboxLifetime::OneCommand;
        let request_hash = crate::sandbox::start::hash(&self.core, &request);
        let sandbox_dir = SandboxDirs::for_host(&self.core.settings.host)?.claim(Name::unique())?;
        let sandbox = self.start_in(sandbox_dir, &request, request_hash, context).await?;
        Ok(use_and_stop(sandbox, used).await)
    }

    fn with_default_image(&self, mut request: StartRequest) -> StartRequest {
        let image = &mut request.container.image;
        *image = image.take().or_else(|| self.core.settings.image.clone());
        request
    }

    /// Decides what happens if another process keeps a sandbox of the wanted name.
    async fn handle_taken_name(
        &self,
        sandbox_dirs: &SandboxDirs,
        name: Name,
        request_hash: &str,
        existing: Existing,
    ) -> Result<TakenName, StartError> {
        match existing {
            Existing::Refuse => Err(SandboxDirError::Taken { name }.into()),
            Existing::Reuse => {
                match Sandbox::reuse(sandbox_dirs.clone(), &name, request_hash).await {
                    // The existing sandbox was just ending, so its name is free in a moment.
                    Err(StartError::Directory(_) | StartError::Attach(_))
                        if tokio::time::timeout(
                            RELEASE_TIMEOUT,
                            wait_until_released(sandbox_dirs, &name),
                        )
                        .await
                        .is_ok() =>
                    {
                        Ok(TakenName::Freed(sandbox_dirs.claim(name)?))
                    }
                    reused => {
                        let sandbox = reused?.with_code(self.core.settings.code.clone());
                        Ok(TakenName::Reused(Box::new(sandbox)))
                    }
                }
            }
            Existing::Replace => {
                match wait_for_manifest(sandbox_dirs, &name).await {
                    Ok(manifest) => stop_by_owner(sandbox_dirs, &manifest).await?,
                    Err(SandboxDirError::Absent { .. }) => {} // the sandbox has just ended
                    Err(error) => return Err(error.into()),
                }
                Ok(TakenName::Freed(sandbox_dirs.claim(name)?))
            }
        }
    }

    /// Starts a planned sandbox in a sandbox directory that this process has claimed.
    async fn start_in(
        &self,
        sandbox_dir: SandboxDir,
        request: &StartRequest,
        request_hash: String,
        context: PlannedRun,
    ) -> Result<Sandbox, StartError> {
        let sandbox_dirs = SandboxDirs::for_host(&self.core.settings.host)?;
        let started =
            crate::sandbox::start::start(&self.core, request, &sandbox_dir, request_hash, context)
                .await;
        let (StartedSandbox { instance, egress, variables }, manifest, guard) = match started {
            Ok(started) => started,
            Err(error) => {
                sandbox_dir.remove();
                return Err(error);
            }
        };
        let owned = Arc::new(OwnedSandbox::new(instance, sandbox_dir, egress));
        let sandbox = Sandbox::connect(sandbox_dirs, manifest, Some(Arc::clone(&owned)))
            .map_err(AttachError::from)?;
        let sandbox = sandbox.with_code(self.core.settings.code.clone());
        if let Err(source) = sandbox.session.initialize(GUEST_START_TIMEOUT, variables).await {
            let log = log_tail(&sandbox.sandbox_dirs, &sandbox.manifest.name);
            let name = sandbox.manifest.name.clone();
            let _ = sandbox.stop().await; // the first error is more informative
            return Err(StartError::Guest { name, log, source });
        }
        if let Some(copied) = sandbox.copied_workspace() {
            let listener = self.core.settings.on_sync.clone();
            match sandbox.send_workspace(&copied, guard, listener.as_ref()).await {
                Ok(sent) => owned.keep_copied(KeptCopy { workspace: copied, sent, listener }),
                Err(source) => {
                    let name = sandbox.manifest.name.clone();
                    let _ = sandbox.stop().await; // the first error is more informative
                    return Err(StartError::Workspace { name, source });
                }
            }
        }
        owned.watch(request.lease);
        Ok(sandbox)
    }

    /// Starts a sandbox, calls `used` with it, and stops it in any case.
    pub async fn scoped<T>(
        &self,
        request: StartRequest,
        used: impl AsyncFnOnce(&Sandbox) -> T,
    ) -> Result<T, StartError> {
        let sandbox = self.start(request).await?;
        Ok(use_and_stop(sandbox, used).await.0)
    }
}

/// Result of handling a name that another sandbox has.
enum TakenName {
    /// The name is free, and its directory belongs to this process now.
    Freed(SandboxDir),
    /// The existing sandbox is what was asked for.
    Reused(Box<Sandbox>),
}

/// Calls `used` with a sandbox, and stops the sandbox in any case.
async fn use_and_stop<T>(sandbox: Sandbox, used: impl AsyncFnOnce(&Sandbox) -> T) -> (T, Stopped) {
    let observer = sandbox.facets.observer.clone();
    let outcome = used(&sandbox).await;
    let stopped = sandbox.stop().await.unwrap_or_else(|error| {
        tracing::warn!(
            error = crate::chain(&error),
            "a sandbox was not stopped; the next start sweeps it"
        );
        let planted = observer.map(|observer| observer.planted()).unwrap_or_default();
        Stopped { planted, workspace: None }
    });
    (outcome, stopped)
}

impl Sandbox {
    fn connect(
        sandbox_dirs: SandboxDirs,
        manifest: Manifest,
        owned: Option<Arc<OwnedSandbox>>,
    ) -> Result<Sandbox, SandboxDirError> {
        let directory = sandbox_dirs.path(&manifest.name);
        let attached = backends::get(manifest.backend)
            .map_err(|Unavailable { why, .. }| io::Error::other(why))
            .and_then(|backend| {
                backend.attach(KeptSandbox { manifest: &manifest, directory: &directory })
            });
        let facets = attached.map_err(|source| SandboxDirError::File {
            what: "open the channel",
            name: manifest.name.clone(),
            source,
        })?;
        let session = Session::new(Arc::clone(&facets.connector));
        let session = match &facets.workspace {
            WorkspaceSource::HostDir(workspace) => session.with_shared_workspace(workspace),
            WorkspaceSource::Copy => session,
        };
        Ok(Sandbox {
            session,
            manifest: Arc::new(manifest),
            facets,
            sandbox_dirs,
            manifest_file: Arc::default(),
            owned,
            code: Arc::default(),
            #[cfg(feature = "code")]
            contexts: Arc::default(),
        })
    }

    /// Sets the languages and the lint for code that runs in the sandbox. A sandbox that an engine
    /// started has the engine's settings; a sandbox that was attached to has the built-in defaults.
    #[must_use]
    pub fn with_code(self, code: CodeSettings) -> Sandbox {
        Sandbox { code: Arc::new(code), ..self }
    }

    /// Returns the settings for code that runs in the sandbox.
    pub(crate) fn code(&self) -> &CodeSettings {
        &self.code
    }

    /// Returns the contexts that this process has in the sandbox.
    #[cfg(feature = "code")]
    pub(crate) fn kept_contexts(&self) -> &KeptContexts {
        &self.contexts
    }

    /// Connects to a sandbox that this or another process keeps.
    pub async fn attach(host: &Host, name: &str) -> Result<Sandbox, AttachError> {
        let name = Name::new(name).map_err(SandboxDirError::Name)?;
        let sandbox_dirs = SandboxDirs::for_host(host)?;
        let manifest = sandbox_dirs.manifest(&name)?;
        Ok(Sandbox::connect(sandbox_dirs, manifest, None)?)
    }

    /// Connects to a sandbox like [`Sandbox::attach`], and waits if the sandbox is still starting.
    pub async fn attach_when_made(host: &Host, name: &str) -> Result<Sandbox, AttachError> {
        let name = Name::new(name).map_err(SandboxDirError::Name)?;
        let sandbox_dirs = SandboxDirs::for_host(host)?;
        let manifest = wait_for_manifest(&sandbox_dirs, &name).await?;
        Ok(Sandbox::connect(sandbox_dirs, manifest, None)?)
    }

    /// Finds the sandbox of that name, and fails if it differs from what is asked for.
    async fn reuse(
        sandbox_dirs: SandboxDirs,
        name: &Name,
        request_hash: &str,
    ) -> Result<Sandbox, StartError> {
        loop {
            let manifest = wait_for_manifest(&sandbox_dirs, name).await?;
            let difference = match manifest.request_hash == request_hash {
                true if manifest.is_changed => {
                    Some("the hosts that it may reach were changed since its start".to_owned())
                }
                true => None,
                false => Some(format!(
                    "it was started with other settings, on backend {}",
                    manifest.backend
                )),
            };
            if let Some(difference) = difference {
                return Err(StartError::Different { name: name.clone(), difference });
            }
            let sandbox = Sandbox::connect(sandbox_dirs.clone(), manifest, None)?;
            match sandbox.session.health().await {
                Ok(()) => return Ok(sandbox),
                Err(_) if !sandbox.is_up() => {} // the sandbox ended; another may be starting
                Err(source) => return Err(AttachError::Guest { name: name.clone(), source }.into()),
            }
        }
    }

    /// Returns the manifests of all sandboxes that a process keeps.
    pub fn list(host: &Host) -> Result<Vec<Manifest>, SandboxDirError> {
        let sandbox_dirs = SandboxDirs::for_host(host)?;
        Ok(sandbox_dirs
            .names()
            .iter()
            .filter_map(|name| sandbox_dirs.manifest(name).ok())
            .collect())
    }

    /// Removes the files of sandboxes whose owner was killed.
    pub fn sweep(host: &Host) -> Result<(), SandboxDirError> {
        SandboxDirs::for_host(host)?.sweep();
        Ok(())
    }

    /// Returns the manifest as it was when the sandbox was started, or attached to.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the manifest as it is now, because the hosts that a sandbox may reach can be changed
    /// while it runs.
    pub fn current_manifest(&self) -> Result<Arc<Manifest>, SandboxDirError> {
        // Without a gate, the rules cannot change after the start.
        if !matches!(self.manifest.policy.network, Some(Network::Allow(_))) {
            return Ok(Arc::clone(&self.manifest));
        }
        let name = &self.manifest.name;
        let failed =
            |source| SandboxDirError::File { what: "read the rules", name: name.clone(), source };
        let Some(changed) = crate::egress::changed(&self.directory()).map_err(failed)? else {
            return Ok(Arc::clone(&self.manifest));
        };
        let mut manifest = Manifest::clone(&self.manifest);
        changed.apply_to_manifest(&mut manifest);
        Ok(Arc::new(manifest))
    }

    /// Returns the host's end of the stream to the guest.
    pub fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn facets(&self) -> &SandboxFacets {
        &self.facets
    }

    /// Returns the process tree of the sandbox, if its processes are visible from here.
    pub(crate) fn tree(&self) -> Option<ProcessTree> {
        self.facets.observer.as_ref().and_then(|observer| observer.tree())
    }

    /// Returns the paths that the sandbox planted, as far as the host can tell.
    fn planted(&self) -> Vec<String> {
        self.facets.observer.as_ref().map(|observer| observer.planted()).unwrap_or_default()
    }

    /// Fails if no process keeps the sandbox.
    pub(crate) fn require_kept(&self) -> Result<(), SandboxDirError> {
        let name = &self.manifest.name;
        if self.sandbox_dirs.is_kept(name) {
            Ok(())
        } else {
            Err(SandboxDirError::Absent { name: name.clone() })
        }
    }

    /// Returns the directory of the sandbox's own files on the host.
    pub(crate) fn directory(&self) -> PathBuf {
        self.sandbox_dirs.path(&self.manifest.name)
    }

    /// Connects to a process of the sandbox that listens on a port, and to no other process. If the
    /// sandbox shares the network of its host, processes outside the sandbox have ports there, too.
    pub async fn connect_own_port(&self, port: u16) -> Result<PortStream, SessionError> {
        if self.facets.ports == PortRoute::Guest {
            return self.ports().connect(port).await;
        }
        let tree = self.tree().ok_or(SessionError::PortClosed { port })?;
        own_port::connect(tree, port).await
    }

    /// Returns the path of the sandbox's log.
    pub fn log(&self) -> PathBuf {
        self.sandbox_dirs.log(&self.manifest.name)
    }

    /// Runs a line of shell and returns its result. The command may take 30 seconds, unless
    /// `timeout` or the policy says otherwise. A command that fails is not an error.
    pub async fn execute(
        &self,
        line: &str,
        timeout: Option<Duration>,
    ) -> Result<ExecutionResult, SessionError> {
        let policy = self.manifest.limits.time.map(|time| time.duration());
        let exec = Exec::shell(line);
        self.capture(exec.time(timeout.or(policy).unwrap_or(DEFAULT_TIME))).await
    }

    /// Runs a command and returns its result, with the head and the tail of its output.
    pub async fn capture(&self, exec: Exec) -> Result<ExecutionResult, SessionError> {
        self.capture_with(exec, pending(), |_, _| ()).await
    }

    /// Runs a command like [`Sandbox::capture`]. An interruption ends the command.
    pub async fn capture_unless(
        &self,
        exec: Exec,
        interruption: &Interruption,
    ) -> Result<ExecutionResult, SessionError> {
        self.capture_with(exec, interruption.awaited(), |_, _| ()).await
    }

    /// Runs a command like [`Sandbox::capture`]. Ends the command when `cancelled` is ready, and
    /// calls `on_output` with each piece of output.
    pub(crate) async fn capture_with(
        &self,
        exec: Exec,
        cancelled: impl Future<Output = ()>,
        on_output: impl FnMut(Stream, &[u8]),
    ) -> Result<ExecutionResult, SessionError> {
        let limit = self.max_output_bytes();
        let before = self.observe();
        let execution = self.session.exec(&exec).await?;
        let input = execution.input();
        let killed = async {
            cancelled.await;
            let _ = input.kill().await; // the command may have ended, and then its result arrives
            pending().await
        };
        let captured = tokio::select! {
            captured = execution.capture_with(limit, on_output) => captured?,
            never = killed => never,
        };
        let CapturedCommand { ended, stdout, stderr, dropped } = captured;
        Ok(ExecutionResult { stdout, stderr, dropped, ..before.result(ended) })
    }

    /// Returns the number of bytes of each output stream that are kept.
    pub(crate) fn max_output_bytes(&self) -> u64 {
        self.manifest.limits.output.map_or(DEFAULT_OUTPUT_BYTES, |size| size.bytes())
    }

    /// Observes the sandbox before a command whose output is not captured, so that the result of
    /// the command can be made later.
    pub fn observe(&self) -> Observation {
        // A result names the policy that is in force. If that cannot be read, the result names the
        // policy of the start.
        let manifest = self.current_manifest().unwrap_or_else(|_| Arc::clone(&self.manifest));
        Observation::begin(self.facets.observer.as_ref(), manifest)
    }

    /// Sets the end of the lease to `lease` from now. The owner checks the lease every 30 seconds,
    /// so a sandbox whose lease was shortened may end that much later. A sandbox without a lease
    /// still stays until it is stopped.
    pub fn renew(&self, lease: Duration) -> Result<(), SandboxDirError> {
        self.require_kept()?;
        let name = &self.manifest.name;
        let failed =
            |source| SandboxDirError::File { what: "renew the lease", name: name.clone(), source };
        crate::sandbox::lease::renew(&self.directory(), lease).map_err(failed)
    }

    /// Tells whether a process still keeps the sandbox and lets others in.
    pub fn is_up(&self) -> bool {
        let name = &self.manifest.name;
        // The manifest is read only once as long as its file has a name, because the end of the
        // sandbox, or another sandbox in its directory, removes that name.
        if self
            .manifest_file
            .get()
            .is_some_and(|file| fstat(file).is_ok_and(|stat| stat.st_nlink > 0))
        {
            return self.sandbox_dirs.is_kept(name);
        }
        let (manifest, file) = match self.sandbox_dirs.open_manifest(name) {
            Ok(opened) => opened,
            Err(SandboxDirError::Absent { .. }) => return false,
            Err(_) => return true, // the owner is alive, but there may be no descriptor left
        };
        let is_this =
            manifest.owner == self.manifest.owner && manifest.started == self.manifest.started;
        if is_this {
            let _ = self.manifest_file.set(file); // another thread may have set the file, too
        }
        is_this
    }

    /// Waits until the sandbox has ended: because it was stopped, by itself, or at the end of its
    /// lease.
    pub async fn ended(&self) {
        match &self.owned {
            Some(owned) => {
                // The wait cannot fail, because `owned` holds the sender.
                let _ = owned.ended.subscribe().wait_for(|ended| *ended).await;
            }
            None => loop {
                match self.manifest.owner.open() {
                    Ok(Some(owner)) => return wait_for_end(&owner).await,
                    Ok(None) if !self.is_up() => return,
                    // The owner is a process that is not visible from here, or there is no
                    // descriptor left.
                    Ok(None) | Err(_) => tokio::time::sleep(OWNER_POLL_INTERVAL).await,
                }
            },
        }
    }

    /// Ends every process of the sandbox, removes the resources that were made for it, and waits
    /// for that.
    pub async fn stop(self) -> Result<Stopped, AttachError> {
        match &self.owned {
            Some(owned) => Ok(owned.end().await?),
            None => {
                let workspace = self.bring_back_before_stop().await?;
                stop_by_owner(&self.sandbox_dirs, &self.manifest).await?;
                let mut planted = self.planted();
                planted.extend(workspace.iter().flat_map(|report| report.planted.clone()));
                Ok(Stopped { planted, workspace })
            }
        }
    }
}

/// A sandbox that was stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// Paths that the sandbox made, changed or removed since its start and that programs on the
    /// host act on. Processes in the background may have changed some of them after the result of
    /// the last command.
    pub planted: Vec<String>,
    /// Report of the last sync of the workspace; `None` if the sandbox worked on the host's own
    /// files.
    pub workspace: Option<SyncReport>,
}

/// Returns the manifest of a sandbox that another process keeps. Waits if the sandbox is still
/// starting.
async fn wait_for_manifest(
    sandbox_dirs: &SandboxDirs,
    name: &Name,
) -> Result<Manifest, SandboxDirError> {
    let deadline = Instant::now() + SANDBOX_START_TIMEOUT;
    loop {
        match sandbox_dirs.manifest(name) {
            Err(SandboxDirError::Absent { .. }) if sandbox_dirs.is_kept(name) => {
                match Instant::now() < deadline {
                    true => tokio::time::sleep(POLL_INTERVAL).await,
                    false => return Err(SandboxDirError::Pending { name: name.clone() }),
                }
            }
            manifest => return manifest,
        }
    }
}

/// Waits until no process keeps a sandbox. Uses no other thread, because the caller may be about to
/// fork.
async fn wait_until_released(sandbox_dirs: &SandboxDirs, name: &Name) {
    while sandbox_dirs.is_kept(name) {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until a process has ended. Never returns if the process cannot be watched.
async fn wait_for_end(process: &OwnedFd) {
    match crate::run::readiness::watch(process.as_fd(), Interest::READABLE) {
        Ok(process) => drop(process.readable().await), // the reactor lives as long as we wait
        Err(_) => std::future::pending().await,
    }
}

/// Tells the process that keeps a sandbox to end it, and waits for that.
async fn stop_by_owner(sandbox_dirs: &SandboxDirs, manifest: &Manifest) -> Result<(), AttachError> {
    let (name, pid) = (&manifest.name, manifest.owner.pid);
    let refuse = |why: String, hint: String| {
        AttachError::Stop(StopError { name: name.to_string(), why, hint })
    };
    if !manifest.owner.is_monitor {
        let why = format!("it belongs to the program with process id {pid}, which uses it");
        return Err(refuse(why, format!("end that program: kill {pid}")));
    }
    let owner = match manifest.owner.open() {
        Ok(Some(owner)) => owner,
        Ok(None) if sandbox_dirs.manifest(name).is_ok_and(|now| now.owner == manifest.owner) => {
            let why = format!("its monitor, process {pid}, is not visible from here");
            return Err(refuse(
                why,
                "stop it where it was started: in another container, perhaps".to_owned(),
            ));
        }
        Ok(None) => return Ok(()), // the owner has ended
        Err(error) => {
            let why = format!("its monitor, process {pid}, cannot be examined: {error}");
            return Err(refuse(why, "check the limits of this process: ulimit -n".to_owned()));
        }
    };
    for signal in [Signal::TERM, Signal::KILL] {
        let _ = pidfd_send_signal(&owner, signal); // the owner may have ended already
        loop {
            if tokio::time::timeout(MONITOR_STOP_TIMEOUT, wait_for_end(&owner)).await.is_ok() {
                if signal == Signal::KILL
                    && let Ok(sandbox_dir) = sandbox_dirs.claim(name.clone())
                {
                    sandbox_dir.remove(); // a killed monitor leaves its directory
                }
                return Ok(());
            }
            // A monitor that brings a workspace back is not stuck, and limits its own time.
            if !workspace_copy::is_syncing(&sandbox_dirs.path(name)) {
                break;
            }
        }
    }
    Err(refuse(
        format!("its monitor, process {pid}, does not end"),
        format!("examine it: ps -fp {pid}"),
    ))
}

/// Returns the end of a sandbox's log, in one line.
fn log_tail(sandbox_dirs: &SandboxDirs, name: &Name) -> String {
    const MAX_CHARS: usize = 400;
    let text = fs_err::read_to_string(sandbox_dirs.log(name)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    let words: String = lines.into_iter().rev().collect::<Vec<_>>().join("; ");
    crate::host_paths::untrusted::printable(&words).chars().take(MAX_CHARS).collect()
}

#[cfg(test)]
pub(crate) mod tests;
