//! People and their tools in a sandbox that stays, through SSH.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use ringfence_test_ledger::engine::TINY_IMAGE;
use ringfence_test_ledger::require;

use crate::scene::{
    DOCKER, Engine, EngineScene, PODMAN, ROOTLESS_PODMAN, expect_success, said, wait_until,
};

impl EngineScene {
    /// Runs `ringfence ssh` with a line for the shell inside.
    fn ssh(&self, flags: &[&str], line: &str) -> Output {
        let mut command = self.ringfence(&["ssh", &self.name]);
        command.args(flags).args(["--", line]).output().expect("ringfence can be started")
    }

    /// Returns a tool that finds the sandbox through the output of `ringfence ssh-config`.
    fn tool(&self, program: &str) -> Command {
        let stanza = expect_success(&mut self.ringfence(&["ssh-config", &self.name]));
        let path = self.path("config");
        fs_err::write(&path, stanza).expect("the home is ours");
        let mut command = self.command(program);
        match program {
            "rsync" => command.arg("-e").arg(format!("ssh -F {}", path.display())),
            _ => command.arg("-F").arg(path),
        };
        command
    }

    /// Returns the output of a shell into which an editor types. Like Emacs, the editor identifies
    /// itself by its terminal type.
    fn type_into_a_shell(&self, line: &str) -> String {
        let mut command = self.tool("ssh");
        command
            .args(["-tt", &self.alias()])
            .env("TERM", "dumb")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut shell = command.spawn().expect("ssh can be started");
        shell
            .stdin
            .take()
            .expect("it was asked for")
            .write_all(line.as_bytes())
            .expect("it listens");
        let output = shell.wait_with_output().expect("it was started here");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn alias(&self) -> String {
        format!("ringfence-{}", self.name)
    }
}

#[track_caller]
fn people_come_in(engine: Engine, name: &str, flags: &[&str]) {
    let scene = EngineScene::up(engine, name, flags);
    let output = scene.ssh(&[], "id -un; pwd; echo $SANDBOXED; test -t 0 || echo no terminal");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "dev\n/home/dev\nyes\nno terminal\n",
        "{}",
        said(&output)
    );
    assert_eq!(scene.ssh(&[], "exit 7").status.code(), Some(7));
    let owners = "for process in /proc/[0-9]*; do
        read -r name <$process/comm && [ \"$name\" = sshd ] && stat -c %U $process
        done 2>/dev/null | sort -u";
    let output = scene.ssh(&[], owners);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "dev\n",
        "who runs sshd: {}",
        said(&output)
    );
    let on_terminal = expect_success(scene.tool("ssh").args(["-tt", &scene.alias(), "tty"]));
    assert!(on_terminal.starts_with("/dev/pts/"), "{on_terminal}");
    let typed = scene.type_into_a_shell("echo typed; exit\n");
    assert!(typed.contains("typed\r\n"), "{typed:?}");
    assert!(!typed.contains('\x1b'), "an editor does not know this prompt: {typed:?}");
}

#[test]
fn ssh_reaches_a_closed_docker_container() {
    require!(binary, openssh_client, docker, test_image_sshd);
    people_come_in(DOCKER, "closed", &["--net", "closed", "--env", "SANDBOXED=yes"]);
}

#[test]
fn ssh_reaches_a_closed_podman_container() {
    require!(binary, openssh_client, podman, test_image_sshd);
    people_come_in(PODMAN, "closed", &["--net", "closed", "--env", "SANDBOXED=yes"]);
}

#[test]
fn ssh_reaches_a_docker_container_on_the_hosts_network() {
    require!(binary, openssh_client, docker, test_image_sshd);
    people_come_in(
        DOCKER,
        "open",
        &["--net", "open", "--allow-weaker", "ipc", "--env", "SANDBOXED=yes"],
    );
}

#[test]
fn ssh_reaches_a_podman_container_on_the_hosts_network() {
    require!(binary, openssh_client, podman, test_image_sshd);
    people_come_in(
        PODMAN,
        "open",
        &["--net", "open", "--allow-weaker", "ipc", "--env", "SANDBOXED=yes"],
    );
}

#[test]
fn ssh_reaches_a_container_of_rootless_podman() {
    require!(binary, openssh_client, ordinary_user, rootless_podman, test_image_sshd);
    people_come_in(ROOTLESS_PODMAN, "rootless", &["--net", "closed", "--env", "SANDBOXED=yes"]);
}

#[track_caller]
fn tools_work(engine: Engine) {
    let scene = EngineScene::up(engine, "tools", &["--net", "closed"]);
    let source = scene.path("source");
    fs_err::create_dir_all(source.join("deep")).expect("the home is ours");
    let content: Vec<u8> = (0..2_000_000u32).map(|number| (number % 251) as u8).collect();
    fs_err::write(source.join("deep/file"), &content).expect("the home is ours");
    let (alias, file) = (scene.alias(), source.join("deep/file"));
    let inside = |path: &str| format!("{alias}:{path}");

    expect_success(scene.tool("scp").arg(&file).arg(inside("by-scp")));
    expect_success(scene.tool("scp").arg(inside("by-scp")).arg(scene.path("back-by-scp")));
    expect_success(
        scene
            .tool("rsync")
            .arg("-a")
            .arg(format!("{}/", source.display()))
            .arg(inside("by-rsync/")),
    );
    expect_success(
        scene.tool("rsync").arg("-a").arg(inside("by-rsync/")).arg(scene.path("back-by-rsync")),
    );
    let batch = scene.path("batch");
    fs_err::write(&batch, format!("get by-scp {}\n", scene.path("back-by-sftp").display()))
        .expect("it is ours");
    expect_success(scene.tool("sftp").arg("-b").arg(&batch).arg(&alias));
    for back in ["back-by-scp", "back-by-rsync/deep/file", "back-by-sftp"] {
        assert!(fs_err::read(scene.path(back)).expect("it came back") == content, "{back} differs");
    }

    // The remote mode of an editor starts a server inside and reaches it through a forwarded port.
    let server = "import socket as s; l = s.create_server(('127.0.0.1', 0)); \
                  print(l.getsockname()[1], flush=True); \
                  c = l.accept()[0]; c.sendall(b'from inside'); c.close()";
    let mut listening = scene
        .tool("ssh")
        .args([&alias, &format!("python3 -c \"{server}\"")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("ssh can be started");
    let mut port = String::new();
    let heard = listening.stdout.take().expect("it was asked for");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(heard), &mut port)
        .expect("it tells its port");
    let target = format!("127.0.0.1:{}", port.trim());
    assert_eq!(expect_success(scene.tool("ssh").args(["-W", &target, &alias])), "from inside");
    listening.wait().expect("it was started here");
}

#[test]
fn scp_sftp_rsync_and_forwarded_ports_work_with_docker() {
    require!(binary, openssh_client, rsync, docker, test_image_sshd);
    tools_work(DOCKER);
}

#[test]
fn scp_sftp_rsync_and_forwarded_ports_work_with_podman() {
    require!(binary, openssh_client, rsync, podman, test_image_sshd);
    tools_work(PODMAN);
}

#[test]
fn ssh_over_a_loopback_port_requires_a_key() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = EngineScene::up(DOCKER, "port", &["--net", "closed"]);
    let direct = ["-o", "ProxyCommand=none", &scene.alias(), "id -un"];
    let ssh = scene.tool("ssh");
    let stanza = fs_err::read_to_string(scene.path("config")).expect("it was just written");
    assert!(stanza.contains("\n    Port "), "{stanza}");
    drop(ssh);
    assert_eq!(expect_success(scene.tool("ssh").args(direct)), "dev\n");
    let output = scene
        .tool("ssh")
        .env_remove("SSH_AUTH_SOCK")
        .args(direct)
        .output()
        .expect("ssh can be started");
    assert!(said(&output).contains("Permission denied (publickey)"), "{}", said(&output));
}

#[test]
fn an_ssh_server_with_another_host_key_is_refused() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = EngineScene::up(DOCKER, "mismatch", &["--net", "closed"]);
    assert!(scene.ssh(&[], "true").status.success());
    let swap = "rm /tmp/.ringfence-ssh-*/host_key*
        for process in /proc/[0-9]*; do
            read -r name <$process/comm && [ \"$name\" = sshd ] && kill ${process#/proc/}
        done; true";
    expect_success(&mut scene.ringfence(&["exec", &scene.name, "--", "sh", "-c", swap]));
    let output = scene.ssh(&[], "true");
    assert!(said(&output).contains("Host key verification failed"), "{}", said(&output));
    assert_eq!(output.status.code(), Some(255));
}

#[test]
fn the_ssh_agent_is_forwarded_only_on_request() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = EngineScene::up(DOCKER, "agent", &["--net", "closed"]);
    let output = scene.ssh(&[], "ssh-add -L");
    assert!(
        said(&output).contains("Could not open a connection to your authentication agent"),
        "{}",
        said(&output)
    );
    let output = scene.ssh(&["--forward-agent"], "ssh-add -L");
    assert!(said(&output).contains("ssh-ed25519 "), "{}", said(&output));
}

#[test]
fn ssh_keys_come_from_the_home_and_a_missing_key_gets_a_hint() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = EngineScene::up(DOCKER, "keys", &["--net", "closed"]);
    let ssh_config = || {
        let mut command = scene.ringfence(&["ssh-config", &scene.name]);
        command.env_remove("SSH_AUTH_SOCK").output().expect("ringfence can be started")
    };
    let output = ssh_config();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("hint: make one: ssh-keygen -t ed25519\n"), "{}", said(&output));
    fs_err::copy(scene.path("key.pub"), scene.path(".ssh/id_ed25519.pub"))
        .expect("the home is ours");
    let output = ssh_config();
    fs_err::write(scene.path("config"), output.stdout).expect("the home is ours");
    let mut ssh = scene.command("ssh");
    ssh.env_remove("SSH_AUTH_SOCK")
        .arg("-F")
        .arg(scene.path("config"))
        .arg("-i")
        .arg(scene.path("key"));
    assert_eq!(expect_success(ssh.args([&scene.alias(), "id -un"])), "dev\n");
}

#[test]
fn an_ssh_alias_exists_as_long_as_its_sandbox() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = EngineScene::up(DOCKER, "alias", &["--net", "closed"]);
    let alias = scene.path(".ssh/config.d").join(scene.alias());
    assert!(!alias.exists());
    expect_success(&mut scene.ringfence(&["ssh-config", &scene.name]));
    let mut ssh = scene.command("ssh");
    assert_eq!(expect_success(ssh.arg("-F").arg(&alias).args([&scene.alias(), "id -un"])), "dev\n");
    expect_success(&mut scene.ringfence(&["stop", &scene.name]));
    wait_until("the alias is gone", || !alias.exists());
}

#[test]
fn a_sandbox_without_sshd_and_a_missing_sandbox_are_distinguished() {
    require!(binary, openssh_client, docker);
    let scene = EngineScene::with_key(DOCKER, "none");
    let output = scene.ssh(&[], "true");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("there is no sandbox `none-docker-"), "{}", said(&output));
    scene.start(TINY_IMAGE, &["--net", "closed"]);
    let output = scene.ssh(&[], "true");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("error: there is no sshd in the sandbox"), "{}", said(&output));
    assert!(
        said(&output).contains("hint: without ssh: ringfence enter none-docker-"),
        "{}",
        said(&output)
    );
}
