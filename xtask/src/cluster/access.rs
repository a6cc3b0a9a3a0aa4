//! Access of clients to a running cluster: a relay, kubeconfigs, and the variables of the tests.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use fs_err::os::unix::fs::OpenOptionsExt;
use ringfence_test_ledger::User;
use ringfence_test_ledger::cluster::{
    CLUSTER_ACCOUNT_VARIABLE, CLUSTER_OUTSIDE_VARIABLE, CLUSTER_VARIABLE, KUBECTL_VARIABLE,
    OUTSIDE_NAMESPACE_VARIABLE,
};

use super::process::{ClusterFacts, ClusterRelay};
use super::programs::ClusterPrograms;

/// A way from one network namespace to the API of a cluster.
pub(super) struct ClusterAccess {
    pub(super) relay: ClusterRelay,
    /// Variables by which tests find the cluster.
    pub(super) variables: Vec<(&'static str, String)>,
}

impl ClusterAccess {
    /// Starts the relay by `relay`, and writes kubeconfigs that use the relay to `kubeconfigs`. The
    /// kubeconfig of the tests' account then belongs to `user`.
    pub(super) fn open(
        cluster: &Path,
        programs: &ClusterPrograms,
        relay: Command,
        kubeconfigs: &Path,
        user: Option<&User>,
    ) -> Result<Self> {
        let facts = ClusterFacts::read(cluster)?;
        let relay = ClusterRelay::start(relay)?;
        let write = |name: &str| -> Result<String> {
            let path = kubeconfigs.join(format!("{name}.outside.kubeconfig"));
            let inside = fs_err::read_to_string(cluster.join(format!("{name}.kubeconfig")))?;
            let mut options = fs_err::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(inside.replace(&facts.address, &relay.address).as_bytes())?;
            Ok(path.to_str().context("the path of a kubeconfig is not text")?.to_owned())
        };
        let admin = write("admin")?;
        let account = write("account")?;
        if let Some(user) = user {
            fs_err::os::unix::fs::chown(&account, Some(user.uid), Some(user.gid))?;
        }
        let kubectl = programs.find("kubectl").context("kubectl was not built")?;
        let variables = vec![
            (CLUSTER_VARIABLE, admin),
            (CLUSTER_ACCOUNT_VARIABLE, account),
            (KUBECTL_VARIABLE, kubectl.to_str().context("the cache is not text")?.to_owned()),
            (CLUSTER_OUTSIDE_VARIABLE, facts.outside),
            (OUTSIDE_NAMESPACE_VARIABLE, facts.outside_namespace),
        ];
        Ok(Self { relay, variables })
    }

    /// Returns the words of the command that relays connections to the API of a cluster.
    pub(super) fn relay_command(
        cluster: &Path,
        programs: &ClusterPrograms,
    ) -> Result<[OsString; 4]> {
        let tool = programs.find("clustertool").context("the tool was not built")?;
        let mut socket = OsString::from("unix:");
        socket.push(cluster.join("api.sock"));
        Ok([tool.into(), "relay".into(), "tcp:127.0.0.1:0".into(), socket])
    }
}
