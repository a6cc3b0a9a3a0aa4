//! The cluster of the tests: pods run, and what it is asked to deny is denied.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use ringfence_test_ledger::cluster::{
    CLUSTER_BUSYBOX_IMAGE, CLUSTER_SHELL_LESS_IMAGE, Cluster, OUTSIDE_PAGE,
};
use ringfence_test_ledger::{eventually, require};
use serde_json::{Value, json};

use crate::scene::said;

/// Objects that one test makes as the account of the tests, removed at its end.
struct ClusterScene {
    cluster: Cluster,
    /// Name of every object, and the label `app` of the pod.
    name: String,
}

impl ClusterScene {
    fn new(name: &str) -> Self {
        let cluster = Cluster::for_tests().expect("the cluster is required");
        Self { cluster, name: format!("{name}-{}", std::process::id()) }
    }

    fn kubectl(&self, arguments: &[&str]) -> Output {
        let mut command = self.cluster.kubectl_of_account();
        command.args(arguments).output().expect("kubectl can be started")
    }

    fn create(&self, object: &Value) -> Output {
        let mut command = self.cluster.kubectl_of_account();
        create_by(command.args(["create", "--filename", "-"]), object)
    }

    /// Returns a pod that Pod Security `restricted` accepts.
    fn pod(&self, image: &str, command: &[&str]) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": self.name, "labels": { "app": self.name } },
            "spec": {
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": true,
                    "runAsUser": 1000,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": command,
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "capabilities": { "drop": ["ALL"] },
                    },
                }],
            },
        })
    }

    #[track_caller]
    fn start_pod(&self, image: &str, command: &[&str]) {
        let created = self.create(&self.pod(image, command));
        assert!(created.status.success(), "{}", said(&created));
        let pod = format!("pod/{}", self.name);
        let ready = self.kubectl(&["wait", &pod, "--for=condition=Ready", "--timeout=60s"]);
        assert!(ready.status.success(), "{}", said(&ready));
    }

    /// Fetches the page of the host outside from inside the pod.
    fn fetch_outside(&self) -> Output {
        // The wget of this busybox crashes if it has a time limit.
        let request =
            format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 1 {} 80", self.cluster.outside);
        self.kubectl(&["exec", &self.name, "--", "sh", "-c", &request])
    }
}

impl Drop for ClusterScene {
    fn drop(&mut self) {
        // An object that the test did not make is not found.
        self.kubectl(&["delete", "pod", &self.name, "--ignore-not-found", "--wait=false"]);
        self.kubectl(&["delete", "networkpolicy", &self.name, "--ignore-not-found"]);
    }
}

fn create_by(command: &mut Command, object: &Value) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl can be started");
    let mut stdin = child.stdin.take().expect("its input is piped");
    stdin.write_all(object.to_string().as_bytes()).expect("kubectl reads its input");
    drop(stdin);
    child.wait_with_output().expect("kubectl ends")
}

#[test]
fn a_network_policy_of_the_cluster_denies_what_a_pod_reached_before() {
    require!(cluster);
    let scene = ClusterScene::new("egress");
    scene.start_pod(CLUSTER_BUSYBOX_IMAGE, &["sleep", "600"]);
    let before = scene.fetch_outside();
    assert!(before.stdout.ends_with(OUTSIDE_PAGE.as_bytes()), "{}", said(&before));

    let policy = scene.create(&json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "name": scene.name },
        "spec": {
            "podSelector": { "matchLabels": { "app": scene.name } },
            "policyTypes": ["Egress"],
        },
    }));
    assert!(policy.status.success(), "{}", said(&policy));
    // The controller applies a policy to running pods within seconds.
    assert!(eventually(|| !scene.fetch_outside().status.success()));
    let after = scene.fetch_outside();
    assert!(said(&after).contains("nc: "), "{}", said(&after));
}

#[test]
fn the_cluster_runs_an_image_without_a_shell_and_refuses_privileged_pods() {
    require!(cluster);
    let scene = ClusterScene::new("shell-less");
    let mut privileged = scene.pod(CLUSTER_SHELL_LESS_IMAGE, &["/pause"]);
    privileged["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
    let refused = scene.create(&privileged);
    assert!(said(&refused).contains("violates PodSecurity \"restricted"), "{}", said(&refused));

    scene.start_pod(CLUSTER_SHELL_LESS_IMAGE, &["/pause"]);
    let shell = scene.kubectl(&["exec", &scene.name, "--", "/bin/sh", "-c", "true"]);
    assert!(said(&shell).contains("no such file or directory"), "{}", said(&shell));
}

#[test]
fn the_account_of_the_cluster_has_the_rights_of_its_role_alone() {
    require!(cluster);
    let scene = ClusterScene::new("account");
    let may = |arguments: &[&str]| {
        let output = scene.kubectl(&[&["auth", "can-i"], arguments].concat());
        String::from_utf8_lossy(&output.stdout).trim() == "yes"
    };
    for (verb, resource) in [("create", "pods"), ("create", "pods/exec"), ("delete", "jobs")] {
        assert!(may(&[verb, resource]), "{verb} {resource}");
        assert!(!may(&[verb, resource, "--namespace", "default"]), "{verb} {resource}");
    }
    for (verb, resource) in [("get", "secrets"), ("update", "pods"), ("list", "nodes")] {
        assert!(!may(&[verb, resource]), "{verb} {resource}");
    }
}
