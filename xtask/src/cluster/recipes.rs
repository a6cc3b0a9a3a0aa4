//! Recipes of the cluster's programs. A change of this file builds them again.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::go::GoToolchain;
use crate::test::packages::install_packages;
use crate::workspace::{files_below, output_of};

/// Programs that are built together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClusterPart {
    /// The first process of a pod, and a relay.
    Tool,
    Kubernetes,
    /// Controller of the custom resources of kubernetes-sigs/agent-sandbox.
    AgentSandbox,
    /// A containerd that is newer than Debian's.
    Containerd,
    /// A runc that is newer than Debian's. User namespaces of pods need this part, and
    /// [`Self::Containerd`].
    Runc,
    /// The runtime and its shim, which need [`Self::Containerd`].
    Gvisor,
}

impl ClusterPart {
    /// Parts without which there is no cluster.
    pub(super) const REQUIRED: [Self; 2] = [Self::Tool, Self::Kubernetes];
    pub(super) const OPTIONAL: [Self; 4] =
        [Self::AgentSandbox, Self::Containerd, Self::Runc, Self::Gvisor];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Kubernetes => "kube",
            Self::AgentSandbox => "agent-sandbox",
            Self::Containerd => "containerd",
            Self::Runc => "runc",
            Self::Gvisor => "gvisor",
        }
    }

    /// Returns the directory of the part's Go module, in `tests/cluster`.
    pub(super) fn module(self) -> &'static str {
        match self {
            Self::AgentSandbox => Self::Kubernetes.name(),
            part => part.name(),
        }
    }
}

/// Names under which the program of Kubernetes runs as one of its components.
const COMPONENTS: [&str; 8] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "network-policies",
];

/// Builds a part from its Go module. `output` is an empty directory for the programs.
pub(super) fn build_part(
    part: ClusterPart,
    go: &GoToolchain,
    module: &Path,
    output: &Path,
) -> Result<()> {
    let build = GoBuild { go, module };
    match part {
        ClusterPart::Tool => {
            build.compile(&output.join("clustertool"), "", ".")?;
            symlink("clustertool", &output.join("pause"))
        }
        ClusterPart::Kubernetes => {
            // Without a version, the API server does not know which features it has.
            let version = build.version_of("k8s.io/kubernetes")?;
            let minor = version.split('.').nth(1).context("Kubernetes has no minor version")?;
            let package = "k8s.io/component-base/version";
            let flags = format!(
                "-X {package}.gitVersion={version} -X {package}.gitMajor=1 -X \
                 {package}.gitMinor={minor}"
            );
            build.compile(&output.join("kubeall"), &flags, ".")?;
            COMPONENTS.iter().try_for_each(|name| symlink("kubeall", &output.join(name)))
        }
        ClusterPart::AgentSandbox => {
            let module = "sigs.k8s.io/agent-sandbox";
            let program = "agent-sandbox-controller";
            build.compile(&output.join(program), "", &format!("{module}/cmd/{program}"))?;
            let manifests = build.directory_of(module)?.join("k8s");
            copy_tree(&manifests, &output.join("manifests"))
        }
        ClusterPart::Containerd => {
            let module = "github.com/containerd/containerd/v2";
            let version = build.version_of(module)?;
            let flags = format!("-X {module}/version.Version={version}");
            let tags = "no_btrfs,no_devmapper,no_zfs,no_aufs";
            for program in ["containerd", "containerd-shim-runc-v2", "ctr"] {
                let mut command = build.command(&output.join(program), &flags);
                command.args(["-tags", tags]).arg(format!("{module}/cmd/{program}"));
                output_of(&mut command)?;
            }
            Ok(())
        }
        ClusterPart::Runc => {
            // Libseccomp is a C library.
            let packages = ["gcc", "libc6-dev", "libseccomp-dev", "pkg-config"];
            install_packages(packages.into_iter())?;
            let mut command = build.command(&output.join("runc"), "");
            command.args(["-tags", "seccomp", "github.com/opencontainers/runc"]);
            output_of(command.env("CGO_ENABLED", "1")).map(drop)
        }
        ClusterPart::Gvisor => build_gvisor(&build, output),
    }
}

/// Builds gVisor with a shim that continues if it cannot lower its OOM score, which takes
/// CAP_SYS_RESOURCE.
fn build_gvisor(build: &GoBuild, output: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let patched = directory.path().join("patched");
    let name = "gvisor.dev/gvisor";
    copy_tree(&build.directory_of(name)?, &patched)?;
    for file in ["go.mod", "go.sum", "tools.go"] {
        fs_err::copy(build.module.join(file), directory.path().join(file))?;
    }
    let shim = patched.join("pkg/shim/v1/manager.go");
    let source = fs_err::read_to_string(&shim)?;
    let is_fatal = |line: &str| {
        line.trim().starts_with("return ") && line.contains("failed to set OOM Score on shim")
    };
    ensure!(source.lines().any(is_fatal), "the shim of gVisor changed: look at {}", shim.display());
    let lines = source.lines().map(|line| if is_fatal(line) { "_ = err" } else { line });
    fs_err::write(&shim, lines.collect::<Vec<_>>().join("\n"))?;
    // Go refuses an overlay on files of the module cache.
    let mut replace = build.go.command(directory.path());
    output_of(replace.args(["mod", "edit"]).arg(format!("-replace={name}=./patched")))?;
    let build = GoBuild { go: build.go, module: directory.path() };
    build.compile(&output.join("runsc"), "", &format!("{name}/runsc"))?;
    build.compile(&output.join("containerd-shim-runsc-v1"), "", &format!("{name}/shim"))
}

/// Builds of packages that a Go module requires.
struct GoBuild<'a> {
    go: &'a GoToolchain,
    module: &'a Path,
}

impl GoBuild<'_> {
    fn compile(&self, output: &Path, linker_flags: &str, package: &str) -> Result<()> {
        output_of(self.command(output, linker_flags).arg(package)).map(drop)
    }

    /// Returns a command that builds a package, whose name must follow. The compiler makes no debug
    /// information, which is faster than to strip it.
    fn command(&self, output: &Path, linker_flags: &str) -> Command {
        let mut command = self.go.command(self.module);
        command.args(["build", "-gcflags=all=-dwarf=false"]);
        command.arg(format!("-ldflags=-s -w {linker_flags}")).arg("-o").arg(output);
        command
    }

    fn version_of(&self, module: &str) -> Result<String> {
        let mut command = self.go.command(self.module);
        let version = output_of(command.args(["list", "-m", "-f", "{{.Version}}", module]))?;
        Ok(version.trim().to_owned())
    }

    /// Returns the directory of a module's source, which is downloaded first.
    fn directory_of(&self, module: &str) -> Result<PathBuf> {
        output_of(self.go.command(self.module).args(["mod", "download", module]))?;
        let mut command = self.go.command(self.module);
        let directory = output_of(command.args(["list", "-m", "-f", "{{.Dir}}", module]))?;
        Ok(PathBuf::from(directory.trim()))
    }
}

/// Copies the files of a tree, and lets their owner change the copies.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for file in files_below(from)? {
        let copy = to.join(file.strip_prefix(from)?);
        fs_err::create_dir_all(copy.parent().context("a file lies in no directory")?)?;
        fs_err::write(copy, fs_err::read(&file)?)?;
    }
    Ok(())
}

fn symlink(target: &str, link: &Path) -> Result<()> {
    Ok(fs_err::os::unix::fs::symlink(target, link)?)
}
