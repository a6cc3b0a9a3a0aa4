//! Namespaces for the processes that the tests start, so that they do not affect the machine and
//! all end together.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// A set of new network, mount and process namespaces.
///
/// The enclosure contains an engine's bridges and firewall rules, its mounts and its processes.
/// Therefore a Docker of the machine keeps its own bridge, two concurrent runs do not conflict, and
/// the death of the first process ends everything.
pub(super) struct EngineEnclosure {
    holder: Child,
    /// Process id of the first process inside, as seen from outside.
    init: String,
}

/// Script that prepares the namespaces that tests and engines share.
///
/// - /run and /etc/docker get a tmpfs, because engines write there whatever their configuration
///   says.
/// - The resolver's file is restored, because it may be in /run.
/// - Users may create tunnels. udev permits that, but not every machine runs udev.
/// - Frames of bridges do not pass iptables, because Docker's rules would drop the frames of
///   Podman's bridges.
/// - Mounts propagate from tests to engines, and not to the outside.
/// - There is a default route for code that should not find one. The route leads nowhere, and
///   packets of containers do not even reach it.
const NAMESPACE_SCRIPT: &str = "
    set -e
    mount --make-rshared /
    resolver=$(readlink -f /etc/resolv.conf) && names=$(cat /etc/resolv.conf) || names=
    mount -t tmpfs tmpfs /run
    case $resolver in (/run/*) mkdir -p ${resolver%/*} && echo \"$names\" > $resolver ;; esac
    if [ -d /etc/docker ]; then mount -t tmpfs tmpfs /etc/docker; fi
    if [ -c /dev/net/tun ]; then mknod -m 666 /run/tun c 10 200 && mount --bind /run/tun \
    /dev/net/tun; fi
    for frames in /proc/sys/net/bridge/bridge-nf-call-*tables; do [ ! -e $frames ] || echo 0 > \
    $frames; done
    ip link set lo up
    ip link add outside type veth peer name nowhere
    ip address add 192.0.2.1/24 dev outside
    ip link set outside up
    ip link set nowhere up
    ip route add default dev outside table 7
    ip rule add priority 40000 iif lo table 7
    iptables --append OUTPUT --out-interface outside --jump REJECT
    setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount --propagation slave sh \
    -c \"$1\"
";
/// Script of the engines' first process, which afterwards only reaps. Until the script mounts a new
/// `/proc`, `/proc` is that of the outer namespace and shows the process id there.
const FIRST_PROCESS_SCRIPT: &str = "
    set -e
    read -r init rest < /proc/self/stat
    mount -t proc proc /proc
    echo $init
    exec catatonit -P
";
/// Time limit for killed processes to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

impl EngineEnclosure {
    /// Creates the namespaces. They end at the latest with the calling thread, so that thread must
    /// be the main thread.
    pub(super) fn create() -> Result<Self> {
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--mount",
            "sh",
            "-c",
            NAMESPACE_SCRIPT,
            "sh",
            FIRST_PROCESS_SCRIPT,
        ]);
        // The enclosure has its own process group, so that Ctrl-C reaches only the tests, which
        // still clean up with the help of the engines.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut holder = command.spawn().context("cannot run setpriv")?;
        let stdout = holder.stdout.take().context("the output of setpriv is not piped")?;
        let mut enclosure = Self { holder, init: String::new() };
        BufReader::new(stdout).read_line(&mut enclosure.init)?;
        enclosure.init.truncate(enclosure.init.trim_end().len());
        ensure!(!enclosure.init.is_empty(), "cannot make namespaces for it");
        Ok(enclosure)
    }

    /// Returns a command that runs a program inside the enclosure.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.init, "--net", "--mount", "--pid", "--"])
            .arg(program)
            .process_group(0);
        command
    }

    /// Moves a command to the namespaces that it shares with the engines. The command reaches the
    /// ports of containers, the engines see its mounts, and it sees all processes.
    pub(super) fn beside_the_engines(&self, command: &Command) -> Command {
        let mut moved = Command::new("nsenter");
        moved.args(["--target", &self.holder.id().to_string(), "--net", "--mount", "--"]);
        // A process that enters another mount namespace starts at its root directory.
        let here = command
            .get_current_dir()
            .map_or_else(std::env::current_dir, |directory| Ok(directory.into()));
        moved.args(["env", "--chdir"]).arg(here.unwrap_or_else(|_| "/".into()));
        moved.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => moved.env(name, value),
                None => moved.env_remove(name),
            };
        }
        moved
    }
}

impl Drop for EngineEnclosure {
    fn drop(&mut self) {
        // The death of the holder kills the engines' first process, which ends all other processes.
        if let Err(error) = self.holder.kill().and_then(|()| self.holder.wait()) {
            eprintln!("warning: the processes started for the tests are left behind: {error}");
        }
        let first = std::path::Path::new("/proc").join(&self.init);
        let begun = Instant::now();
        while !self.init.is_empty() && first.exists() && begun.elapsed() < KILL_TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_test_ledger::require;

    use super::*;

    #[test]
    fn mounts_inside_are_invisible_outside_and_end_with_the_enclosure() {
        require!(docker); // the enclosure needs the same programs and rights
        let enclosure = EngineEnclosure::create().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let script = format!(
            "mount -t tmpfs tmpfs {0} && touch {0}/inside && echo mounted",
            directory.path().display()
        );
        let mut sleeper = enclosure.command("sh");
        sleeper.args(["-c", &format!("{script} && exec sleep 1000")]).stdout(Stdio::piped());
        let mut sleeper = sleeper.spawn().unwrap();
        let mut word = String::new();
        BufReader::new(sleeper.stdout.take().unwrap()).read_line(&mut word).unwrap();
        assert_eq!(word, "mounted\n");
        assert!(!directory.path().join("inside").exists());

        drop(enclosure);
        assert!(!sleeper.wait().unwrap().success());
    }

    #[test]
    fn a_command_beside_the_engines_keeps_its_directory_and_its_environment() {
        let enclosure =
            EngineEnclosure { holder: Command::new("true").spawn().unwrap(), init: String::new() };
        let mut command = Command::new("cargo");
        command.arg("test").env("A", "b").env_remove("C").current_dir("/tmp");
        let moved = enclosure.beside_the_engines(&command);
        let expected = format!(
            "nsenter --target {} --net --mount -- env --chdir /tmp cargo test",
            enclosure.holder.id()
        );
        assert_eq!(crate::workspace::format_command(&moved), expected);
        assert!(moved.get_envs().eq(command.get_envs()));
    }
}
