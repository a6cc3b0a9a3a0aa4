//! The `ringfence kubernetes` command, which helps administrators of a cluster.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use ringfence::{ClusterManifest, Host, Settings};

use crate::answer::print;
use crate::report::Failure;

/// Prints manifests for a namespace of sandboxes, and removes sandboxes that nobody keeps.
#[derive(Debug, Args)]
pub(crate) struct KubernetesArguments {
    #[command(subcommand)]
    command: KubernetesCommand,
    /// Namespace of the sandboxes; by default the namespace of the settings or of the kubeconfig.
    #[arg(long, value_name = "NAMESPACE", global = true)]
    namespace: Option<String>,
}

#[derive(Debug, Subcommand)]
enum KubernetesCommand {
    /// Prints a manifest as YAML, for `kubectl apply -f -`.
    Manifest {
        /// Kind of the manifest.
        #[arg(value_name = "KIND")]
        kind: ManifestKind,
    },
    /// Removes the pods and Jobs whose lease has ended, and prints their number.
    Sweep,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ManifestKind {
    /// The namespace, with the Pod Security level `restricted`.
    Namespace,
    /// An account with the least role with which the backend works.
    Role,
    /// The network policies that sandboxes share.
    Networkpolicy,
    /// A quota for the namespace, to be adapted.
    Quota,
    /// A CronJob that removes sandboxes that nobody keeps.
    Sweeper,
}

impl KubernetesArguments {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let settings = Settings::load(host, Vec::new(), Default::default())?;
        let configured = settings.kubernetes.namespace.clone();
        let namespace = self.namespace.clone().or(configured);
        match self.command {
            KubernetesCommand::Manifest { kind } => {
                let kind = match kind {
                    ManifestKind::Namespace => ClusterManifest::Namespace,
                    ManifestKind::Role => ClusterManifest::Role,
                    ManifestKind::Networkpolicy => ClusterManifest::NetworkPolicy,
                    ManifestKind::Quota => ClusterManifest::Quota,
                    ManifestKind::Sweeper => ClusterManifest::Sweeper,
                };
                print(&kind.to_yaml(namespace.as_deref().unwrap_or("ringfence")))?;
            }
            KubernetesCommand::Sweep => {
                let removed = ringfence::sweep_cluster(&settings, namespace)?;
                print(&format!("{removed}\n"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
