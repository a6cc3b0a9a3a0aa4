//! What an engine really did to a container, as the kernel and the engine tell it.

use std::path::Path;

use bollard::models::{ContainerInspectResponse, HostConfig};
use ringfence_linux::inside::Identity as File;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::process::Pid;

use super::error::Failure;
use super::mounts::Bind;

/// What holds a container, as far as could be found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Evidence {
    /// Whether its memory is limited.
    pub(super) memory: bool,
    /// Whether its processor time is limited.
    pub(super) cpus: bool,
    /// Whether its processes are limited.
    pub(super) processes: bool,
}

impl Evidence {
    /// Looks at a container that runs and was given all three limits.
    pub(super) fn of(inspected: &ContainerInspectResponse, guest: Pid) -> Evidence {
        let said = Evidence::said(inspected.host_config.as_ref());
        match Evidence::found(guest) {
            // An engine may say what it was told, and the kernel know nothing of it.
            Some(found) => Evidence {
                memory: said.memory && found.memory,
                cpus: said.cpus && found.cpus,
                processes: said.processes && found.processes,
            },
            None => said,
        }
    }

    /// What the engine says: a rootless one without cgroups to write forgets the limits, and says that there are none.
    fn said(config: Option<&HostConfig>) -> Evidence {
        let is_set = |number: Option<i64>| number.is_some_and(|number| number > 0);
        Evidence {
            memory: config.is_some_and(|config| is_set(config.memory)),
            cpus: config.is_some_and(|config| is_set(config.nano_cpus) || is_set(config.cpu_quota)),
            processes: config.is_some_and(|config| is_set(config.pids_limit)),
        }
    }

    /// What the kernel says, where its control groups are to be seen.
    fn found(guest: Pid) -> Option<Evidence> {
        let table = fs_err::read_to_string(format!("/proc/{guest}/cgroup")).ok()?;
        let limit = |controller: &str, of_v1: &str, of_v2: &str| -> Option<bool> {
            let line = table.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let (controllers, path) = (fields.next()?, fields.next()?);
                controllers.split(',').any(|name| name == controller).then_some((controllers, path, of_v1))
            });
            let unified = || table.lines().find_map(|line| Some(("", line.strip_prefix("0::")?, of_v2)));
            let (hierarchy, path, file) = line.or_else(unified)?;
            let path = path.trim_start_matches('/');
            let base = Path::new("/sys/fs/cgroup");
            let value = fs_err::read_to_string(base.join(hierarchy).join(path).join(file)).ok()?;
            let first = value.split_whitespace().next()?;
            // Without a limit v1 says -1, or for memory a number that no machine has.
            Some(first.parse::<i64>().is_ok_and(|number| number > 0 && number < i64::MAX / 2))
        };
        Some(Evidence {
            memory: limit("memory", "memory.limit_in_bytes", "memory.max")?,
            cpus: limit("cpu", "cpu.cfs_quota_us", "cpu.max")?,
            processes: limit("pids", "pids.max", "pids.max")?,
        })
    }
}

/// A part of the caller's files, by what it was when it was chosen.
#[derive(Debug)]
pub(super) struct Expected {
    bind: Bind,
    file: File,
}

impl Expected {
    /// Notes what is to be mounted. Engines mount by path: what another program put there since shall not be shown.
    pub(super) fn note(binds: &[Bind]) -> Result<Vec<Expected>, Failure> {
        let callers = binds.iter().filter(|bind| bind.is_callers);
        let note = |bind: &Bind| {
            let file = identify(CWD, &bind.source, ResolveFlags::NO_SYMLINKS)
                .ok_or_else(|| Failure::Replaced { path: bind.source.clone() })?;
            Ok(Expected { bind: bind.clone(), file })
        };
        callers.map(note).collect()
    }

    /// Makes sure that exactly that was mounted where the guest is.
    pub(super) fn check(expected: &[Expected], guest: Pid) -> Result<(), Failure> {
        let root = rustix::fs::open(format!("/proc/{guest}/root"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let root = root.map_err(|_| Failure::Unseen)?;
        for Expected { bind, file } in expected {
            let target = bind.target.strip_prefix("/").unwrap_or(&bind.target);
            if identify(&root, target, ResolveFlags::IN_ROOT) != Some(*file) {
                return Err(Failure::Replaced { path: bind.source.clone() });
            }
        }
        Ok(())
    }
}

fn identify(directory: impl std::os::fd::AsFd, path: &Path, resolve: ResolveFlags) -> Option<File> {
    let opened = openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).ok()?;
    File::of(&opened).ok()
}

#[cfg(test)]
mod tests {
    use ringfence_linux::view::Access;

    use super::*;

    #[test]
    fn what_was_replaced_or_cannot_be_looked_at_is_not_what_was_chosen() {
        let place = tempfile::tempdir().unwrap();
        let chosen = place.path().join("chosen");
        fs_err::create_dir(&chosen).unwrap();
        let bind = Bind { source: chosen.clone(), target: chosen.clone(), access: Access::Write, is_callers: true };
        let expected = Expected::note(&[bind]).unwrap();
        let here = rustix::process::getpid();
        Expected::check(&expected, here).unwrap();

        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        child.wait().unwrap();
        assert!(matches!(Expected::check(&expected, ended), Err(Failure::Unseen)));

        fs_err::rename(&chosen, place.path().join("other")).unwrap();
        assert!(matches!(Expected::check(&expected, here), Err(Failure::Replaced { .. })));
        fs_err::create_dir(&chosen).unwrap();
        assert!(matches!(Expected::check(&expected, here), Err(Failure::Replaced { .. })));
    }
}
