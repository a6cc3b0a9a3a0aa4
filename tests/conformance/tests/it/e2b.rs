//! E2B's own Python package drives a guest.

use std::process::Command;

use ringfence::Backend;
use ringfence_test_ledger::{e2b_python, require};

use crate::keeper::SandboxKeeper;
use crate::served::script;

#[test]
fn the_e2b_package_works_with_the_guest() {
    require!(root, binary, user_namespaces, python3, pseudo_terminals, e2b_python, cgroup_limits);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    keeper.expect(&mut keeper.up("sdk"));
    // The package uses one fixed port, so it gets its own network namespace.
    let mut package = Command::new("unshare");
    let script = script(e2b_python().expect("the test requires it"), "e2b_sdk.py");
    package
        .args(["--user", "--map-root-user", "--net"])
        .arg(script.get_program())
        .args(script.get_args());
    package.arg(keeper.room("sdk").join("channel/guest.sock"));
    let outcome = keeper.run(package.arg(keeper.workspace()).current_dir("/"));
    assert!(outcome.is_good(), "{}", outcome.said);
    keeper.expect(&mut keeper.ringfence(&["stop", "sdk"]));
    fs_err::remove_dir_all(keeper.workspace()).expect("it is ours");
    keeper.expect_nothing_left();
}
