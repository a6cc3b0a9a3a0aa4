//! The Kubernetes of the tests: its build, its start and its end, and `cargo xtask cluster`.

mod access;
mod go;
mod process;
mod programs;
mod recipes;
mod test_cluster;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use ringfence_test_ledger::cluster::{
    CLUSTER_BUSYBOX_IMAGE, CLUSTER_DEV_IMAGE, CLUSTER_GUEST_IMAGE, CLUSTER_SHELL_LESS_IMAGE,
};

use self::access::ClusterAccess;
use self::process::{ClusterLifetime, ClusterProcess, ProcessRecord, import_image, stop_recorded};
use self::programs::{ClusterPrograms, cache_directory};
use self::recipes::ClusterPart;
pub(crate) use self::test_cluster::TestCluster;
use crate::arguments::{ChoreArguments, UsageError};
use crate::oci::OciImage;
use crate::test::cgroups::remove_cgroup_everywhere;
use crate::test::images;
use crate::test::packages::{self, PackagePurpose};
use crate::workspace::{Workspace, find_program};

/// Environment variable that lists, with commas, the optional parts of the cluster to build.
const PARTS_VARIABLE: &str = "RINGFENCE_CLUSTER_WITH";
/// Name of the image with the first process of every pod, which containerd needs.
const PAUSE_IMAGE: &str = "localhost/pause:1";
/// Name of the cgroup of the cluster that `up` starts.
const CGROUP: &str = "ringfence-cluster-up";
/// Files in the directory of the cluster that `up` starts.
const HOLDER_FILE: &str = "holder";
const RELAY_FILE: &str = "relay";

pub(crate) fn run(workspace: &Workspace, mut arguments: ChoreArguments) -> Result<()> {
    let install = !arguments.flag("--no-install");
    let parts = arguments.value("--with", "names of parts")?;
    let rest = arguments.rest(&["--no-install", "--with"])?;
    match rest.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["up"] => start_for_developer(workspace, &optional_parts(parts)?, install),
        ["down"] => stop_of_developer(),
        _ => Err(UsageError("use `cluster up` or `cluster down`".to_owned()).into()),
    }
}

/// Reads the names of optional parts from the command line, or else from the environment.
fn optional_parts(named: Option<String>) -> Result<Vec<ClusterPart>> {
    let names = named.or_else(|| std::env::var(PARTS_VARIABLE).ok()).unwrap_or_default();
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    let find = |name: &str| {
        let part = ClusterPart::OPTIONAL.into_iter().find(|part| part.name() == name);
        part.ok_or_else(|| {
            let known = ClusterPart::OPTIONAL.map(ClusterPart::name).join(", ");
            UsageError(format!("`{name}` is no part of the cluster; the parts are {known}")).into()
        })
    };
    let parts: Vec<ClusterPart> = names.map(find).collect::<Result<_>>()?;
    if parts.contains(&ClusterPart::Gvisor) && !parts.contains(&ClusterPart::Containerd) {
        bail!(UsageError("`gvisor` needs the part `containerd`, too".to_owned()));
    }
    Ok(parts)
}

/// Starts a cluster that runs until `cluster down`.
fn start_for_developer(workspace: &Workspace, parts: &[ClusterPart], install: bool) -> Result<()> {
    packages::provide(PackagePurpose::Cluster, install, false)?;
    if let Some(obstacle) = obstacle() {
        bail!("cannot start a cluster: {obstacle}");
    }
    let directory = cache_directory().join("up");
    if ProcessRecord::read(&directory.join(HOLDER_FILE)).is_ok_and(|holder| holder.is_alive()) {
        println!("the cluster runs already: . {}", variables_file(&directory).display());
        return Ok(());
    }
    stop_of_developer()?;
    let programs = ClusterPrograms::provide(workspace, parts, install)?;
    fs_err::create_dir_all(&directory)?;
    fs_err::set_permissions(&directory, std::fs::Permissions::from_mode(0o755))?;
    let mut process =
        ClusterProcess::create(workspace, &directory, CGROUP, ClusterLifetime::UntilStopped)?;
    process.holder()?.write(&directory.join(HOLDER_FILE))?;
    process.start(&programs)?;
    import_images(&directory, &programs, &workspace.target.join("test-images"))?;
    import_guest(&directory, &programs, workspace)?;
    let mut relay = Command::new("setsid");
    relay.args(ClusterAccess::relay_command(&directory, &programs)?).stderr(log(&directory)?);
    let access = ClusterAccess::open(&directory, &programs, relay, &directory, None)?;
    access.relay.process()?.write(&directory.join(RELAY_FILE))?;
    let lines = access.variables.iter().map(|(name, value)| format!("export {name}='{value}'\n"));
    fs_err::write(variables_file(&directory), lines.collect::<String>())?;
    println!("the cluster runs: . {}", variables_file(&directory).display());
    println!("stop it with `cargo xtask cluster down`");
    Ok(())
}

fn stop_of_developer() -> Result<()> {
    let directory = cache_directory().join("up");
    let record = |file: &str| ProcessRecord::read(&directory.join(file)).ok();
    if let Some(relay) = record(RELAY_FILE) {
        relay.kill().context("cannot end the relay of the cluster")?;
    }
    if let Some(holder) = record(HOLDER_FILE) {
        stop_recorded(&holder, &directory)?;
    }
    remove_cgroup_everywhere(CGROUP)?;
    if directory.exists() {
        fs_err::remove_dir_all(directory)?;
    }
    Ok(())
}

fn variables_file(directory: &Path) -> PathBuf {
    directory.join("variables.sh")
}

fn log(directory: &Path) -> Result<std::fs::File> {
    Ok(fs_err::File::create(directory.join("log/relay-outside.log"))?.into_parts().0)
}

/// Returns the reason why no cluster can be started, if there is one.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can start it".to_owned());
    }
    let missing =
        packages::programs_of_the_cluster().find(|program| find_program(program).is_none());
    missing.map(|program| format!("there is no {program} here"))
}

/// Imports the images of the tests into a running cluster. They are made in `cache`.
fn import_images(directory: &Path, programs: &ClusterPrograms, cache: &Path) -> Result<()> {
    fs_err::create_dir_all(cache)?;
    let pause = programs.find("pause").context("the tool of the cluster was not built")?;
    let shell_less = images::single_program(
        cache,
        CLUSTER_SHELL_LESS_IMAGE,
        "pause",
        &pause,
        &["CMD [\"/pause\"]"],
    )?;
    let tiny = images::tiny(cache)?;
    let named = [
        (PAUSE_IMAGE, &shell_less),
        (CLUSTER_SHELL_LESS_IMAGE, &shell_less),
        (CLUSTER_BUSYBOX_IMAGE, &tiny),
    ];
    let import = |name, image: &images::ImportableImage| {
        let image = OciImage { name, layer: &image.tarball, instructions: image.instructions };
        import_image(&image, directory, programs)
    };
    for (name, image) in named {
        import(name, image)?;
    }
    // The tests of this image have a need of their own, as with the engines.
    match images::dev(cache).and_then(|image| import(CLUSTER_DEV_IMAGE, &image)) {
        Ok(()) => println!("gave the cluster the images of the tests"),
        Err(error) => println!("without the image {CLUSTER_DEV_IMAGE} on the cluster: {error:#}"),
    }
    Ok(())
}

/// Imports the image of the guest into a running cluster, if the guest was built.
fn import_guest(directory: &Path, programs: &ClusterPrograms, workspace: &Workspace) -> Result<()> {
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let built = workspace.target.join("guest").join(triple).join("release/ringfence-guest");
    if !built.exists() {
        println!("without the image {CLUSTER_GUEST_IMAGE} on the cluster: build ringfence first");
        return Ok(());
    }
    let cache = workspace.target.join("test-images");
    fs_err::create_dir_all(&cache)?;
    let image = images::single_program(
        &cache,
        CLUSTER_GUEST_IMAGE,
        "ringfence-guest",
        &built,
        &["USER 1000", "CMD [\"/ringfence-guest\"]"],
    )?;
    let image =
        OciImage { name: image.name, layer: &image.tarball, instructions: image.instructions };
    import_image(&image, directory, programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_parts_are_named_with_commas() {
        let parts = |names: &str| optional_parts(Some(names.to_owned()));
        assert_eq!(parts("").unwrap(), []);
        assert_eq!(
            parts("containerd, gvisor").unwrap(),
            [ClusterPart::Containerd, ClusterPart::Gvisor]
        );
        assert!(parts("gvisor").unwrap_err().is::<UsageError>());
        assert!(parts("docker").unwrap_err().to_string().contains("agent-sandbox, containerd"));
    }
}
