//! Tests of sandboxes on backends that differ in what they share with the host. The same code must
//! work with a sandbox of this host and with one on another machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_test_ledger::{eventually, is_running, require};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    Backend, CommandInput, Engine, EventType, Exec, Host, PauseError, Policy, PtySize, Sandbox,
    SessionError, Settings, StartRequest, WatchDepth,
};

/// Backends of the tests: three whose sandboxes are processes of this host, and one whose sandboxes
/// are reached over TCP and share nothing with the host.
const BACKENDS: [Backend; 4] = [Backend::Native, Backend::Bwrap, Backend::Local, REMOTE];
pub(crate) const REMOTE: Backend = Backend::E2b;

/// Makes an engine for a host that has only `PATH` and a home directory.
pub(crate) fn engine(home: &Path) -> Engine {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let variables: BTreeMap<OsString, OsString> =
        [("PATH".into(), path), ("HOME".into(), home.into())].into();
    let host = Host::new(variables, home.join("workspace"));
    Engine::new(Settings::new(host).with_launcher(ringfence_test_ledger::binary())).unwrap()
}

/// Calls `used` with a sandbox of each backend, and checks that no sandbox leaves files.
fn on_each(used: impl AsyncFn(&Engine, Sandbox)) {
    on_backends(&BACKENDS, used);
}

fn on_backends(backends: &[Backend], used: impl AsyncFn(&Engine, Sandbox)) {
    let home = TempDir::new_in("/var/tmp").unwrap();
    fs_err::create_dir(home.path().join("workspace")).unwrap();
    let engine = engine(home.path());
    for backend in backends {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let started =
                engine.start(StartRequest::new(Policy::default().backend(*backend))).await;
            let sandbox = started.unwrap_or_else(|error| panic!("{backend}: {error:?}"));
            used(&engine, sandbox).await;
        });
    }
    let directories = home.path().join(".local/state/ringfence/sandboxes");
    assert!(eventually(|| fs_err::read_dir(&directories).unwrap().count() == 0));
}

#[test]
fn a_sandbox_keeps_files_and_processes_between_commands() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let first =
            sandbox.execute("echo kept > note; sleep 60 & echo $! > pid", None).await.unwrap();
        assert!(first.ok, "{first:?}");
        let second =
            sandbox.execute("cat note; kill -0 $(cat pid) && echo alive", None).await.unwrap();
        assert_eq!(second.stdout, "kept\nalive\n", "{second:?}");
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_command_returns_its_output_its_exit_code_and_what_held() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let result = sandbox.execute("echo out; echo err >&2; exit 3", None).await.unwrap();
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!((result.exit_code, result.ok, result.timed_out), (Some(3), false, false));
        assert_eq!(result.meta.backend, sandbox.manifest().backend);
        let held = sandbox.manifest().held.iter().map(|(clause, by)| (*clause, by.to_string()));
        assert_eq!(result.meta.held, held.collect());
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_deadline_ends_a_command_with_its_daemons_and_leaves_the_sandbox() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let marker = format!("71{}", std::process::id());
        let line = format!("setsid sh -c 'sleep {marker}' & sleep 60");
        let result = sandbox.execute(&line, Some(Duration::from_millis(500))).await.unwrap();
        assert!(result.timed_out && !result.ok, "{result:?}");
        assert!(eventually(|| !is_running(&marker)), "a daemon outlived its command");
        assert!(sandbox.execute("true", None).await.unwrap().ok);
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn stuck_commands_hold_up_no_other() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let stuck = [Exec::shell("sleep 60"), Exec::shell("yes")];
        let mut running = Vec::new();
        for exec in &stuck {
            running.push(sandbox.exec(exec).await.unwrap()); // nobody reads its output
        }
        let began = Instant::now();
        let many = (0..20).map(|number| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move {
                sandbox.execute(&format!("echo {number}"), None).await.unwrap().stdout
            })
        });
        for (number, task) in many.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), format!("{number}\n"));
        }
        assert!(began.elapsed() < Duration::from_secs(20));
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn files_go_in_and_out() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8).collect();
        let path = sandbox.manifest().workspace_inside.join("data");
        let path = path.to_str().unwrap();
        sandbox.files().write(path, bytes.clone()).await.unwrap();
        assert_eq!(sandbox.execute("wc -c < data", None).await.unwrap().stdout.trim(), "1000000");
        assert_eq!(sandbox.files().read(path, 1 << 21).await.unwrap(), bytes);
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn directories_are_listed_renamed_watched_and_removed() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let inside = sandbox.manifest().workspace_inside.join("made");
        let made = inside.to_str().unwrap();
        let files = sandbox.files();
        files.make_directory(made).await.unwrap();
        let mut watch = files.watch(made, WatchDepth::Directory).await.unwrap();
        files.write(&format!("{made}/one"), b"1".to_vec()).await.unwrap();
        let event = watch.next().await.unwrap().unwrap();
        assert_eq!((event.name.as_str(), event.kind), ("one", EventType::Create));
        files.rename(&format!("{made}/one"), &format!("{made}/two")).await.unwrap();
        let listed = files.list(made, 1).await.unwrap();
        assert_eq!(listed.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["two"]);
        assert_eq!(files.stat(&format!("{made}/two")).await.unwrap().size, 1);
        files.remove(made).await.unwrap();
        assert!(files.stat(made).await.is_err());
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn trees_are_copied_in_and_out() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let outside = TempDir::new_in("/var/tmp").unwrap();
        let source = outside.path().join("source");
        fs_err::create_dir_all(source.join("deep/er")).unwrap();
        fs_err::write(source.join("deep/er/file"), "content").unwrap();
        let inside = sandbox.manifest().workspace_inside.join("copy");
        let inside = inside.to_str().unwrap();
        sandbox.files().upload(&source, inside, |_| ()).await.unwrap();
        let line = "cat copy/deep/er/file; rm copy/deep/er/file; echo back > copy/new";
        assert_eq!(sandbox.execute(line, None).await.unwrap().stdout, "content");
        let back = outside.path().join("back");
        sandbox.files().download(inside, &back, |_| ()).await.unwrap();
        assert_eq!(fs_err::read_to_string(back.join("new")).unwrap(), "back\n");
        assert!(back.join("deep/er").is_dir() && !back.join("deep/er/file").exists());
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_command_reads_its_input_and_has_its_own_variables_and_directory() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let exec = Exec::shell("pwd; echo $ASKED; cat").directory("/tmp").variable("ASKED", "yes");
        let execution = sandbox.exec(&exec.input(CommandInput::Piped)).await.unwrap();
        let input = execution.input();
        input.write(b"typed").await.unwrap();
        input.close().await.unwrap();
        let captured = execution.capture(1 << 20).await.unwrap();
        assert_eq!(captured.stdout, "/tmp\nyes\ntyped");
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_terminal_has_a_size_that_can_be_changed() {
    require!(user_namespaces, bwrap, binary, pseudo_terminals);
    on_each(async |_, sandbox| {
        let exec =
            Exec::shell("stty size; read line; stty size").terminal(PtySize { cols: 91, rows: 17 });
        let mut execution = sandbox.exec(&exec).await.unwrap();
        let input = execution.input();
        let mut seen = String::new();
        while !seen.contains("17 91") {
            let chunk = execution.next().await.expect("the shell waits for a line").unwrap();
            seen.push_str(&String::from_utf8_lossy(&chunk.bytes));
        }
        input.resize(PtySize { cols: 120, rows: 40 }).await.unwrap();
        input.write(b"go\n").await.unwrap();
        while let Some(chunk) = execution.next().await {
            seen.push_str(&String::from_utf8_lossy(&chunk.unwrap().bytes));
        }
        assert!(seen.contains("40 120"), "{seen}");
        assert!(execution.wait().await.unwrap().ok());
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn ports_of_a_sandbox_are_reached_and_closed_ports_are_reported() {
    require!(user_namespaces, bwrap, binary, python3);
    const SERVER: &str = "import socket\n\
        server = socket.create_server(('127.0.0.1', 0))\n\
        print(server.getsockname()[1], flush=True)\n\
        caller, _ = server.accept()\n\
        caller.sendall(caller.recv(100).upper())";
    on_each(async |_, sandbox| {
        let exec = Exec::new("python3").arguments(["-c", SERVER]);
        let mut server = sandbox.exec(&exec).await.unwrap();
        let line = server.next().await.expect("the server tells its port").unwrap();
        let port = String::from_utf8_lossy(&line.bytes).trim().parse().unwrap();
        let mut stream = sandbox.connect_own_port(port).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "HELLO");
        server.wait().await.unwrap();
        let closed = sandbox.connect_own_port(port).await.err();
        assert!(matches!(closed, Some(SessionError::PortClosed { .. })), "{closed:?}");
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn another_process_attaches_by_name() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |engine, sandbox| {
        let host = &engine.settings().host;
        let same = Sandbox::attach(host, sandbox.manifest().name.as_str()).await.unwrap();
        assert_eq!(same.execute("echo same", None).await.unwrap().stdout, "same\n");
        assert!(same.is_up());
        sandbox.stop().await.unwrap();
        assert!(!same.is_up());
    });
}

#[test]
fn a_sandbox_on_another_machine_shares_no_file_with_the_host() {
    require!(user_namespaces, binary);
    for (backend, sees_changes) in [(REMOTE, false), (Backend::Native, true)] {
        on_backends(&[backend], async |engine, sandbox| {
            let workspace = &engine.settings().host.directory;
            fs_err::write(workspace.join("of-the-host"), "").unwrap();
            let listed = sandbox.execute("ls; echo made > here", None).await.unwrap();
            assert_eq!(listed.stdout == "of-the-host\n", sees_changes, "{listed:?}");
            assert_eq!(workspace.join("here").exists(), sees_changes);
            let synced = sandbox.sync().await;
            assert_eq!(synced.is_ok(), !sees_changes, "{synced:?}");
            assert!(workspace.join("here").exists());
            sandbox.stop().await.unwrap();
        });
    }
}

#[test]
fn a_guest_on_another_machine_wants_its_token() {
    require!(user_namespaces, binary);
    on_backends(&[REMOTE], async |engine, sandbox| {
        let state = engine.settings().host.state_directory().unwrap();
        let name = sandbox.manifest().name.as_str();
        let endpoint = state.join("sandboxes").join(name).join("endpoint.json");
        let text = fs_err::read_to_string(&endpoint).unwrap();
        let mut changed: serde_json::Value = serde_json::from_str(&text).unwrap();
        changed["token"] = "guessed".into();
        fs_err::write(&endpoint, changed.to_string()).unwrap();
        let stranger = Sandbox::attach(&engine.settings().host, name).await.unwrap();
        let refused = stranger.session().processes().await.unwrap_err();
        assert!(matches!(refused, SessionError::Refused { .. }), "{refused:?}");
        sandbox.session().processes().await.unwrap();
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_facet_that_a_backend_lacks_is_refused_by_name() {
    require!(user_namespaces, binary);
    on_backends(&[REMOTE], async |_, sandbox| {
        let refused = sandbox.pause().await.unwrap_err();
        assert!(matches!(refused, PauseError::Unsupported { .. }), "{refused:?}");
        assert_eq!(Sandbox::footprints([&sandbox]), [None]);
        assert!(sandbox.execute("true", None).await.unwrap().meta.planted.is_empty());
        sandbox.stop().await.unwrap();
    });
}
