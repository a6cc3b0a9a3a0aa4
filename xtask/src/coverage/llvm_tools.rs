//! The programs of LLVM that read the counters. They must have the major version of LLVM with which
//! the compiler writes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::instrumentation::Instrumentation;
use crate::test::packages::install_packages;
use crate::workspace::{find_program, output_of};

/// Paths of `llvm-profdata` and `llvm-cov`.
pub(super) struct LlvmTools {
    profdata: PathBuf,
    cov: PathBuf,
}

impl LlvmTools {
    /// Finds the programs beside the compiler or on PATH, and otherwise installs the package of
    /// Debian or Ubuntu if `install` is set and this is root.
    pub(super) fn find(install: bool) -> Result<Self> {
        let version = output_of(Command::new("rustc").arg("-vV"))?;
        let major = parse_llvm_major(&version).context("`rustc -vV` names no version of LLVM")?;
        if let Some(tools) = Self::beside_compiler(&version)?.or_else(|| Self::on_path(major)) {
            return Ok(tools);
        }
        let package = format!("llvm-{major}");
        let can_install =
            install && rustix::process::geteuid().is_root() && find_program("apt-get").is_some();
        if can_install {
            println!("installing {package}: reading the counters");
            install_packages(std::iter::once(package.as_str()))?;
        }
        match Self::on_path(major) {
            Some(tools) => Ok(tools),
            None => bail!(
                "there is no llvm-cov of LLVM {major}, which `rustc` uses\nhint: rustup component \
                 add llvm-tools\nhint: apt-get install {package}"
            ),
        }
    }

    /// Finds the programs of rustup's component `llvm-tools`.
    fn beside_compiler(version: &str) -> Result<Option<Self>> {
        let sysroot = output_of(Command::new("rustc").args(["--print", "sysroot"]))?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.context("`rustc -vV` names no host")?;
        let directory = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin");
        let tools =
            Self { profdata: directory.join("llvm-profdata"), cov: directory.join("llvm-cov") };
        Ok(Some(tools).filter(|tools| tools.profdata.is_file() && tools.cov.is_file()))
    }

    /// Finds programs with the version in their name, as Debian has them, or in their words.
    fn on_path(major: u32) -> Option<Self> {
        let find = |suffix: &str| {
            let profdata = find_program(&format!("llvm-profdata{suffix}"))?;
            Some(Self { profdata, cov: find_program(&format!("llvm-cov{suffix}"))? })
        };
        find(&format!("-{major}")).or_else(|| {
            let tools = find("")?;
            let version = output_of(Command::new(&tools.cov).arg("--version")).ok()?;
            (parse_llvm_major(&version) == Some(major)).then_some(tools)
        })
    }

    /// Merges the counters of all processes, and reports the lines of `programs` as lcov does.
    pub(super) fn export(
        &self,
        instrumentation: &Instrumentation,
        programs: &[PathBuf],
    ) -> Result<String> {
        let merged = instrumentation.merged_profile();
        let mut merge = Command::new(&self.profdata);
        merge.args(["merge", "--sparse", "--failure-mode=warn", "--output"]).arg(&merged);
        output_of(merge.args(instrumentation.profiles()?))?;
        let mut export = Command::new(&self.cov);
        export.args(["export", "--format=lcov", "--instr-profile"]).arg(&merged);
        for program in programs {
            export.arg("--object").arg(program);
        }
        output_of(&mut export)
    }
}

/// Reads the major version from `LLVM version: 22.1.2` of `rustc -vV`, or from
/// `LLVM version 22.1.2` of LLVM's own programs.
fn parse_llvm_major(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("LLVM version")?;
    version.trim_start_matches([':', ' ']).split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_from_the_compiler_and_from_the_tools() {
        let compiler = "rustc 1.95.0\nhost: x86_64-unknown-linux-gnu\nLLVM version: 22.1.2\n";
        assert_eq!(parse_llvm_major(compiler), Some(22));
        assert_eq!(parse_llvm_major("Debian LLVM version 14.0.6\n  Optimized build.\n"), Some(14));
        assert_eq!(parse_llvm_major("USAGE: llvm-profdata <merge|show> [args...]"), None);
    }
}
