//! The Kubernetes of the tests, as `cargo xtask test` or `cargo xtask cluster up` starts it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;

/// Environment variable that holds the path of a kubeconfig with all rights in the cluster.
pub const CLUSTER_VARIABLE: &str = "RINGFENCE_TEST_CLUSTER";
/// Environment variable that holds the path of the kubeconfig of the tests' account, which has the
/// least rights that the backend needs, in [`CLUSTER_NAMESPACE`] alone.
pub const CLUSTER_ACCOUNT_VARIABLE: &str = "RINGFENCE_TEST_CLUSTER_ACCOUNT";
/// Environment variable that holds the path of the cluster's kubectl.
pub const KUBECTL_VARIABLE: &str = "RINGFENCE_TEST_KUBECTL";
/// Environment variable that holds the address of a host outside of the cluster. Pods reach it
/// unless a policy denies that; on port 80 it serves [`OUTSIDE_PAGE`].
pub const CLUSTER_OUTSIDE_VARIABLE: &str = "RINGFENCE_TEST_CLUSTER_OUTSIDE";
/// Environment variable that holds the path of the network namespace of the host outside, in which
/// a test can start more servers by `nsenter --net=PATH`.
pub const OUTSIDE_NAMESPACE_VARIABLE: &str = "RINGFENCE_TEST_CLUSTER_OUTSIDE_NAMESPACE";

/// Namespace of the tests' account. It enforces the Pod Security Standard `restricted`.
pub const CLUSTER_NAMESPACE: &str = "ringfence-tests";
/// Name of the image with only busybox and a user `dev`, uid 1000. No image can be pulled: pods
/// need the pull policy `Never` or `IfNotPresent`.
pub const CLUSTER_BUSYBOX_IMAGE: &str = "localhost/busybox:1";
/// Name of the image with the content of the default dev image, with git and Python.
pub const CLUSTER_DEV_IMAGE: &str = "localhost/dev:1";
/// Name of the image without a shell: it has only `/pause`, a static program that sleeps, and
/// `/etc/passwd`.
pub const CLUSTER_SHELL_LESS_IMAGE: &str = "localhost/shell-less:1";
/// Name of the image with the guest of the build under test.
pub const CLUSTER_GUEST_IMAGE: &str = "localhost/ringfence-guest:1";
/// Content of the page that the host outside serves.
pub const OUTSIDE_PAGE: &str = "reached the outside\n";

/// The cluster that the tests were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Path of a kubeconfig with all rights.
    pub kubeconfig: PathBuf,
    /// Path of the kubeconfig of the tests' account.
    pub account: PathBuf,
    /// Address of the host outside of the cluster.
    pub outside: IpAddr,
    /// Path of the network namespace of the host outside.
    pub outside_namespace: PathBuf,
    kubectl: PathBuf,
}

impl Cluster {
    /// Returns the cluster that the environment names.
    pub fn for_tests() -> Result<Self, String> {
        let kubeconfig = named(CLUSTER_VARIABLE)?;
        let outside = named(CLUSTER_OUTSIDE_VARIABLE)?;
        Ok(Self {
            kubeconfig: kubeconfig.into(),
            account: named(CLUSTER_ACCOUNT_VARIABLE)?.into(),
            outside: outside
                .parse()
                .map_err(|_| format!("{CLUSTER_OUTSIDE_VARIABLE} is no address: `{outside}`"))?,
            outside_namespace: named(OUTSIDE_NAMESPACE_VARIABLE)?.into(),
            kubectl: named(KUBECTL_VARIABLE)?.into(),
        })
    }

    /// Returns kubectl with all rights, in the namespace `default`.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// Returns kubectl with the rights of the tests' account, in its namespace.
    pub fn kubectl_of_account(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", &self.account);
        command
    }
}

fn named(variable: &str) -> Result<String, String> {
    std::env::var(variable)
        .map_err(|_| format!("{variable} names no cluster; use `cargo xtask test`, as root"))
}
