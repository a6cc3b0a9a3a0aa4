//! Images that `ringfence image build` makes.

use std::path::Path;
use std::process::Output;

use ringfence_test_ledger::engine::{DEV_IMAGE, TINY_IMAGE};
use ringfence_test_ledger::require;

use crate::scene::{DOCKER, Engine, EngineScene, PODMAN, expect_success, said};

impl EngineScene {
    /// Runs `ringfence image build` with the text of a Containerfile.
    fn build(&self, tag: &str, text: &str) -> Output {
        let file: &Path = &self.path("Containerfile");
        fs_err::write(file, text).expect("the home is ours");
        let mut command =
            self.ringfence(&["image", "build", "--backend", self.engine.backend, "--tag", tag]);
        command.arg("--file").arg(file).output().expect("ringfence can be started")
    }
}

#[track_caller]
fn an_image_is_built(engine: Engine) {
    let scene = EngineScene::new(engine, "image");
    let tag = format!("localhost/ringfence-test-built-{}:latest", std::process::id());
    let output =
        scene.build(&tag, &format!("FROM {TINY_IMAGE}\nRUN echo said while building\nUSER dev\n"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{tag}\n"), "{}", said(&output));
    assert!(said(&output).contains("said while building"), "{}", said(&output));
    let output = scene.build(&tag, &format!("FROM {TINY_IMAGE}\nRUN echo said in vain; false\n"));
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(125), &b""[..]),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains("said in vain"), "{}", said(&output));
    let mut up =
        scene.ringfence(&["up", &scene.name, "--backend", engine.backend, "--image", &tag]);
    expect_success(up.args(["--pull", "never", "--net", "closed"]));
}

#[test]
fn an_image_is_built_by_docker_and_a_failing_step_is_reported() {
    require!(binary, docker);
    an_image_is_built(DOCKER);
}

#[test]
fn an_image_is_built_by_podman_and_a_failing_step_is_reported() {
    require!(binary, podman);
    an_image_is_built(PODMAN);
}

/// Builds the default image on a local Debian image that already has the packages, so that none is
/// downloaded.
#[track_caller]
fn the_default_image_is_built(engine: Engine) {
    let scene = EngineScene::new(engine, "default");
    let (base, tag) =
        ("localhost/ringfence-test-base:latest", "localhost/ringfence-test-default:latest");
    let debian = format!(
        "FROM {DEV_IMAGE}\nUSER root\nRUN userdel --remove dev; rm -r /etc/apt/sources.list*; ! \
         id dev\n"
    );
    let output = scene.build(base, &debian);
    assert!(output.status.success(), "{}", said(&output));

    let containerfile =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images/dev/Containerfile");
    let containerfile = fs_err::read_to_string(containerfile).expect("it is checked in");
    let (usual, own) = ("ARG BASE=debian:trixie-slim\n", format!("ARG BASE={base}\n"));
    assert!(containerfile.contains(usual), "{containerfile}");
    let output = scene.build(tag, &containerfile.replace(usual, &own));
    assert!(output.status.success(), "{}", said(&output));
    scene.start(tag, &["--net", "closed"]);
    let look = "id -un; pwd; echo $LANG; ls /etc/ssh | grep -c ssh_host; find /usr -perm /6000; \
                git --version >&2";
    let seen =
        expect_success(&mut scene.ringfence(&["exec", &scene.name, "--", "zsh", "-c", look]));
    assert_eq!(
        seen, "dev\n/home/dev/workspace\nC.UTF-8\n0\n",
        "there is no key, and no program that gives more rights"
    );
}

#[test]
fn the_default_image_is_built_by_docker() {
    require!(binary, docker, test_image_dev);
    the_default_image_is_built(DOCKER);
}

#[test]
fn the_default_image_is_built_by_podman() {
    require!(binary, podman, test_image_dev);
    the_default_image_is_built(PODMAN);
}
