//! A Go toolchain that can build the programs of the cluster, and the caches of its builds.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::test::packages::install_packages;
use crate::workspace::{find_program, output_of};

/// Version of Go that the modules of the cluster need at least. A later module names its own, which
/// this version fetches.
const GO_VERSION: &str = "1.26.2";
/// Oldest minor version of Go 1 that fetches the version that a module names.
const FETCHING_MINOR: u32 = 21;
/// Variables of Go that name its caches.
const MODULES_VARIABLE: &str = "GOMODCACHE";
const BUILDS_VARIABLE: &str = "GOCACHE";

/// A Go toolchain with the caches that it uses.
pub(super) struct GoToolchain {
    go: PathBuf,
    modules: PathBuf,
    builds: PathBuf,
    /// Directory of the caches if they are made for the cluster alone.
    own_caches: Option<PathBuf>,
}

impl GoToolchain {
    /// Finds a toolchain, or installs one if `install` is set. Unless the environment names caches
    /// of Go, they are made in `directory`.
    pub(super) fn find(directory: &Path, install: bool) -> Result<Self> {
        let named = |variable| std::env::var_os(variable).map(PathBuf::from);
        let has_caches = named(MODULES_VARIABLE).is_some() || named(BUILDS_VARIABLE).is_some();
        let mut toolchain = Self {
            go: find_go(install)?,
            modules: named(MODULES_VARIABLE).unwrap_or_else(|| directory.join("modules")),
            builds: named(BUILDS_VARIABLE).unwrap_or_else(|| directory.join("builds")),
            own_caches: (!has_caches).then(|| directory.to_owned()),
        };
        fs_err::create_dir_all(directory)?;
        let version = output_of(toolchain.command(directory).arg("version"))?;
        if minor_version(&version).is_none_or(|minor| minor < FETCHING_MINOR) {
            toolchain.go = toolchain.fetch_newer(directory)?;
        }
        Ok(toolchain)
    }

    /// Returns a command of Go that runs in a directory, with less than the usual priority.
    pub(super) fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new("nice");
        command.args(["-n", "10"]).arg(&self.go).current_dir(directory);
        command
            .env(MODULES_VARIABLE, &self.modules)
            .env(BUILDS_VARIABLE, &self.builds)
            .env("GOTOOLCHAIN", "auto")
            .env("GOFLAGS", "-trimpath -buildvcs=false -mod=readonly")
            .env("CGO_ENABLED", "0")
            // The compiler collects garbage less often, which takes more memory and less time.
            .env("GOGC", "400");
        command
    }

    /// Removes the caches of several gigabytes, if they were made for the cluster alone.
    pub(super) fn remove_caches(&self) -> Result<()> {
        let Some(directory) = &self.own_caches else { return Ok(()) };
        // Directories of modules are read-only, and Go knows how to remove them.
        output_of(self.command(Path::new("/")).args(["clean", "-modcache"]))?;
        Ok(fs_err::remove_dir_all(directory)?)
    }

    /// Fetches a newer toolchain as a module, which a Go that is too old for `GOTOOLCHAIN` can do.
    /// Returns the path of its `go`.
    fn fetch_newer(&self, directory: &Path) -> Result<PathBuf> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => bail!("no name of Go is known for the architecture {other}"),
        };
        let module = format!("golang.org/toolchain@v0.0.1-go{GO_VERSION}.linux-{architecture}");
        let mut download = self.command(directory);
        // The module is too large to be fetched from its origin if a proxy lacks it.
        download.args(["mod", "download", &module]).env("GOFLAGS", "-mod=mod");
        output_of(&mut download)?;
        let root = self.modules.join(module);
        // Files of modules are never executable.
        for programs in [root.join("bin"), root.join("pkg/tool")] {
            make_executable(&programs)?;
        }
        Ok(root.join("bin/go"))
    }
}

/// Makes each file in a directory executable, and each file in its directories.
fn make_executable(directory: &Path) -> Result<()> {
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_executable(&entry.path())?;
        } else {
            fs_err::set_permissions(entry.path(), std::fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// Finds `go`, or installs the Go of Debian. The package with a version in its name puts no `go` on
/// PATH, so that other tests find the same machine as before.
fn find_go(install: bool) -> Result<PathBuf> {
    let usual = Path::new("/usr/local/go/bin/go");
    if let Some(go) = find_program("go").or_else(|| usual.exists().then(|| usual.to_owned())) {
        return Ok(go);
    }
    if let Some(go) = installed_by_debian()? {
        return Ok(go);
    }
    ensure!(install, "there is no Go here, and --no-install was given");
    ensure!(
        rustix::process::geteuid().is_root(),
        "there is no Go here, and only root can install it"
    );
    find_program("apt-get").context("there is neither Go nor apt-get here")?;
    let dependencies = output_of(Command::new("apt-cache").args(["depends", "golang-go"]))?;
    let package = versioned_package(&dependencies).context("apt knows no package of Go")?;
    install_packages(std::iter::once(package))?;
    installed_by_debian()?.with_context(|| format!("the package {package} contains no `go`"))
}

/// Returns the latest `go` of Debian's versioned packages.
fn installed_by_debian() -> Result<Option<PathBuf>> {
    let mut found: Vec<PathBuf> = fs_err::read_dir("/usr/lib")?
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("go-"))
        .map(|entry| entry.path().join("bin/go"))
        .filter(|go| go.exists())
        .collect();
    found.sort();
    Ok(found.pop())
}

/// Finds the package with a version in its name among the dependencies that `apt-cache` prints.
fn versioned_package(dependencies: &str) -> Option<&str> {
    let packages = dependencies.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    packages.into_iter().find(|name| name.starts_with("golang-1.") && name.ends_with("-go"))
}

/// Reads the minor version from the output of `go version`.
fn minor_version(output: &str) -> Option<u32> {
    let (_, version) = output.split_once("go version go1.")?;
    let digits = version.split(|character: char| !character.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minor_version_of_go_is_read() {
        assert_eq!(minor_version("go version go1.26.8 linux/amd64\n"), Some(26));
        assert_eq!(minor_version("go version go1.19 linux/amd64\n"), Some(19));
        assert_eq!(minor_version("something else"), None);
    }

    #[test]
    fn the_package_of_go_with_a_version_is_chosen() {
        let dependencies = "golang-go\n  Depends: golang-1.19-go\n  Depends: golang-src\n";
        assert_eq!(versioned_package(dependencies), Some("golang-1.19-go"));
        assert_eq!(versioned_package("golang-go\n"), None);
    }
}
