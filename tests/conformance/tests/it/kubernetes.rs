//! Sandboxes on a cluster: pods and Jobs, their network, their workspace and their end.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ringfence_test_ledger::cluster::{
    CLUSTER_BUSYBOX_IMAGE, CLUSTER_GUEST_IMAGE, CLUSTER_NAMESPACE, CLUSTER_SHELL_LESS_IMAGE,
    Cluster,
};
use ringfence_test_ledger::{binary, eventually, require};
use serde_json::Value;
use tempfile::TempDir;

use crate::scene::{expect_success, said};

/// A user who works with the cluster: a home, and a workspace with some files.
struct ClusterUser {
    cluster: Cluster,
    home: TempDir,
    workspace: TempDir,
    kubeconfig: PathBuf,
}

impl ClusterUser {
    fn new() -> ClusterUser {
        let cluster = Cluster::for_tests().expect("the cluster is required");
        let directory = || tempfile::tempdir().expect("a temporary directory can be made");
        let (home, workspace) = (directory(), directory());
        let kubeconfig = cluster.account.clone();
        ClusterUser { cluster, home, workspace, kubeconfig }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.workspace.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.file(name);
        fs_err::create_dir_all(path.parent().expect("a file is in a directory")).expect("is ours");
        fs_err::write(path, text).expect("the workspace is ours");
    }

    #[track_caller]
    fn read(&self, name: &str) -> String {
        fs_err::read_to_string(self.file(name)).expect("the file is there")
    }

    fn ringfence(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        // All users share the results of the network's trial, which takes seconds.
        let cache = self.cluster.account.parent().unwrap_or(Path::new("/tmp")).join("cache");
        command
            .args(words)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("XDG_CACHE_HOME", cache)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("SANDBOX_METHOD", "kubernetes")
            .env("RINGFENCE_KUBERNETES_IMAGE", CLUSTER_BUSYBOX_IMAGE)
            .env("RINGFENCE_KUBERNETES_GUEST_IMAGE", CLUSTER_GUEST_IMAGE)
            // Pods of many tests share the two processors of the node.
            .env("RINGFENCE_CPUS", "0.1")
            .env("RINGFENCE_MEMORY", "128M")
            .current_dir(self.workspace.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, flags: &[&str], script: &str) -> Output {
        let words = [&["run"], flags, &["--", "sh", "-c", script]].concat();
        self.ringfence(&words).output().expect("ringfence can be started")
    }

    fn output(&self, words: &[&str]) -> Output {
        self.ringfence(words).output().expect("ringfence can be started")
    }

    /// Returns the names of the pods and Jobs of this user's sandbox `name`.
    fn objects(&self, name: &str) -> String {
        let selector = format!("ringfence.dev/sandbox={name}");
        let mut kubectl = self.cluster.kubectl();
        kubectl.args(["--namespace", CLUSTER_NAMESPACE, "get", "pods,jobs", "--output=name"]);
        let output = kubectl.args(["--selector", &selector]).output().expect("kubectl starts");
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Returns the name of a sandbox that no other test has.
fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[test]
fn one_command_on_a_cluster_has_its_output_and_its_exit_code() {
    require!(cluster);
    let user = ClusterUser::new();
    let words = ["run", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3"];
    let output = user.output(&words);
    let result: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
    assert_eq!(result["stdout"], "out\n");
    assert_eq!(result["stderr"], "err\n");
    assert_eq!(result["exit_code"], 3);
    assert_eq!(result["meta"]["backend"], "kubernetes");
    let held = result["meta"]["held"]["network"].as_str().unwrap_or_default();
    assert!(held.starts_with("NetworkPolicy, tried from inside: "), "{held}");
}

#[test]
fn code_in_a_pod_is_not_root_and_sees_no_token_and_no_variable_of_the_cluster() {
    require!(cluster);
    let user = ClusterUser::new();
    let script = "id -u; grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
                  ls /var/run/secrets 2>&1; env | grep -c KUBERNETES; touch /etc/x 2>&1";
    let output = user.run(&[], script);
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "1000", "{}", said(&output));
    assert_eq!(&lines[1..4], ["CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]);
    assert!(lines[4].contains("No such file"), "{}", said(&output));
    assert_eq!(lines[5], "0");
    assert!(lines[6].contains("Read-only file system"), "{}", said(&output));
}

#[test]
fn a_closed_network_denies_what_an_open_one_reaches() {
    require!(cluster);
    let user = ClusterUser::new();
    let script = format!(
        "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {} 80 || exit 9",
        user.cluster.outside
    );
    let open = user.run(&["--net", "open"], &script);
    assert!(said(&open).contains("reached the outside"), "{}", said(&open));
    // The first command of a pod is denied already: the guest waits for the policy.
    let closed = user.run(&[], &script);
    assert_eq!(closed.status.code(), Some(9), "{}", said(&closed));
    assert!(!said(&closed).contains("reached the outside"), "{}", said(&closed));
}

#[test]
fn a_list_of_allowed_hosts_is_refused_with_the_clause() {
    require!(cluster);
    let user = ClusterUser::new();
    let output = user.run(&["--allow", "example.org"], "true");
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert!(said(&output).contains("egress"), "{}", said(&output));
}

#[test]
fn a_workspace_is_copied_without_hidden_files_and_comes_back_without_protected_ones() {
    require!(cluster);
    let user = ClusterUser::new();
    user.write("kept", "kept\n");
    user.write("changed", "before\n");
    user.write("removed", "removed\n");
    user.write(".env", "secret\n");
    user.write(".git/hooks/pre-commit", "harmless\n");
    let script = "cat .env 2>/dev/null; cat kept; echo after >changed; rm removed; \
                  mkdir new; echo new >new/file; echo planted >.git/hooks/pre-commit";
    let output = user.run(&["--hide", "**/.env"], script);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "kept\n");
    assert_eq!(user.read("changed"), "after\n");
    assert_eq!(user.read("new/file"), "new\n");
    assert!(!user.file("removed").exists());
    assert_eq!(user.read(".env"), "secret\n");
    assert_eq!(user.read(".git/hooks/pre-commit"), "harmless\n");
    assert!(said(&output).contains("`.git/hooks/pre-commit` did not come back"));
    // The same change comes back where nothing protects the file.
    let script = "echo planted >.git/hooks/pre-commit";
    let words = ["run", "--policy", "policy.json", "--", "sh", "-c", script];
    user.write("policy.json", r#"{ "filesystem": { "protect": [] } }"#);
    let output = user.output(&words);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(user.read(".git/hooks/pre-commit"), "planted\n");
}

#[test]
fn a_sandbox_on_a_cluster_stays_and_leaves_nothing_behind() {
    require!(cluster);
    let user = ClusterUser::new();
    let name = unique("stays");
    user.write("file", "sent\n");
    expect_success(&mut user.ringfence(&["up", &name]));
    assert!(user.objects(&name).starts_with("pod/ringfence-stays-"), "{}", user.objects(&name));

    let mut exec = user.ringfence(&["exec", &name, "--", "sh", "-c", "cat file -; exit 4"]);
    let mut exec = exec.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("is there");
    exec.stdin.take().expect("is piped").write_all(b"input\n").expect("exec reads");
    let exec = exec.wait_with_output().expect("exec ends");
    assert_eq!(exec.status.code(), Some(4));
    assert_eq!(String::from_utf8_lossy(&exec.stdout), "sent\ninput\n");

    let large = "head -c 20000000 /dev/zero | tr '\\0' x";
    let exec = user.output(&["exec", &name, "--", "sh", "-c", large]);
    assert_eq!(exec.stdout.len(), 20_000_000);

    // A file that changed on both sides is a conflict, and the host's file stays.
    expect_success(&mut user.ringfence(&[
        "exec",
        &name,
        "--",
        "sh",
        "-c",
        "echo inside >file; echo 2 >second",
    ]));
    user.write("file", "outside\n");
    let sync = user.output(&["sync", &name]);
    assert_eq!(sync.status.code(), Some(1), "{}", said(&sync));
    assert!(said(&sync).contains("`file` is a conflict"), "{}", said(&sync));
    assert_eq!((user.read("file"), user.read("second")), ("outside\n".into(), "2\n".into()));

    expect_success(&mut user.ringfence(&["exec", &name, "--", "sh", "-c", "echo 3 >third"]));
    let stop = user.output(&["stop", &name]);
    assert!(stop.status.success(), "{}", said(&stop));
    assert_eq!(user.read("third"), "3\n");
    assert_eq!(user.objects(&name), "");
}

#[test]
fn an_image_without_a_shell_runs_its_programs() {
    require!(cluster);
    let user = ClusterUser::new();
    let mut run = user.ringfence(&["run", "--time", "1s", "--", "/pause"]);
    let output = run.env("RINGFENCE_KUBERNETES_IMAGE", CLUSTER_SHELL_LESS_IMAGE).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", said(&output));
}

#[test]
fn the_pod_of_a_killed_keeper_is_removed_by_the_next_start() {
    require!(cluster);
    let user = ClusterUser::new();
    let name = unique("killed");
    expect_success(&mut user.ringfence(&["up", &name]));
    let inspected = user.output(&["inspect", &name, "--json"]);
    let manifest: Value = serde_json::from_slice(&inspected.stdout).expect("is JSON");
    let keeper = manifest["owner"]["pid"].as_i64().expect("is a number");
    let keeper = rustix::process::Pid::from_raw(i32::try_from(keeper).unwrap()).unwrap();
    rustix::process::kill_process(keeper, rustix::process::Signal::KILL).unwrap();
    assert!(user.objects(&name).contains("pod/"), "a killed keeper removes nothing");
    let output = user.run(&[], "true");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(user.objects(&name), "");
}

#[test]
fn the_end_of_a_pod_ends_its_commands_with_the_reason() {
    require!(cluster);
    let user = ClusterUser::new();
    let name = unique("deleted");
    expect_success(&mut user.ringfence(&["up", &name]));
    let exec = user
        .ringfence(&["exec", &name, "--", "sh", "-c", "echo begun; sleep 600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ringfence can be started");
    assert!(eventually(|| {
        let ps = user.output(&["inspect", &name]);
        said(&ps).contains("sleep 600")
    }));
    let mut delete = user.cluster.kubectl();
    delete.args(["--namespace", CLUSTER_NAMESPACE, "delete", "pod", "--wait=false"]);
    expect_success(delete.arg(format!("ringfence-{name}")));
    let exec = exec.wait_with_output().expect("exec ends");
    assert_eq!(exec.status.code(), Some(125), "{}", said(&exec));
    assert!(eventually(|| user.objects(&name).is_empty()));
    assert!(eventually(|| !said(&user.output(&["ps"])).contains(&name)));
}

#[test]
fn the_manifests_are_enough_for_an_account_and_a_missing_right_is_named() {
    require!(cluster);
    let user = ClusterUser::new();
    let namespace = unique("manifests");
    let apply = |yaml: &[u8]| {
        let mut kubectl = user.cluster.kubectl();
        kubectl.args(["apply", "--filename", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut kubectl = kubectl.spawn().expect("kubectl can be started");
        kubectl.stdin.take().expect("is piped").write_all(yaml).expect("kubectl reads");
        assert!(kubectl.wait().expect("kubectl ends").success());
    };
    for kind in ["namespace", "role", "networkpolicy", "quota"] {
        let words = ["kubernetes", "manifest", kind, "--namespace", &namespace];
        apply(&user.output(&words).stdout);
    }
    let kubectl = |words: &[&str]| {
        let mut kubectl = user.cluster.kubectl();
        let output = kubectl.args(["--namespace", &namespace]).args(words).output();
        let output = output.expect("kubectl can be started");
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let account =
        account_of_manifest(&user, &namespace, &kubectl(&["create", "token", "ringfence"]));
    let other = ClusterUser { kubeconfig: account.path().join("kubeconfig"), ..ClusterUser::new() };
    let output = other.run(&[], "echo works");
    assert!(said(&output).contains("works"), "{}", said(&output));
    let output = other.output(&["kubernetes", "sweep"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{}", said(&output));

    // A namespace at its quota refuses a pod, and the error says so.
    kubectl(&["patch", "quota", "ringfence", "--patch", r#"{"spec":{"hard":{"pods":"0"}}}"#]);
    let output = other.output(&["up", &namespace]);
    assert!(said(&output).contains("the quota of the namespace"), "{}", said(&output));

    let role = r#"[{"op":"remove","path":"/rules/1"}]"#;
    kubectl(&["patch", "role", "ringfence", "--type=json", "--patch", role]);
    let output = other.output(&["doctor", "--backend", "kubernetes"]);
    assert!(
        said(&output).contains(
            "may not create pods/exec: its role lacks the rule {apiGroups: [\"\"], resources: \
             [pods/exec], verbs: [create]}"
        ),
        "{}",
        said(&output)
    );
    kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
}

/// Writes a kubeconfig of the account `ringfence` of a namespace.
fn account_of_manifest(user: &ClusterUser, namespace: &str, token: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = directory.path().join("kubeconfig");
    fs_err::copy(&user.cluster.account, &path).expect("the kubeconfig can be read");
    let configure = |words: &[&str]| {
        let mut kubectl = user.cluster.kubectl();
        expect_success(kubectl.arg("config").args(words).env("KUBECONFIG", &path));
    };
    configure(&["set-credentials", "manifest", "--token", token]);
    configure(&["set-context", "--current", "--namespace", namespace, "--user", "manifest"]);
    directory
}
