//! `cargo xtask test`: prepares the machine, runs every test, and counts the results with all
//! skips.

pub(crate) mod cgroups;
mod enclosure;
pub(crate) mod engines;
pub(crate) mod images;
mod javascript;
pub(crate) mod packages;
pub(crate) mod python;
mod tally;
mod user;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use ringfence_test_ledger::{
    BINARY_VARIABLE, E2B_JAVASCRIPT_VARIABLE, LEDGER_VARIABLE, Skip, USER_VARIABLE,
};

use self::engines::{EngineEnvironment, RunningEngines};
use self::packages::PackagePurpose;
use self::python::{PACKAGES, PythonPackage};
pub(crate) use self::tally::TestTally;
use self::user::TestUser;
use crate::arguments::ChoreArguments;
use crate::cluster::TestCluster;
use crate::kernels::{self, ReadyCell};
use crate::table::{CellAlignment, table};
use crate::workspace::{Workspace, format_command};

const FLAGS: [&str; 4] = ["--no-install", "--no-engines", "--no-cluster", "--no-kernels"];

pub(crate) fn run(workspace: &Workspace, mut arguments: ChoreArguments) -> Result<()> {
    let install = !arguments.flag("--no-install");
    let with_engines = !arguments.flag("--no-engines");
    let with_cluster = !arguments.flag("--no-cluster");
    let with_kernels = !arguments.flag("--no-kernels");
    let filters = arguments.rest(&FLAGS)?;
    let machine_checks = if with_kernels { kernels::quick_checks(&filters) } else { Vec::new() };
    let binary = workspace.target.join("debug/ringfence");
    let mut setup = TestSetup::prepare(
        workspace,
        &SetupOptions {
            install,
            with_engines,
            with_cluster,
            with_machine: !machine_checks.is_empty(),
            binary: binary.clone(),
        },
        || workspace.build_everything(),
    )?;
    let mut command = workspace.cargo(["test", "--workspace", "--no-fail-fast"]);
    if !filters.is_empty() {
        command.arg("--").args(&filters);
    }
    let (mut tally, success) = setup.run(command)?;
    let machine = setup.machine.take();
    // Tear down the setup now, so that the counts are the last output.
    let (mut skips, interrupted) = setup.finish()?;
    tally.set_apart(&skips);
    // The machine runs after the tests and alone, because an emulated machine uses every processor.
    if let Some(machine) = machine {
        match machine.and_then(|machine| machine.ensure_binary_starts(&binary).map(|()| machine)) {
            Ok(machine) => tally
                .add_machine(machine.run_quick(&binary, &machine_checks, &interrupted)?.counts()),
            Err(error) => {
                let reason = format!("{error:#}");
                skips.push(Skip { place: kernels::quick_name(), need: "qemu".to_owned(), reason });
                tally.skipped += 1;
            }
        }
    }
    conclude(workspace, &tally, &skips, success)
}

/// Choices about the machine on which tests run.
pub(crate) struct SetupOptions {
    /// True if missing packages are installed.
    pub(crate) install: bool,
    pub(crate) with_engines: bool,
    pub(crate) with_cluster: bool,
    /// True if a virtual machine with its own kernel is made.
    pub(crate) with_machine: bool,
    /// Path of the `ringfence` binary that the build makes.
    pub(crate) binary: PathBuf,
}

/// Everything that tests find on the machine: a cluster, engines, a user, packages, and the built
/// binary. The order of the fields is the order of the clean-up.
pub(crate) struct TestSetup {
    cluster: Option<TestCluster>,
    engines: Option<RunningEngines>,
    engine_environment: Option<EngineEnvironment>,
    binary: TestBinary,
    user: Option<TestUser>,
    pythons: Vec<(&'static str, PathBuf)>,
    javascript: Option<PathBuf>,
    machine: Option<Result<ReadyCell>>,
    ledger: PathBuf,
    interrupted: Arc<AtomicBool>,
}

impl TestSetup {
    /// Prepares the machine, and concurrently calls `build`, which builds the tests.
    pub(crate) fn prepare(
        workspace: &Workspace,
        options: &SetupOptions,
        build: impl FnOnce() -> Result<()>,
    ) -> Result<Self> {
        packages::provide(PackagePurpose::Test, options.install, options.with_engines)?;
        if options.with_cluster {
            packages::provide(PackagePurpose::Cluster, options.install, false)?;
        }

        // The terminal also sends SIGINT to cargo and the tests, which end. This process only notes
        // the signal, so that it can clean up.
        let interrupted = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&interrupted))?;

        let user = if rustix::process::geteuid().is_root() { TestUser::create()? } else { None };
        let engine_environment =
            if options.with_engines { EngineEnvironment::prepare()? } else { None };
        let mut cluster =
            if options.with_cluster { TestCluster::prepare(workspace)? } else { None };
        let places = PreparedPlaces {
            engine_environment: engine_environment.as_ref(),
            cluster: cluster.as_mut(),
            user: user.as_ref(),
        };
        let prepared = prepare(workspace, options, places, build);
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        let PreparedTests { engines, pythons, javascript, machine } = prepared?;
        let binary = TestBinary::reachable(options.binary.clone(), user.as_ref())?;
        let ledger = workspace.target.join("skipped-tests.jsonl");
        match fs_err::remove_file(&ledger) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        if let Some(cluster) = &mut cluster {
            let user = user.as_ref().map(TestUser::account).transpose()?;
            cluster.open(workspace, user.as_ref(), |relay| match &engine_environment {
                Some(environment) => environment.beside_the_engines(&relay),
                None => relay,
            })?;
        }
        Ok(Self {
            cluster,
            engines,
            engine_environment,
            binary,
            user,
            pythons,
            javascript,
            machine,
            ledger,
            interrupted,
        })
    }

    /// Runs `cargo test` where the tests find the setup. Returns the sum of the results, and
    /// whether cargo succeeded.
    pub(crate) fn run(&self, mut command: Command) -> Result<(TestTally, bool)> {
        command.env(BINARY_VARIABLE, self.binary.path()).env(LEDGER_VARIABLE, &self.ledger);
        if let Some(user) = &self.user {
            command.env(USER_VARIABLE, user.name());
        }
        command.envs(self.pythons.iter().cloned());
        command.envs(self.javascript.iter().map(|directory| (E2B_JAVASCRIPT_VARIABLE, directory)));
        command.envs(self.cluster.iter().flat_map(TestCluster::variables));
        command.envs(self.engines.iter().flat_map(RunningEngines::variables));
        if let Some(engine_environment) = &self.engine_environment {
            command = engine_environment.beside_the_engines(&command);
        }
        stream(&mut command)
    }

    /// Ends the engines and removes the user. Returns the skipped tests, and the flag that an
    /// interrupt sets.
    pub(crate) fn finish(self) -> Result<(Vec<Skip>, Arc<AtomicBool>)> {
        let ledger = self.ledger.clone();
        let interrupted = Arc::clone(&self.interrupted);
        drop(self);
        ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
        Ok((ringfence_test_ledger::read(&ledger)?, interrupted))
    }
}

/// The places in which engines and the cluster start, and the user of the tests.
struct PreparedPlaces<'a> {
    engine_environment: Option<&'a EngineEnvironment>,
    cluster: Option<&'a mut TestCluster>,
    user: Option<&'a TestUser>,
}

struct PreparedTests {
    engines: Option<RunningEngines>,
    /// Interpreters with the packages that drive ringfence, each with the variable that names it.
    pythons: Vec<(&'static str, PathBuf)>,
    /// Directory of the SDK for JavaScript.
    javascript: Option<PathBuf>,
    /// Virtual machine with its own kernel, if one is to run, or the reason why it could not be
    /// made.
    machine: Option<Result<ReadyCell>>,
}

/// Builds the tests. Concurrently starts the engines and the cluster, and installs packages that
/// tests use.
fn prepare(
    workspace: &Workspace,
    options: &SetupOptions,
    PreparedPlaces { engine_environment, cluster, user }: PreparedPlaces<'_>,
    build: impl FnOnce() -> Result<()>,
) -> Result<PreparedTests> {
    let user = user.map(TestUser::account).transpose()?;
    let images = workspace.target.join("test-images");
    std::thread::scope(|scope| {
        let engines = scope.spawn(|| {
            engine_environment
                .map(|engine_environment| engine_environment.start_engines(user.as_ref(), &images))
                .transpose()
        });
        let cluster = scope.spawn(|| {
            if let Some(cluster) = cluster {
                cluster.start(workspace, &images, options.install);
            }
        });
        let pythons = scope.spawn(|| {
            let provide = |package: PythonPackage| {
                let python = python::provide(package, &workspace.target, options.install)?;
                Some((package.variable, python))
            };
            PACKAGES.into_iter().filter_map(provide).collect()
        });
        let javascript = scope.spawn(|| javascript::provide(&workspace.target, options.install));
        let machine =
            scope.spawn(|| options.with_machine.then(|| ReadyCell::prepare_quick(workspace)));
        let built = build();
        cluster.join().expect("starting the cluster does not panic");
        let engines = engines.join().expect("starting an engine does not panic");
        let pythons = pythons.join().expect("installing a package does not panic");
        let javascript = javascript.join().expect("installing a package does not panic");
        let machine = machine.join().expect("making a virtual machine does not panic");
        built?;
        Ok(PreparedTests { engines: engines?, pythons, javascript, machine })
    })
}

/// Prints the output of cargo line by line, and sums the results of all test binaries.
fn stream(command: &mut Command) -> Result<(TestTally, bool)> {
    println!("$ {}", format_command(command));
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let stdout = child.stdout.take().context("cargo's output is not piped")?;
    let mut tally = TestTally::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read cargo's output")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        tally.add(&line);
    }
    Ok((tally, child.wait().context("cannot wait for cargo")?.success()))
}

/// Prints the skipped tests and the counts.
pub(crate) fn print_results(tally: &TestTally, skips: &[Skip]) {
    if !skips.is_empty() {
        let head = [
            ("skipped", CellAlignment::Left),
            ("need", CellAlignment::Left),
            ("reason", CellAlignment::Left),
        ];
        let row =
            |skip: &Skip| [skip.place.clone(), skip.need.clone(), skip.reason.replace('\n', " ")];
        println!("\n{}", table(&head, &skips.iter().map(row).collect::<Vec<_>>()));
    }
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
}

fn conclude(workspace: &Workspace, tally: &TestTally, skips: &[Skip], success: bool) -> Result<()> {
    print_results(tally, skips);
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        let permitted = fs_err::read_to_string(workspace.root.join(".ci/permitted-skips"))?;
        let forbidden = forbidden_needs(skips, &permitted);
        ensure!(forbidden.is_empty(), "CI must be able to run what needs {}", forbidden.join(", "));
    }
    if !success || tally.failed > 0 {
        bail!(if tally.failed > 0 {
            "tests failed"
        } else {
            "the tests could not all be built and run"
        });
    }
    Ok(())
}

/// Returns the needs for which tests skipped although `permitted` does not list them. `permitted`
/// has one need per line and `#` starts a comment.
fn forbidden_needs<'a>(skips: &'a [Skip], permitted: &str) -> Vec<&'a str> {
    let permitted: BTreeSet<&str> =
        permitted.lines().filter_map(|line| line.split('#').next()).map(str::trim).collect();
    let needs: BTreeSet<&str> = skips.iter().map(|skip| skip.need.as_str()).collect();
    needs.into_iter().filter(|need| !permitted.contains(need)).collect()
}

/// The `ringfence` binary under test, at a path where the ordinary user of the tests can run it.
enum TestBinary {
    InPlace(PathBuf),
    /// Copy of the binary, because the checkout may be in root's home directory, which others
    /// cannot enter.
    Copied {
        path: PathBuf,
        _directory: tempfile::TempDir,
    },
}

impl TestBinary {
    fn reachable(built: PathBuf, user: Option<&TestUser>) -> Result<Self> {
        if user.is_none() {
            return Ok(Self::InPlace(built));
        }
        let open = std::fs::Permissions::from_mode(0o755);
        let directory =
            tempfile::Builder::new().prefix("ringfence-test-").permissions(open).tempdir()?;
        let path = directory.path().join("ringfence");
        fs_err::copy(built, &path)?;
        Ok(Self::Copied { path, _directory: directory })
    }

    fn path(&self) -> &Path {
        match self {
            Self::InPlace(path) | Self::Copied { path, .. } => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_needs_that_are_listed_may_be_skipped() {
        let skip = |need: &str| Skip {
            place: String::new(),
            need: need.to_owned(),
            reason: String::new(),
        };
        let skips = [skip("ipv6"), skip("bwrap"), skip("landlock"), skip("bwrap")];
        assert_eq!(
            forbidden_needs(&skips, "# what CI lacks\nipv6 # none in containers\n\n"),
            ["bwrap", "landlock"]
        );
        assert_eq!(forbidden_needs(&skips, "ipv6\nbwrap\nlandlock\n"), [""; 0]);
        assert_eq!(forbidden_needs(&[], ""), [""; 0]);
    }
}
