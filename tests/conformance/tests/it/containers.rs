//! Container templates of a server, and the tools of `ringfence mcp` in a container. The tests run
//! on every engine of root and use the packages that people use.

use ringfence::Backend;
use ringfence_test_ledger::engine::DEV_IMAGE;
use ringfence_test_ledger::{e2b_python, require};

use crate::keeper::SandboxKeeper;
use crate::mcp;
use crate::served::{RunningServer, expect_nothing_left, script};

#[track_caller]
fn check_template(backend: Backend) {
    let keeper = SandboxKeeper::for_root(backend);
    let template = format!("backend = '{}'\nimage = '{DEV_IMAGE}'\n", backend.name());
    let settings = format!(
        "[templates.base]\n{template}[templates.code-interpreter-v1]\n{template}warm = 1\n"
    );
    let server = RunningServer::configured(&keeper, &settings);
    let mut package = script(e2b_python().expect("the test requires it"), "e2b_container.py");
    package.arg(keeper.server());
    server.drive(package);
    server.end();
    expect_nothing_left(&keeper);
}

#[test]
fn a_template_can_be_a_container_of_docker() {
    require!(root, binary, docker, test_image_dev, e2b_python);
    check_template(Backend::Docker);
}

#[test]
fn a_template_can_be_a_container_of_podman() {
    require!(root, binary, podman, test_image_dev, e2b_python);
    check_template(Backend::Podman);
}

#[test]
fn a_client_of_mcp_uses_every_tool_in_a_container_of_docker() {
    require!(root, binary, docker, test_image_dev, mcp_python);
    mcp::check_container(Backend::Docker);
}

#[test]
fn a_client_of_mcp_uses_every_tool_in_a_container_of_podman() {
    require!(root, binary, podman, test_image_dev, mcp_python);
    mcp::check_container(Backend::Podman);
}
