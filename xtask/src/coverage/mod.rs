//! `cargo xtask coverage`: runs the tests of the crates with counters, and prints the share of the
//! lines that the tests run, by crate.

mod instrumentation;
mod line_counts;
mod llvm_tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use self::instrumentation::Instrumentation;
use self::line_counts::{LineCounts, parse_lcov};
use self::llvm_tools::LlvmTools;
use crate::arguments::ChoreArguments;
use crate::check::source::{code_of, production_lines};
use crate::table::{CellAlignment, table};
use crate::test::{SetupOptions, TestSetup, print_results};
use crate::workspace::Workspace;

/// Crates that isolate. Their tests must run more than [`REQUIRED_PERCENTAGE`] of the lines.
const ISOLATING_CRATES: [&str; 5] =
    ["ringfence", "ringfence-core", "ringfence-egress", "ringfence-guest", "ringfence-linux"];
const REQUIRED_PERCENTAGE: f64 = 80.0;
/// Package of the conformance tests, which run only if they are asked for.
const CONFORMANCE: &str = "conformance";
/// Number of the files that are listed because most of their lines are not run.
const LISTED_FILES: usize = 20;

const FLAGS: [&str; 5] =
    ["--no-install", "--no-engines", "--no-cluster", "--keep", "--conformance"];

pub(crate) fn run(workspace: &Workspace, mut arguments: ChoreArguments) -> Result<()> {
    let install = !arguments.flag("--no-install");
    let with_engines = !arguments.flag("--no-engines");
    let with_cluster = !arguments.flag("--no-cluster");
    let with_conformance = arguments.flag("--conformance");
    let keep = arguments.flag("--keep");
    let filters = arguments.rest(&FLAGS)?;
    let tools = LlvmTools::find(install)?;
    let instrumentation = Instrumentation::prepare(workspace)?;
    let mut packages = crates_of(workspace);
    if with_conformance {
        packages.push(CONFORMANCE.to_owned());
    }
    instrumentation.build_guest(workspace)?;
    let mut programs = Vec::new();
    let options = SetupOptions {
        install,
        with_engines,
        with_cluster: with_cluster && with_conformance, // no other test needs one
        with_machine: false,
        binary: instrumentation.binary(),
    };
    let setup = TestSetup::prepare(workspace, &options, || {
        programs = instrumentation.build_tests(workspace, &packages)?;
        Ok(())
    })?;
    if !keep {
        instrumentation.clear_profiles()?;
    }
    let mut command = instrumentation.test_command(workspace, &packages);
    command.arg("--").args(&filters);
    let (mut tally, success) = setup.run(command)?;
    let (skips, _) = setup.finish()?;
    tally.set_apart(&skips);
    print_results(&tally, &skips);

    let report = tools.export(&instrumentation, &programs)?;
    let files = count_production_lines(workspace, &report)?;
    print!("\n{}", crates_as_text(&files));
    print!("\n{}", least_covered_as_text(&files));
    ensure!(success, "tests failed, so that the figures may be too low");
    Ok(())
}

/// Returns the names of the packages in `crates/`.
fn crates_of(workspace: &Workspace) -> Vec<String> {
    let directory = workspace.root.join("crates");
    let is_crate = |manifest: &str| Path::new(manifest).starts_with(&directory);
    let packages = workspace
        .packages
        .iter()
        .filter(|package| package["manifest_path"].as_str().is_some_and(is_crate));
    packages.filter_map(|package| package["name"].as_str()).map(str::to_owned).collect()
}

/// Counts the lines of each file in `crates/` that are not tests.
fn count_production_lines(
    workspace: &Workspace,
    report: &str,
) -> Result<BTreeMap<PathBuf, LineCounts>> {
    let mut files = BTreeMap::new();
    for file in parse_lcov(report)? {
        let Ok(name) = file.path.strip_prefix(&workspace.root) else { continue };
        if !is_production(name) {
            continue;
        }
        let text = fs_err::read_to_string(&file.path)?;
        let counts = file.count_lines(production_lines(&code_of(&text)));
        files.insert(name.to_owned(), counts);
    }
    Ok(files)
}

/// Tells whether a file has code of a crate that is not only for tests.
fn is_production(name: &Path) -> bool {
    let parts: Vec<&str> = name.iter().filter_map(|part| part.to_str()).collect();
    let [first, _, source, modules @ ..] = parts.as_slice() else { return false };
    let is_test = |module: &&str| matches!(*module, "tests" | "tests.rs");
    *first == "crates" && *source == "src" && !modules.iter().any(is_test)
}

/// Returns the name of the crate that a file in `crates/` belongs to.
fn crate_of(name: &Path) -> &str {
    name.iter().nth(1).and_then(|part| part.to_str()).unwrap_or_default()
}

fn crates_as_text(files: &BTreeMap<PathBuf, LineCounts>) -> String {
    let mut crates: BTreeMap<&str, LineCounts> = BTreeMap::new();
    for (name, counts) in files {
        *crates.entry(crate_of(name)).or_default() += *counts;
    }
    let head = [
        ("crate", CellAlignment::Left),
        ("lines", CellAlignment::Right),
        ("run by tests", CellAlignment::Right),
        ("share", CellAlignment::Right),
        ("", CellAlignment::Left),
    ];
    let row = |(name, counts): (&&str, &LineCounts)| {
        let is_low = ISOLATING_CRATES.contains(name) && counts.percentage() <= REQUIRED_PERCENTAGE;
        let remark =
            if is_low { format!("not above {REQUIRED_PERCENTAGE} %") } else { String::new() };
        [
            (*name).to_owned(),
            counts.lines.to_string(),
            counts.covered.to_string(),
            format!("{:.1} %", counts.percentage()),
            remark,
        ]
    };
    table(&head, &crates.iter().map(row).collect::<Vec<_>>())
}

/// Lists the files of the isolating crates with most lines that no test runs.
fn least_covered_as_text(files: &BTreeMap<PathBuf, LineCounts>) -> String {
    let mut files: Vec<(&PathBuf, &LineCounts)> =
        files.iter().filter(|(name, _)| ISOLATING_CRATES.contains(&crate_of(name))).collect();
    files.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.lines - counts.covered));
    let head = [
        ("file of a crate that isolates", CellAlignment::Left),
        ("lines", CellAlignment::Right),
        ("not run", CellAlignment::Right),
        ("share run", CellAlignment::Right),
    ];
    let row = |(name, counts): &(&PathBuf, &LineCounts)| {
        [
            name.display().to_string(),
            counts.lines.to_string(),
            (counts.lines - counts.covered).to_string(),
            format!("{:.1} %", counts.percentage()),
        ]
    };
    table(&head, &files.iter().take(LISTED_FILES).map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_of_crates_outside_their_tests_count() {
        let check = |name: &str, expected: bool| {
            assert_eq!(is_production(Path::new(name)), expected, "{name}");
        };
        check("crates/ringfence/src/engine.rs", true);
        check("crates/ringfence/src/sandbox/start.rs", true);
        check("crates/ringfence/src/sandbox/tests.rs", false);
        check("crates/ringfence/src/sandbox/tests/ports.rs", false);
        check("crates/ringfence/tests/it/main.rs", false);
        check("crates/ringfence/build.rs", false);
        check("xtask/src/main.rs", false);
    }

    #[test]
    fn files_are_summed_by_crate_and_low_shares_are_marked() {
        let files = [
            ("crates/ringfence-core/src/a.rs", LineCounts { lines: 10, covered: 9 }),
            ("crates/ringfence-core/src/b.rs", LineCounts { lines: 10, covered: 8 }),
            ("crates/ringfence-linux/src/a.rs", LineCounts { lines: 10, covered: 8 }),
            ("crates/ringfence-cli/src/a.rs", LineCounts { lines: 10, covered: 1 }),
        ];
        let files = files.map(|(name, counts)| (PathBuf::from(name), counts)).into();
        let text = crates_as_text(&files);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["ringfence-cli", "10", "1", "10.0", "%"]);
        assert_eq!(rows[1], ["ringfence-core", "20", "17", "85.0", "%"]);
        assert_eq!(rows[2], ["ringfence-linux", "10", "8", "80.0", "%", "not", "above", "80", "%"]);
        let least = least_covered_as_text(&files);
        let first = least.lines().nth(2).unwrap();
        assert!(first.starts_with("crates/ringfence-core/src/b.rs"), "{least}");
    }
}
