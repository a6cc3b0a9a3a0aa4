//! Standard streams that are files outside the sandbox. The command uses them and can change only
//! their content.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output, Stdio};

use conformance::{Caller, Place, Ring, Stage};
use ringfence_test_ledger::require;

const RINGS: [Ring; 2] = [Ring::Native, Ring::Bwrap];

fn run_in(ring: Ring, place: &Place, script: &str) -> Command {
    let mut command = Stage { ring, caller: Caller::Root }.ringfence("run", place);
    command.args(["--", "python3", "-c", script]);
    command
}

fn outside(content: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file can be made");
    fs_err::write(&file, content).expect("it can be written");
    fs_err::set_permissions(file.path(), PermissionsExt::from_mode(0o640)).expect("it is ours");
    file
}

fn open(file: &tempfile::NamedTempFile) -> Stdio {
    fs_err::File::open(file.path()).expect("it can be read").into_parts().0.into()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Program that tries every way to change the file behind standard input, and prints the results.
const CHANGES: &str = "
import os, sys
def attempt(name, call):
    try: call(); print(name, 'succeeded')
    except OSError as error: print(name, error.strerror)
attempt('mode', lambda: os.fchmod(0, 0o777))
attempt('time', lambda: os.utime(0, (1, 1)))
attempt('truncate', lambda: os.truncate('/proc/self/fd/0', 1))
attempt('write', lambda: os.open('/proc/self/fd/0', os.O_RDWR))
attempt('attribute', lambda: os.setxattr(0, 'user.x', b'y'))
os.lseek(0, 0, os.SEEK_SET)
print(sys.stdin.read())
";

#[test]
fn a_file_that_is_read_from_cannot_be_changed() {
    require!(root, binary, user_namespaces, bwrap);
    let check = |ring| {
        let (place, file) = (Place::of(Caller::Root), outside("whole"));
        let output = run_in(ring, &place, CHANGES).stdin(open(&file)).output().expect("ringfence can be started");
        let mode = fs_err::metadata(file.path()).expect("it is there").mode() & 0o7777;
        (said(&output), mode, fs_err::read_to_string(file.path()).expect("it can be read"))
    };
    let (control, mode, content) = check(Ring::Local);
    assert!(control.starts_with("mode succeeded\ntime succeeded\ntruncate succeeded\nwrite succeeded\n"), "{control}");
    assert_eq!((mode, content.as_str()), (0o777, "w"));
    for ring in RINGS {
        let (output, mode, content) = check(ring);
        let expected = ["mode", "time", "truncate", "write", "attribute"];
        let expected = expected.map(|what| format!("{what} Read-only file system\n"));
        assert_eq!(output, format!("{}whole\n", expected.concat()), "{ring:?}");
        assert_eq!((mode, content.as_str()), (0o640, "whole"), "{ring:?}");
    }
}

#[test]
fn a_file_that_is_written_to_keeps_its_mode() {
    require!(root, binary, user_namespaces, bwrap);
    let script =
        "import os; os.fchmod(1, 0o777); os.write(1, b'one\\n'); os.write(2, b'two\\n'); os.write(1, b'three\\n')";
    let check = |ring| {
        let (place, file) = (Place::of(Caller::Root), outside("zero\n"));
        let append = || fs_err::OpenOptions::new().append(true).open(file.path()).expect("it can be opened");
        let stream = append().into_parts().0;
        let twin = stream.try_clone().expect("a descriptor can be copied");
        let status = run_in(ring, &place, script).stdout(stream).stderr(twin).status().expect("it can be started");
        assert!(status.success(), "{ring:?}");
        let mode = fs_err::metadata(file.path()).expect("it is there").mode() & 0o7777;
        (mode, fs_err::read_to_string(file.path()).expect("it can be read"))
    };
    let content = "zero\none\ntwo\nthree\n".to_owned();
    assert_eq!(check(Ring::Local), (0o777, content.clone()));
    for ring in RINGS {
        assert_eq!(check(ring), (0o640, content.clone()), "{ring:?}");
    }
}

#[test]
fn devices_of_the_host_keep_their_modes() {
    require!(root, binary, user_namespaces, bwrap);
    let script = "
import os
for name in [0, '/dev/null', '/dev/zero', '/dev/full', '/dev/random', '/dev/urandom', '/dev/tty']:
    try: os.chmod(name, 0o1666); print(name, 'succeeded')
    except OSError as error: print(name, error.strerror)
";
    // There is no control without a sandbox, because the devices are those of the machine.
    for ring in RINGS {
        let place = Place::of(Caller::Root);
        let output = run_in(ring, &place, script).stdin(Stdio::null()).output().expect("it can be started");
        assert_eq!(said(&output).matches("Read-only file system").count(), 7, "{ring:?}: {output:?}");
        for device in ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"] {
            let mode = fs_err::metadata(device).expect("it is there").mode();
            assert_eq!(mode & 0o1000, 0, "{ring:?}: {device} was changed");
        }
    }
}

#[test]
fn the_next_reader_goes_on_where_the_command_stopped() {
    require!(root, binary, user_namespaces);
    for (script, rest) in [("import os; os.read(0, 4)", "two\nthree\n"), ("pass", "one\ntwo\nthree\n")] {
        for ring in [Ring::Local, Ring::Native] {
            let (place, file) = (Place::of(Caller::Root), outside("one\ntwo\nthree\n"));
            let mut input = fs_err::File::open(file.path()).expect("it can be read").into_parts().0;
            let copy = input.try_clone().expect("a descriptor can be copied");
            assert!(run_in(ring, &place, script).stdin(copy).status().expect("it can be started").success());
            let mut left = String::new();
            std::io::Read::read_to_string(&mut input, &mut left).expect("it can be read");
            assert_eq!(left, rest, "{ring:?}: {script}");
        }
    }
}

#[test]
fn a_removed_file_is_read_to_its_end() {
    require!(root, binary, user_namespaces, bwrap);
    let content = "line\n".repeat(100_000);
    for ring in RINGS {
        let (place, file) = (Place::of(Caller::Root), outside(&content));
        let input = open(&file);
        file.close().expect("it can be removed");
        let script = "import sys; print(len(sys.stdin.read()))";
        let output = run_in(ring, &place, script).stdin(input).output().expect("it can be started");
        assert_eq!(said(&output), "500000\n", "{ring:?}: {output:?}");
    }
}
