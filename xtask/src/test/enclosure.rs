//! Namespaces for what the tests start, so that nothing of it reaches the machine and all of it ends at once.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Network, mount and process namespaces of their own.
///
/// An engine's bridges and firewall rules, its mounts, and its processes stay in here: a Docker of the machine keeps
/// its own bridge, two runs at once do not meet, and the death of the first process takes everything along.
pub(super) struct Enclosure {
    holder: Child,
    /// The first process inside, by its id outside.
    init: String,
}

/// Makes the place that tests and engines share. Engines write to /run and /etc/docker wherever else they are told to; a
/// resolver's file may lie in /run, too. Users may make tunnels: udev lets them, and not every machine has that. Where
/// bridges' frames pass iptables, Docker's rules would drop those of Podman's bridges. What tests mount here, the engines
/// see, and nobody outside. There is a way out, for those to find who should not, and it leads nowhere; containers' packets
/// do not even come there.
const PLACE: &str = "
    set -e
    mount --make-rshared /
    resolver=$(readlink -f /etc/resolv.conf) && names=$(cat /etc/resolv.conf) || names=
    mount -t tmpfs tmpfs /run
    case $resolver in (/run/*) mkdir -p ${resolver%/*} && echo \"$names\" > $resolver ;; esac
    if [ -d /etc/docker ]; then mount -t tmpfs tmpfs /etc/docker; fi
    if [ -c /dev/net/tun ]; then mknod -m 666 /run/tun c 10 200 && mount --bind /run/tun /dev/net/tun; fi
    for frames in /proc/sys/net/bridge/bridge-nf-call-*tables; do [ ! -e $frames ] || echo 0 > $frames; done
    ip link set lo up
    ip link add outside type veth peer name nowhere
    ip address add 192.0.2.1/24 dev outside
    ip link set outside up
    ip link set nowhere up
    ip route add default dev outside table 7
    ip rule add priority 40000 iif lo table 7
    iptables --append OUTPUT --out-interface outside --jump REJECT
    setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount --propagation slave sh -c \"$1\"
";
/// What the engines' first process does before it only reaps. `/proc` is the outer one until it is mounted anew, and
/// tells the id there.
const FIRST: &str = "
    set -e
    read -r init rest < /proc/self/stat
    mount -t proc proc /proc
    echo $init
    exec catatonit -P
";
/// How long processes that were killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(20);

impl Enclosure {
    /// Makes the namespaces; they end with the calling thread at the latest, so that one has to be the main thread.
    pub(super) fn make() -> Result<Self> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "sh", "-c", PLACE, "sh", FIRST]);
        // A group of its own: Ctrl-C reaches the tests, and these still clean up with the help of the engines.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut holder = command.spawn().context("cannot run setpriv")?;
        let stdout = holder.stdout.take().context("the output of setpriv is not piped")?;
        let mut enclosure = Self { holder, init: String::new() };
        BufReader::new(stdout).read_line(&mut enclosure.init)?;
        enclosure.init.truncate(enclosure.init.trim_end().len());
        ensure!(!enclosure.init.is_empty(), "cannot make namespaces for it");
        Ok(enclosure)
    }

    /// Prepares a program that runs inside.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init, "--net", "--mount", "--pid", "--"]).arg(program).process_group(0);
        command
    }

    /// Moves a command to the place that it shares with the engines: it reaches the ports of containers, its mounts are
    /// seen by them, and it sees all processes.
    pub(super) fn beside_the_engines(&self, command: &Command) -> Command {
        let mut moved = Command::new("nsenter");
        moved.args(["--target", &self.holder.id().to_string(), "--net", "--mount", "--"]);
        // Another mount namespace begins at its root.
        let here = command.get_current_dir().map_or_else(std::env::current_dir, |directory| Ok(directory.into()));
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

impl Drop for Enclosure {
    fn drop(&mut self) {
        // The engines' first process dies with it, and with that every other.
        if let Err(error) = self.holder.kill().and_then(|()| self.holder.wait()) {
            eprintln!("warning: the processes started for the tests are left behind: {error}");
        }
        let first = std::path::Path::new("/proc").join(&self.init);
        let begun = Instant::now();
        while !self.init.is_empty() && first.exists() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_test_ledger::require;

    use super::*;

    #[test]
    fn what_is_mounted_inside_is_not_seen_outside_and_ends_with_the_enclosure() {
        require!(docker); // the same programs and rights
        let enclosure = Enclosure::make().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let script =
            format!("mount -t tmpfs tmpfs {0} && touch {0}/inside && echo mounted", directory.path().display());
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
        let enclosure = Enclosure { holder: Command::new("true").spawn().unwrap(), init: String::new() };
        let mut command = Command::new("cargo");
        command.arg("test").env("A", "b").env_remove("C").current_dir("/tmp");
        let moved = enclosure.beside_the_engines(&command);
        let expected =
            format!("nsenter --target {} --net --mount -- env --chdir /tmp cargo test", enclosure.holder.id());
        assert_eq!(crate::workspace::spell(&moved), expected);
        assert!(moved.get_envs().eq(command.get_envs()));
    }
}
