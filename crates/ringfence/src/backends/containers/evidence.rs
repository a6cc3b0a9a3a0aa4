//! Checks of what an engine really did to a container, as reported by the kernel and the engine.

use std::path::Path;

use bollard::models::{ContainerInspectResponse, HostConfig};
use ringfence_linux::inside::FileIdentity;
use ringfence_linux::limit_inodes;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::process::Pid;

use super::container::TmpfsMount;
use super::error::ContainerFailure;
use super::mounts::ContainerBind;

/// Limits that were found to be in force on a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct EnforcedLimits {
    /// `true` if the memory is limited.
    pub(super) memory: bool,
    /// `true` if the processor time is limited.
    pub(super) cpus: bool,
    /// `true` if the number of processes is limited.
    pub(super) processes: bool,
    /// `true` if every tmpfs that the container can write is limited in size and in inodes.
    pub(super) scratch: bool,
}

impl EnforcedLimits {
    /// Inspects a running container that was given all three limits and has the tmpfs mounts
    /// `scratch`.
    pub(super) fn inspect<'a>(
        inspected: &ContainerInspectResponse,
        guest: Pid,
        scratch: impl IntoIterator<Item = &'a TmpfsMount>,
    ) -> EnforcedLimits {
        // Read the mounts from the kernel, because engines report them in different ways.
        let mounts = fs_err::read_to_string(format!("/proc/{guest}/mountinfo")).unwrap_or_default();
        let scratch = scratch.into_iter().all(|scratch| is_bounded(&mounts, &scratch.path));
        let said = EnforcedLimits {
            scratch,
            ..EnforcedLimits::from_engine(inspected.host_config.as_ref())
        };
        match EnforcedLimits::from_kernel(guest) {
            // An engine may report the limits that it was told although the kernel does not enforce
            // them.
            Some(found) => EnforcedLimits {
                memory: said.memory && found.memory,
                cpus: said.cpus && found.cpus,
                processes: said.processes && found.processes,
                scratch: said.scratch,
            },
            None => said,
        }
    }

    /// Returns the limits that the engine reports. A rootless engine without writable cgroups drops
    /// the limits and reports that there are none.
    fn from_engine(config: Option<&HostConfig>) -> EnforcedLimits {
        let is_set = |number: Option<i64>| number.is_some_and(|number| number > 0);
        EnforcedLimits {
            memory: config.is_some_and(|config| is_set(config.memory)),
            cpus: config.is_some_and(|config| is_set(config.nano_cpus) || is_set(config.cpu_quota)),
            processes: config.is_some_and(|config| is_set(config.pids_limit)),
            scratch: false,
        }
    }

    /// Returns the limits that the kernel reports, or `None` if the container's cgroups cannot be
    /// seen.
    fn from_kernel(guest: Pid) -> Option<EnforcedLimits> {
        let table = fs_err::read_to_string(format!("/proc/{guest}/cgroup")).ok()?;
        let limit = |controller: &str, of_v1: &str, of_v2: &str| -> Option<bool> {
            let line = table.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let (controllers, path) = (fields.next()?, fields.next()?);
                controllers.split(',').any(|name| name == controller).then_some((
                    controllers,
                    path,
                    of_v1,
                ))
            });
            let unified =
                || table.lines().find_map(|line| Some(("", line.strip_prefix("0::")?, of_v2)));
            let (hierarchy, path, file) = line.or_else(unified)?;
            let path = path.trim_start_matches('/');
            let base = Path::new("/sys/fs/cgroup");
            let value = fs_err::read_to_string(base.join(hierarchy).join(path).join(file)).ok()?;
            let first = value.split_whitespace().next()?;
            // Without a limit, cgroup v1 reports -1, or for memory a number larger than any machine
            // has.
            Some(first.parse::<i64>().is_ok_and(|number| number > 0 && number < i64::MAX / 2))
        };
        Some(EnforcedLimits {
            memory: limit("memory", "memory.limit_in_bytes", "memory.max")?,
            cpus: limit("cpu", "cpu.cfs_quota_us", "cpu.max")?,
            processes: limit("pids", "pids.max", "pids.max")?,
            scratch: false,
        })
    }
}

/// Tells whether the topmost mount at `path` in a mount table is a tmpfs with both limits.
fn is_bounded(mounts: &str, path: &str) -> bool {
    // Field 5 is the mount point. After a dash come the type, the source and the options
    // (proc_pid_mountinfo(5)).
    let at_path = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some(path));
    let Some((_, filesystem)) = at_path.and_then(|line| line.split_once(" - ")) else {
        return false;
    };
    let mut fields = filesystem.split(' ');
    let (kind, options) = (fields.next(), fields.nth(1).unwrap_or_default());
    let is_set = |key: &str| options.split(',').any(|option| option.starts_with(key));
    kind == Some("tmpfs") && is_set("size=") && is_set("nr_inodes=")
}

/// Bind of the caller's files, with the identity that the source had when it was chosen.
#[derive(Debug)]
pub(super) struct ExpectedMount {
    bind: ContainerBind,
    file: FileIdentity,
}

impl ExpectedMount {
    /// Records the identity of each source to be mounted. Engines mount by path, so without this
    /// record another program could replace a source in the meantime and have its replacement
    /// mounted.
    pub(super) fn record(binds: &[ContainerBind]) -> Result<Vec<ExpectedMount>, ContainerFailure> {
        let callers = binds.iter().filter(|bind| bind.is_callers);
        let note = |bind: &ContainerBind| {
            let file = identify(CWD, &bind.source, ResolveFlags::NO_SYMLINKS)
                .ok_or_else(|| ContainerFailure::Replaced { path: bind.source.clone() })?;
            Ok(ExpectedMount { bind: bind.clone(), file })
        };
        callers.map(note).collect()
    }

    /// Checks that the recorded files are the ones that are mounted in the guest's file system.
    pub(super) fn check(expected: &[ExpectedMount], guest: Pid) -> Result<(), ContainerFailure> {
        let root = rustix::fs::open(
            format!("/proc/{guest}/root"),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let root = root.map_err(|_| ContainerFailure::Unseen)?;
        for ExpectedMount { bind, file } in expected {
            let target = bind.target.strip_prefix("/").unwrap_or(&bind.target);
            if identify(&root, target, ResolveFlags::IN_ROOT) != Some(*file) {
                return Err(ContainerFailure::Replaced { path: bind.source.clone() });
            }
        }
        Ok(())
    }
}

/// Limits the number of files in the tmpfs mounts of the guest, as far as this process may. Some
/// engines have no option for this limit. [`EnforcedLimits`] tells whether the limit took effect.
pub(super) fn limit_files(scratch: &[TmpfsMount], guest: Pid) {
    let path = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(root) = rustix::fs::open(format!("/proc/{guest}/root"), path, Mode::empty()) else {
        return;
    };
    for scratch in scratch {
        let inside = scratch.path.trim_start_matches('/');
        let opened =
            openat2(&root, inside, path | OFlags::NOFOLLOW, Mode::empty(), ResolveFlags::IN_ROOT);
        // Ignore errors: only root may do this in containers of root.
        let _ = opened.and_then(|mount| limit_inodes(mount, scratch.inodes()));
    }
}

fn identify(
    directory: impl std::os::fd::AsFd,
    path: &Path,
    resolve: ResolveFlags,
) -> Option<FileIdentity> {
    let opened =
        openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).ok()?;
    FileIdentity::from_file(&opened).ok()
}

#[cfg(test)]
mod tests {
    use ringfence_linux::view::Access;

    use super::*;

    #[test]
    fn a_directory_in_memory_is_bounded_when_the_kernel_knows_both_bounds() {
        let mounts = "31 23 0:28 / / ro - overlay overlay ro\n\
            35 31 0:32 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1024k,nr_inodes=256\n\
            36 31 0:33 / /run rw,nosuid - tmpfs tmpfs rw,size=1024k\n\
            37 31 0:34 / /var/tmp rw - tmpfs tmpfs rw,size=1024k,nr_inodes=256\n\
            38 31 0:35 / /var/tmp rw - tmpfs tmpfs rw,size=1024k\n";
        let bounded = ["/tmp", "/run", "/var/tmp", "/home"].map(|path| is_bounded(mounts, path));
        assert_eq!(bounded, [true, false, false, false]);
    }

    #[test]
    fn a_replaced_or_unreadable_mount_is_not_the_expected_one() {
        let directory = tempfile::tempdir().unwrap();
        let chosen = directory.path().join("chosen");
        fs_err::create_dir(&chosen).unwrap();
        let bind = ContainerBind {
            source: chosen.clone(),
            target: chosen.clone(),
            access: Access::Write,
            is_callers: true,
        };
        let expected = ExpectedMount::record(&[bind]).unwrap();
        let here = rustix::process::getpid();
        ExpectedMount::check(&expected, here).unwrap();

        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        child.wait().unwrap();
        assert!(matches!(ExpectedMount::check(&expected, ended), Err(ContainerFailure::Unseen)));

        fs_err::rename(&chosen, directory.path().join("other")).unwrap();
        assert!(matches!(
            ExpectedMount::check(&expected, here),
            Err(ContainerFailure::Replaced { .. })
        ));
        fs_err::create_dir(&chosen).unwrap();
        assert!(matches!(
            ExpectedMount::check(&expected, here),
            Err(ContainerFailure::Replaced { .. })
        ));
    }
}
