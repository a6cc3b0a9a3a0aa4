//! Escapes through the start of a sandbox rather than through its command.

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory};
use ringfence_test_ledger::require;

/// Returns the content of a file outside after a command, which has the file as its standard input,
/// has tried to write to it.
fn after_reopening_standard_input(variant: BackendVariant) -> String {
    let place = CallerDirectory::for_caller(Caller::Root);
    let outside = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file can be made");
    fs_err::write(&outside, "kept").expect("it can be written");
    let mut command = BackendSetup { variant, caller: Caller::Root }.ringfence("run", &place);
    command.args(["--", "sh", "-c", "cat /proc/self/fd/0; printf lost > /proc/self/fd/0"]);
    let input = fs_err::File::open(outside.path()).expect("it can be read").into_parts().0;
    let output = command.stdin(input).output().expect("ringfence can be started");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "kept",
        "it can be opened for reading: {output:?}"
    );
    fs_err::read_to_string(&outside).expect("it can be read")
}

#[test]
fn a_file_that_was_opened_for_reading_cannot_be_reopened_for_writing() {
    require!(root, binary, user_namespaces, landlock, bwrap);
    assert_eq!(after_reopening_standard_input(BackendVariant::Local), "lost");
    for variant in [BackendVariant::Native, BackendVariant::Bwrap] {
        assert_eq!(after_reopening_standard_input(variant), "kept", "{variant:?}");
    }
}

/// Runs a command with a `bwrap` that first executes `first` in the workspace and then the real
/// bubblewrap.
fn with_a_race_lost(place: &CallerDirectory, first: &str) -> Output {
    for directory in [".git/hooks", "other/hooks"] {
        fs_err::create_dir_all(place.path().join(directory)).expect("a directory can be made");
    }
    let programs = tempfile::tempdir().expect("a temporary directory can be made");
    let program = programs.path().join("bwrap");
    let workspace = place.path().display();
    let script = format!("#!/bin/sh\n(cd '{workspace}' && {first})\nexec /usr/bin/bwrap \"$@\"\n");
    fs_err::write(&program, script).expect("a script can be written");
    fs_err::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let mut command = BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Root }
        .ringfence("run", place);
    let path = format!("{}:/usr/bin:/bin", programs.path().display());
    command
        .env("PATH", path)
        .args(["--protect", ".git/hooks", "--", "echo", "ran"])
        .output()
        .expect("ringfence can be started")
}

#[test]
fn a_directory_swapped_while_bubblewrap_starts_is_noticed() {
    require!(root, binary, user_namespaces, bwrap);
    let place = CallerDirectory::for_caller(Caller::Root);
    let undisturbed = with_a_race_lost(&place, "true");
    assert_eq!(String::from_utf8_lossy(&undisturbed.stdout), "ran\n", "{undisturbed:?}");

    let exchanged = with_a_race_lost(&place, "mv .git third && mv other .git && mv third other");
    let said = String::from_utf8_lossy(&exchanged.stderr);
    assert_eq!((exchanged.status.code(), exchanged.stdout.len()), (Some(125), 0), "{said}");
    assert!(
        said.contains(".git` was exchanged while the sandbox was being built\nhint: "),
        "{said}"
    );
}
