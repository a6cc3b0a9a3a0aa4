//! Sandboxes inside a container that is started as `.devcontainer/devcontainer.json` describes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ringfence_test_ledger::engine::{
    DEV_IMAGE, DOCKER_VARIABLE, Engine, PODMAN_VARIABLE, ROOTLESS_PODMAN_VARIABLE,
};
use ringfence_test_ledger::{binary, require};
use serde_json::{Map, Value, json};

/// The form in which an engine's API takes a seccomp profile.
#[derive(Debug, Clone, Copy)]
enum ProfileForm {
    Text,
    File,
}

/// The system-call filter of a container.
#[derive(Debug, Clone, Copy)]
enum SeccompFilter {
    Ours,
    EnginesOwn,
    None,
}

struct DevContainer {
    engine: Engine,
    takes: ProfileForm,
    /// Directory that the container can write to, with a path that every engine can read.
    shared: tempfile::TempDir,
}

impl DevContainer {
    fn new(variable: &str, takes: ProfileForm) -> Self {
        let engine = Engine::named_by(variable).expect("the test requires it");
        let shared = tempfile::tempdir().expect("a temporary directory can be made");
        fs_err::set_permissions(shared.path(), PermissionsExt::from_mode(0o777))
            .expect("it is ours");
        let profile = shared.path().join("seccomp.json");
        fs_err::copy(dev_container_file("seccomp.json"), &profile).expect("it is checked in");
        fs_err::set_permissions(&profile, PermissionsExt::from_mode(0o644)).expect("it is ours");
        Self { engine, takes, shared }
    }

    /// Runs a command as the ordinary user of the container. Returns its exit code and its whole
    /// output.
    fn run(&self, filter: SeccompFilter, command: &[&str]) -> (i64, String) {
        let report = ["sh", "-c", "exec > /shared/said 2>&1; exec \"$@\"", "sh"];
        let host_config = self.host_config(filter);
        let description = json!({
            "Image": DEV_IMAGE,
            "User": "1000:1000",
            "WorkingDir": "/home/dev/workspace",
            "Cmd": report.iter().chain(command).collect::<Vec<_>>(),
            "HostConfig": host_config,
        });
        let status = self.engine.run_described(&description).expect("a container can be run");
        let said = fs_err::read(self.shared.path().join("said"))
            .expect("the container has said something");
        (status.expect("it has ended"), String::from_utf8_lossy(&said).into_owned())
    }

    /// Translates the `runArgs` of the command line to the API of the engine.
    fn host_config(&self, filter: SeccompFilter) -> Value {
        let mut config = Map::from_iter([("NetworkMode".to_owned(), json!("none"))]);
        let mut security = Vec::new();
        for argument in run_arguments() {
            match argument.split_once('=').expect("each is one word, with its value") {
                ("--cap-drop", capability) => {
                    drop(config.insert("CapDrop".to_owned(), json!([capability])))
                }
                ("--security-opt", "systempaths=unconfined") => match self.takes {
                    // The command line of Docker translates this word to two empty lists; Podman's
                    // server accepts the word.
                    ProfileForm::Text => {
                        config.insert("MaskedPaths".to_owned(), json!([]));
                        config.insert("ReadonlyPaths".to_owned(), json!([]));
                    }
                    ProfileForm::File => security.push("systempaths=unconfined".to_owned()),
                },
                ("--security-opt", option) if option.starts_with("seccomp=") => {
                    assert_eq!(
                        option,
                        "seccomp=${localWorkspaceFolder}/.devcontainer/seccomp.json"
                    );
                    security.extend(self.seccomp(filter));
                }
                ("--security-opt", option) => security.push(option.to_owned()),
                _ => panic!("`{argument}` is no part of a container without privileges"),
            }
        }
        assert!(
            security.contains(&"no-new-privileges".to_owned())
                && config["CapDrop"] == json!(["ALL"])
        );
        config.insert("SecurityOpt".to_owned(), json!(security));
        let binds = [
            format!("{}:/shared", self.shared.path().display()),
            format!("{}:/usr/local/bin/ringfence:ro", binary().display()),
            format!("{}:/usr/local/bin/bwrap:ro", bwrap().display()),
        ];
        config.insert("Binds".to_owned(), json!(binds));
        Value::Object(config)
    }

    fn seccomp(&self, filter: SeccompFilter) -> Option<String> {
        let file = self.shared.path().join("seccomp.json");
        match (filter, self.takes) {
            (SeccompFilter::EnginesOwn, _) => None,
            (SeccompFilter::None, _) => Some("seccomp=unconfined".to_owned()),
            (SeccompFilter::Ours, ProfileForm::File) => Some(format!("seccomp={}", file.display())),
            (SeccompFilter::Ours, ProfileForm::Text) => {
                Some(format!("seccomp={}", fs_err::read_to_string(file).expect("it was copied")))
            }
        }
    }
}

fn dev_container_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.devcontainer").join(name)
}

fn run_arguments() -> Vec<String> {
    let text =
        fs_err::read_to_string(dev_container_file("devcontainer.json")).expect("it is checked in");
    // Comments are on lines of their own in this file.
    let lines: Vec<&str> =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let settings: Value =
        serde_json::from_str(&lines.join("\n")).expect("it is JSON, but for the comments");
    assert_eq!(
        (&settings["containerUser"], &settings["remoteUser"]),
        (&json!("dev"), &json!("dev"))
    );
    let arguments = settings["runArgs"].as_array().expect("it has some");
    arguments.iter().map(|argument| argument.as_str().expect("they are words").to_owned()).collect()
}

/// Returns the path of the machine's bubblewrap. The machine's program runs in the image because
/// the image is made of the machine's release.
fn bwrap() -> PathBuf {
    let path = std::env::var_os("PATH").expect("there is a PATH");
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join("bwrap"));
    candidates.find(|candidate| candidate.is_file()).expect("the test requires it")
}

/// Command that tries to read a file beside the workspace. The file exists in the image, and a
/// sandbox must hide it.
const LOOK_OUTSIDE: [&str; 5] =
    ["--", "sh", "-c", "echo started; wc -c < /home/dev/.profile", "sh"];
/// Calls that no sandbox needs for its setup: `personality`, which Docker's filter permits in part,
/// and `io_uring_setup` (425), because no filter can see the operations of a ring.
const FORBIDDEN: &str = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for call in (lambda: libc.personality(8), lambda: libc.syscall(425, 1, None)):
    ctypes.set_errno(0)
    call()
    print(ctypes.get_errno())
";

/// Errors when an engine's own filter forbids building a sandbox. The last is bubblewrap's text for
/// EPERM.
const REFUSALS: [&str; 3] = [
    "Operation not permitted",
    "Function not implemented",
    "No permissions to create new namespace",
];

#[track_caller]
fn check(container: &DevContainer) {
    let run =
        |backend| [&["ringfence", "run", "--backend", backend], LOOK_OUTSIDE.as_slice()].concat();
    let (status, said) = container.run(SeccompFilter::Ours, &run("local"));
    assert_eq!(
        (status, said.starts_with("started\n")),
        (0, true),
        "the control sees the file: {said}"
    );
    for backend in ["native", "bwrap"] {
        let (status, said) = container.run(SeccompFilter::Ours, &run(backend));
        assert!(
            status != 0 && said.starts_with("started\n") && said.contains("No such file"),
            "{backend}: {said}"
        );

        let (status, said) = container.run(SeccompFilter::EnginesOwn, &run(backend));
        let refused = REFUSALS.iter().any(|why| said.contains(why));
        assert!(status == 125 && refused, "{backend} without our profile: {status} {said}");
    }
    let forbidden = ["python3", "-c", FORBIDDEN];
    let (_, unfiltered) = container.run(SeccompFilter::None, &forbidden);
    assert!(!unfiltered.lines().any(|errno| errno == "1"), "{unfiltered}");
    assert_eq!(container.run(SeccompFilter::Ours, &forbidden), (0, "1\n1\n".to_owned()));
}

#[test]
fn sandboxes_work_in_the_dev_container_of_docker() {
    require!(binary, bwrap, docker, test_image_dev);
    check(&DevContainer::new(DOCKER_VARIABLE, ProfileForm::Text));
}

#[test]
fn sandboxes_work_in_the_dev_container_of_podman() {
    require!(binary, bwrap, podman, test_image_dev);
    check(&DevContainer::new(PODMAN_VARIABLE, ProfileForm::File));
}

#[test]
fn sandboxes_work_in_the_dev_container_of_rootless_podman() {
    require!(binary, bwrap, rootless_podman, test_image_dev);
    check(&DevContainer::new(ROOTLESS_PODMAN_VARIABLE, ProfileForm::File));
}
