//! Packages that tests and measurements use and that a fresh Debian or Ubuntu machine may lack.

use std::process::Command;

use anyhow::Result;

use self::PackageEvidence::{Program, PythonModule, SystemPythonModule};
use crate::workspace::{find_program, output_of, run as run_command};

/// The evidence that a package is installed.
enum PackageEvidence {
    Program(&'static str),
    PythonModule(&'static str),
    /// Module of the system's interpreter, whatever interpreter comes first on PATH.
    SystemPythonModule(&'static str),
}

impl PackageEvidence {
    fn is_there(&self) -> bool {
        match self {
            Program(name) => find_program(name).is_some(),
            PythonModule(name) => has_module("python3", name),
            SystemPythonModule(name) => has_module("/usr/bin/python3", name),
        }
    }
}

fn has_module(interpreter: &str, name: &str) -> bool {
    output_of(Command::new(interpreter).args(["-c", &format!("import {name}")])).is_ok()
}

struct AptPackage {
    name: &'static str,
    shown_by: PackageEvidence,
    purpose: &'static str,
}

const BUBBLEWRAP: AptPackage = AptPackage {
    name: "bubblewrap",
    shown_by: Program("bwrap"),
    purpose: "the bwrap backend, and the peer to compare with",
};

const BUSYBOX: AptPackage = AptPackage {
    name: "busybox-static",
    shown_by: Program("busybox"),
    purpose: "a tiny image, and an initial RAM disk",
};
const MMDEBSTRAP: AptPackage =
    AptPackage { name: "mmdebstrap", shown_by: Program("mmdebstrap"), purpose: "images of Debian" };

/// Packages for all tests.
const FOR_TESTS: &[AptPackage] = &[
    BUBBLEWRAP,
    AptPackage {
        name: "util-linux",
        shown_by: Program("unshare"),
        purpose: "finding out whether user namespaces are allowed",
    },
    AptPackage {
        name: "passwd",
        shown_by: Program("useradd"),
        purpose: "making an ordinary user for the tests",
    },
    AptPackage { name: "iproute2", shown_by: Program("ip"), purpose: "networks of the tests' own" },
    AptPackage { name: "openssh-client", shown_by: Program("ssh"), purpose: "SSH into a sandbox" },
    AptPackage { name: "rsync", shown_by: Program("rsync"), purpose: "rsync into a sandbox" },
    AptPackage {
        name: "git",
        shown_by: Program("git"),
        purpose: "repositories and worktrees as workspaces",
    },
    AptPackage {
        name: "python3",
        shown_by: Program("python3"),
        purpose: "system calls and scripts from inside a sandbox",
    },
    AptPackage {
        name: "openssl",
        shown_by: Program("openssl"),
        purpose: "certificates for the tests' own servers",
    },
    AptPackage {
        name: "curl",
        shown_by: Program("curl"),
        purpose: "a client in a sandbox with an allowlist",
    },
    AptPackage { name: "wget", shown_by: Program("wget"), purpose: "another such client" },
    AptPackage {
        name: "python3-pip",
        shown_by: SystemPythonModule("pip"),
        purpose: "another such client",
    },
    AptPackage {
        name: "python3-requests",
        shown_by: SystemPythonModule("requests"),
        purpose: "another such client",
    },
    AptPackage {
        name: "python3-httpx",
        shown_by: SystemPythonModule("httpx"),
        purpose: "another such client",
    },
    AptPackage {
        name: "python3-pil",
        shown_by: SystemPythonModule("PIL"),
        purpose: "tools of an agents' framework",
    },
    AptPackage {
        name: "python3-numpy",
        shown_by: SystemPythonModule("numpy"),
        purpose: "tools of an agents' framework",
    },
    AptPackage {
        name: "python3-venv",
        shown_by: PythonModule("ensurepip"),
        purpose: "the SDK that drives a guest",
    },
    AptPackage {
        name: "chromium",
        shown_by: Program("/usr/bin/chromium"),
        purpose: "the server's page in a browser",
    },
];

/// Packages for container engines and their images.
const FOR_ENGINES: &[AptPackage] = &[
    AptPackage { name: "docker.io", shown_by: Program("dockerd"), purpose: "the docker backend" },
    AptPackage { name: "podman", shown_by: Program("podman"), purpose: "the podman backend" },
    AptPackage {
        name: "runc",
        shown_by: Program("runc"),
        purpose: "podman's runtime where cgroups are of version 1",
    },
    AptPackage {
        name: "netavark",
        shown_by: Program("/usr/lib/podman/netavark"),
        purpose: "podman's networks",
    },
    AptPackage {
        name: "aardvark-dns",
        shown_by: Program("/usr/lib/podman/aardvark-dns"),
        purpose: "names on podman's networks",
    },
    AptPackage {
        name: "uidmap",
        shown_by: Program("newuidmap"),
        purpose: "podman for an ordinary user",
    },
    AptPackage {
        name: "slirp4netns",
        shown_by: Program("slirp4netns"),
        purpose: "the network of podman for an ordinary user",
    },
    AptPackage {
        name: "iptables",
        shown_by: Program("iptables"),
        purpose: "the networks of docker and podman",
    },
    AptPackage {
        name: "catatonit",
        shown_by: Program("catatonit"),
        purpose: "reaping what docker and podman leave",
    },
    BUSYBOX,
    MMDEBSTRAP,
];

/// Packages for virtual machines with other kernels.
const FOR_KERNELS: &[AptPackage] = &[
    BUSYBOX,
    MMDEBSTRAP,
    AptPackage {
        name: "qemu-system-x86",
        shown_by: Program("qemu-system-x86_64"),
        purpose: "virtual machines",
    },
    AptPackage {
        name: "kmod",
        shown_by: Program("depmod"),
        purpose: "the modules of a virtual machine's kernel",
    },
    AptPackage {
        name: "cpio",
        shown_by: Program("cpio"),
        purpose: "the initial RAM disk of a virtual machine",
    },
    AptPackage {
        name: "e2fsprogs",
        shown_by: Program("mke2fs"),
        purpose: "the disks of a virtual machine",
    },
    AptPackage {
        name: "xz-utils",
        shown_by: Program("xz"),
        purpose: "compressed modules of a kernel",
    },
    AptPackage {
        name: "zstd",
        shown_by: Program("zstd"),
        purpose: "compressed modules of a kernel",
    },
    AptPackage {
        name: "debian-archive-keyring",
        shown_by: Program("/usr/share/keyrings/debian-archive-keyring.gpg"),
        purpose: "the signatures of other suites",
    },
];

/// Packages for the Kubernetes of the tests.
const FOR_CLUSTER: &[AptPackage] = &[
    AptPackage {
        name: "containerd",
        shown_by: Program("containerd"),
        purpose: "the containers of the cluster",
    },
    AptPackage {
        name: "runc",
        shown_by: Program("runc"),
        purpose: "the containers of the cluster",
    },
    AptPackage {
        name: "containernetworking-plugins",
        shown_by: Program("/usr/lib/cni/bridge"),
        purpose: "the network of pods",
    },
    AptPackage {
        name: "iptables",
        shown_by: Program("iptables"),
        purpose: "network policies of the cluster",
    },
    AptPackage {
        name: "ipset",
        shown_by: Program("ipset"),
        purpose: "network policies of the cluster",
    },
    AptPackage { name: "iproute2", shown_by: Program("ip"), purpose: "the network of the cluster" },
    AptPackage {
        name: "openssl",
        shown_by: Program("openssl"),
        purpose: "certificates of the cluster",
    },
    AptPackage {
        name: "catatonit",
        shown_by: Program("catatonit"),
        purpose: "reaping what the cluster leaves",
    },
    AptPackage {
        name: "util-linux",
        shown_by: Program("unshare"),
        purpose: "namespaces of the cluster",
    },
    BUSYBOX,
    MMDEBSTRAP,
];

/// Packages for measurements: the peers that ringfence is compared with.
const FOR_BENCH: &[AptPackage] = &[
    BUBBLEWRAP,
    AptPackage { name: "firejail", shown_by: Program("firejail"), purpose: "a peer of native" },
    AptPackage {
        name: "tinyproxy-bin",
        shown_by: Program("tinyproxy"),
        purpose: "a peer of the proxy",
    },
    AptPackage { name: "squid", shown_by: Program("squid"), purpose: "a peer of the proxy" },
];

/// The chore that needs the packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PackagePurpose {
    Test,
    Bench,
    Kernels,
    Cluster,
}

/// Installs missing packages if `install` is set and that is possible. Otherwise prints what will
/// be left out.
pub(crate) fn provide(chore: PackagePurpose, install: bool, with_engines: bool) -> Result<()> {
    let own: &[&[AptPackage]] = match chore {
        PackagePurpose::Test => &[FOR_TESTS, FOR_KERNELS],
        PackagePurpose::Cluster => &[FOR_CLUSTER],
        PackagePurpose::Bench => &[FOR_BENCH],
        PackagePurpose::Kernels => &[FOR_KERNELS],
    };
    let wanted = own.iter().copied().flatten().chain(FOR_ENGINES.iter().filter(|_| with_engines));
    let mut missing: Vec<&AptPackage> =
        wanted.filter(|package| !package.shown_by.is_there()).collect();
    missing.sort_by_key(|package| package.name);
    missing.dedup_by_key(|package| package.name); // the lists overlap
    if missing.is_empty() {
        return Ok(());
    }
    let obstacle = match install {
        false => Some("--no-install was given"),
        true if !rustix::process::geteuid().is_root() => Some("only root can install it"),
        true if find_program("apt-get").is_none() => Some("there is no apt-get here"),
        true => None,
    };
    for package in &missing {
        match obstacle {
            None => println!("installing {}: {}", package.name, package.purpose),
            Some(why) => println!(
                "without {} ({}): {why}; what needs it is left out",
                package.name, package.purpose
            ),
        }
    }
    if obstacle.is_some() {
        return Ok(());
    }
    let names = missing.iter().map(|package| package.name);
    // Without a reachable mirror the rest is still worth running, because each need is probed and
    // the output names what is left out.
    if let Err(error) = install_packages(names) {
        eprintln!("warning: {error:#}; what needs what is missing is left out");
    }
    Ok(())
}

/// Returns the programs without which no cluster starts.
pub(crate) fn programs_of_the_cluster() -> impl Iterator<Item = &'static str> {
    let needed = FOR_CLUSTER.iter().filter(|package| package.name != MMDEBSTRAP.name);
    needed.filter_map(|package| match package.shown_by {
        Program(name) => Some(name),
        PythonModule(_) | SystemPythonModule(_) => None,
    })
}

/// Installs packages of Debian or Ubuntu, as root.
pub(crate) fn install_packages<'a>(names: impl Iterator<Item = &'a str>) -> Result<()> {
    run_command(&mut apt_get(["update", "--quiet"]))?;
    run_command(apt_get(["install", "--yes", "--no-install-recommends"]).args(names))
}

fn apt_get<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command
}
