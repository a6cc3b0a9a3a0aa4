//! Root disk of a machine: a Debian system with systemd, bubblewrap and podman.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::apt::source_line;
use super::image_cache::{ImageCache, make_ext4};
use crate::cache::cache_key;
use crate::workspace::run as run_command;

/// Packages of every root file system.
const PACKAGES: &[&str] = &[
    "apparmor",
    "apparmor-utils",
    "btrfs-progs",
    "bubblewrap",
    "busybox-static",
    "ca-certificates",
    "crun",
    "curl",
    "dbus",
    "dbus-user-session",
    "e2fsprogs",
    "fuse-overlayfs",
    "git",
    "iproute2",
    "kmod",
    "libpam-systemd",
    "openssh-client",
    "podman",
    "procps",
    "python3",
    "slirp4netns",
    "systemd",
    "systemd-container",
    "systemd-sysv",
    "udev",
    "uidmap",
    "util-linux",
    "xfsprogs",
];
/// Directories below /usr/share that no check reads.
const UNREAD_DIRECTORIES: &[&str] = &["man", "doc", "locale", "info"];
/// Unit of systemd that runs the checks.
const CHECKS_UNIT: &str = "machine-checks.service";
/// Free space for the files that checks write to the root disk.
const SPARE_MEGABYTES: u64 = 1500;

/// Returns the root disk of a suite from the cache, or makes it.
pub(super) fn provide(cache: &ImageCache, suite: &str) -> Result<PathBuf> {
    let sources = cache.sources().join("root");
    let unit = fs_err::read_to_string(sources.join(CHECKS_UNIT))?;
    let customize = fs_err::read_to_string(sources.join("customize"))?;
    let packages = packages_of(suite);
    let key = cache_key(&(suite, &packages, UNREAD_DIRECTORIES, unit, customize, SPARE_MEGABYTES));
    cache.provide(&format!("root-{suite}-"), &key, ".ext4", |work| {
        make_root(&sources, suite, &packages, work)
    })
}

fn packages_of(suite: &str) -> Vec<&'static str> {
    // Since Debian 13, the rootless network of podman needs passt.
    let own: &[&str] = if suite == "trixie" { &["passt"] } else { &[] };
    PACKAGES.iter().chain(own).copied().collect()
}

fn make_root(sources: &Path, suite: &str, packages: &[&str], work: &Path) -> Result<PathBuf> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "only root can make a root file system\nhint: run it once as root; images are kept in \
         target/kernels"
    );
    println!("making a root file system of {suite}, about two minutes");
    let tree = work.join("tree");
    // mmdebstrap runs in its own namespaces, so that its mounts and processes end with it, and none
    // of its mounts prevents the removal of the tree.
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.args(["nice", "mmdebstrap", "--quiet", "--variant=minbase", "--format=directory"]);
    command.arg(format!("--include={}", packages.join(",")));
    command.args(["--aptopt=Apt::Install-Recommends \"false\"", "--dpkgopt=force-unsafe-io"]);
    for unread in UNREAD_DIRECTORIES {
        command.arg(format!("--dpkgopt=path-exclude=/usr/share/{unread}/*"));
    }
    run_command(command.arg(suite).arg(&tree).arg(source_line(suite)?))?;
    fs_err::copy(sources.join(CHECKS_UNIT), tree.join("etc/systemd/system").join(CHECKS_UNIT))?;
    run_command(Command::new("sh").arg(sources.join("customize")).arg(&tree))?;
    let image = work.join("root.ext4");
    make_ext4(&tree, &image, SPARE_MEGABYTES)?;
    Ok(image)
}
