//! Landlock rules, landlock(7): they enforce the file system view a second time, and add
//! restrictions that no view can express.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use serde::{Deserialize, Serialize};

use crate::view::Access;

/// The paths that a process may access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Landlock ABI version that the probe found.
    pub abi: u32,
    /// Paths, each with the access that is allowed beneath it.
    pub paths: Vec<(PathBuf, Access)>,
}

impl Rules {
    /// Creates the rules for a sandbox with a root of its own, where every visible file may be
    /// read.
    pub fn in_own_root(abi: u32, writable: impl IntoIterator<Item = PathBuf>) -> Rules {
        let mut paths = vec![("/".into(), Access::Read), ("/dev".into(), Access::Write)];
        paths.extend(writable.into_iter().map(|path| (path, Access::Write)));
        Rules { abi, paths }
    }
}

/// First Landlock ABI that can deny a process access to the abstract sockets of other processes,
/// and deny it sending them signals.
pub const ABI_WITH_SCOPES: u32 = 6;

/// Returns the Landlock ABI version of this kernel, or 0 if there is none.
pub fn abi() -> u32 {
    crate::sys::landlock::abi()
}

/// Restricts this process and every process that it starts to `rules`.
///
/// Fails if the kernel lacks a feature that `rules` need; no feature is silently omitted. Standard
/// streams and passed descriptors that are files may be reopened through `/proc/self/fd`, as `>
/// /dev/stderr` does.
pub(crate) fn restrict(rules: &Rules, passed: &[(i32, OwnedFd)]) -> io::Result<()> {
    let abi = version(rules.abi);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(io::Error::other)?;
    if rules.abi >= ABI_WITH_SCOPES {
        ruleset = ruleset.scope(Scope::from_all(abi)).map_err(io::Error::other)?;
    }
    let mut created = ruleset.create().map_err(io::Error::other)?;
    for (path, access) in &rules.paths {
        let fd = PathFd::new(path).map_err(io::Error::other)?;
        created = allow(created, fd.as_fd(), rights(*access, abi))?;
    }
    let streams = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    for fd in streams.into_iter().chain(passed.iter().map(|(_, fd)| fd.as_fd())) {
        created = allow_reopening(created, fd, abi)?;
    }
    created.restrict_self().map_err(io::Error::other)?;
    Ok(())
}

/// Allows `rights` beneath the file or directory `fd`. For a file, rights that only apply to
/// directories are removed.
fn allow(
    created: RulesetCreated,
    fd: BorrowedFd<'_>,
    rights: BitFlags<AccessFs>,
) -> io::Result<RulesetCreated> {
    let is_directory = FileType::from_raw_mode(fstat(fd)?.st_mode) == FileType::Directory;
    let rights = if is_directory { rights } else { rights & AccessFs::from_file(ABI::V7) };
    created.add_rule(PathBeneath::new(fd, rights)).map_err(io::Error::other)
}

fn allow_reopening(
    created: RulesetCreated,
    fd: BorrowedFd<'_>,
    abi: ABI,
) -> io::Result<RulesetCreated> {
    let Ok(stat) = fstat(fd) else { return Ok(created) }; // closed: nothing to reopen
    let kind = FileType::from_raw_mode(stat.st_mode);
    // Pipes and sockets live on kernel-internal mounts. Landlock does not restrict them, and
    // refuses them in rules.
    if !matches!(kind, FileType::RegularFile | FileType::CharacterDevice) {
        return Ok(created);
    }
    let mode = fcntl_getfl(fd)? & OFlags::ACCMODE;
    let mut rights = BitFlags::<AccessFs>::empty();
    if mode != OFlags::WRONLY {
        rights |= AccessFs::ReadFile;
    }
    if mode != OFlags::RDONLY {
        rights |= AccessFs::WriteFile | AccessFs::Truncate;
    }
    if kind == FileType::CharacterDevice {
        rights |= AccessFs::IoctlDev;
    }
    created
        .add_rule(PathBeneath::new(fd, rights & AccessFs::from_all(abi)))
        .map_err(io::Error::other)
}

fn rights(access: Access, abi: ABI) -> BitFlags<AccessFs> {
    match access {
        Access::Read => AccessFs::from_read(abi),
        Access::Write => AccessFs::from_all(abi),
    }
}

/// Returns the newest version that both the library and the kernel support.
fn version(abi: u32) -> ABI {
    match abi {
        0 => ABI::Unsupported,
        1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        5 => ABI::V5,
        6 => ABI::V6,
        _ => ABI::V7,
    }
}
