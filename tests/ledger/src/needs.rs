//! Needs of tests. Each has one function, which tries to use the needed thing and returns the
//! reason if that fails.

use std::process::{Command, Stdio};

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};

use crate::cluster::{CLUSTER_DEV_IMAGE, Cluster};
use crate::engine::{
    DEV_IMAGE, DOCKER_VARIABLE, Engine, PODMAN_VARIABLE, ROOTLESS_PODMAN_VARIABLE, TINY_IMAGE,
};
use crate::subject::{
    User, binary as binary_under_test, e2b_javascript as e2b_directory,
    e2b_python as e2b_interpreter, frameworks_python as frameworks_interpreter,
    mcp_python as mcp_interpreter, openai_agents_python as openai_agents_interpreter,
    playwright_python as playwright_interpreter, plotting_python as plotting_interpreter,
};

/// Checks that the tests run as root.
pub fn root() -> Result<(), String> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err("the tests do not run as root".to_owned())
    }
}

/// Checks that there is a `ringfence` binary to test.
pub fn binary() -> Result<(), String> {
    let mut command = Command::new(binary_under_test());
    command.arg("--version");
    succeeds(command)
}

/// Checks for a user without privileges: the caller, or the user that `cargo xtask test` creates
/// when it is root.
pub fn ordinary_user() -> Result<(), String> {
    succeeds(as_ordinary_user("true", &[])?)
}

/// Checks that the user who runs the tests may create user namespaces.
pub fn user_namespaces() -> Result<(), String> {
    succeeds(command("unshare", NEW_NAMESPACES))
}

/// Checks that the ordinary user of the tests may create user namespaces.
pub fn ordinary_user_namespaces() -> Result<(), String> {
    succeeds(as_ordinary_user("unshare", NEW_NAMESPACES)?)
}

/// Checks that huge pages can be reserved on this machine.
pub fn huge_pages() -> Result<(), String> {
    let path = "/proc/sys/vm/nr_hugepages";
    let file = fs_err::OpenOptions::new().write(true).open(path);
    file.map(drop).map_err(|error| format!("cannot reserve huge pages: {error}"))
}

/// Checks that bubblewrap works on this machine.
pub fn bwrap() -> Result<(), String> {
    let view = [
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "true",
    ];
    succeeds(command("bwrap", &view))
}

/// Checks that the kernel's Landlock denies what a ruleset leaves out.
pub fn landlock() -> Result<(), String> {
    // A ruleset restricts only the thread that applies it, and this thread ends with the probe.
    std::thread::spawn(|| {
        restrict_this_thread()
            .map_err(|error| format!("cannot restrict a thread with Landlock: {error}"))?;
        match fs_err::File::open("/proc/self/status") {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(format!("Landlock did not deny a read, but it failed: {error}")),
            Ok(_) => Err("a read that Landlock should deny succeeded".to_owned()),
        }
    })
    .join()
    .unwrap_or_else(|_| Err("the Landlock probe panicked".to_owned()))
}

/// Checks for the right to make a cgroup that limits memory and processes.
pub fn cgroup_limits() -> Result<(), String> {
    crate::cgroup::limits()
}

/// Checks for an IPv6 loopback address.
pub fn ipv6() -> Result<(), String> {
    std::net::TcpListener::bind("[::1]:0")
        .map(drop)
        .map_err(|error| format!("cannot bind [::1]: {error}"))
}

/// Checks for the right and the programs to make networks, and certificates for the servers in
/// them.
pub fn own_network() -> Result<(), String> {
    let script = "ip link add one type veth peer name other && openssl version && setpriv true && \
                  nsenter --version";
    succeeds(command("unshare", &["--net", "--mount", "sh", "-c", script]))
}

/// Checks that pseudo-terminals can be opened.
pub fn pseudo_terminals() -> Result<(), String> {
    let open = fs_err::OpenOptions::new().read(true).write(true).open("/dev/ptmx");
    open.map(drop).map_err(|error| error.to_string())
}

/// Checks that every user can open the device for tunnels.
pub fn tunnels() -> Result<(), String> {
    let open = fs_err::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    open.map(drop).map_err(|error| error.to_string())?;
    succeeds(as_ordinary_user("sh", &["-c", "exec 3<>/dev/net/tun"])?)
}

/// Checks that git runs.
pub fn git() -> Result<(), String> {
    succeeds(command("git", &["--version"]))
}

/// Checks for a Python 3 interpreter.
pub fn python3() -> Result<(), String> {
    succeeds(command("python3", &["-c", "pass"]))
}

/// Checks that curl runs.
pub fn curl() -> Result<(), String> {
    succeeds(command("/usr/bin/curl", &["--version"]))
}

/// Checks that wget runs.
pub fn wget() -> Result<(), String> {
    succeeds(command("/usr/bin/wget", &["--version"]))
}

/// Checks for apt, and for dpkg to read a package.
pub fn apt() -> Result<(), String> {
    succeeds(command("/usr/bin/apt-get", &["--version"]))?;
    succeeds(command("/usr/bin/dpkg-deb", &["--version"]))
}

/// Checks for pip in the system's own Python.
pub fn pip() -> Result<(), String> {
    succeeds(command("/usr/bin/python3", &["-m", "pip", "--version"]))
}

/// Checks for the package `requests` in the system's own Python.
pub fn python_requests() -> Result<(), String> {
    succeeds(command("/usr/bin/python3", &["-c", "import requests"]))
}

/// Checks for the package `httpx` in the system's own Python.
pub fn python_httpx() -> Result<(), String> {
    succeeds(command("/usr/bin/python3", &["-c", "import httpx"]))
}

/// Checks for a Node that has `fetch`.
pub fn node() -> Result<(), String> {
    succeeds(command("/usr/bin/node", &["--eval", "await fetch"]))
}

/// Checks that npm runs.
pub fn npm() -> Result<(), String> {
    succeeds(command("/usr/bin/npm", &["--version"]))
}

/// Checks for Go on PATH, as a user's toolchain would be.
pub fn go() -> Result<(), String> {
    succeeds(command("go", &["version"]))
}

/// Checks for a Java that compiles the source files that it runs.
pub fn java() -> Result<(), String> {
    succeeds(command("/usr/bin/javac", &["-version"]))
}

/// Checks for cargo on PATH, as a user's toolchain would be.
pub fn cargo() -> Result<(), String> {
    succeeds(command("cargo", &["--version"]))
}

/// Checks for Docker with the tiny image.
pub fn docker() -> Result<(), String> {
    Engine::named_by(DOCKER_VARIABLE)?.run(TINY_IMAGE, &["true"])
}

/// Checks for the Podman that root runs, with the tiny image.
pub fn podman() -> Result<(), String> {
    Engine::named_by(PODMAN_VARIABLE)?.run(TINY_IMAGE, &["true"])
}

/// Checks for the Podman that the ordinary user of the tests runs, with the tiny image.
pub fn rootless_podman() -> Result<(), String> {
    Engine::named_by(ROOTLESS_PODMAN_VARIABLE)?.run(TINY_IMAGE, &["true"])
}

/// Checks for a cluster whose node accepts pods.
pub fn cluster() -> Result<(), String> {
    let mut command = Cluster::for_tests()?.kubectl();
    command.args(["wait", "nodes", "--all", "--for=condition=Ready", "--timeout=10s"]);
    succeeds(command)
}

/// Checks for the image of a development container on the cluster.
pub fn cluster_image_dev() -> Result<(), String> {
    let mut command = Cluster::for_tests()?.kubectl();
    let images = "jsonpath={.items[*].status.images[*].names}";
    let output = command
        .args(["get", "nodes", "--output", images])
        .output()
        .map_err(|error| format!("cannot run kubectl: {error}"))?;
    match String::from_utf8_lossy(&output.stdout).contains(CLUSTER_DEV_IMAGE) {
        true => Ok(()),
        false => Err(format!("the cluster has no image {CLUSTER_DEV_IMAGE}")),
    }
}

/// Checks for the image of a development container, on every engine that the tests were given.
pub fn test_image_dev() -> Result<(), String> {
    in_the_dev_image(
        "test $(id -un):$(id -u):$PWD = dev:1000:/home/dev/workspace && git --version && python3 \
         -c pass",
    )
}

/// Checks for an SSH server in the image of a development container, on every engine that the tests
/// were given.
pub fn test_image_sshd() -> Result<(), String> {
    in_the_dev_image(
        "ssh-keygen -q -N '' -f /tmp/key && /usr/sbin/sshd -t -f /dev/null -h /tmp/key",
    )
}

/// Checks that the SSH client runs.
pub fn openssh_client() -> Result<(), String> {
    succeeds(command("ssh", &["-V"]))
}

/// Checks that rsync runs.
pub fn rsync() -> Result<(), String> {
    succeeds(command("rsync", &["--version"]))
}

/// Checks for a Python interpreter with the `e2b` package.
pub fn e2b_python() -> Result<(), String> {
    let mut command = Command::new(e2b_interpreter()?);
    command.args(["-c", "import e2b, e2b_code_interpreter"]);
    succeeds(command)
}

/// Checks for a Python interpreter with `langchain-e2b` and `smolagents`.
pub fn frameworks_python() -> Result<(), String> {
    let mut command = Command::new(frameworks_interpreter()?);
    // Only find the other package, because importing it takes seconds.
    command.args([
        "-c",
        "import e2b_code_interpreter, importlib.util as all; all.find_spec('langchain_e2b').name",
    ]);
    succeeds(command)
}

/// Checks for a Python interpreter with `openai-agents` and its part for E2B.
pub fn openai_agents_python() -> Result<(), String> {
    let mut command = Command::new(openai_agents_interpreter()?);
    command.args(["-c", "import e2b, importlib.util as all; all.find_spec('agents').name"]);
    succeeds(command)
}

/// Checks for a Python interpreter with the `mcp` package.
pub fn mcp_python() -> Result<(), String> {
    let mut command = Command::new(mcp_interpreter()?);
    command.args(["-c", "import mcp"]);
    succeeds(command)
}

/// Checks for a Python interpreter with `pandas` and `matplotlib`.
pub fn plotting_python() -> Result<(), String> {
    let mut command = Command::new(plotting_interpreter()?);
    command.args(["-c", "import pandas, matplotlib"]);
    succeeds(command)
}

/// Checks for a Python interpreter with the `playwright` package.
pub fn playwright_python() -> Result<(), String> {
    let mut command = Command::new(playwright_interpreter()?);
    command.args(["-c", "import playwright.sync_api"]);
    succeeds(command)
}

/// Checks that Chromium runs.
pub fn chromium() -> Result<(), String> {
    succeeds(command("/usr/bin/chromium", &["--version"]))
}

/// Checks for E2B's packages for JavaScript.
pub fn e2b_javascript() -> Result<(), String> {
    let package = e2b_directory()?.join("package.json");
    let mut command = command(
        "node",
        &["-e", "require('module').createRequire(process.argv[1])('@e2b/code-interpreter')"],
    );
    command.arg(package);
    succeeds(command)
}

const NEW_NAMESPACES: &[&str] =
    &["--user", "--map-root-user", "--mount", "--pid", "--net", "--fork", "true"];

/// Removes all access to files from this thread.
fn restrict_this_thread() -> Result<(), landlock::RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))?
        .create()?
        .restrict_self()
        .map(drop)
}

fn in_the_dev_image(script: &str) -> Result<(), String> {
    let engines = Engine::given();
    if engines.is_empty() {
        return Err(
            "the tests were given no container engine; use `cargo xtask test`, as root".to_owned()
        );
    }
    engines.iter().try_for_each(|engine| engine.run(DEV_IMAGE, &["zsh", "-c", script]))
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn as_ordinary_user(program: &str, arguments: &[&str]) -> Result<Command, String> {
    let mut command = User::for_tests()?.command(program);
    command.args(arguments);
    Ok(command)
}

/// Runs a command only for its success. Otherwise returns how it failed, with the last line of its
/// standard error.
fn succeeds(mut command: Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run `{program}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let last = words.trim().lines().last().unwrap_or("it says nothing");
    Err(format!("`{program}` ended with {}: {last}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let reason = succeeds(command("no-such-program-here", &[])).unwrap_err();
        assert!(reason.starts_with("cannot run `no-such-program-here`: "), "{reason}");
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let reason =
            succeeds(command("sh", &["-c", "echo first >&2; echo why >&2; exit 3"])).unwrap_err();
        assert_eq!(reason, "`sh` ended with exit status: 3: why");
    }

    #[test]
    fn the_landlock_probe_leaves_the_calling_thread_unrestricted() {
        let _ = landlock(); // met or not, this thread must still be able to read
        assert!(fs_err::read_to_string("/proc/self/status").is_ok());
    }
}
