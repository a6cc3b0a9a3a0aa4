//! Packages of another Debian suite, through an apt configuration that is separate from the
//! machine's own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::cells::KernelSeries;
use crate::workspace::output_of;

/// Keys with which Debian signs its suites.
pub(super) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Age at which the package lists are fetched again.
const LIST_LIFETIME: Duration = Duration::from_hours(24);
/// Package that depends on the newest kernel of a suite for virtual machines.
const KERNEL_METAPACKAGE: &str = "linux-image-cloud-amd64";

/// The packages of one suite, as a mirror offers them.
pub(super) struct SuiteIndex {
    suite: &'static str,
    directory: PathBuf,
}

/// Name and version of a kernel package.
#[derive(Debug, Hash, PartialEq, Eq)]
pub(super) struct KernelPackage {
    pub(super) name: String,
    pub(super) version: String,
}

impl SuiteIndex {
    /// Fetches the package lists of a suite into a directory of `cache`, unless recent lists are
    /// there.
    ///
    /// If no mirror answers, older lists are used.
    pub(super) fn open(cache: &Path, suite: &'static str) -> Result<Self> {
        let index = Self { suite, directory: cache.join(format!("apt-{suite}")) };
        let stamp = index.directory.join("fetched");
        let age =
            fs_err::metadata(&stamp).ok().and_then(|stamp| stamp.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age < LIST_LIFETIME) {
            return Ok(index);
        }
        match index.fetch_lists() {
            Ok(()) => fs_err::write(&stamp, "")?,
            Err(error) if age.is_some() => {
                eprintln!("warning: {error:#}; using the lists of {suite} from an earlier run");
            }
            Err(error) => return Err(error),
        }
        Ok(index)
    }

    fn fetch_lists(&self) -> Result<()> {
        println!("fetching the list of Debian's packages in {}", self.suite);
        for directory in ["lists/partial", "cache/archives/partial"] {
            fs_err::create_dir_all(self.directory.join(directory))?;
        }
        fs_err::write(self.directory.join("sources.list"), source_line(self.suite)? + "\n")?;
        output_of(self.command("apt-get").arg("update")).map(drop)
    }

    /// Finds the newest kernel of the suite, which must belong to the series.
    pub(super) fn newest_kernel(&self, series: &KernelSeries) -> Result<KernelPackage> {
        let record = output_of(self.command("apt-cache").args([
            "show",
            "--no-all-versions",
            KERNEL_METAPACKAGE,
        ]))?;
        let package = parse_kernel(&record)
            .with_context(|| format!("{KERNEL_METAPACKAGE} of {} names no kernel", self.suite))?;
        let prefix = format!("linux-image-{}.", series.version);
        ensure!(
            package.name.starts_with(&prefix),
            "{} has {}, not {}",
            self.suite,
            package.name,
            series.version
        );
        Ok(package)
    }

    /// Downloads a package into a directory and returns the path of the file.
    pub(super) fn download(&self, package: &KernelPackage, directory: &Path) -> Result<PathBuf> {
        let KernelPackage { name, version } = package;
        println!("downloading {name} {version}");
        // apt prefers to download as its own user, but that user cannot write to this directory.
        let mut command = self.command("apt-get");
        command.args(["-o", "APT::Sandbox::User=root", "download", &format!("{name}={version}")]);
        output_of(command.current_dir(directory))?;
        for entry in fs_err::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                return Ok(path);
            }
        }
        bail!("apt-get downloaded no package {name}")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-qq", "-o", "Dir::Etc::sourceparts=-"]);
        for (option, file) in [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            command.arg("-o").arg(format!("{option}={}", self.directory.join(file).display()));
        }
        command
    }
}

/// Returns the line of sources.list(5) for a suite on the mirror that this machine uses.
pub(super) fn source_line(suite: &str) -> Result<String> {
    Ok(format!("deb [signed-by={KEYRING}] {} {suite} main", crate::test::images::debian_mirror()?))
}

/// Parses the kernel that the metapackage depends on: `Depends: NAME (= VERSION)`.
fn parse_kernel(record: &str) -> Option<KernelPackage> {
    let depends = record.lines().find_map(|line| line.strip_prefix("Depends: "))?;
    let kernel = depends.split(", ").find(|package| package.starts_with("linux-image-"))?;
    let (name, version) = kernel.split_once(" (= ")?;
    Some(KernelPackage { name: name.to_owned(), version: version.strip_suffix(')')?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_read_from_the_dependency_of_the_metapackage() {
        let record = "Package: linux-image-cloud-amd64\nVersion: 6.1.1-1\n\
                      Depends: linux-image-6.1.0-50-cloud-amd64 (= 6.1.1-1)\n";
        let expected = KernelPackage {
            name: "linux-image-6.1.0-50-cloud-amd64".to_owned(),
            version: "6.1.1-1".to_owned(),
        };
        assert_eq!(parse_kernel(record), Some(expected));
        assert_eq!(parse_kernel("Package: other\nDepends: libc6 (>= 2.36)\n"), None);
    }
}
