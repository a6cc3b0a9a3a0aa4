//! `cargo xtask kernels`: boots stock Debian kernels in virtual machines and checks ringfence on
//! each.
//!
//! Tests on one machine see one kernel, one set of security modules and one way to get a cgroup.
//! The cells of [`cells`] differ in these. The files that run inside a machine are in
//! tests/kernels.

mod apt;
mod cells;
mod image_cache;
mod kernel_image;
mod machine;
mod promises;
mod results;
mod root_image;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};

use self::cells::{CELLS, KernelCase, QUICK_CELL, QUICK_CHECKS, find_cell};
use self::image_cache::ImageCache;
use self::kernel_image::KernelImage;
use self::machine::{Machine, MachineParts, pack_payload};
pub(crate) use self::results::CheckCounts;
use self::results::{CellReport, CheckResult, CheckVerdict, ResultLine, matrix, parse_line};
use crate::arguments::{ChoreArguments, nearest};
use crate::dist;
use crate::elf;
use crate::table::{CellAlignment, table};
use crate::test::images;
use crate::test::packages::{self, PackagePurpose};
use crate::workspace::{Workspace, find_program};

/// Time limit of a machine for the checks of its cell.
const TIME_LIMIT: Duration = Duration::from_hours(2);
/// Time limit of the machine of `cargo xtask test`.
const QUICK_TIME_LIMIT: Duration = Duration::from_mins(8);

/// Programs that are needed to make and boot a machine.
const PROGRAMS: &[&str] = &[
    "apt-get",
    "busybox",
    "cpio",
    "depmod",
    "dpkg-deb",
    "mke2fs",
    "mmdebstrap",
    "modprobe",
    "qemu-system-x86_64",
    "setpriv",
    "unshare",
    "xz",
    "zstd",
];

pub(crate) fn run(workspace: &Workspace, mut arguments: ChoreArguments) -> Result<()> {
    let is_list = arguments.flag("--list");
    let install = !arguments.flag("--no-install");
    let binary = arguments.value("--binary", "a path")?.map(PathBuf::from);
    let checks = arguments.value("--checks", "names of checks, with commas between them")?;
    let writes_promises = arguments.flag("--write-promises");
    let names =
        arguments.rest(&["--list", "--no-install", "--binary", "--checks", "--write-promises"])?;
    let cells = choose_cells(&names)?;
    let checks = checks.map(|list| choose_checks(&list)).transpose()?;
    if is_list {
        print!("{}", list_cells(&cells));
        return Ok(());
    }
    let with_engines = false;
    packages::provide(PackagePurpose::Kernels, install, with_engines)?;
    find_obstacle().map_or(Ok(()), |obstacle| bail!(obstacle))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let binary = binary.map_or_else(|| dist::build(workspace), Ok)?;

    let mut reports = Vec::new();
    for cell in cells {
        println!("── {}: {}", cell.name, cell.about);
        let ready = ReadyCell::prepare(workspace, cell);
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        let report = match ready {
            Ok(ready) => ready.run(
                &binary,
                checks.as_deref().unwrap_or(cell.checks),
                TIME_LIMIT,
                &interrupted,
            )?,
            Err(error) => CellReport::not_started(cell.name, &error),
        };
        reports.push(report);
    }
    if writes_promises {
        promises::write(workspace, &reports)?;
    }
    conclude(&reports)
}

fn conclude(reports: &[CellReport]) -> Result<()> {
    println!("\n{}", matrix(reports));
    for report in reports {
        if let Some(reason) = &report.incomplete {
            println!("{}: {reason}", report.cell);
        }
    }
    let sum =
        reports.iter().map(CellReport::counts).fold(CheckCounts::default(), CheckCounts::plus);
    println!("{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
    ensure!(sum.failed == 0, "checks failed");
    Ok(())
}

fn choose_cells(names: &[String]) -> Result<Vec<&'static KernelCase>> {
    if names.is_empty() {
        return Ok(CELLS.iter().collect());
    }
    let find = |name: &String| {
        find_cell(name).with_context(|| {
            let nearest = nearest(name, CELLS.iter().map(|cell| cell.name));
            format!("there is no cell `{name}`\nhint: cargo xtask kernels {nearest}")
        })
    };
    names.iter().map(find).collect()
}

/// Parses names of checks, separated by commas.
fn choose_checks(list: &str) -> Result<Vec<&'static str>> {
    let known = || CELLS.iter().flat_map(|cell| cell.checks).chain(QUICK_CHECKS).copied();
    let find = |name: &str| {
        known().find(|check| *check == name).with_context(|| {
            let nearest = nearest(name, known());
            format!("there is no check `{name}`\nhint: cargo xtask kernels --checks {nearest}")
        })
    };
    list.split(',').map(find).collect()
}

fn list_cells(cells: &[&KernelCase]) -> String {
    let head =
        ["cell", "kernel", "root", "about", "checks"].map(|name| (name, CellAlignment::Left));
    let row = |cell: &&KernelCase| {
        let columns =
            [cell.name, cell.kernel.version, cell.suite, cell.about, &cell.checks.join(" ")];
        columns.map(str::to_owned)
    };
    table(&head, &cells.iter().map(row).collect::<Vec<_>>())
}

/// Returns the reason why no machine can be made or booted on this host, if there is one.
fn find_obstacle() -> Option<String> {
    if std::env::consts::ARCH != "x86_64" {
        return Some("the kernels are for x86-64, and this machine is not".to_owned());
    }
    let missing = PROGRAMS.iter().find(|program| find_program(program).is_none());
    missing.map(|program| {
        format!("there is no {program} here\nhint: run `cargo xtask kernels` as root")
    })
}

/// A cell whose images are made.
pub(crate) struct ReadyCell {
    cell: &'static KernelCase,
    cache: ImageCache,
    kernel: KernelImage,
    root: PathBuf,
}

impl ReadyCell {
    fn prepare(workspace: &Workspace, cell: &'static KernelCase) -> Result<Self> {
        let cache = ImageCache::open(workspace)?;
        let kernel = KernelImage::provide(&cache, &cell.kernel)?;
        let root = root_image::provide(&cache, cell.suite)?;
        Ok(Self { cell, cache, kernel, root })
    }

    /// Prepares the cell that `cargo xtask test` boots.
    pub(crate) fn prepare_quick(workspace: &Workspace) -> Result<Self> {
        find_obstacle().map_or(Ok(()), |obstacle| bail!(obstacle))?;
        Self::prepare(
            workspace,
            find_cell(QUICK_CELL).context("the quick cell is not in the table")?,
        )
    }

    /// Runs the checks of `cargo xtask test` with the binary that its other tests use.
    pub(crate) fn run_quick(
        &self,
        binary: &Path,
        checks: &[&str],
        interrupted: &AtomicBool,
    ) -> Result<CellReport> {
        self.run(binary, checks, QUICK_TIME_LIMIT, interrupted)
    }

    /// Fails unless the machine has the C library that the binary is linked to.
    pub(crate) fn ensure_binary_starts(&self, binary: &Path) -> Result<()> {
        if elf::ensure_static(&fs_err::read(binary)?).is_ok() {
            return Ok(());
        }
        let release = images::release_codename()?;
        let suite = self.cell.suite;
        ensure!(
            release == suite,
            "{} is linked to the C library of {release}, not {suite}",
            binary.display()
        );
        Ok(())
    }

    /// Boots the machine, and prints each result when it arrives.
    fn run(
        &self,
        binary: &Path,
        checks: &[&str],
        time_limit: Duration,
        interrupted: &AtomicBool,
    ) -> Result<CellReport> {
        let start = Instant::now();
        let work = self.cache.work_directory()?;
        let payload = work.path().join("payload.tar");
        pack_payload(&self.cache.sources().join("inside"), binary, &payload)?;
        let logs = self.cache.directory().join("logs");
        fs_err::create_dir_all(&logs)?;
        let console = logs.join(format!("{}.console", self.cell.name));
        let own_words = self.cell.kernel_words.iter().map(|word| (*word).to_owned());
        let parts = MachineParts {
            kernel: &self.kernel,
            root: &self.root,
            payload: &payload,
            kernel_words: own_words
                .chain([format!("ringfence.checks={}", checks.join(","))])
                .collect(),
            console: console.clone(),
            work: work.path(),
        };
        let mut machine = Machine::start(&parts, time_limit)?;
        let mut report = CellReport::new(self.cell.name);
        report.incomplete = match follow(&mut machine, &mut report, interrupted) {
            Ok(()) => None,
            Err(error) => Some(format!("{error:#}; see {}", console.display())),
        };
        drop(machine);
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        println!("{} took {} s", self.cell.name, start.elapsed().as_secs());
        Ok(report)
    }
}

/// Returns the checks of `cargo xtask test` whose test names contain one of the filters, or all
/// checks without filters.
pub(crate) fn quick_checks(filters: &[String]) -> Vec<&'static str> {
    let is_chosen = |check: &&str| {
        let name = format!("{}::{check}", quick_name());
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    };
    QUICK_CHECKS.iter().copied().filter(is_chosen).collect()
}

/// Returns the name of the quick cell in the form of a test name.
pub(crate) fn quick_name() -> String {
    format!("kernels::{QUICK_CELL}")
}

/// Collects and prints results until the machine reports that it is done.
fn follow(machine: &mut Machine, report: &mut CellReport, interrupted: &AtomicBool) -> Result<()> {
    while let Some(line) = machine.next_line(interrupted)? {
        match parse_line(&line) {
            ResultLine::Done => return Ok(()),
            ResultLine::Begin(check) => report.begin(check),
            ResultLine::Promise(row, text) => {
                report.promises.push((row.to_owned(), text.to_owned()))
            }
            ResultLine::Comment(comment) => println!("       # {comment}"),
            ResultLine::Other(text) => println!("         {text}"),
            ResultLine::Result(CheckResult { verdict, name, detail }) => {
                report.add(verdict);
                let detail = if verdict == CheckVerdict::Passed {
                    String::new()
                } else {
                    format!(": {detail}")
                };
                println!("{:<6} {} {name}{detail}", verdict.word(), report.cell);
            }
        }
    }
    bail!("the machine did not reach its end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_cell_is_refused_with_the_nearest_cell() {
        let error = choose_cells(&["6.1-nolandlock".to_owned()]).unwrap_err();
        let expected =
            "there is no cell `6.1-nolandlock`\nhint: cargo xtask kernels 6.1-no-landlock";
        assert_eq!(error.to_string(), expected);
        assert_eq!(choose_cells(&[]).unwrap().len(), CELLS.len());
    }

    #[test]
    fn checks_are_chosen_by_name() {
        assert_eq!(choose_checks("first,limits").unwrap(), ["first", "limits"]);
        let error = choose_checks("first,limit").unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no check `limit`\nhint: cargo xtask kernels --checks limits"
        );
    }

    #[test]
    fn a_filter_chooses_checks_as_it_chooses_tests() {
        let chosen = |filter: &str| quick_checks(&[filter.to_owned()]);
        assert_eq!(quick_checks(&[]), QUICK_CHECKS);
        assert_eq!(chosen("kernels"), QUICK_CHECKS);
        assert_eq!(chosen("kernels::6.1::first"), ["first"]);
        assert_eq!(chosen("a_test_of_something_else"), [""; 0]);
    }
}
