//! Tests of the library as a program uses it: with real sandboxes, an asynchronous caller, and a
//! launcher that is another program.

#[cfg(test)]
mod code;
#[cfg(test)]
mod contexts;
#[cfg(test)]
mod ends;
#[cfg(test)]
mod sandboxes;
#[cfg(test)]
mod spare;
#[cfg(test)]
mod warm;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use ringfence::{Command, Engine, Host, Policy, RunError, Settings, Stream};
use ringfence_test_ledger::{eventually, is_running, require};
use tempfile::TempDir;

/// Returns an engine for a host with this home directory and, of the environment of the tests, only
/// `PATH`.
fn engine(directory: &Path) -> Engine {
    engine_with(directory, &[])
}

/// Returns an engine like [`engine`], with more variables.
fn engine_with(directory: &Path, more: &[(&str, &str)]) -> Engine {
    let mut variables: BTreeMap<OsString, OsString> =
        more.iter().map(|(name, value)| (name.into(), value.into())).collect();
    variables.insert("PATH".into(), std::env::var_os("PATH").unwrap_or_default());
    variables.insert("HOME".into(), directory.into());
    let host = Host::new(variables, directory.join("workspace"));
    Engine::new(Settings::new(host).with_launcher(ringfence_test_ledger::binary()))
        .expect("user namespaces work here")
}

/// Makes a home directory with a workspace in it.
fn place() -> TempDir {
    let home = TempDir::new_in("/var/tmp").expect("a temporary directory can be made");
    fs_err::create_dir(home.path().join("workspace")).expect("a directory can be made");
    home
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made")
}

#[test]
fn a_run_returns_its_output_its_exit_code_and_what_held() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    let command = Command::shell("echo out; echo err >&2; exit 3");
    let result = runtime().block_on(engine.run(&Policy::default(), &command)).expect("it runs");
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!((result.exit_code, result.signal, result.ok), (Some(3), None, false));
    assert_eq!(result.meta.backend.name(), "native");
    assert!(
        result.meta.held.values().all(|how| !how.starts_with("absent")),
        "{:?}",
        result.meta.held
    );
}

#[test]
fn output_can_be_read_as_it_comes() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    // The command waits for a file, which is made only after its first line was read.
    let command = Command::shell("echo first; while [ ! -e go ]; do :; done; echo second");
    runtime().block_on(async {
        let mut sandbox = engine.spawn(&Policy::default().time(Duration::from_secs(60)), &command);
        let chunk = sandbox.next().await.expect("there is a first chunk");
        assert_eq!((chunk.stream, chunk.bytes.as_slice()), (Stream::Stdout, b"first\n".as_slice()));
        fs_err::write(home.path().join("workspace/go"), "").expect("the workspace can be written");
        let chunk = sandbox.next().await.expect("there is a second chunk");
        assert_eq!(chunk.bytes, b"second\n");
        assert!(sandbox.next().await.is_none());
        let result = sandbox.wait().await.expect("it ended");
        assert_eq!(result.stdout, "first\nsecond\n");
    });
}

#[test]
fn dropping_the_future_ends_the_whole_tree() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    let marker = format!("7{}", std::process::id());
    let command = Command::shell(format!("setsid sleep {marker} & touch started; sleep {marker}"));
    runtime().block_on(async {
        let policy = Policy::default();
        let run = engine.run(&policy, &command);
        let started = home.path().join("workspace/started");
        let wait = tokio::task::spawn_blocking(move || eventually(|| started.exists()));
        tokio::select! {
            _ = run => panic!("it ended by itself"),
            started = wait => assert!(started.expect("the wait ended"), "it started"),
        }
    });
    assert!(eventually(|| !is_running(&marker)), "a process of the dropped run is still alive");
}

#[test]
fn a_deadline_ends_the_run_and_says_so() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    let marker = format!("8{}", std::process::id());
    let policy = Policy::default().time(Duration::from_millis(300));
    let command = Command::shell(format!("setsid sleep {marker} & sleep {marker}"));
    let result = runtime().block_on(engine.run(&policy, &command)).expect("it runs");
    assert!(result.timed_out && !result.ok, "{result:?}");
    assert!(eventually(|| !is_running(&marker)), "a process of the run outlived its deadline");
}

#[test]
fn many_runs_at_once_do_not_mix() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    runtime().block_on(async {
        let mut sandboxes: Vec<_> = (0..32)
            .map(|n| {
                engine.spawn(&Policy::default(), &Command::shell(format!("echo {n}; exit {n}")))
            })
            .collect();
        for (number, sandbox) in sandboxes.drain(..).enumerate() {
            let result = sandbox.wait().await.expect("it runs");
            assert_eq!(result.stdout, format!("{number}\n"));
            assert_eq!(result.exit_code, Some(number as i32));
        }
    });
}

#[test]
fn a_command_that_is_not_there_is_an_error_that_names_it() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    let error = runtime()
        .block_on(engine.run(&Policy::default(), &Command::new("no-such-command")))
        .unwrap_err();
    assert!(
        matches!(&error, RunError::NotFound { program, .. } if program == "no-such-command"),
        "{error:?}"
    );
}

#[test]
fn bubblewrap_runs_the_launchers_program_inside_and_not_the_callers() {
    require!(user_namespaces, binary, bwrap, landlock);
    let home = place();
    let engine = engine(home.path());
    let policy = Policy::default().backend(ringfence::Backend::Bwrap);
    let command = Command::shell("ls /proc/self/fd | wc -l; exit 3");
    let result = runtime().block_on(engine.run(&policy, &command)).expect("it runs");
    assert_eq!((result.exit_code, result.stderr.as_str()), (Some(3), ""), "{result:?}");
    assert_eq!(
        result.meta.held[&ringfence::Clause::Filesystem],
        "bubblewrap: mount namespace+landlock"
    );
    // These are its standard streams, and the directory that is being listed.
    assert_eq!(result.stdout.trim(), "4");
}

#[test]
fn a_workspace_that_is_a_home_is_refused_before_anything_runs() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    let policy = Policy::default().workspace(home.path());
    let error = runtime().block_on(engine.run(&policy, &Command::new("true"))).unwrap_err();
    assert!(matches!(error, RunError::Workspace(_)), "{error:?}");
}

#[test]
fn a_launcher_that_is_none_is_an_error_and_not_a_hang() {
    let home = place();
    let host = Host::new(BTreeMap::new(), home.path().join("workspace"));
    let error = Engine::new(Settings::new(host).with_launcher("/bin/true")).unwrap_err();
    assert!(ringfence::chain(&error).contains("serve_if_asked"), "{error:?}");
}
