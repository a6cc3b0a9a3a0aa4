//! Snapshots of a server's sandboxes, taken with E2B's own package.

use ringfence::Backend;
use ringfence_test_ledger::{e2b_python, require};

use crate::keeper::SandboxKeeper;
use crate::served::{RunningServer, expect_nothing_left, script};

/// Runs one act of the package's script on a server's snapshots, and returns its output.
#[track_caller]
fn act(keeper: &SandboxKeeper, server: &RunningServer<'_>, words: &[&str]) -> Vec<String> {
    let mut package = script(e2b_python().expect("the test requires it"), "e2b_snapshots.py");
    package.arg(keeper.server()).args(words);
    server.drive(package)
}

#[test]
fn a_sandbox_starts_with_the_files_of_its_snapshot() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    fs_err::write(keeper.workspace().join("open.toml"), "[network]\nmode = 'open'\n")
        .expect("the workspace is ours");
    let settings = "snapshot_size = '4M'\n[templates.base]\nwarm = 1\n[templates.open]\npolicy = \
                    'open.toml'\n";
    let server = RunningServer::configured(&keeper, settings);
    for words in
        ["files", "resting", "standing_still", "hostile", "limits", "names", "network", "races"]
    {
        act(&keeper, &server, &[words]);
    }
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn bwrap_sandboxes_have_snapshots() {
    require!(root, binary, bwrap, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Bwrap);
    let server = RunningServer::configured(&keeper, "[templates.base]\nbackend = 'bwrap'\n");
    for words in ["files", "resting", "standing_still"] {
        act(&keeper, &server, &[words]);
    }
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn snapshots_outlive_their_server_and_orphaned_files_are_swept() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::configured(&keeper, "[templates.other]\n");
    let made = act(&keeper, &server, &["begin"]);
    let [work, other] = made.as_slice() else { panic!("{made:?}") };
    drop(server); // kills the server, as a crash does
    let half = keeper.server().join("snapshots/half");
    fs_err::create_dir_all(half.join("below")).expect("it is ours");
    std::os::unix::fs::symlink(keeper.home(), half.join("below/link")).expect("it is ours");
    let server = RunningServer::configured(&keeper, "");
    act(&keeper, &server, &["found_again", work, other]);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn snapshots_belong_to_a_key_and_are_removed_with_it() {
    require!(root, binary, user_namespaces, python3, e2b_python);
    let keeper = SandboxKeeper::for_root(Backend::Native);
    let server = RunningServer::start(&keeper);
    let create = |words: &[&str]| {
        let mut command = keeper.ringfence(&["keys", "create"]);
        keeper.expect(command.args(words)).trim_end().to_owned()
    };
    let (one, other) = (create(&["one"]), create(&["other"]));
    act(&keeper, &server, &["tenants", &one, &other]);
    act(&keeper, &server, &["quota", &create(&["few", "--snapshots", "2"])]);
    server.end();
    let snapshots =
        || fs_err::read_dir(keeper.server().join("snapshots")).expect("it is there").count();
    RunningServer::start(&keeper).end();
    assert_eq!(snapshots(), 1, "that of the key that is there");
    keeper.expect(&mut keeper.ringfence(&["keys", "revoke", "one"]));
    RunningServer::start(&keeper).end();
    assert_eq!(snapshots(), 0);
    expect_nothing_left(&keeper);
}
