//! The cluster of one run of the tests.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use ringfence_test_ledger::User;
use ringfence_test_ledger::cluster::CLUSTER_VARIABLE;

use super::access::ClusterAccess;
use super::process::{ClusterLifetime, ClusterProcess};
use super::programs::ClusterPrograms;
use super::{import_guest, import_images, obstacle, optional_parts};
use crate::test::cgroups::{remove_cgroup_everywhere, remove_ended_cgroups};
use crate::test::engines::remove_left_behind;
use crate::workspace::Workspace;

/// Prefix of the names of a run's directory and cgroup. The id of the process that made them
/// follows.
const PREFIX: &str = "ringfence-cluster-";

/// The cluster of one run of the tests: its own, or one that `cargo xtask cluster up` started.
pub(crate) struct TestCluster {
    access: Option<ClusterAccess>,
    programs: Option<ClusterPrograms>,
    source: ClusterSource,
    /// Directory of the run, for its kubeconfigs and for the state of its own cluster.
    directory: tempfile::TempDir,
}

enum ClusterSource {
    Own { process: Option<ClusterProcess>, cgroup: String },
    Running { directory: PathBuf },
}

impl TestCluster {
    /// Creates the namespaces of a cluster, unless the environment names a cluster that runs. They
    /// end at the latest with the calling thread. Removes the directories and the cgroups that
    /// interrupted runs left behind.
    ///
    /// If a cluster is impossible, prints the reason and returns `None`; tests that need one then
    /// skip.
    pub(crate) fn prepare(workspace: &Workspace) -> Result<Option<Self>> {
        let running = std::env::var_os(CLUSTER_VARIABLE).map(PathBuf::from);
        if running.is_none()
            && let Some(obstacle) = obstacle()
        {
            println!("without a cluster: {obstacle}; tests that need one skip");
            return Ok(None);
        }
        // The path is short, because paths of sockets have at most 108 bytes.
        let temporary = Path::new("/tmp");
        remove_left_behind(temporary, PREFIX)?;
        let cgroup = format!("{PREFIX}{}", std::process::id());
        let open = std::fs::Permissions::from_mode(0o755);
        let directory = tempfile::Builder::new()
            .prefix(&format!("{cgroup}-"))
            .permissions(open)
            .tempdir_in(temporary)?;
        let source = match running {
            Some(kubeconfig) => {
                println!("using the cluster that the environment names");
                let cluster = kubeconfig.parent().context("a kubeconfig is in no directory")?;
                ClusterSource::Running { directory: cluster.to_owned() }
            }
            None => {
                remove_ended_cgroups(PREFIX)?;
                let lifetime = ClusterLifetime::CallingThread;
                let process =
                    ClusterProcess::create(workspace, directory.path(), &cgroup, lifetime)?;
                ClusterSource::Own { process: Some(process), cgroup }
            }
        };
        Ok(Some(Self { access: None, programs: None, source, directory }))
    }

    /// Builds the programs of the cluster unless they are in the cache, and starts it with the test
    /// images, which are made in `images`.
    ///
    /// If that fails, prints the reason; tests that need a cluster then skip.
    pub(crate) fn start(&mut self, workspace: &Workspace, images: &Path, install: bool) {
        if let Err(error) = self.try_start(workspace, images, install) {
            println!("without a cluster: {error:#}; tests that need one skip");
        }
    }

    fn try_start(&mut self, workspace: &Workspace, images: &Path, install: bool) -> Result<()> {
        let programs = match &mut self.source {
            ClusterSource::Running { directory } => ClusterPrograms::of_running(directory)?,
            ClusterSource::Own { process, .. } => {
                let parts = optional_parts(None)?;
                let programs = ClusterPrograms::provide(workspace, &parts, install)?;
                println!("starting the cluster");
                process.as_mut().context("the cluster was stopped")?.start(&programs)?;
                import_images(self.directory.path(), &programs, images)?;
                programs
            }
        };
        self.programs = Some(programs);
        Ok(())
    }

    /// Makes a started cluster reachable for the tests, and gives it the guest that was built.
    /// `beside_tests` moves a command to the
    /// network namespace of the tests; the relay ends at the latest with the calling thread.
    pub(crate) fn open(
        &mut self,
        workspace: &Workspace,
        user: Option<&User>,
        beside_tests: impl FnOnce(Command) -> Command,
    ) -> Result<()> {
        let Some(programs) = &self.programs else { return Ok(()) };
        let own = self.directory.path();
        let cluster = match &self.source {
            ClusterSource::Own { .. } => own,
            ClusterSource::Running { directory } => directory,
        };
        import_guest(cluster, programs, workspace)?;
        let mut relay = Command::new("setsid"); // Ctrl-C does not reach the relay
        relay.args(["setpriv", "--pdeathsig", "KILL"]);
        relay.args(ClusterAccess::relay_command(cluster, programs)?);
        let relay = beside_tests(relay);
        self.access = Some(ClusterAccess::open(cluster, programs, relay, own, user)?);
        Ok(())
    }

    /// Returns the variables by which tests find the cluster.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.access.iter().flat_map(|access| access.variables.iter().cloned())
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        let mut results = vec![self.access.take().map_or(Ok(()), |access| access.relay.stop())];
        if let ClusterSource::Own { process, cgroup } = &mut self.source {
            println!("stopping the cluster");
            results.push(process.take().map_or(Ok(()), ClusterProcess::stop));
            results.push(remove_cgroup_everywhere(cgroup));
        }
        for error in results.into_iter().filter_map(Result::err) {
            eprintln!("warning: a part of the cluster is left behind: {error:#}");
        }
    }
}
