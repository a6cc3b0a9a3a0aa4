//! Tests of sandboxes that stay, on every backend, and in containers.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use ringfence::policy::Size;
use ringfence::{
    AttachError, Backend, Clause, ContainerSpec, Engine, Exec, Existing, Policy, Pull, Sandbox,
    StartError, StartRequest,
};
use ringfence_test_ledger::engine::{DOCKER_VARIABLE, PODMAN_VARIABLE, TINY_IMAGE};
use ringfence_test_ledger::require;

use crate::{engine, engine_with, eventually, is_running, place, runtime};

fn spec(backend: Backend) -> StartRequest {
    StartRequest::new(Policy::default().backend(backend))
}

/// Calls `used` with a sandbox of each backend whose processes are ours.
fn on_each(used: impl AsyncFn(&Engine, Sandbox)) {
    let home = place();
    let engine = engine(home.path());
    for backend in [Backend::Native, Backend::Bwrap, Backend::Local] {
        runtime().block_on(async {
            let sandbox = engine
                .start(spec(backend))
                .await
                .unwrap_or_else(|error| panic!("{backend}: {error:?}"));
            used(&engine, sandbox).await;
        });
    }
    let left = fs_err::read_dir(home.path().join(".local/state/ringfence/sandboxes")).unwrap();
    assert!(eventually(|| left_in(home.path()) == 0), "{:?}", left.flatten().collect::<Vec<_>>());
}

fn left_in(home: &std::path::Path) -> usize {
    fs_err::read_dir(home.join(".local/state/ringfence/sandboxes")).unwrap().count()
}

#[test]
fn dropping_the_last_copy_ends_a_sandbox() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let marker = format!("72{}", std::process::id());
        let running = sandbox.exec(&Exec::shell(format!("sleep {marker}"))).await.unwrap();
        assert!(eventually(|| is_running(&marker)));
        let copy = sandbox.clone();
        drop(sandbox);
        assert!(copy.execute("true", None).await.unwrap().ok);
        drop((copy, running.detach()));
        assert!(eventually(|| !is_running(&marker)), "it is still there");
    });
}

#[test]
fn a_sandbox_is_found_by_name_and_used_again_when_it_is_the_same() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    runtime().block_on(async {
        let named = spec(Backend::Native).name("one");
        let sandbox = engine.start(named.clone()).await.unwrap();
        let host = &engine.settings().host;
        let attached = Sandbox::attach(host, "one").await.unwrap();
        attached.execute("echo there > /tmp/mark", None).await.unwrap();
        let again = engine.start(named.clone()).await.unwrap();
        assert_eq!(again.execute("cat /tmp/mark", None).await.unwrap().stdout, "there\n");

        let refused = engine
            .start(StartRequest { existing: Existing::Refuse, ..named.clone() })
            .await
            .unwrap_err();
        assert!(matches!(refused, StartError::Directory(_)), "{refused:?}");
        let other =
            StartRequest { policy: named.policy.clone().set_env("A", "1"), ..named.clone() };
        let different = engine.start(other).await.unwrap_err();
        assert!(matches!(different, StartError::Different { .. }), "{different:?}");
        assert!(different.hints()[0].contains("--replace"));

        // Only the program that started the sandbox can end it.
        let stopped = attached.stop().await.unwrap_err();
        assert!(matches!(stopped, AttachError::Stop(_)), "{stopped:?}");
        drop((again, sandbox));
        assert!(eventually(|| left_in(home.path()) == 0));
        assert!(Sandbox::attach(host, "one").await.is_err());
    });
}

#[test]
fn a_command_that_the_memory_limit_ended_says_so_and_others_do_not() {
    require!(user_namespaces, bwrap, cgroup_limits, binary);
    let home = place();
    let engine = engine(home.path());
    runtime().block_on(async {
        for backend in [Backend::Native, Backend::Bwrap] {
            let limited = StartRequest::new(
                Policy::default()
                    .backend(backend)
                    .memory(Size::mebibytes(64))
                    .allow_weaker(Clause::Memory),
            );
            // tail(1) keeps a line without an end in memory.
            let greedy = "head -c 150000000 /dev/zero | tail -n 1 | wc -c";
            let sandbox = engine.start(limited).await.unwrap();
            let ended = sandbox.execute(greedy, None).await.unwrap();
            assert!(ended.oom_killed, "{backend}: {ended:?}");
            let after = sandbox.execute("true", None).await.unwrap();
            assert!(after.ok && !after.oom_killed, "{backend}: {after:?}");
            // Another process sees the same through the same files.
            let attached =
                Sandbox::attach(&engine.settings().host, sandbox.manifest().name.as_str())
                    .await
                    .unwrap();
            assert!(attached.execute(greedy, None).await.unwrap().oom_killed, "{backend}");
            sandbox.stop().await.unwrap();

            let free = engine.start(spec(backend)).await.unwrap();
            let ended = free.execute(greedy, None).await.unwrap();
            assert!(
                ended.ok && !ended.oom_killed && ended.stdout.trim() == "150000000",
                "{backend}: {ended:?}"
            );
            free.stop().await.unwrap();
        }
    });
}

#[test]
fn a_protected_path_that_a_sandbox_makes_is_in_every_later_result() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        let before = sandbox.execute("true", None).await.unwrap();
        assert_eq!(before.meta.planted, [""; 0]);
        let made = sandbox.execute("mkdir -p .git/hooks", None).await.unwrap();
        assert_eq!(made.meta.planted, [".git/hooks"]);
        assert_eq!(sandbox.execute("true", None).await.unwrap().meta.planted, [".git/hooks"]);
        let undone = sandbox.execute("rm -r .git", None).await.unwrap();
        assert_eq!(undone.meta.planted, [""; 0]);
        sandbox.stop().await.unwrap();
    });
}

/// A command that counts in a file as fast as it can.
const COUNTS: &str = "i=0; while :; do i=$((i + 1)); echo $i > count; done";

/// Reads on the host the number to which the command has counted.
fn counted(sandbox: &Sandbox) -> u64 {
    let text =
        fs_err::read_to_string(sandbox.manifest().workspace.join("count")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// Checks that the processes of a sandbox stop when it is paused, and continue when it is resumed.
async fn rests(sandbox: &Sandbox) {
    let backend = sandbox.manifest().backend;
    let counting = sandbox.exec(&Exec::shell(COUNTS)).await.unwrap();
    let goes_on = |from: u64| eventually(|| counted(sandbox) > from);
    assert!(goes_on(0), "{backend}: it does not run");
    sandbox.pause().await.unwrap_or_else(|error| panic!("{backend}: {error:?}"));
    sandbox.pause().await.unwrap();
    assert!(sandbox.is_paused());
    let used = || Sandbox::footprints([sandbox])[0].expect("it is seen from here").processor_time;
    let (count, before) = (counted(sandbox), used());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(counted(sandbox), count, "{backend}: it runs");
    assert!(used() < before + Duration::from_millis(50), "{backend}: it uses time");
    sandbox.resume().await.unwrap_or_else(|error| panic!("{backend}: {error:?}"));
    sandbox.resume().await.unwrap();
    assert!(!sandbox.is_paused());
    assert!(goes_on(count), "{backend}: it does not go on");
    assert_eq!(sandbox.execute("echo here", None).await.unwrap().stdout, "here\n");
    drop(counting);
}

#[test]
fn a_paused_sandbox_runs_nothing_and_goes_on_where_it_was() {
    require!(user_namespaces, bwrap, binary);
    on_each(async |_, sandbox| {
        rests(&sandbox).await;
        sandbox.pause().await.unwrap();
        // A paused sandbox can be stopped like any other.
        sandbox.stop().await.unwrap();
    });
}

#[test]
fn a_lease_ends_a_sandbox() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    runtime().block_on(async {
        let leased = StartRequest { lease: Some(Duration::from_secs(3)), ..spec(Backend::Native) };
        let sandbox = engine.start(leased).await.unwrap();
        assert!(sandbox.execute("true", None).await.unwrap().ok);
        tokio::time::timeout(Duration::from_secs(20), sandbox.ended())
            .await
            .expect("its lease ends it");
        assert!(sandbox.execute("true", None).await.is_err());
        assert_eq!(left_in(home.path()), 0);
    });
}

#[test]
fn a_renewed_lease_ends_when_it_says() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    runtime().block_on(async {
        let begun = Instant::now();
        let leased =
            StartRequest { lease: Some(Duration::from_millis(700)), ..spec(Backend::Native) };
        let sandbox = engine.start(leased.name("renewed")).await.unwrap();
        // Renew the lease as another process does.
        let reached = Sandbox::attach(&engine.settings().host, "renewed").await.unwrap();
        reached.renew(Duration::from_secs(3)).unwrap();
        let again = Sandbox::attach(&engine.settings().host, "renewed").await.unwrap();
        assert!(again.manifest().ends > sandbox.manifest().ends, "{:?}", again.manifest().ends);
        assert!(reached.is_up());
        tokio::time::timeout(Duration::from_secs(20), sandbox.ended())
            .await
            .expect("its lease ends it");
        assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
        assert!(!reached.is_up());
        assert!(reached.renew(Duration::from_secs(3)).is_err());
    });
}

#[test]
fn commands_of_a_sandbox_are_behind_its_policy() {
    require!(user_namespaces, binary);
    let home = place();
    fs_err::write(home.path().join("secret"), "not for others").unwrap();
    let engine = engine(home.path());
    runtime().block_on(async {
        let line = format!("cat {}", home.path().join("secret").display());
        let free = engine.start(spec(Backend::Local)).await.unwrap();
        assert_eq!(free.execute(&line, None).await.unwrap().stdout, "not for others");
        let fenced = engine.start(spec(Backend::Native)).await.unwrap();
        let denied = fenced.execute(&line, None).await.unwrap();
        assert!(!denied.ok && denied.stderr.contains("No such file"), "{denied:?}");
        free.stop().await.unwrap();
        fenced.stop().await.unwrap();
    });
}

/// Uses a sandbox in a container of an engine. `variable` is the variable of the tests that names
/// the engine's address, and `own` the variable of the host that receives it.
fn in_a_container(backend: Backend, variable: &str, own: &str) {
    let home = place();
    let engine = engine_with(home.path(), &[(own, &std::env::var(variable).unwrap())]);
    let container = ContainerSpec {
        image: Some(TINY_IMAGE.to_owned()),
        pull: Some(Pull::Never),
        ..Default::default()
    };
    runtime().block_on(async {
        let policy = Policy::default()
            .backend(backend)
            .memory(Size::mebibytes(64))
            .allow_weaker(Clause::Memory)
            .set_env("TOLD", "a value");
        let asked = StartRequest { container, ..StartRequest::new(policy) };
        let outcome = engine.scoped(asked, async |sandbox| {
            let first =
                sandbox.execute("echo kept > note; echo $TOLD; exit 3", None).await.unwrap();
            assert_eq!((first.stdout.as_str(), first.exit_code), ("a value\n", Some(3)));
            let line = "(sleep 60 &) ; sleep 60";
            let ended = sandbox.execute(line, Some(Duration::from_millis(500))).await.unwrap();
            assert!(ended.timed_out, "{ended:?}");
            let left = sandbox.execute("ps | grep -c '[s]leep 60'", None).await.unwrap();
            assert_eq!(left.stdout.trim(), "0", "{left:?}");
            let greedy = "awk 'BEGIN { s = \"x\"; while (length(s) < 200000000) s = s s }'";
            let ended = sandbox.execute(greedy, None).await.unwrap();
            assert!(ended.oom_killed && !ended.ok, "{ended:?}");
            let made = sandbox.execute("mkdir -p .git/hooks", None).await.unwrap();
            assert!(made.ok && !made.oom_killed && made.meta.planted == [".git/hooks"], "{made:?}");
            let inside = sandbox.manifest().workspace_inside.join("data");
            sandbox.files().write(inside.to_str().unwrap(), vec![7; 300_000]).await.unwrap();
            assert_eq!(
                sandbox.execute("wc -c < data", None).await.unwrap().stdout.trim(),
                "300000"
            );
            rests(sandbox).await;
        });
        outcome.await.unwrap_or_else(|error| panic!("{error:?}"));
    });
    let made = fs_err::metadata(home.path().join("workspace/note")).unwrap();
    let asked = fs_err::metadata(home.path().join("workspace")).unwrap();
    assert_eq!(
        (made.uid(), made.gid()),
        (asked.uid(), asked.gid()),
        "files belong to whoever asked"
    );
    assert_eq!(left_in(home.path()), 0);
}

#[test]
fn the_same_code_works_in_a_container_of_docker() {
    require!(docker, binary);
    in_a_container(Backend::Docker, DOCKER_VARIABLE, "DOCKER_HOST");
}

#[test]
fn the_same_code_works_in_a_container_of_podman() {
    require!(podman, binary);
    in_a_container(Backend::Podman, PODMAN_VARIABLE, "CONTAINER_HOST");
}

#[test]
fn the_guest_is_small() {
    require!(user_namespaces, binary);
    let home = place();
    let engine = engine(home.path());
    let size = runtime().block_on(engine.scoped(spec(Backend::Native), async |sandbox| {
        let line = "cat /proc/[0-9]*/status | grep -A30 '^Name:.*ringfence-guest' | grep VmRSS | \
            grep -o '[0-9]*'";
        sandbox.execute(line, None).await.unwrap().stdout
    }));
    let size: u64 = size.unwrap().lines().map(|kibibytes| kibibytes.parse::<u64>().unwrap()).sum();
    assert!((1..10_000).contains(&size), "the guest uses {size} KiB");
}

#[test]
fn the_futures_of_a_sandbox_can_go_to_another_thread() {
    fn check<T: Send>(_: T) {}
    fn every(engine: &Engine, sandbox: &Sandbox) {
        check(engine.start(spec(Backend::Local)));
        check(sandbox.execute("", None));
        check(sandbox.execute_code("", "python", None));
        check(sandbox.ended());
        check(sandbox.clone().stop());
    }
    let _ = every; // compiling this is the test
}
