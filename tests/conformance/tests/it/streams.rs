//! Standard streams that are files outside the sandbox. The command uses them and can change only
//! their content.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory};
use ringfence_test_ledger::require;

const VARIANTS: [BackendVariant; 2] = [BackendVariant::Native, BackendVariant::Bwrap];
/// The control without a sandbox, and the variants.
const ALL: [BackendVariant; 3] =
    [BackendVariant::Local, BackendVariant::Native, BackendVariant::Bwrap];
/// Time within which every run of these tests ends, even on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn run_in(variant: BackendVariant, place: &CallerDirectory, script: &str) -> Command {
    let mut command = BackendSetup { variant, caller: Caller::Root }.ringfence("run", place);
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
    let check = |variant| {
        let (place, file) = (CallerDirectory::for_caller(Caller::Root), outside("whole"));
        let output = run_in(variant, &place, CHANGES)
            .stdin(open(&file))
            .output()
            .expect("ringfence can be started");
        let mode = fs_err::metadata(file.path()).expect("it is there").mode() & 0o7777;
        (said(&output), mode, fs_err::read_to_string(file.path()).expect("it can be read"))
    };
    let (control, mode, content) = check(BackendVariant::Local);
    assert!(
        control
            .starts_with("mode succeeded\ntime succeeded\ntruncate succeeded\nwrite succeeded\n"),
        "{control}"
    );
    assert_eq!((mode, content.as_str()), (0o777, "w"));
    for variant in VARIANTS {
        let (output, mode, content) = check(variant);
        let expected = ["mode", "time", "truncate", "write", "attribute"];
        let expected = expected.map(|what| format!("{what} Read-only file system\n"));
        assert_eq!(output, format!("{}whole\n", expected.concat()), "{variant:?}");
        assert_eq!((mode, content.as_str()), (0o640, "whole"), "{variant:?}");
    }
}

#[test]
fn a_file_that_is_written_to_keeps_its_mode() {
    require!(root, binary, user_namespaces, bwrap);
    let script = "import os; os.fchmod(1, 0o777); os.write(1, b'one\\n'); os.write(2, b'two\\n'); \
                  os.write(1, b'three\\n')";
    let check = |variant| {
        let (place, file) = (CallerDirectory::for_caller(Caller::Root), outside("zero\n"));
        let append =
            || fs_err::OpenOptions::new().append(true).open(file.path()).expect("it can be opened");
        let stream = append().into_parts().0;
        let twin = stream.try_clone().expect("a descriptor can be copied");
        let status = run_in(variant, &place, script)
            .stdout(stream)
            .stderr(twin)
            .status()
            .expect("it can be started");
        assert!(status.success(), "{variant:?}");
        let mode = fs_err::metadata(file.path()).expect("it is there").mode() & 0o7777;
        (mode, fs_err::read_to_string(file.path()).expect("it can be read"))
    };
    let content = "zero\none\ntwo\nthree\n".to_owned();
    assert_eq!(check(BackendVariant::Local), (0o777, content.clone()));
    for variant in VARIANTS {
        assert_eq!(check(variant), (0o640, content.clone()), "{variant:?}");
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
    for variant in VARIANTS {
        let place = CallerDirectory::for_caller(Caller::Root);
        let output = run_in(variant, &place, script)
            .stdin(Stdio::null())
            .output()
            .expect("it can be started");
        assert_eq!(
            said(&output).matches("Read-only file system").count(),
            7,
            "{variant:?}: {output:?}"
        );
        for device in
            ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"]
        {
            let mode = fs_err::metadata(device).expect("it is there").mode();
            assert_eq!(mode & 0o1000, 0, "{variant:?}: {device} was changed");
        }
    }
}

#[test]
fn the_next_reader_continues_where_the_command_stopped() {
    require!(root, binary, user_namespaces);
    for (script, rest) in
        [("import os; os.read(0, 4)", "two\nthree\n"), ("pass", "one\ntwo\nthree\n")]
    {
        for variant in [BackendVariant::Local, BackendVariant::Native] {
            let (place, file) =
                (CallerDirectory::for_caller(Caller::Root), outside("one\ntwo\nthree\n"));
            let mut input = fs_err::File::open(file.path()).expect("it can be read").into_parts().0;
            let copy = input.try_clone().expect("a descriptor can be copied");
            assert!(
                run_in(variant, &place, script)
                    .stdin(copy)
                    .status()
                    .expect("it can be started")
                    .success()
            );
            let mut left = String::new();
            std::io::Read::read_to_string(&mut input, &mut left).expect("it can be read");
            assert_eq!(left, rest, "{variant:?}: {script}");
        }
    }
}

#[test]
fn a_removed_file_is_read_to_its_end() {
    require!(root, binary, user_namespaces, bwrap);
    let content = "line\n".repeat(100_000);
    for variant in VARIANTS {
        let (place, file) = (CallerDirectory::for_caller(Caller::Root), outside(&content));
        let input = open(&file);
        file.close().expect("it can be removed");
        let script = "import sys; print(len(sys.stdin.read()))";
        let output =
            run_in(variant, &place, script).stdin(input).output().expect("it can be started");
        assert_eq!(said(&output), "500000\n", "{variant:?}: {output:?}");
    }
}

/// Waits for a run, and fails if a defect of the relays keeps the run from ending.
fn finished(child: Child) -> Output {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    receiver.recv_timeout(TIMEOUT).expect("it ends in time").expect("it can be waited for")
}

fn start(command: &mut Command) -> Child {
    command.stderr(Stdio::piped()).spawn().expect("ringfence can be started")
}

/// Named pipe outside every sandbox.
struct NamedPipe {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl NamedPipe {
    fn new() -> NamedPipe {
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory can be made");
        let path = directory.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("a named pipe can be made");
        NamedPipe { _directory: directory, path }
    }

    /// Opens both ends in one descriptor, so that no open waits for the other side.
    fn both(&self) -> File {
        open_both(&self.path)
    }

    fn reader(&self) -> File {
        fs_err::File::open(&self.path).expect("it can be read").into_parts().0
    }

    fn writer(&self) -> File {
        fs_err::OpenOptions::new()
            .write(true)
            .open(&self.path)
            .expect("it can be written")
            .into_parts()
            .0
    }

    /// Opens a writing end that does not block.
    fn nonblocking_writer(&self) -> File {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::open(&self.path, flags, rustix::fs::Mode::empty())
            .expect("it can be written")
            .into()
    }
}

fn open_both(path: &Path) -> File {
    fs_err::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("it can be opened")
        .into_parts()
        .0
}

#[test]
fn a_file_in_a_directory_of_read_inside_the_workspace_cannot_be_changed() {
    require!(root, binary, user_namespaces, bwrap);
    let check = |variant, access: &[&str]| {
        let place = CallerDirectory::for_caller(Caller::Root);
        let directory = fs_err::canonicalize(place.path()).expect("it is there").join("fixed");
        fs_err::create_dir(&directory).expect("a directory can be made");
        let file = directory.join("file");
        fs_err::write(&file, "whole").expect("it can be written");
        fs_err::set_permissions(&file, PermissionsExt::from_mode(0o640)).expect("it is ours");
        let mut command = BackendSetup { variant, caller: Caller::Root }.ringfence("run", &place);
        command.args(
            access
                .iter()
                .map(|word| word.replace("FIXED", directory.to_str().expect("it is text"))),
        );
        command.args(["--", "python3", "-c", CHANGES]).stdout(Stdio::piped());
        let input = fs_err::File::open(&file).expect("it can be read").into_parts().0;
        let output = finished(start(command.stdin(input)));
        let mode = fs_err::metadata(&file).expect("it is there").mode() & 0o7777;
        (said(&output), mode, fs_err::read_to_string(&file).expect("it can be read"))
    };
    let changed = (0o777, "w".to_owned());
    let (_, mode, content) = check(BackendVariant::Local, &[]);
    assert_eq!((mode, content), changed);
    for variant in VARIANTS {
        let (_, mode, content) = check(variant, &[]);
        assert_eq!(
            (mode, content),
            changed,
            "{variant:?}: a file of the workspace is handed over as it is"
        );
        let (output, mode, content) = check(variant, &["--read", "FIXED"]);
        assert_eq!(output.matches("Read-only file system").count(), 5, "{variant:?}: {output}");
        assert_eq!((mode, content.as_str()), (0o640, "whole"), "{variant:?}");
    }
}

#[test]
fn a_terminal_on_any_stream_keeps_its_mode() {
    require!(root, binary, user_namespaces, bwrap);
    let check = |variant, number: usize| {
        let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
        let controller = rustix::pty::openpt(flags).expect("a terminal can be made");
        rustix::pty::grantpt(&controller).expect("it is ours");
        rustix::pty::unlockpt(&controller).expect("it is ours");
        let name = rustix::pty::ptsname(&controller, Vec::new()).expect("it has a name");
        let name = PathBuf::from(name.into_string().expect("it is text"));
        fs_err::set_permissions(&name, PermissionsExt::from_mode(0o600)).expect("it is ours");
        let terminal = || {
            let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
            Stdio::from(
                rustix::fs::open(&name, flags, rustix::fs::Mode::empty())
                    .expect("it can be opened"),
            )
        };
        let script = format!(
            "import os\ntry: os.fchmod({number}, 0o666); said = 'succeeded'\n\
             except OSError as error: said = error.strerror\n\
             open('said', 'w').write(f'{{os.isatty({number})}} {{said}}')"
        );
        let place = CallerDirectory::for_caller(Caller::Root);
        let mut command = run_in(variant, &place, &script);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match number {
            0 => command.stdin(terminal()),
            1 => command.stdout(terminal()),
            _ => command.stderr(terminal()),
        };
        let output = finished(command.spawn().expect("ringfence can be started"));
        assert!(output.status.success(), "{variant:?}, descriptor {number}: {output:?}");
        let said = fs_err::read_to_string(place.path().join("said")).expect("the command wrote it");
        (said, fs_err::metadata(&name).expect("it is there").mode() & 0o777)
    };
    for number in 0..3 {
        assert_eq!(check(BackendVariant::Local, number), ("True succeeded".to_owned(), 0o666));
        for variant in VARIANTS {
            let expected = ("True Read-only file system".to_owned(), 0o600);
            assert_eq!(check(variant, number), expected, "{variant:?}, descriptor {number}");
        }
    }
}

#[test]
fn a_device_that_no_sandbox_has_keeps_its_mode() {
    require!(root, binary, user_namespaces, bwrap);
    let place = CallerDirectory::for_caller(Caller::Root);
    let device = tempfile::tempdir_in("/var/tmp").expect("a directory can be made");
    let device = device.path().join("kmsg");
    let make = Command::new("mknod").arg(&device).args(["-m", "600", "c", "1", "11"]).status();
    assert!(make.expect("mknod can be started").success());
    let check = |variant| {
        let script = "import os; os.fchmod(1, 0o666)";
        let output = fs_err::OpenOptions::new()
            .write(true)
            .open(&device)
            .expect("it can be opened")
            .into_parts()
            .0;
        let child = run_in(variant, &place, script)
            .stdout(output)
            .spawn()
            .expect("ringfence can be started");
        assert!(finished(child).status.success(), "{variant:?}");
        fs_err::metadata(&device).expect("it is there").mode() & 0o777
    };
    for variant in VARIANTS {
        assert_eq!(check(variant), 0o600, "{variant:?}");
    }
    assert_eq!(check(BackendVariant::Local), 0o666);
}

#[test]
fn all_bytes_of_a_named_pipe_reach_the_command() {
    require!(root, binary, user_namespaces, bwrap);
    let script = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())";
    let content: Vec<u8> =
        (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let check = |variant| {
        let (place, pipe) = (CallerDirectory::for_caller(Caller::Root), NamedPipe::new());
        let both = pipe.both();
        let mut writer = pipe.writer();
        let child =
            start(run_in(variant, &place, script).stdin(pipe.reader()).stdout(Stdio::piped()));
        drop(both);
        let content = content.clone();
        let written = thread::spawn(move || writer.write_all(&content));
        let output = finished(child);
        assert!(output.status.success(), "{variant:?}: {output:?}");
        written.join().expect("it does not panic").expect("all is taken");
        said(&output)
    };
    let control = check(BackendVariant::Local);
    assert_eq!(control.len(), 65);
    for variant in VARIANTS {
        assert_eq!(check(variant), control, "{variant:?}");
    }
}

#[test]
fn all_bytes_of_a_command_reach_a_named_pipe_that_does_not_block() {
    require!(root, binary, user_namespaces, bwrap);
    let script = "
import hashlib, os
content = bytes(number * 7919 % 251 for number in range(1_000_000))
while content:
    try: content = content[os.write(1, content):]
    except BlockingIOError: pass
";
    let check = |variant| {
        let (place, pipe) = (CallerDirectory::for_caller(Caller::Root), NamedPipe::new());
        let both = pipe.both();
        let (mut reader, writer) = (pipe.reader(), pipe.nonblocking_writer());
        let child = start(run_in(variant, &place, script).stdout(writer));
        drop(both);
        let reading = thread::spawn(move || {
            let mut content = Vec::new();
            reader.read_to_end(&mut content).map(|_| content)
        });
        let output = finished(child);
        assert!(output.status.success(), "{variant:?}: {output:?}");
        reading.join().expect("it does not panic").expect("it can be read")
    };
    let control = check(BackendVariant::Local);
    assert_eq!(control.len(), 1_000_000);
    for variant in VARIANTS {
        assert!(check(variant) == control, "{variant:?}: other bytes arrived");
    }
}

#[test]
fn an_idle_named_pipe_does_not_delay_a_run() {
    require!(root, binary, user_namespaces, bwrap);
    let wait = "import sys; sys.stdin.read()";
    let flood = "import os\nwhile True: os.write(1, bytes(65536))";
    for variant in ALL {
        for (script, code) in [("pass", 0), (wait, 124), (flood, 124)] {
            let (place, input, output) =
                (CallerDirectory::for_caller(Caller::Root), NamedPipe::new(), NamedPipe::new());
            let mut command =
                BackendSetup { variant, caller: Caller::Root }.ringfence("run", &place);
            command.args(["--time", "1s", "--", "python3", "-c", script]);
            let (idle_input, idle_output) = (input.both(), output.both());
            let ended = finished(start(command.stdin(input.reader()).stdout(output.writer())));
            // A busy machine may need longer than the time limit to start a command that does
            // nothing.
            let is_late = code == 0 && ended.status.code() == Some(124);
            assert!(
                is_late || ended.status.code() == Some(code),
                "{variant:?} {script}: {ended:?}"
            );
            drop((idle_input, idle_output));
        }
    }
}

#[test]
fn a_dialogue_over_named_pipes_is_answered_and_a_signal_ends_it() {
    require!(root, binary, user_namespaces, bwrap);
    for variant in ALL {
        let (place, questions, answers) =
            (CallerDirectory::for_caller(Caller::Root), NamedPipe::new(), NamedPipe::new());
        let (mut question, mut answer) = (questions.both(), answers.both());
        let script = "import os\nwhile True: os.write(1, os.read(0, 4096).upper())";
        let child = start(
            run_in(variant, &place, script).stdin(questions.reader()).stdout(answers.writer()),
        );
        question.write_all(b"one\n").expect("it can be written");
        let answered = thread::spawn(move || {
            let mut line = [0; 4];
            answer.read_exact(&mut line).map(|()| line)
        });
        let begun = Instant::now();
        while !answered.is_finished() && begun.elapsed() < TIMEOUT {
            thread::yield_now();
        }
        assert!(answered.is_finished(), "{variant:?}: no answer came");
        assert_eq!(
            &answered.join().expect("it does not panic").expect("it can be read"),
            b"ONE\n",
            "{variant:?}"
        );
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let status = finished(child).status;
        assert!(
            status.code() == Some(143) || status.signal() == Some(15),
            "{variant:?}: {status:?}"
        );
    }
}

#[test]
fn a_command_whose_reader_has_gone_gets_the_signal_of_a_closed_pipe() {
    require!(root, binary, user_namespaces, bwrap);
    let script = "
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
while True: os.write(1, bytes(65536))
";
    for variant in ALL {
        let (place, pipe) = (CallerDirectory::for_caller(Caller::Root), NamedPipe::new());
        let both = pipe.both();
        let child = start(run_in(variant, &place, script).stdout(pipe.writer()));
        drop(both);
        let output = finished(child);
        assert_eq!(output.status.code(), Some(141), "{variant:?}: {output:?}");
    }
}

#[test]
fn the_next_reader_gets_exactly_what_the_command_left() {
    require!(root, binary, user_namespaces, bwrap);
    let content = "line\n".repeat(40_000);
    let scripts = [
        ("pass", 0),
        ("import os; os.read(0, 1000)", 1000),
        ("import sys; sys.stdin.read()", content.len()),
        ("import os; os.read(0, 10); os.close(0)", 10),
    ];
    for (script, read) in scripts {
        for variant in ALL {
            for is_removed in [false, true] {
                let (place, file) = (CallerDirectory::for_caller(Caller::Root), outside(&content));
                let mut input = open_both(file.path());
                if is_removed {
                    file.close().expect("it can be removed");
                }
                let copy = input.try_clone().expect("a descriptor can be copied");
                let output = finished(start(run_in(variant, &place, script).stdin(copy)));
                assert!(output.status.success(), "{variant:?}: {output:?}");
                let mut left = String::new();
                input.read_to_string(&mut left).expect("it can be read");
                assert_eq!(
                    left.len(),
                    content.len() - read,
                    "{variant:?}, removed {is_removed}: {script}"
                );
            }
        }
    }
}

#[test]
fn a_file_that_is_read_and_written_through_one_description_keeps_the_order() {
    require!(root, binary, user_namespaces, bwrap);
    for variant in ALL {
        let (place, file) = (CallerDirectory::for_caller(Caller::Root), outside("abc\n"));
        let input = open_both(file.path());
        let copy = input.try_clone().expect("a descriptor can be copied");
        let script = "import os; os.write(1, os.read(0, 4) * 2)";
        let output = finished(start(run_in(variant, &place, script).stdin(input).stdout(copy)));
        assert!(output.status.success(), "{variant:?}: {output:?}");
        let content = fs_err::read_to_string(file.path()).expect("it can be read");
        assert_eq!(content, "abc\nabc\nabc\n", "{variant:?}");
    }
}

#[test]
fn a_hidden_file_that_the_caller_redirects_is_read_and_has_no_name() {
    require!(root, binary, user_namespaces, bwrap);
    let script = "
import os, sys
print(sys.stdin.read())
for name in ['.env', '/proc/self/fd/0']:
    try: print(name, 'has', len(open(name).read()))
    except OSError as error: print(name, error.strerror)
";
    let check = |variant, hide: &[&str]| {
        let place = CallerDirectory::for_caller(Caller::Root);
        let file = place.path().join(".env");
        fs_err::write(&file, "secret").expect("it can be written");
        let mut command = BackendSetup { variant, caller: Caller::Root }.ringfence("run", &place);
        command.args(hide).args(["--", "python3", "-c", script]).stdout(Stdio::piped());
        let input = fs_err::File::open(&file).expect("it can be read").into_parts().0;
        said(&finished(start(command.stdin(input))))
    };
    assert_eq!(check(BackendVariant::Local, &[]), "secret\n.env has 6\n/proc/self/fd/0 has 6\n");
    for variant in VARIANTS {
        let output = check(variant, &["--hide", ".env"]);
        assert_eq!(
            output, "secret\n.env Permission denied\n/proc/self/fd/0 has 0\n",
            "{variant:?}"
        );
    }
}

#[test]
fn a_full_output_is_reported_to_the_command_and_by_the_run() {
    require!(root, binary, user_namespaces, bwrap);
    let script = "
import os
try:
    while True: os.write(1, bytes(65536))
except OSError as error: open('said', 'w').write(error.strerror)
";
    let check = |variant| {
        let (place, disk) = (
            CallerDirectory::for_caller(Caller::Root),
            tempfile::tempdir().expect("a directory can be made"),
        );
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256k", "none"])
            .arg(disk.path())
            .status();
        assert!(mount.expect("mount can be started").success());
        let file = fs_err::File::create(disk.path().join("log")).map(|file| file.into_parts().0);
        let unmount = Command::new("umount").arg("-l").arg(disk.path()).status();
        assert!(unmount.expect("umount can be started").success());
        let child =
            start(run_in(variant, &place, script).stdout(file.expect("a file can be made")));
        let output = finished(child);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let said = fs_err::read_to_string(place.path().join("said")).expect("the command wrote it");
        (said, output.status.code(), told)
    };
    let (said, code, _) = check(BackendVariant::Local);
    assert_eq!((said.as_str(), code), ("No space left on device", Some(0)));
    for variant in VARIANTS {
        let (said, code, told) = check(variant);
        assert_eq!((said.as_str(), code), ("Broken pipe", Some(125)), "{variant:?}: {told}");
        let expected = "cannot copy the standard output of the command: No space left on device";
        assert!(told.contains(expected), "{variant:?}: {told}");
    }
}
