//! The host's own observations of a sandbox, which the results of commands contain besides what the
//! guest says.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_core::ExecutionResult;
use ringfence_core::result::{Denial, DroppedBytes, RunMetadata};
use ringfence_linux::cgroup;
use ringfence_linux::pause::ProcessTree;
use serde::{Deserialize, Serialize};

use crate::backends::HostView;
use crate::session::CommandEnd;
use crate::view::WatchedPaths;
use crate::{Manifest, egress};

/// Name of the file of the observer in the directory of its sandbox.
const OBSERVER_FILE: &str = "witness.json";

/// The places at which the host observes a sandbox. They are stored in the sandbox's directory,
/// because commands may be run by other processes than the one that keeps the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostObserver {
    /// Files in which the kernel counts the processes that it killed for lack of memory.
    oom_counters: Vec<PathBuf>,
    /// State at the start of those protected paths that nothing can prevent the sandbox from
    /// changing.
    watched: WatchedPaths,
    /// Log of what the sandbox was denied, if it has a gate.
    egress: Option<PathBuf>,
    /// The process tree of the sandbox, if its processes are visible from here.
    #[serde(default)]
    tree: Option<ProcessTree>,
}

impl HostObserver {
    pub(crate) fn new(
        view: HostView,
        watched: WatchedPaths,
        egress: Option<PathBuf>,
    ) -> HostObserver {
        // Only UTF-8 can be stored. The kernel's names are UTF-8, and nobody uses a mount point
        // with another name.
        let is_text = |path: &PathBuf| path.to_str().is_some();
        let oom_counters = view.oom_counters.into_iter().filter(is_text).collect();
        HostObserver { oom_counters, watched, egress: egress.filter(is_text), tree: view.tree }
    }

    /// Returns the process tree of the sandbox, if its processes are visible from here.
    pub(crate) fn tree(&self) -> Option<ProcessTree> {
        self.tree
    }

    /// Returns the number of processes of the sandbox that were killed for lack of memory so far.
    fn oom_kills(&self) -> u64 {
        self.oom_counters.iter().map(|counter| cgroup::oom_kills(counter)).sum()
    }

    /// Reads the observer in the directory of a sandbox. Returns `None` if there is none: the host
    /// cannot observe the sandbox, or an older ringfence started it.
    pub(crate) fn read(directory: &Path) -> io::Result<Option<HostObserver>> {
        match fs_err::read(directory.join(OBSERVER_FILE)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the observer into the directory of its sandbox.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        fs_err::write(directory.join(OBSERVER_FILE), serde_json::to_vec(self)?)
    }

    /// Returns the denials of the sandbox after the event number `logged`.
    fn denials(&self, sandbox: &str, logged: u64) -> Vec<Denial> {
        self.egress
            .as_deref()
            .map(|log| egress::denials_since(log, logged, sandbox))
            .unwrap_or_default()
    }

    /// Returns the protected paths that were made, changed or removed since the sandbox was
    /// started. Remembers the links of git among them, so that they mislead no other sandbox.
    pub(crate) fn planted(&self) -> Vec<String> {
        self.watched.planted()
    }
}

/// Observation of a sandbox before a command.
#[derive(Debug)]
pub struct Observation {
    manifest: Arc<Manifest>,
    before: Option<HostObservation>,
}

/// State of a sandbox before a command, as the host saw it.
#[derive(Debug)]
struct HostObservation {
    observer: Arc<HostObserver>,
    /// Number of processes of the sandbox that had been killed for lack of memory.
    oom_kills: u64,
    /// Number of the last event in the sandbox's egress log.
    logged: u64,
}

impl Observation {
    /// Observes a sandbox before a command, as far as the host can observe it.
    pub(crate) fn begin(
        observer: Option<&Arc<HostObserver>>,
        manifest: Arc<Manifest>,
    ) -> Observation {
        let before = observer.map(|observer| HostObservation {
            oom_kills: observer.oom_kills(),
            logged: observer.egress.as_deref().map_or(0, egress::last_number),
            observer: Arc::clone(observer),
        });
        Observation { manifest, before }
    }

    /// Makes the result of the command. If several commands run at the same time, each result
    /// contains what happened to the sandbox while its command ran.
    pub fn result(&self, ended: CommandEnd) -> ExecutionResult {
        let Observation { manifest, before } = self;
        let mut meta = RunMetadata {
            usage: ended.usage,
            ..RunMetadata::new(
                manifest.backend,
                manifest.chosen_because.clone(),
                manifest.held.iter().map(|(clause, by)| (*clause, by.to_string())).collect(),
                manifest.policy_sha256.clone(),
                manifest.limits.clone(),
            )
        };
        let mut oom_killed = false;
        if let Some(HostObservation { observer, oom_kills, logged }) = before {
            oom_killed = observer.oom_kills() > *oom_kills;
            meta.denials = observer.denials(manifest.name.as_str(), *logged);
            meta.planted = observer.planted();
        }
        ExecutionResult {
            id: crate::run::identity(),
            exit_code: ended.exit_code,
            signal: ended.signal,
            ok: ended.ok(),
            timed_out: ended.timed_out,
            oom_killed,
            stdout: String::new(),
            stderr: String::new(),
            dropped: DroppedBytes::default(),
            duration: ended.duration.as_secs_f64(),
            meta,
        }
    }
}
