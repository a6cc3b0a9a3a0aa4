//! Docker and Podman for the tests, started beside the engines of the machine and removed after the
//! run.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use ringfence_test_ledger::User;
use ringfence_test_ledger::engine::{
    DOCKER_VARIABLE, ENGINE_VARIABLES, Engine, PODMAN_VARIABLE, ROOTLESS_PODMAN_VARIABLE,
};

use super::cgroups::RunCgroups;
use super::enclosure::EngineEnclosure;
use super::images::{self, ImportableImage};
use crate::workspace::find_program;

/// Prefix of the name of a run's directory. The id of the process that made the directory follows.
const DIRECTORY_PREFIX: &str = "ringfence-engine-";
/// Time limit for an engine to answer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Configuration of Podman. runc supports cgroups of version 1, and the other values avoid systemd
/// and its journal. The limits are low because hosts without CAP_SYS_RESOURCE refuse limits above
/// their own.
const CONTAINERS_CONF: &str = r#"
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=8192:8192"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"#;

/// Environment in which engines can run. The order of the fields is the order of the clean-up,
/// because processes must end before the resources that they hold.
pub(crate) struct EngineEnvironment {
    enclosure: EngineEnclosure,
    cgroups: RunCgroups,
    directory: tempfile::TempDir,
}

impl EngineEnvironment {
    /// Prepares the environment, and removes the directories that interrupted runs left behind.
    ///
    /// If that is impossible, prints the reason and returns `None`; tests that need an engine then
    /// skip.
    pub(crate) fn prepare() -> Result<Option<Self>> {
        if ENGINE_VARIABLES.iter().any(|variable| std::env::var_os(variable).is_some()) {
            println!("using the container engines that the environment names");
            return Ok(None);
        }
        let enclosure = match obstacle()
            .map_or_else(EngineEnclosure::create, |obstacle| Err(anyhow!(obstacle)))
        {
            Ok(enclosure) => enclosure,
            Err(error) => {
                println!("without container engines: {error:#}; tests that need one skip");
                return Ok(None);
            }
        };
        // The directory is in /tmp whatever TMPDIR is, because Podman refuses paths of more than 50
        // characters.
        let temporary = Path::new("/tmp");
        remove_left_behind(temporary, DIRECTORY_PREFIX)?;
        let open = std::fs::Permissions::from_mode(0o755);
        let prefix = format!("{DIRECTORY_PREFIX}{}-", std::process::id());
        let directory =
            tempfile::Builder::new().prefix(&prefix).permissions(open).tempdir_in(temporary)?;
        Ok(Some(Self { enclosure, cgroups: RunCgroups::claim()?, directory }))
    }

    /// Moves a command to the namespaces in which the ports of containers are reachable.
    pub(crate) fn beside_the_engines(&self, command: &Command) -> Command {
        self.enclosure.beside_the_engines(command)
    }

    /// Starts every engine that can work on this host, and imports the test images, which are made
    /// in `cache`. The rootless engine runs as `user`; without a user it is not started.
    pub(crate) fn start_engines(
        &self,
        user: Option<&User>,
        cache: &Path,
    ) -> Result<RunningEngines> {
        fs_err::create_dir_all(cache)?;
        let mut engines = RunningEngines(Vec::new());
        // Launch all engines before waiting for the first one.
        let kinds = EngineKind::ALL
            .into_iter()
            .filter(|kind| *kind != EngineKind::RootlessPodman || user.is_some());
        for (kind, launched) in
            kinds.map(|kind| (kind, self.launch(kind, user))).collect::<Vec<_>>()
        {
            match launched.and_then(EngineDaemon::answering) {
                Ok(daemon) => engines.0.push(daemon),
                Err(error) => {
                    println!("without {}: {error:#}; tests that need it skip", kind.name())
                }
            }
        }
        if !engines.0.is_empty() {
            engines.provide(images::tiny(cache));
            engines.provide(images::dev(cache));
        }
        Ok(engines)
    }

    fn launch(&self, kind: EngineKind, user: Option<&User>) -> Result<EngineDaemon> {
        let program = kind.program();
        find_program(program).with_context(|| format!("there is no {program} here"))?;
        let home = self.directory.path().join(kind.name());
        fs_err::create_dir(&home)?;
        let log = home.join("log");
        let output = fs_err::File::create(&log)?.into_parts().0;
        let socket = home.join("api.sock");
        let mut command = match kind {
            EngineKind::Docker => self.docker(&home, &socket)?,
            EngineKind::Podman => self.podman(&home, &socket, None)?,
            EngineKind::RootlessPodman => {
                let user = user.context("there is no ordinary user")?;
                std::os::unix::fs::chown(&home, Some(user.uid), Some(user.gid))?;
                self.podman(&home, &socket, Some(user))?
            }
        };
        command
            .env("TMPDIR", &home)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        println!("starting {}", kind.name());
        let process = command.spawn().with_context(|| format!("cannot start {program}"))?;
        Ok(EngineDaemon { kind, engine: Engine::on(socket), process, log })
    }

    fn docker(&self, home: &Path, socket: &Path) -> Result<Command> {
        let configuration = home.join("daemon.json");
        fs_err::write(&configuration, "{}")?;
        let mut command = self.enclosure.command("dockerd");
        command.arg("--config-file").arg(configuration);
        command.args(["--cgroup-parent", &format!("/{}", self.cgroups.name())]);
        command.arg("--host").arg(format!("unix://{}", socket.display()));
        command
            .arg("--data-root")
            .arg(home.join("images"))
            .arg("--exec-root")
            .arg(home.join("run"));
        command.arg("--pidfile").arg(home.join("pid"));
        Ok(command)
    }

    fn podman(&self, home: &Path, socket: &Path, user: Option<&User>) -> Result<Command> {
        let configuration = home.join("containers.conf");
        let networks = format!("network_config_dir = \"{}\"\n", home.join("networks").display());
        fs_err::write(&configuration, format!("{CONTAINERS_CONF}{networks}"))?;
        let mut command = match user {
            None => self.enclosure.command("podman"),
            Some(user) => {
                let mut command = self.enclosure.command("setpriv");
                command.args([
                    "--reuid",
                    &user.uid.to_string(),
                    "--regid",
                    &user.gid.to_string(),
                    "--init-groups",
                ]);
                command
                    .arg("podman")
                    .env("HOME", &user.home)
                    .env("USER", &user.name)
                    .env("LOGNAME", &user.name);
                command.env("XDG_RUNTIME_DIR", home).current_dir(&user.home);
                command
            }
        };
        command.env("CONTAINERS_CONF", configuration);
        // By default, Podman copies whole images for an ordinary user (vfs), although the kernel
        // supports overlay.
        command.args(["--storage-driver", "overlay"]);
        command.arg("--root").arg(home.join("images")).arg("--runroot").arg(home.join("run"));
        command
            .args(["system", "service", "--time", "0"])
            .arg(format!("unix://{}", socket.display()));
        Ok(command)
    }
}

/// Returns the reason why no engine can be started apart from the engines of the machine, if there
/// is one.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can start them apart from the machine's own".to_owned());
    }
    let programs = ["setpriv", "unshare", "nsenter", "ip", "iptables", "catatonit"];
    let missing = programs.into_iter().find(|program| find_program(program).is_none());
    missing.map(|program| format!("there is no {program} here"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EngineKind {
    Docker,
    Podman,
    RootlessPodman,
}

impl EngineKind {
    const ALL: [Self; 3] = [Self::Docker, Self::Podman, Self::RootlessPodman];

    fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::RootlessPodman => "rootless",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Docker => "dockerd",
            Self::Podman | Self::RootlessPodman => "podman",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Docker => DOCKER_VARIABLE,
            Self::Podman => PODMAN_VARIABLE,
            Self::RootlessPodman => ROOTLESS_PODMAN_VARIABLE,
        }
    }
}

/// An engine and the process that runs the engine.
struct EngineDaemon {
    kind: EngineKind,
    engine: Engine,
    process: Child,
    log: PathBuf,
}

impl EngineDaemon {
    /// Waits until the engine answers. Fails if its process ends or the deadline passes.
    fn answering(mut self) -> Result<Self> {
        let deadline = Instant::now() + START_TIMEOUT;
        while let Err(reason) = self.engine.ping() {
            if self.process.try_wait()?.is_some() || Instant::now() > deadline {
                let log = fs_err::read_to_string(&self.log)?;
                bail!("{reason}; its last words: {}", log.trim().lines().last().unwrap_or("none"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(self)
    }
}

impl Drop for EngineDaemon {
    fn drop(&mut self) {
        // Kill and reap the process that entered the enclosure; processes inside end with the
        // enclosure.
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("warning: {} is left behind: {error}", self.kind.name());
        }
    }
}

/// The engines that answer requests.
pub(crate) struct RunningEngines(Vec<EngineDaemon>);

impl RunningEngines {
    /// Returns the variables by which tests find the engines.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.0.iter().map(|daemon| (daemon.kind.variable(), daemon.engine.address()))
    }

    /// Imports an image into all engines concurrently, because each takes seconds to unpack the
    /// image.
    fn provide(&self, image: Result<ImportableImage>) {
        let image = match image {
            Ok(image) => image,
            Err(error) => return println!("without an image: {error:#}; tests that need it skip"),
        };
        std::thread::scope(|scope| {
            for EngineDaemon { kind, engine, .. } in &self.0 {
                let image = &image;
                scope.spawn(move || {
                    match engine.import(image.name, &image.tarball, image.instructions) {
                        Ok(()) => println!("gave {} the image {}", kind.name(), image.name),
                        Err(reason) => println!(
                            "without the image {} on {}: {reason}",
                            image.name,
                            kind.name()
                        ),
                    }
                });
            }
        });
    }
}

impl Drop for RunningEngines {
    /// Removes containers while their engines run, because only an engine knows its cgroups, and
    /// killing the engine leaves them behind.
    fn drop(&mut self) {
        for EngineDaemon { kind, engine, .. } in &self.0 {
            println!("stopping {}", kind.name());
            if let Err(reason) = engine.remove_containers() {
                eprintln!("warning: {reason}");
            }
        }
    }
}

/// Removes the directories of runs whose process has ended. Their names are a prefix and the id of
/// the process.
pub(crate) fn remove_left_behind(directory: &Path, prefix: &str) -> Result<()> {
    let is_alive = |process: &str| Path::new("/proc").join(process).exists();
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(prefix)?.split('-').next());
        if process.is_some_and(|process| !is_alive(process)) {
            fs_err::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_runs_that_ended_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let own = format!("{DIRECTORY_PREFIX}{}-abc", std::process::id());
        let ended = format!("{DIRECTORY_PREFIX}{}-abc", u32::MAX);
        for name in [&own, &ended, "somebody-else's"] {
            fs_err::create_dir_all(directory.path().join(name).join("images")).unwrap();
        }
        remove_left_behind(directory.path(), DIRECTORY_PREFIX).unwrap();
        let exists = |name: &str| directory.path().join(name).exists();
        assert!(exists(&own) && exists("somebody-else's"));
        assert!(!exists(&ended));
    }
}
