//! People and their tools in a sandbox that stays, by ssh.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ringfence_test_ledger::engine::{DEV_IMAGE, DOCKER_VARIABLE, PODMAN_VARIABLE, TINY_IMAGE};
use ringfence_test_ledger::{binary, require};

/// How long a busy host may take.
const PATIENCE: Duration = Duration::from_secs(20);
const DOCKER: Engine = Engine { backend: "docker", given_by: DOCKER_VARIABLE, told_by: "DOCKER_HOST" };
const PODMAN: Engine = Engine { backend: "podman", given_by: PODMAN_VARIABLE, told_by: "CONTAINER_HOST" };

#[derive(Debug, Clone, Copy)]
struct Engine {
    backend: &'static str,
    /// The variable that gives the tests its address.
    given_by: &'static str,
    /// The variable that ringfence takes it from.
    told_by: &'static str,
}

/// A user with a home, a workspace and an ssh-agent, and a sandbox.
struct Scene {
    engine: Engine,
    name: String,
    home: tempfile::TempDir,
    workspace: tempfile::TempDir,
    agent: Child,
}

impl Scene {
    fn new(engine: Engine, name: &str) -> Scene {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let workspace = tempfile::tempdir().expect("a temporary directory can be made");
        fs_err::create_dir_all(home.path().join(".ssh/config.d")).expect("the home is ours");
        let socket = home.path().join("agent");
        let agent = Command::new("ssh-agent").arg("-D").arg("-a").arg(&socket).stdout(Stdio::null()).spawn();
        let scene = Scene {
            engine,
            name: format!("{name}-{}-{}", engine.backend, std::process::id()),
            home,
            workspace,
            agent: agent.expect("ssh-agent can be started"),
        };
        wait_until("the agent listens", || socket.exists());
        let key = scene.path("key");
        expect_success(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key));
        expect_success(scene.command("ssh-add").arg("-q").arg(&key));
        scene
    }

    /// The same with a development container that is up.
    fn up(engine: Engine, name: &str, flags: &[&str]) -> Scene {
        let scene = Scene::new(engine, name);
        scene.start(DEV_IMAGE, flags);
        scene
    }

    fn start(&self, image: &str, flags: &[&str]) {
        let mut up = self.ringfence(&["up", &self.name, "--container", "--pull", "never"]);
        expect_success(up.args(["--backend", self.engine.backend, "--image", image]).args(flags));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let address = std::env::var(self.engine.given_by).expect("the test requires it");
        let mut command = Command::new(program);
        command.env("HOME", self.home.path()).env("SSH_AUTH_SOCK", self.path("agent"));
        command.env(self.engine.told_by, address).env_remove("XDG_STATE_HOME");
        command.current_dir(self.workspace.path()).stdin(Stdio::null());
        command
    }

    fn ringfence(&self, words: &[&str]) -> Command {
        let mut command = self.command(binary());
        command.args(words);
        command
    }

    /// `ringfence ssh`, with a line for the shell inside.
    fn ssh(&self, flags: &[&str], line: &str) -> Output {
        let mut command = self.ringfence(&["ssh", &self.name]);
        command.args(flags).args(["--", line]).output().expect("ringfence can be started")
    }

    /// A tool that is told of the sandbox by what `ringfence ssh-config` prints.
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

    fn alias(&self) -> String {
        format!("ringfence-{}", self.name)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.ringfence(&["stop", &self.name]).output(); // it may not have come up
        let _ = self.agent.kill(); // it may have ended
        let _ = self.agent.wait(); // see above
    }
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[track_caller]
fn expect_success(command: &mut Command) -> String {
    let output = command.output().expect("the program can be started");
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8(output.stdout).expect("it speaks UTF-8")
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn people_come_in(engine: Engine, name: &str, flags: &[&str]) {
    let scene = Scene::up(engine, name, flags);
    let output = scene.ssh(&[], "id -un; pwd; echo $SANDBOXED; test -t 0 || echo no terminal");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "dev\n/home/dev\nyes\nno terminal\n", "{}", said(&output));
    assert_eq!(scene.ssh(&[], "exit 7").status.code(), Some(7));
    let owners = "for process in /proc/[0-9]*; do
        read -r name <$process/comm && [ \"$name\" = sshd ] && stat -c %U $process
        done 2>/dev/null | sort -u";
    let output = scene.ssh(&[], owners);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "dev\n", "who runs sshd: {}", said(&output));
    let on_terminal = expect_success(scene.tool("ssh").args(["-tt", &scene.alias(), "tty"]));
    assert!(on_terminal.starts_with("/dev/pts/"), "{on_terminal}");
}

#[test]
fn people_come_in_by_ssh_to_a_closed_docker_container() {
    require!(binary, openssh_client, docker, test_image_sshd);
    people_come_in(DOCKER, "closed", &["--net", "closed", "--env", "SANDBOXED=yes"]);
}

#[test]
fn people_come_in_by_ssh_to_a_closed_podman_container() {
    require!(binary, openssh_client, podman, test_image_sshd);
    people_come_in(PODMAN, "closed", &["--net", "closed", "--env", "SANDBOXED=yes"]);
}

#[test]
fn people_come_in_by_ssh_to_a_docker_container_on_the_hosts_network() {
    require!(binary, openssh_client, docker, test_image_sshd);
    people_come_in(DOCKER, "open", &["--net", "open", "--allow-weaker", "ipc", "--env", "SANDBOXED=yes"]);
}

#[test]
fn people_come_in_by_ssh_to_a_podman_container_on_the_hosts_network() {
    require!(binary, openssh_client, podman, test_image_sshd);
    people_come_in(PODMAN, "open", &["--net", "open", "--allow-weaker", "ipc", "--env", "SANDBOXED=yes"]);
}

#[track_caller]
fn tools_work(engine: Engine) {
    let scene = Scene::up(engine, "tools", &["--net", "closed"]);
    let source = scene.path("source");
    fs_err::create_dir_all(source.join("deep")).expect("the home is ours");
    let content: Vec<u8> = (0..2_000_000u32).map(|number| (number % 251) as u8).collect();
    fs_err::write(source.join("deep/file"), &content).expect("the home is ours");
    let (alias, file) = (scene.alias(), source.join("deep/file"));
    let inside = |path: &str| format!("{alias}:{path}");

    expect_success(scene.tool("scp").arg(&file).arg(inside("by-scp")));
    expect_success(scene.tool("scp").arg(inside("by-scp")).arg(scene.path("back-by-scp")));
    expect_success(scene.tool("rsync").arg("-a").arg(format!("{}/", source.display())).arg(inside("by-rsync/")));
    expect_success(scene.tool("rsync").arg("-a").arg(inside("by-rsync/")).arg(scene.path("back-by-rsync")));
    let batch = scene.path("batch");
    fs_err::write(&batch, format!("get by-scp {}\n", scene.path("back-by-sftp").display())).expect("it is ours");
    expect_success(scene.tool("sftp").arg("-b").arg(&batch).arg(&alias));
    for back in ["back-by-scp", "back-by-rsync/deep/file", "back-by-sftp"] {
        assert!(fs_err::read(scene.path(back)).expect("it came back") == content, "{back} differs");
    }

    // What an editor's remote mode does: a server inside, reached through a forwarded port.
    let server = "import socket as s; l = s.create_server(('127.0.0.1', 0)); print(l.getsockname()[1], flush=True); \
                  c = l.accept()[0]; c.sendall(b'from inside'); c.close()";
    let mut listening = scene
        .tool("ssh")
        .args([&alias, &format!("python3 -c \"{server}\"")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("ssh can be started");
    let mut port = String::new();
    let heard = listening.stdout.take().expect("it was asked for");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(heard), &mut port).expect("it tells its port");
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
fn a_port_of_the_hosts_loopback_leads_in_and_only_with_a_key() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = Scene::up(DOCKER, "port", &["--net", "closed"]);
    let direct = ["-o", "ProxyCommand=none", &scene.alias(), "id -un"];
    let ssh = scene.tool("ssh");
    let stanza = fs_err::read_to_string(scene.path("config")).expect("it was just written");
    assert!(stanza.contains("\n    Port "), "{stanza}");
    drop(ssh);
    assert_eq!(expect_success(scene.tool("ssh").args(direct)), "dev\n");
    let output = scene.tool("ssh").env_remove("SSH_AUTH_SOCK").args(direct).output().expect("ssh can be started");
    assert!(said(&output).contains("Permission denied (publickey)"), "{}", said(&output));
}

#[test]
fn a_server_with_another_key_is_refused() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = Scene::up(DOCKER, "mismatch", &["--net", "closed"]);
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
fn an_agent_is_lent_only_when_asked() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = Scene::up(DOCKER, "agent", &["--net", "closed"]);
    let output = scene.ssh(&[], "ssh-add -L");
    assert!(said(&output).contains("Could not open a connection to your authentication agent"), "{}", said(&output));
    let output = scene.ssh(&["--forward-agent"], "ssh-add -L");
    assert!(said(&output).contains("ssh-ed25519 "), "{}", said(&output));
}

#[test]
fn keys_may_lie_in_the_home_and_somebody_without_any_is_told_how_to_make_one() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = Scene::up(DOCKER, "keys", &["--net", "closed"]);
    let ssh_config = || {
        let mut command = scene.ringfence(&["ssh-config", &scene.name]);
        command.env_remove("SSH_AUTH_SOCK").output().expect("ringfence can be started")
    };
    let output = ssh_config();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("hint: make one: ssh-keygen -t ed25519\n"), "{}", said(&output));
    fs_err::copy(scene.path("key.pub"), scene.path(".ssh/id_ed25519.pub")).expect("the home is ours");
    let output = ssh_config();
    fs_err::write(scene.path("config"), output.stdout).expect("the home is ours");
    let mut ssh = scene.command("ssh");
    ssh.env_remove("SSH_AUTH_SOCK").arg("-F").arg(scene.path("config")).arg("-i").arg(scene.path("key"));
    assert_eq!(expect_success(ssh.args([&scene.alias(), "id -un"])), "dev\n");
}

#[test]
fn an_alias_is_there_as_long_as_its_sandbox() {
    require!(binary, openssh_client, docker, test_image_sshd);
    let scene = Scene::up(DOCKER, "alias", &["--net", "closed"]);
    let alias = scene.path(".ssh/config.d").join(scene.alias());
    assert!(!alias.exists());
    expect_success(&mut scene.ringfence(&["ssh-config", &scene.name]));
    let mut ssh = scene.command("ssh");
    assert_eq!(expect_success(ssh.arg("-F").arg(&alias).args([&scene.alias(), "id -un"])), "dev\n");
    expect_success(&mut scene.ringfence(&["stop", &scene.name]));
    wait_until("the alias is gone", || !alias.exists());
}

#[test]
fn a_sandbox_without_sshd_and_one_that_is_not_there_are_told_apart() {
    require!(binary, docker);
    let scene = Scene::new(DOCKER, "none");
    let output = scene.ssh(&[], "true");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("there is no sandbox `none-docker-"), "{}", said(&output));
    scene.start(TINY_IMAGE, &["--net", "closed"]);
    let output = scene.ssh(&[], "true");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("error: there is no sshd in the sandbox"), "{}", said(&output));
    assert!(said(&output).contains("hint: without ssh: ringfence enter none-docker-"), "{}", said(&output));
}

#[track_caller]
fn an_image_is_built(engine: Engine) {
    let scene = Scene::new(engine, "image");
    let tag = format!("localhost/ringfence-test-built-{}:latest", std::process::id());
    let build = |text: String| {
        let file: &Path = &scene.path("Containerfile");
        fs_err::write(file, text).expect("the home is ours");
        let mut command = scene.ringfence(&["image", "build", "--backend", engine.backend, "--tag", &tag]);
        command.arg("--file").arg(file).output().expect("ringfence can be started")
    };
    let output = build(format!("FROM {TINY_IMAGE}\nRUN echo said while building\nUSER dev\n"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{tag}\n"), "{}", said(&output));
    assert!(said(&output).contains("said while building"), "{}", said(&output));
    let output = build(format!("FROM {TINY_IMAGE}\nRUN echo said in vain; false\n"));
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(125), &b""[..]), "{}", said(&output));
    assert!(said(&output).contains("said in vain"), "{}", said(&output));
    let mut up = scene.ringfence(&["up", &scene.name, "--backend", engine.backend, "--image", &tag]);
    expect_success(up.args(["--pull", "never", "--net", "closed"]));
}

#[test]
fn an_image_is_built_by_docker_and_a_failing_step_is_told() {
    require!(binary, docker);
    an_image_is_built(DOCKER);
}

#[test]
fn an_image_is_built_by_podman_and_a_failing_step_is_told() {
    require!(binary, podman);
    an_image_is_built(PODMAN);
}
