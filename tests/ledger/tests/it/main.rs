//! Effects of `require!` if a need is missing, seen from outside the process.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ringfence_test_ledger::{LEDGER_VARIABLE, REQUIRE_VARIABLE};

/// Returns the example program as a command that cannot find bubblewrap.
fn without_bubblewrap(ledger: &Path) -> Command {
    let own = std::env::current_exe().expect("a test knows its own program");
    let built: PathBuf = own
        .ancestors()
        .nth(2)
        .expect("cargo puts tests in deps/")
        .join("examples/needs_bubblewrap");
    let mut command = Command::new(built);
    command.env_remove(REQUIRE_VARIABLE).env(LEDGER_VARIABLE, ledger).env("PATH", "/nowhere");
    command
}

fn words(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the example prints text");
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_missing_need_is_said_and_recorded_and_the_test_returns() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger.jsonl");
    let output = without_bubblewrap(&ledger).output().unwrap();
    let (stdout, stderr) = words(&output);
    assert!(output.status.success() && stdout.is_empty(), "{stdout}{stderr}");
    assert!(
        stderr.starts_with("SKIP needs_bubblewrap::main bwrap: cannot run `bwrap`: "),
        "{stderr}"
    );
    let skips = ringfence_test_ledger::read(&ledger).unwrap();
    assert_eq!(skips.iter().map(|skip| format!("{skip}\n")).collect::<String>(), stderr);
}

#[test]
fn a_missing_need_that_is_required_fails_the_test() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger.jsonl");
    let output =
        without_bubblewrap(&ledger).env(REQUIRE_VARIABLE, "landlock,bwrap").output().unwrap();
    let (stdout, stderr) = words(&output);
    assert!(!output.status.success() && stdout.is_empty(), "{stdout}{stderr}");
    assert!(
        stderr.contains("RINGFENCE_TEST_REQUIRE names `bwrap`, which is missing: "),
        "{stderr}"
    );
    assert_eq!(ringfence_test_ledger::read(&ledger).unwrap(), []);
}
