//! Mistakes that only container engines can make, checked on every engine.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory};
use ringfence_test_ledger::engine::DEV_IMAGE;
use ringfence_test_ledger::{binary, require};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

/// The engines and their callers: root, an ordinary user on an engine of root, and an ordinary user
/// on an engine of its own.
const SETUPS: [BackendSetup; 5] = [
    BackendSetup { variant: BackendVariant::Docker, caller: Caller::Root },
    BackendSetup { variant: BackendVariant::Docker, caller: Caller::Ordinary },
    BackendSetup { variant: BackendVariant::Podman, caller: Caller::Root },
    BackendSetup { variant: BackendVariant::Podman, caller: Caller::Ordinary },
    BackendSetup { variant: BackendVariant::RootlessPodman, caller: Caller::Ordinary },
];
/// Setups that contain each engine once.
pub(crate) const ENGINES: [BackendSetup; 3] = [SETUPS[0], SETUPS[2], SETUPS[4]];
/// Setups with the engines of root.
const ROOTFUL: [BackendSetup; 2] = [SETUPS[0], SETUPS[2]];

/// A sandbox that stays, with its own home for its state. A different home acts as a different
/// user's ringfence.
pub(crate) struct EngineSandbox<'a> {
    pub(crate) setup: BackendSetup,
    pub(crate) place: &'a CallerDirectory,
    pub(crate) home: PathBuf,
    pub(crate) name: String,
}

impl<'a> EngineSandbox<'a> {
    /// Creates the home and the name of a sandbox without starting it.
    pub(crate) fn new(setup: BackendSetup, place: &'a CallerDirectory) -> EngineSandbox<'a> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let home = place.path().join(format!("home-{number}"));
        fs_err::create_dir(&home).expect("the place is the caller's");
        let owner = fs_err::metadata(place.path()).expect("it is there");
        std::os::unix::fs::chown(&home, Some(owner.uid()), Some(owner.gid()))
            .expect("it is given by root");
        EngineSandbox { setup, place, home, name: format!("trap-{}-{number}", std::process::id()) }
    }

    pub(crate) fn up(&self, flags: &[&str]) -> Output {
        self.prepare_up(flags).output().expect("ringfence can be started")
    }

    pub(crate) fn prepare_up(&self, flags: &[&str]) -> Command {
        let workspace = self.place.path().join("workspace");
        let mut command = self.setup.ringfence("up", self.place);
        command.arg(&self.name).args(flags).env("HOME", &self.home);
        if workspace.is_dir() {
            command.current_dir(workspace);
        }
        command
    }

    pub(crate) fn ringfence(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("ringfence can be started")
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.setup.command(binary(), self.place);
        command.args(words).env("HOME", &self.home);
        command
    }

    fn exec(&self, script: &str) -> Output {
        self.ringfence(&["exec", &self.name, "--", "sh", "-c", script])
    }

    /// Returns the description that the engine gives to every permitted caller.
    pub(crate) fn inspect(&self) -> Value {
        let engine = self.setup.variant.engine().expect("the test requires it");
        engine.inspect(&format!("ringfence-{}", self.name)).expect("there is such a container")
    }

    /// Kills the process that keeps the sandbox and waits until it has ended.
    #[track_caller]
    pub(crate) fn kill_owner(&self) {
        let told = self.ringfence(&["inspect", &self.name, "--json"]);
        let manifest: Value =
            serde_json::from_slice(&told.stdout).unwrap_or_else(|_| panic!("{}", said(&told)));
        let owner = manifest["owner"]["pid"]
            .as_i64()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let owner = owner.unwrap_or_else(|| panic!("{:?}: {manifest}", self.setup));
        let process = pidfd_open(owner, PidfdFlags::empty()).expect("it runs");
        kill_process(owner, Signal::KILL).expect("root may");
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        assert_eq!(
            poll(&mut ended, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })),
            Ok(1),
            "it was killed"
        );
    }
}

impl Drop for EngineSandbox<'_> {
    fn drop(&mut self) {
        self.ringfence(&["stop", &self.name]);
    }
}

/// Creates a place whose workspace is a subdirectory, so that there is room beside the workspace.
pub(crate) fn place(setup: BackendSetup) -> CallerDirectory {
    with_workspace(CallerDirectory::for_caller(setup.caller))
}

/// Creates a directory for the workspace in a place.
pub(crate) fn with_workspace(place: CallerDirectory) -> CallerDirectory {
    let workspace = place.path().join("workspace");
    fs_err::create_dir(&workspace).expect("the place is ours");
    let owner = fs_err::metadata(place.path()).expect("it is there");
    std::os::unix::fs::chown(&workspace, Some(owner.uid()), Some(owner.gid()))
        .expect("it is given by root");
    place
}

/// Runs a command in a container with its own workspace.
fn run(setup: BackendSetup, place: &CallerDirectory, flags: &[&str], words: &[&str]) -> Output {
    let mut command = setup.ringfence("run", place);
    command.args(flags).arg("--").args(words).current_dir(place.path().join("workspace"));
    command.output().expect("ringfence can be started")
}

pub(crate) fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[track_caller]
fn refused(setup: BackendSetup, output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{setup:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{setup:?} does not say `{word}`: {said}");
    }
}

/// Runs `engines.py` inside and returns its findings. The program looks for a service of the host
/// on every address of the host.
#[track_caller]
fn look(setup: BackendSetup, flags: &[&str]) -> Value {
    let service = std::net::TcpListener::bind("0.0.0.0:0").expect("a port can be had");
    let port = service.local_addr().expect("it is bound").port().to_string();
    let place = place(setup);
    let output = run(
        setup,
        &place,
        flags,
        &["python3", "-c", include_str!("engines.py"), &port, "127.0.0.1"],
    );
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{setup:?}: {error}: {}", said(&output)))
}

/// Returns the capability sets, in the order of proc_pid_status(5).
fn capabilities(seen: &Value) -> [&str; 5] {
    ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        .map(|name| seen["status"][name].as_str().expect("it is there"))
}

const NONE: &str = "0000000000000000";
/// The capability set of CHOWN, DAC_OVERRIDE, SETGID, SETUID and NET_BIND_SERVICE.
const DEVELOPER_CAPABILITIES: &str = "00000000000004c3";

#[test]
fn an_agents_container_has_no_privileges_no_network_and_only_private_writes() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    for setup in SETUPS {
        let seen = look(setup, &[]);
        assert_eq!(capabilities(&seen), [NONE; 5], "{setup:?}");
        let status = |name: &str| seen["status"][name].as_str().expect("it is there").to_owned();
        assert_eq!(
            (status("NoNewPrivs"), status("Seccomp")),
            ("1".to_owned(), "2".to_owned()),
            "{setup:?}"
        );
        assert_ne!(seen["su"], 0, "{setup:?}: a program of root's gives root's power away");
        assert!(status("Uid").split_whitespace().all(|id| id != "0"), "{setup:?}");
        assert_eq!(seen["write"], rustix::io::Errno::ROFS.raw_os_error(), "{setup:?}");
        assert_eq!(seen["interfaces"], serde_json::json!(["lo"]), "{setup:?}");
        assert_eq!(
            (&seen["gateway"], &seen["reached"]),
            (&Value::Null, &serde_json::json!([])),
            "{setup:?}"
        );
        assert_eq!(seen["resolved"], false, "{setup:?}");
    }
}

#[test]
fn the_same_image_without_ringfence_has_a_writable_root() {
    require!(root, docker, podman, rootless_podman, test_image_dev);
    for setup in ENGINES {
        let engine = setup.variant.engine().expect("the test requires it");
        assert_eq!(
            engine.run(DEV_IMAGE, &["sh", "-c", "grep -q ' / [^ ]* rw' /proc/mounts"]),
            Ok(()),
            "{setup:?}"
        );
    }
}

#[test]
fn an_open_network_exists_and_is_not_the_hosts() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    for setup in ENGINES {
        let seen = look(setup, &["--net", "open"]);
        let (gateway, reached) = (&seen["gateway"], &seen["reached"]);
        assert!(gateway.is_string(), "{setup:?}: {seen}");
        // The network of a rootless engine leads out, but not to its own host.
        let expected = if setup.variant == BackendVariant::RootlessPodman {
            vec![]
        } else {
            vec![gateway.clone()]
        };
        assert_eq!(*reached, Value::Array(expected), "{setup:?}: the host's loopback is its own");
    }
}

#[test]
fn a_developers_container_has_exactly_the_capabilities_of_its_preset() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    let seen = |setup| look(setup, &["--container", "--net", "closed"]);
    let docker = seen(BackendSetup { variant: BackendVariant::Docker, caller: Caller::Root });
    assert_eq!(
        capabilities(&docker),
        [NONE, NONE, NONE, DEVELOPER_CAPABILITIES, NONE],
        "none is held, and none can be gained"
    );
    assert_ne!(docker["su"], 0);
    assert_eq!(
        docker["write"],
        rustix::io::Errno::ACCESS.raw_os_error(),
        "the root is writable, and root's"
    );
    let podman = seen(BackendSetup { variant: BackendVariant::Podman, caller: Caller::Root });
    assert_eq!(capabilities(&podman), [NONE; 5]);
    let rootless =
        seen(BackendSetup { variant: BackendVariant::RootlessPodman, caller: Caller::Ordinary });
    let [_, permitted, effective, bounding, _] = capabilities(&rootless);
    assert_eq!(
        [permitted, effective, bounding],
        [DEVELOPER_CAPABILITIES; 3],
        "over the container alone"
    );
}

#[test]
fn capabilities_beyond_the_known_few_are_refused_by_name() {
    require!(root, binary, docker, podman, test_image_dev);
    for setup in ROOTFUL {
        let place = place(setup);
        let output = run(setup, &place, &["--cap", "SYS_ADMIN"], &["true"]);
        refused(
            setup,
            &output,
            2,
            &["the capability `SYS_ADMIN` is not given to a container", "hint: "],
        );
    }
}

#[test]
fn limits_are_enforced_by_the_kernel_or_the_run_is_refused() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    let flags =
        ["--memory", "96M", "--allow-weaker", "memory", "--cpus", "0.5", "--processes", "60"];
    for setup in ROOTFUL {
        let seen = look(setup, &flags);
        assert_eq!(
            seen["memory"],
            serde_json::json!([(96 << 20).to_string()]),
            "{setup:?}: {seen}"
        );
        assert_eq!(seen["cpus"][0], "50000", "{setup:?}: {seen}");
        // The guest's own processes do not count against the caller's limit.
        assert_eq!(seen["processes"], serde_json::json!(["63"]), "{setup:?}: {seen}");
    }
    let setup = BackendSetup { variant: BackendVariant::RootlessPodman, caller: Caller::Ordinary };
    let place = place(setup);
    for (flag, value, clause) in [
        ("--memory", "96M", "memory"),
        ("--cpus", "0.5", "cpus"),
        ("--processes", "60", "process-count"),
    ] {
        let mut command = setup.command(binary(), &place);
        command.args([
            "run",
            "--backend",
            "podman",
            "--image",
            DEV_IMAGE,
            "--pull",
            "never",
            flag,
            value,
            "--",
            "true",
        ]);
        let output = command.output().expect("ringfence can be started");
        if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() && output.status.success() {
            continue; // the host delegates cgroups to its users
        }
        refused(setup, &output, 125, &[clause, "ignores limits here", "hint: "]);
    }
}

#[test]
fn the_engines_socket_is_visible_inside_by_no_path() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    for setup in ENGINES {
        let place = place(setup);
        let address = setup.variant.engine().expect("the test requires it").address();
        let socket = PathBuf::from(address.trim_start_matches("unix://"));
        let directory = socket.parent().expect("it has one").to_owned();
        let link = place.path().join("link");
        symlink(&socket, &link).expect("the place is ours");
        for (flag, path) in [
            ("--read", &socket),
            ("--write", &socket),
            ("--read", &directory),
            ("--write", &directory),
            ("--workspace", &directory),
            ("--read", &link),
        ] {
            let output = run(setup, &place, &[flag, path.to_str().expect("it is text")], &["true"]);
            refused(setup, &output, 2, &["of a container engine", "hint: "]);
        }
        let beside = place.path().join("beside");
        fs_err::write(&beside, "shown").expect("the place is ours");
        let text = beside.to_str().expect("it is text");
        let output = run(setup, &place, &["--read", text], &["cat", text]);
        assert_eq!(said(&output), "shown", "{setup:?}: other paths are");
    }
}

#[test]
fn variables_reach_commands_but_not_the_engines_description() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    for setup in ENGINES {
        let place = place(setup);
        let kept = EngineSandbox::new(setup, &place);
        let up = kept.up(&["--env", "TOKEN=as-good-as-a-key"]);
        assert!(up.status.success(), "{setup:?}: {}", said(&up));
        assert_eq!(said(&kept.exec("printf %s \"$TOKEN\"")), "as-good-as-a-key", "{setup:?}");
        let inspected = kept.inspect().to_string();
        assert!(inspected.contains(&kept.name), "{setup:?}: it tells of this container");
        assert!(
            !inspected.contains("as-good-as-a-key") && !inspected.contains("TOKEN"),
            "{setup:?}: {inspected}"
        );
        // Users of the host see the environment of the guest through any process of the container.
        assert_eq!(said(&kept.exec("grep -c TOKEN /proc/1/environ")), "0\n", "{setup:?}");
    }
}

#[test]
fn files_made_in_the_workspace_belong_to_the_caller() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    for setup in SETUPS {
        let place = place(setup);
        let output = run(
            setup,
            &place,
            &[],
            &["sh", "-c", "mkdir made && echo 1 > made/file && ln -s file made/link"],
        );
        assert!(output.status.success(), "{setup:?}: {}", said(&output));
        let caller = fs_err::metadata(place.path()).expect("it is there");
        for name in ["made", "made/file", "made/link"] {
            let found = fs_err::symlink_metadata(place.path().join("workspace").join(name))
                .expect("it was made");
            assert_eq!(
                (found.uid(), found.gid()),
                (caller.uid(), caller.gid()),
                "{setup:?}: {name}"
            );
        }
    }
}

#[test]
fn a_container_is_reused_replaced_or_refused_by_its_configuration() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    for setup in ENGINES {
        let place = place(setup);
        let kept = EngineSandbox::new(setup, &place);
        let id = |kept: &EngineSandbox<'_>| kept.inspect()["Id"].clone();
        let up = |flags: &[&str]| {
            let output = kept.up(flags);
            assert!(output.status.success(), "{setup:?}: {}", said(&output));
            id(&kept)
        };
        let first = up(&[]);
        assert_eq!(up(&[]), first, "{setup:?}: the same is reused");
        let name = kept.name.as_str();
        refused(
            setup,
            &kept.up(&["--tmp", "1M"]),
            2,
            &[name, "differs from what is asked for", "--replace"],
        );
        assert_eq!(id(&kept), first, "{setup:?}: it stays");
        let second = up(&["--tmp", "1M", "--replace"]);
        assert_ne!(second, first);

        let mut other = EngineSandbox::new(setup, &place);
        other.name = kept.name.clone();
        let taken = other.up(&[]);
        refused(
            setup,
            &taken,
            2,
            &["this user's ringfence did not make it", "hint: give it another name"],
        );
        assert_eq!(id(&kept), second, "{setup:?}: another's container is not touched");

        // After its keeper is killed, the container ends by itself and its name is free.
        kept.kill_owner();
        assert_ne!(up(&["--tmp", "1M"]), second, "{setup:?}: what a crash left is not reused");
    }
}

#[test]
fn a_missing_image_engine_or_permission_is_named() {
    require!(root, binary, ordinary_user, docker, podman, test_image_dev);
    for setup in ROOTFUL {
        let place = place(setup);
        let backend = if setup.variant == BackendVariant::Docker { "docker" } else { "podman" };
        let run = |setup: BackendSetup, address: &str, image: &str| {
            let mut command = setup.command(binary(), &place);
            command.args([
                "run",
                "--backend",
                backend,
                "--image",
                image,
                "--pull",
                "never",
                "--",
                "true",
            ]);
            command.env("DOCKER_HOST", address).env("CONTAINER_HOST", address);
            command.output().expect("ringfence can be started")
        };
        let address = setup.variant.engine().expect("the test requires it").address();
        assert!(
            run(setup, &address, DEV_IMAGE).status.success(),
            "{setup:?}: with all of them it works"
        );
        let absent = "ringfence-test-no-such-image";
        refused(
            setup,
            &run(setup, &address, absent),
            125,
            &[&format!("there is no image `{absent}"), "hint: fetch it"],
        );
        let nowhere = format!("unix://{}/none.sock", place.path().display());
        refused(
            setup,
            &run(setup, &nowhere, DEV_IMAGE),
            125,
            &["socket at `", "none.sock", "hint: "],
        );
    }
    for variant in [BackendVariant::Docker, BackendVariant::Podman] {
        let setup = BackendSetup { variant, caller: Caller::Ordinary };
        let place = place(setup);
        let address = variant.engine().expect("the test requires it").address();
        let mut command = setup.ringfence("run", &place);
        command.env("DOCKER_HOST", &address).env("CONTAINER_HOST", &address).args(["--", "true"]);
        let output = command.output().expect("ringfence can be started");
        refused(setup, &output, 125, &["this user may not use the", "hint: "]);
    }
}

#[test]
fn no_file_of_the_sandbox_directory_is_writable_inside() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    for setup in ENGINES {
        let place = place(setup);
        let kept = EngineSandbox::new(setup, &place);
        let up = kept.up(&[]);
        assert!(up.status.success(), "{setup:?}: {}", said(&up));
        assert_eq!(
            said(&kept.exec("echo filled > file && cat file")),
            "filled\n",
            "{setup:?}: the workspace can be"
        );
        let script = "ls /run/ringfence; for path in /run/ringfence/new /run/ringfence/*; do \
                      (echo x > $path) 2> /dev/null && echo wrote $path; \
                      rm $path 2> /dev/null && echo removed $path; \
                      chmod 777 $path 2> /dev/null && echo changed $path; done; true";
        assert_eq!(said(&kept.exec(script)), "guest\nhandover\nleash\n", "{setup:?}");
        assert_eq!(said(&kept.exec("echo works")), "works\n", "{setup:?}");
    }
}

#[test]
fn a_link_planted_in_the_workspace_does_not_reveal_its_target() {
    require!(root, binary, ordinary_user, docker, podman, rootless_podman, test_image_dev);
    for setup in ENGINES {
        let place = place(setup);
        let outside = place.path().join("outside");
        fs_err::create_dir_all(outside.join("hooks")).expect("the place is ours");
        fs_err::write(outside.join("config"), "a secret").expect("the place is ours");
        let script = format!("ln -s {} .git && ls -d .git", outside.display());
        let planted = run(setup, &place, &[], &["sh", "-c", &script]);
        let said_of_it = said(&planted);
        assert!(
            said_of_it.starts_with(".git\n") && planted.status.success(),
            "{setup:?}: {said_of_it}"
        );
        assert!(
            said_of_it.contains("warning: the run made, changed or removed `.git`"),
            "{setup:?}: {said_of_it}"
        );

        let control = fs_err::read_to_string(place.path().join("workspace/.git/config"))
            .expect("the host follows it");
        assert_eq!(control, "a secret");
        let output = run(setup, &place, &[], &["cat", ".git/config"]);
        assert!(
            !output.status.success() && !said(&output).contains("a secret"),
            "{setup:?}: {}",
            said(&output)
        );
    }
}
