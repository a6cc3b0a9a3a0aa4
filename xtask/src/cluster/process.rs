//! The processes of one cluster: they start in new namespaces, and all end together.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::programs::ClusterPrograms;
use crate::oci::OciImage;
use crate::workspace::Workspace;

/// Time limit for a cluster to become usable. Six seconds suffice on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(240);
/// Time limit for killed processes to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Files in the directory of a cluster.
const READY_FILE: &str = "ready";
const START_LOG: &str = "start.log";

/// Lifetime of the processes of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClusterLifetime {
    /// At the latest, the processes end with the thread that creates the namespaces.
    CallingThread,
    UntilStopped,
}

/// The namespaces of a cluster, in which it starts when its programs are built.
pub(super) struct ClusterProcess {
    holder: Child,
    directory: PathBuf,
}

impl ClusterProcess {
    /// Creates the namespaces. `directory` is empty and gets the whole state. The containers get a
    /// cgroup with the name `cgroup`.
    pub(super) fn create(
        workspace: &Workspace,
        directory: &Path,
        cgroup: &str,
        lifetime: ClusterLifetime,
    ) -> Result<Self> {
        let mut command = Command::new("setsid"); // Ctrl-C does not reach the cluster
        if lifetime == ClusterLifetime::CallingThread {
            command.args(["setpriv", "--pdeathsig", "KILL"]);
        }
        let namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child"];
        command.arg("unshare").args(namespaces);
        command.arg(workspace.root.join("tests/cluster/start.sh")).arg(directory).arg(cgroup);
        let log = fs_err::File::create(directory.join(START_LOG))?.into_parts().0;
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        let holder = command.spawn().context("cannot run setsid")?;
        Ok(Self { holder, directory: directory.to_owned() })
    }

    /// Returns the process whose death ends the cluster.
    pub(super) fn holder(&self) -> Result<ProcessRecord> {
        ProcessRecord::of(self.holder.id())
    }

    /// Starts the cluster, and waits until it is usable.
    pub(super) fn start(&mut self, programs: &ClusterPrograms) -> Result<()> {
        programs.record(&self.directory)?;
        let mut stdin = self.holder.stdin.take().context("the cluster was started before")?;
        writeln!(stdin, "{}", programs.search_path()?).context("cannot start the cluster")?;
        drop(stdin);
        let deadline = Instant::now() + START_TIMEOUT;
        while !self.directory.join(READY_FILE).exists() {
            let ended = self.holder.try_wait()?.is_some();
            if ended || Instant::now() > deadline {
                let log = fs_err::read_to_string(self.directory.join(START_LOG))?;
                let state = if ended { "ended" } else { "does not get ready" };
                bail!("the cluster {state}: {}", log.trim().lines().last().unwrap_or("no message"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Ends all processes of the cluster.
    pub(super) fn stop(mut self) -> Result<()> {
        let first = first_process(&self.directory);
        self.holder.kill().and_then(|()| self.holder.wait()).context("cannot end the cluster")?;
        first.map_or(Ok(()), |first| await_end(&first))
    }
}

/// A process that an earlier command started. The time of its start distinguishes it from a later
/// process with the same id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessRecord {
    id: u32,
    /// Start after boot in clock ticks, the field 22 of proc_pid_stat(5).
    started: String,
}

impl ProcessRecord {
    fn of(id: u32) -> Result<Self> {
        let stat = fs_err::read_to_string(format!("/proc/{id}/stat"))?;
        // The name in the second field may contain spaces.
        let started = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
        Ok(Self { id, started: started.context("a stat file has 52 fields")?.to_owned() })
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        Ok(fs_err::write(path, format!("{} {}", self.id, self.started))?)
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs_err::read_to_string(path)?;
        let (id, started) = text.split_once(' ').context("a record has two fields")?;
        Ok(Self { id: id.parse()?, started: started.to_owned() })
    }

    pub(super) fn is_alive(&self) -> bool {
        Self::of(self.id).is_ok_and(|process| process == *self)
    }

    /// Kills the process if it is still alive.
    pub(super) fn kill(&self) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        let id = i32::try_from(self.id).ok().and_then(rustix::process::Pid::from_raw);
        let id = id.context("a process has a positive id")?;
        Ok(rustix::process::kill_process(id, rustix::process::Signal::KILL)?)
    }
}

/// Ends all processes of a cluster that an earlier command started.
pub(super) fn stop_recorded(holder: &ProcessRecord, directory: &Path) -> Result<()> {
    let first = first_process(directory).filter(|_| holder.is_alive());
    holder.kill().context("cannot end the cluster")?;
    first.map_or(Ok(()), |first| await_end(&first))
}

/// Returns the directory in `/proc` of the first process inside, if that process runs.
fn first_process(directory: &Path) -> Option<PathBuf> {
    let id = fs_err::read_to_string(directory.join("first.pid")).ok()?;
    Some(Path::new("/proc").join(id.trim()))
}

/// Waits until the first process inside is gone, which the kernel lets go after all others.
fn await_end(first: &Path) -> Result<()> {
    let begun = Instant::now();
    while first.exists() {
        ensure!(begun.elapsed() < KILL_TIMEOUT, "the process {} does not end", first.display());
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The facts that a started cluster reports.
pub(super) struct ClusterFacts {
    /// Address of the API inside the namespaces.
    pub(super) address: String,
    pub(super) outside: String,
    pub(super) outside_namespace: String,
}

impl ClusterFacts {
    pub(super) fn read(directory: &Path) -> Result<Self> {
        let text = fs_err::read_to_string(directory.join(READY_FILE))?;
        let fact = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.map(str::to_owned).with_context(|| format!("the cluster reports no {name}"))
        };
        Ok(Self {
            address: fact("address")?,
            outside: fact("outside_ip")?,
            outside_namespace: fact("outside_namespace")?,
        })
    }
}

/// Imports an image into a running cluster.
pub(super) fn import_image(
    image: &OciImage<'_>,
    directory: &Path,
    programs: &ClusterPrograms,
) -> Result<()> {
    let mut command = Command::new(programs.find("ctr").unwrap_or_else(|| "ctr".into()));
    command.arg("--address").arg(directory.join("containerd.sock"));
    command.args(["--namespace", "k8s.io", "images", "import", "-"]);
    image.import_by(&mut command).with_context(|| format!("cannot import {}", image.name))
}

/// A relay that makes the API of a cluster reachable on the loopback interface.
pub(super) struct ClusterRelay {
    process: Child,
    /// Address on which the relay listens.
    pub(super) address: String,
}

impl ClusterRelay {
    /// Starts a relay by `command`, which already enters the network namespace of the clients.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the relay of the cluster")?;
        let stdout = process.stdout.take().context("the output of the relay is not piped")?;
        let mut address = String::new();
        BufReader::new(stdout).read_line(&mut address)?;
        address.truncate(address.trim_end().len());
        let relay = Self { process, address };
        ensure!(!relay.address.is_empty(), "the relay of the cluster ended");
        Ok(relay)
    }

    pub(super) fn process(&self) -> Result<ProcessRecord> {
        ProcessRecord::of(self.process.id())
    }

    pub(super) fn stop(mut self) -> Result<()> {
        self.process.kill().and_then(|()| self.process.wait()).context("cannot end the relay")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_a_process_from_a_later_one_with_its_id() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        let own = ProcessRecord::of(std::process::id()).unwrap();
        own.write(&path).unwrap();
        assert_eq!(ProcessRecord::read(&path).unwrap(), own);
        assert!(own.is_alive());
        assert!(!ProcessRecord { started: "0".to_owned(), ..own }.is_alive());
    }
}
