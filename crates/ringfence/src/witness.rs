//! What results of commands in a sandbox tell besides what its guest says: the host's own look at it.

use std::path::PathBuf;
use std::sync::Arc;

use ringfence_core::ExecutionResult;
use ringfence_core::result::{Denial, Dropped, Meta};
use ringfence_linux::cgroup;
use ringfence_linux::pause::ProcessTree;
use serde::{Deserialize, Serialize};

use crate::instance::Instance;
use crate::session::Ended;
use crate::view::Watched;
use crate::{Manifest, egress};

/// Where to look. It is kept in the sandbox's room, as commands are run by other processes than the one that keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Witness {
    /// The files in which the kernel counts whom it killed for want of memory.
    oom_counters: Vec<PathBuf>,
    /// What was at protected paths that nothing can keep the sandbox from, when it was started.
    watched: Watched,
    /// The log of what it was denied, where it has a gate.
    egress: Option<PathBuf>,
    /// Its processes, where they are seen from here.
    #[serde(default)]
    tree: Option<ProcessTree>,
}

impl Witness {
    pub(crate) fn new(instance: &dyn Instance, watched: Watched, egress: Option<PathBuf>) -> Witness {
        // Only text can be kept. The kernel's names are text, and a mount point of another name is nobody's.
        let is_text = |path: &PathBuf| path.to_str().is_some();
        let oom_counters = instance.oom_counters().into_iter().filter(is_text).collect();
        Witness { oom_counters, watched, egress: egress.filter(is_text), tree: instance.tree() }
    }

    /// Its processes, where they are seen from here.
    pub(crate) fn tree(&self) -> Option<ProcessTree> {
        self.tree
    }

    /// How many processes of the sandbox were killed for want of memory so far.
    fn oom_kills(&self) -> u64 {
        self.oom_counters.iter().map(|counter| cgroup::oom_kills(counter)).sum()
    }

    /// Looks at the sandbox before a command.
    pub(crate) fn observe(self: &Arc<Witness>, manifest: &Arc<Manifest>) -> Observation {
        let logged = self.egress.as_deref().map_or(0, egress::last_number);
        let (witness, manifest) = (Arc::clone(self), Arc::clone(manifest));
        Observation { oom_kills: witness.oom_kills(), witness, manifest, logged }
    }

    /// Denials of the sandbox since the event of this number.
    fn denials(&self, sandbox: &str, logged: u64) -> Vec<Denial> {
        self.egress.as_deref().map(|log| egress::denials_since(log, logged, sandbox)).unwrap_or_default()
    }

    /// Returns the protected paths that were made, changed or removed since the sandbox was started.
    /// Links of git among them are remembered, so that no other sandbox is led by one.
    pub(crate) fn planted(&self) -> Vec<String> {
        self.watched.planted()
    }
}

/// A look at a sandbox before a command.
#[derive(Debug)]
pub struct Observation {
    witness: Arc<Witness>,
    manifest: Arc<Manifest>,
    /// How many of its processes had been killed for want of memory.
    oom_kills: u64,
    /// Number of the last event in its egress log.
    logged: u64,
}

impl Observation {
    /// What became of the command. Of several that run at once, each tells of what happened to the sandbox meanwhile.
    pub fn result(&self, ended: Ended) -> ExecutionResult {
        let Observation { witness, manifest, oom_kills, logged } = self;
        ExecutionResult {
            id: crate::run::identity(),
            exit_code: ended.exit_code,
            signal: ended.signal,
            ok: ended.ok(),
            timed_out: ended.timed_out,
            oom_killed: witness.oom_kills() > *oom_kills,
            stdout: String::new(),
            stderr: String::new(),
            dropped: Dropped::default(),
            duration: ended.duration.as_secs_f64(),
            meta: Meta {
                usage: ended.usage,
                denials: witness.denials(manifest.name.as_str(), *logged),
                planted: witness.planted(),
                ..Meta::new(
                    manifest.backend,
                    manifest.chosen_because.clone(),
                    manifest.held.clone(),
                    manifest.policy_sha256.clone(),
                    manifest.limits.clone(),
                )
            },
        }
    }
}
