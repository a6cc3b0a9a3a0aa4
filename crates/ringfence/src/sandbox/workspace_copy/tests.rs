//! Tests of copied workspaces: with a real guest that shares no file with the host, and with a
//! host's files that change during a sync.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use ringfence_core::sync_report::UncarriedPaths;
use ringfence_test_ledger::{eventually, require};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::decision::{
    CHANGED_INSIDE_REMOVED_HERE, CHANGED_ON_BOTH_SIDES, HIDDEN, MADE_ON_BOTH_SIDES, PROTECTED,
    REMOVED_INSIDE_CHANGED_HERE,
};
use super::entry::PresentEntry;
use super::host::{HostChange, NO_DIRECTORY, NOT_AS_SCANNED, NOT_EMPTY, is_obstructed};
use super::*;
use crate::sandbox::tests::{REMOTE, engine};
use crate::{Command, Engine, Policy, Sandbox, StartRequest};

/// Calls `used` with a sandbox on another machine, in which the workspace was filled by `fill`.
fn on_copy(policy: Policy, fill: impl Fn(&Path), used: impl AsyncFn(&Path, Sandbox)) {
    on_engine(fill, async |engine: &Engine, workspace: &Path| {
        let request = StartRequest::new(policy.clone().backend(REMOTE));
        let sandbox = engine.start(request).await.unwrap_or_else(|error| panic!("{error:?}"));
        used(workspace, sandbox).await;
    });
}

fn on_engine(fill: impl Fn(&Path), used: impl AsyncFn(&Engine, &Path)) {
    let home = TempDir::new_in("/var/tmp").unwrap();
    let workspace = home.path().join("workspace");
    fs_err::create_dir(&workspace).unwrap();
    fill(&workspace);
    let engine = engine(home.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(used(&engine, &workspace));
    let directories = home.path().join(".local/state/ringfence/sandboxes");
    assert!(eventually(|| fs_err::read_dir(&directories).unwrap().count() == 0));
    let left = fs_err::read_dir(&workspace).unwrap().map(|entry| entry.unwrap().file_name());
    let left = left.filter(|name| name.to_string_lossy().starts_with(entry::TEMPORARY_PREFIX));
    assert_eq!(left.count(), 0, "a temporary file is left");
}

/// Runs a line of shell in a sandbox, and returns its output.
async fn output(sandbox: &Sandbox, line: &str) -> String {
    let result = sandbox.execute(line, None).await.unwrap();
    assert!(result.ok, "{line}: {result:?}");
    result.stdout
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs_err::create_dir_all(path.parent().unwrap()).unwrap();
    fs_err::write(path, text).unwrap();
}

fn read(root: &Path, path: &str) -> String {
    fs_err::read_to_string(root.join(path)).unwrap()
}

fn mode(root: &Path, path: &str) -> u32 {
    fs_err::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777
}

fn paths(uncarried: &UncarriedPaths) -> Vec<(&str, &str)> {
    uncarried.paths.iter().map(|left| (left.path.as_str(), left.why.as_str())).collect()
}

#[test]
fn a_workspace_goes_in_as_it_is_without_what_is_hidden() {
    require!(user_namespaces, binary);
    let fill = |root: &Path| {
        write(root, "src/deep/file", "content");
        write(root, "tool", "#!/bin/sh\necho ran\n");
        fs_err::set_permissions(root.join("tool"), PermissionsExt::from_mode(0o4750)).unwrap();
        write(root, ".env", "SECRET");
        write(root, "sub/.env", "SECRET");
        fs_err::create_dir(root.join("empty")).unwrap();
        symlink("src/deep/file", root.join("link")).unwrap();
        symlink("/etc/passwd", root.join("out")).unwrap();
        fs_err::write(root.join(OsStr::from_bytes(b"odd\xff\n")), "odd").unwrap();
        mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        write(root, &format!("{}end", "a-long-name/".repeat(20)), "deep");
    };
    let hide = Policy::default().hide("**/.env".parse().unwrap());
    for (policy, secrets) in [(hide, ""), (Policy::default(), "SECRETSECRET")] {
        on_copy(policy, fill, async |_, sandbox| {
            assert_eq!(output(&sandbox, "cat .env sub/.env 2>/dev/null; true").await, secrets);
            assert_eq!(output(&sandbox, "./tool; stat -c %a tool").await, "ran\n750\n");
            assert_eq!(output(&sandbox, "cat src/deep/file; ls empty").await, "content");
            assert_eq!(output(&sandbox, "readlink link out").await, "src/deep/file\n/etc/passwd\n");
            assert_eq!(
                output(
                    &sandbox,
                    "cat odd*; find a-long-name -name end -exec cat {} +; test ! -e pipe"
                )
                .await,
                "odddeep"
            );
            let again = sandbox.sync().await.unwrap();
            assert_eq!((again.sent.count, again.received.count), (0, 0), "{again:?}");
            assert_eq!(again.left_out.paths[0].path, "pipe");
            sandbox.stop().await.unwrap();
        });
    }
}

#[test]
fn changes_come_back_and_only_they() {
    require!(user_namespaces, binary);
    let fill = |root: &Path| {
        for name in ["kept", "changed", "removed", "to-directory", "to-link", "made-executable"] {
            write(root, name, name);
        }
        write(root, "directory/one", "1");
        write(root, "to-file/one", "1");
        write(root, "going/deep/one", "1");
        fs_err::set_permissions(root.join("changed"), PermissionsExt::from_mode(0o600)).unwrap();
    };
    on_copy(Policy::default(), fill, async |root, sandbox| {
        let line = "echo more >> changed; rm removed; rm to-directory; mkdir to-directory; \
                    echo in > to-directory/new; ln -sf kept to-link; chmod +x made-executable; \
                    rm -r to-file; echo file > to-file; rm -r going; mkdir -p new/empty; \
                    printf x > new/\"$(printf 'odd\\377')\"; ln -s /etc/passwd leads-out; \
                    mkfifo pipe; printf x > with-bits; chmod 6755 with-bits; \
                    echo two > directory/two";
        output(&sandbox, line).await;
        let foretold = sandbox.sync_with(SyncMode::DryRun, |_| ()).await.unwrap();
        assert!(foretold.dry_run && foretold.received.count > 0, "{foretold:?}");
        assert_eq!((read(root, "changed"), root.join("new").exists()), ("changed".into(), false));
        let mut last = SyncProgress::default();
        let report = sandbox.sync_with(SyncMode::Both, |now| last = now).await.unwrap();
        for (done, told) in
            [(&report.received, &foretold.received), (&report.deleted, &foretold.deleted)]
        {
            assert_eq!((done.count, done.bytes), (told.count, told.bytes));
        }
        assert_eq!((last.files_done, last.bytes_done), (last.files_total, last.bytes_total));
        assert_eq!(paths(&report.conflicts), []);
        let left: Vec<&str> = report.left_out.paths.iter().map(|left| &*left.path).collect();
        assert_eq!(left, ["leads-out", "pipe"]);
        assert_eq!(
            report.deleted.paths,
            ["going", "going/deep", "going/deep/one", "removed", "to-file/one"]
                .into_iter()
                .rev()
                .collect::<Vec<_>>()
        );
        assert_eq!(read(root, "changed"), "changedmore\n");
        assert_eq!(
            (read(root, "to-directory/new"), read(root, "to-file")),
            ("in\n".into(), "file\n".into())
        );
        assert_eq!(fs_err::read_link(root.join("to-link")).unwrap(), Path::new("kept"));
        assert_eq!((mode(root, "changed"), mode(root, "made-executable") & 0o100), (0o600, 0o100));
        assert_eq!(mode(root, "with-bits") & 0o7000, 0);
        assert!(root.join("new/empty").is_dir() && !root.join("going").exists());
        assert_eq!(
            fs_err::read(root.join("new").join(OsStr::from_bytes(b"odd\xff"))).unwrap(),
            b"x"
        );
        assert!(fs_err::symlink_metadata(root.join("leads-out")).is_err());

        // A second sync carries only what changed since, in both directions.
        write(root, "kept", "by the host");
        write(root, "by-the-host/deep", "new");
        fs_err::remove_file(root.join("directory/one")).unwrap();
        output(&sandbox, "echo third >> changed").await;
        let report = sandbox.sync().await.unwrap();
        assert_eq!(report.received.paths, ["changed"]);
        assert_eq!(report.sent.paths, ["by-the-host", "by-the-host/deep", "kept"]);
        assert_eq!(report.deleted_inside.paths, ["directory/one"]);
        assert_eq!(
            output(&sandbox, "cat kept by-the-host/deep; ls directory").await,
            "by the hostnewtwo\n"
        );
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_file_that_changed_on_both_sides_is_a_conflict_and_stays() {
    require!(user_namespaces, binary);
    let fill = |root: &Path| {
        for name in ["both", "same", "removed-here", "removed-inside", "d/inner"] {
            write(root, name, name);
        }
    };
    on_copy(Policy::default(), fill, async |root, sandbox| {
        let line = "echo inside > both; echo agreed > same; echo inside > removed-here; \
                    rm removed-inside; echo inside > new; echo equal > equal; rm -r d";
        output(&sandbox, line).await;
        write(root, "both", "the host");
        write(root, "same", "agreed\n");
        fs_err::remove_file(root.join("removed-here")).unwrap();
        write(root, "removed-inside", "the host");
        write(root, "new", "the host");
        write(root, "equal", "equal\n");
        write(root, "d/of-the-host", "stays");
        let expected = [
            ("both", CHANGED_ON_BOTH_SIDES),
            ("new", MADE_ON_BOTH_SIDES),
            ("removed-here", CHANGED_INSIDE_REMOVED_HERE),
            ("removed-inside", REMOVED_INSIDE_CHANGED_HERE),
            ("d", NOT_EMPTY),
        ];
        let report = sandbox.sync().await.unwrap();
        assert_eq!(paths(&report.conflicts), expected);
        assert_eq!(report.sent.paths, ["d/of-the-host"]);
        for name in ["both", "removed-inside", "new"] {
            assert_eq!(read(root, name), "the host", "{name}");
        }
        assert!(!root.join("removed-here").exists() && !root.join("d/inner").exists());
        assert_eq!(output(&sandbox, "cat both new").await, "inside\ninside\n");
        // When one side takes the other's content, the conflict is settled.
        write(root, "both", "inside\n");
        output(&sandbox, "printf 'the host' > new; rm removed-here").await;
        let report = sandbox.sync().await.unwrap();
        assert_eq!(paths(&report.conflicts), [expected[3]]);
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn changes_of_protected_and_hidden_paths_do_not_come_back() {
    require!(user_namespaces, binary);
    let fill = |root: &Path| {
        write(root, ".git/config", "[core]\n");
        write(root, ".git/HEAD", "ref: refs/heads/main\n");
        write(root, "locked/file", "1");
        fs_err::create_dir(root.join(".git/objects")).unwrap();
        fs_err::create_dir(root.join(".git/refs")).unwrap();
    };
    let line = "echo evil >> .git/config; mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; \
                echo evil > .env; echo free > free; echo evil > locked/file; \
                echo evil > locked/new";
    let guarded = Policy::default()
        .hide("**/.env".parse().unwrap())
        .protect(".git/config".parse().unwrap())
        .protect(".git/hooks".parse().unwrap())
        .protect("locked".parse().unwrap());
    on_copy(guarded, fill, async |root, sandbox| {
        output(&sandbox, line).await;
        let report = sandbox.sync().await.unwrap();
        assert_eq!(
            paths(&report.refused),
            [
                (".env", HIDDEN),
                (".git/config", PROTECTED),
                (".git/hooks", PROTECTED),
                (".git/hooks/pre-commit", PROTECTED),
                ("locked/file", PROTECTED),
                ("locked/new", PROTECTED),
            ]
        );
        assert_eq!(report.received.paths, ["free"]);
        assert_eq!(
            (read(root, ".git/config"), read(root, "locked/file")),
            ("[core]\n".into(), "1".into())
        );
        assert!(!root.join(".git/hooks").exists() && !root.join(".env").exists());
        // The directory above a protected path cannot be replaced by a link, either.
        output(&sandbox, "mv .git other; ln -s other .git").await;
        let report = sandbox.sync().await.unwrap();
        assert!(paths(&report.refused).iter().any(|(path, _)| *path == ".git"), "{report:?}");
        assert!(root.join(".git").is_dir() && read(root, ".git/config") == "[core]\n");
        assert!(root.join(".git/HEAD").exists() && root.join("other/HEAD").exists());
        sandbox.stop().await.unwrap();
    });
    // Without the rules, the same changes come back, and those that git acts on are named.
    let mut free = Policy::default();
    free.filesystem.protect = Some(Vec::new());
    on_copy(free, fill, async |root, sandbox| {
        output(&sandbox, line).await;
        let report = sandbox.sync().await.unwrap();
        assert_eq!(paths(&report.refused), []);
        assert_eq!(read(root, ".git/hooks/pre-commit"), "evil\n");
        assert_eq!(read(root, "locked/file"), "evil\n");
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_repository_that_comes_back_is_reported_as_planted() {
    require!(user_namespaces, binary);
    on_copy(
        Policy::default(),
        |root| write(root, "a", ""),
        async |_, sandbox| {
            output(&sandbox, "echo plain > b").await;
            assert_eq!(sandbox.sync().await.unwrap().planted, Vec::<String>::new());
            let line = "mkdir -p sub/.git/objects sub/.git/refs sub/.git/hooks; \
                    echo ref: refs/heads/main > sub/.git/HEAD; \
                    printf '[core]\\n\\tfsmonitor = evil\\n' > sub/.git/config";
            output(&sandbox, line).await;
            let report = sandbox.sync().await.unwrap();
            assert!(report.planted.iter().any(|path| path.starts_with("sub/.git")), "{report:?}");
            let stopped = sandbox.stop().await.unwrap();
            assert!(stopped.workspace.is_some());
        },
    );
}

#[test]
fn a_stop_brings_the_workspace_back_and_a_killed_sandbox_loses_nothing_here() {
    require!(user_namespaces, binary);
    let fill = |root: &Path| write(root, "file", "the host");
    on_copy(Policy::default(), fill, async |root, sandbox| {
        output(&sandbox, "echo inside > file").await;
        let report = sandbox.stop().await.unwrap().workspace.unwrap();
        assert_eq!((report.received.paths, report.sent.count), (vec!["file".to_owned()], 1));
        assert_eq!(read(root, "file"), "inside\n");
    });
    on_copy(Policy::default(), fill, async |root, sandbox| {
        output(&sandbox, "echo inside > file").await;
        drop(sandbox);
        assert!(eventually(|| read(root, "file") == "inside\n"));
    });
    on_copy(Policy::default(), fill, async |root, sandbox| {
        // The other machine loses the workspace, and the guest dies.
        output(&sandbox, "echo lost > file").await;
        let _ = sandbox.execute("kill -9 -1; kill -9 $PPID", None).await; // the guest may be gone
        write(root, "new", "the host");
        let ended = tokio::time::timeout(Duration::from_secs(60), sandbox.ended()).await;
        assert!(ended.is_ok(), "the sandbox outlived its guest");
        sandbox.stop().await.unwrap();
        assert_eq!((read(root, "new"), read(root, "file")), ("the host".into(), "the host".into()));
    });
}

#[test]
fn a_run_takes_the_workspace_along_and_brings_it_back() {
    require!(user_namespaces, binary);
    let fill = |root: &Path| write(root, "in", "input");
    on_engine(fill, async |engine, root| {
        let command = Command::new("sh").argument("-c").argument("cat in; echo made > out; exit 3");
        let policy = Policy::default().backend(REMOTE);
        let result = engine.run(&policy, &command).await.unwrap();
        assert_eq!((result.stdout.as_str(), result.exit_code), ("input", Some(3)));
        assert_eq!(read(root, "out"), "made\n");
        let report = result.meta.workspace.unwrap();
        assert_eq!((report.sent.count, report.received.paths), (1, vec!["out".to_owned()]));
    });
}

#[test]
fn the_end_of_a_lease_brings_the_workspace_back() {
    require!(user_namespaces, binary);
    on_engine(
        |_| (),
        async |engine, root| {
            let mut request = StartRequest::new(Policy::default().backend(REMOTE));
            request.lease = Some(Duration::from_secs(3));
            let sandbox = engine.start(request).await.unwrap();
            output(&sandbox, "echo made > file").await;
            let ended = tokio::time::timeout(Duration::from_secs(60), sandbox.ended()).await;
            assert!(ended.is_ok(), "the lease did not end");
            assert_eq!(read(root, "file"), "made\n");
        },
    );
}

#[test]
fn a_process_that_attaches_syncs_under_the_rules_of_the_start() {
    require!(user_namespaces, binary);
    on_engine(
        |root| write(root, "locked", "1"),
        async |engine, root| {
            let policy = Policy::default().protect("locked".parse().unwrap()).backend(REMOTE);
            let sandbox = engine.start(StartRequest::new(policy)).await.unwrap();
            output(&sandbox, "echo made > file; echo evil > locked").await;
            let name = sandbox.manifest().name.as_str();
            let same = Sandbox::attach(&engine.settings().host, name).await.unwrap();
            let (one, other) = tokio::join!(same.sync(), sandbox.sync());
            let (one, other) = (one.unwrap(), other.unwrap());
            assert_eq!(one.received.count + other.received.count, 1, "{one:?} {other:?}");
            assert_eq!(paths(&one.refused), [("locked", PROTECTED)]);
            assert_eq!((read(root, "file"), read(root, "locked")), ("made\n".into(), "1".into()));
            sandbox.stop().await.unwrap();
        },
    );
}

#[test]
fn a_sync_after_one_that_was_interrupted_overwrites_nothing() {
    require!(user_namespaces, binary);
    let fill = |root: &Path| write(root, "file", "1");
    on_copy(Policy::default(), fill, async |root, sandbox| {
        let record = SyncRecord::read(&sandbox.directory()).unwrap();
        output(&sandbox, "echo inside > file; echo inside > new").await;
        write(root, "of-the-host", "1");
        sandbox.sync().await.unwrap();
        // A crash before the record was written leaves the record of the sync before.
        record.write(&sandbox.directory()).unwrap();
        let report = sandbox.sync().await.unwrap();
        assert_eq!(report, SyncReport::default());
        assert_eq!((read(root, "file"), read(root, "new")), ("inside\n".into(), "inside\n".into()));
        // And what changed after the crash is a change like any other.
        record.write(&sandbox.directory()).unwrap();
        write(root, "file", "the host again");
        let report = sandbox.sync().await.unwrap();
        assert_eq!(paths(&report.conflicts), [("file", CHANGED_ON_BOTH_SIDES)]);
        assert_eq!(read(root, "file"), "the host again");
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_workspace_that_was_removed_inside_removes_nothing_here() {
    require!(user_namespaces, binary);
    on_copy(
        Policy::default(),
        |root| write(root, "file", "1"),
        async |root, sandbox| {
            let directory = sandbox.directory();
            let mut record = SyncRecord::read(&directory).unwrap();
            record.inside = "/workspace/absent".to_owned();
            record.write(&directory).unwrap();
            let error = sandbox.sync().await.unwrap_err();
            assert!(matches!(error, SyncError::Removed { .. }), "{error:?}");
            let report = sandbox.stop().await.unwrap().workspace.unwrap();
            assert!(report.failed.is_some(), "{report:?}");
            assert_eq!(read(root, "file"), "1");
        },
    );
}

/// Opens a workspace with the file `a/file`, and a directory outside with the file `secret`.
fn place() -> (TempDir, PathBuf, HostTree) {
    let place = tempfile::tempdir().unwrap();
    let root = fs_err::canonicalize(place.path()).unwrap();
    write(&root, "workspace/a/file", "content");
    write(&root, "outside/secret", "kept");
    write(&root, "outside/file", "kept");
    let tree = HostTree::open(&root.join("workspace")).unwrap();
    (place, root, tree)
}

fn scanned(tree: &HostTree, path: &str) -> SideState {
    let scan = tree.scan(&CopyRules::default(), &SyncRecord::default()).unwrap();
    scan.states.get(Path::new(path)).cloned().unwrap_or(SideState::Absent)
}

#[track_caller]
fn put(tree: &HostTree, path: &str, expected: &SideState) -> io::Result<HostChange> {
    let mut staged = tree.stage_file(Path::new(path), 0o644, None, 1)?;
    staged.file.as_mut().unwrap().write_all(b"from inside").unwrap();
    tree.place(staged, Path::new(path), expected)
}

#[test]
fn a_file_that_is_still_the_scanned_one_is_replaced_and_another_is_not() {
    let (_place, root, tree) = place();
    let workspace = root.join("workspace");
    let expected = scanned(&tree, "a/file");
    assert_eq!(put(&tree, "a/file", &expected).unwrap(), HostChange::Done);
    assert_eq!(read(&workspace, "a/file"), "from inside");
    // The content is now another, although nothing else tells so.
    assert_eq!(put(&tree, "a/file", &expected).unwrap(), HostChange::Conflict(NOT_AS_SCANNED));
    assert_eq!(
        tree.remove(Path::new("a/file"), &expected, 2).unwrap(),
        HostChange::Conflict(NOT_AS_SCANNED)
    );
    assert_eq!(read(&workspace, "a/file"), "from inside");
    // A file that appeared is not replaced, and a removed one is not made again.
    assert_eq!(
        put(&tree, "a/file", &SideState::Absent).unwrap(),
        HostChange::Conflict(NOT_AS_SCANNED)
    );
    let expected = scanned(&tree, "a/file");
    fs_err::remove_file(workspace.join("a/file")).unwrap();
    assert_eq!(put(&tree, "a/file", &expected).unwrap(), HostChange::Conflict(NOT_AS_SCANNED));
    assert_eq!(fs_err::read_dir(workspace.join("a")).unwrap().count(), 0);
    assert_eq!(put(&tree, "a/file", &SideState::Absent).unwrap(), HostChange::Done);
    let expected = scanned(&tree, "a/file");
    assert_eq!(tree.remove(Path::new("a/file"), &expected, 3).unwrap(), HostChange::Done);
    assert_eq!(fs_err::read_dir(workspace.join("a")).unwrap().count(), 0);
}

#[test]
fn a_link_that_is_planted_on_the_host_meanwhile_is_not_followed() {
    let (_place, root, tree) = place();
    let workspace = root.join("workspace");
    let directory = scanned(&tree, "a");
    let file = scanned(&tree, "a/file");
    // A link takes the place of the file.
    fs_err::remove_file(workspace.join("a/file")).unwrap();
    symlink(root.join("outside/secret"), workspace.join("a/file")).unwrap();
    assert_eq!(put(&tree, "a/file", &file).unwrap(), HostChange::Conflict(NOT_AS_SCANNED));
    assert_eq!(
        tree.remove(Path::new("a/file"), &file, 2).unwrap(),
        HostChange::Conflict(NOT_AS_SCANNED)
    );
    assert!(fs_err::read_link(workspace.join("a/file")).is_ok());
    // A link takes the place of the directory.
    fs_err::remove_dir_all(workspace.join("a")).unwrap();
    symlink(root.join("outside"), workspace.join("a")).unwrap();
    for expected in [&file, &SideState::Absent] {
        let error = put(&tree, "a/file", expected).unwrap_err();
        assert!(is_obstructed(&error), "{error:?}");
    }
    assert!(tree.remove(Path::new("a/file"), &file, 3).is_err());
    assert!(tree.stage_link(Path::new("a/link"), b"x", 4).is_err());
    assert!(tree.make_directory(Path::new("a/d"), 0o755, &SideState::Absent, 5).is_err());
    assert!(tree.open_file(Path::new("a/file")).is_err());
    assert_eq!(
        tree.remove(Path::new("a"), &directory, 6).unwrap(),
        HostChange::Conflict(NOT_AS_SCANNED)
    );
    assert_eq!(
        (read(&root, "outside/secret"), read(&root, "outside/file")),
        ("kept".into(), "kept".into())
    );
    assert_eq!(fs_err::read_dir(root.join("outside")).unwrap().count(), 2);
    // Without the link, the same succeeds.
    fs_err::remove_file(workspace.join("a")).unwrap();
    assert_eq!(put(&tree, "a/file", &SideState::Absent).unwrap(), HostChange::Done);
    assert!(NO_DIRECTORY.contains("link"));
}

#[test]
fn a_directory_with_other_files_is_not_removed_or_replaced() {
    let (_place, root, tree) = place();
    let directory = scanned(&tree, "a");
    assert_eq!(
        tree.remove(Path::new("a"), &directory, 1).unwrap(),
        HostChange::Conflict(NOT_EMPTY)
    );
    assert_eq!(put(&tree, "a", &directory).unwrap(), HostChange::Conflict(NOT_EMPTY));
    fs_err::remove_file(root.join("workspace/a/file")).unwrap();
    assert_eq!(put(&tree, "a", &directory).unwrap(), HostChange::Done);
    let SideState::Present(PresentEntry { content, .. }) = scanned(&tree, "a") else { panic!() };
    assert_eq!(content.bytes(), 11);
}
