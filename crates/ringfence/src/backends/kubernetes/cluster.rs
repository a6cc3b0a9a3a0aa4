//! Connection to the API server of a cluster, as the caller's kubeconfig or the pod around
//! ringfence describes it.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use ringfence_core::settings::KubernetesConfig;
use tokio::time::timeout;

use super::error::ClusterFailure;
use crate::Host;

/// Longest time that the API server may take to answer one request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time that a connection to the API server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A cluster, and the namespace of the sandboxes there.
#[derive(Clone)]
pub(super) struct Cluster {
    config: Config,
    client: Client,
    /// Address of the API server.
    pub(super) server: String,
    pub(super) namespace: String,
    /// Context of the kubeconfig; none in a pod.
    pub(super) context: Option<String>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cluster { server, namespace, .. } = self;
        formatter
            .debug_struct("Cluster")
            .field("server", server)
            .field("namespace", namespace)
            .finish()
    }
}

impl Cluster {
    /// Connects to the cluster that the settings name. Nothing is sent yet.
    pub(super) async fn connect(
        host: &Host,
        settings: &KubernetesConfig,
    ) -> Result<Cluster, ClusterFailure> {
        let mut config = match kubeconfig(host)? {
            Some(kubeconfig) => {
                let options = KubeConfigOptions {
                    context: settings.context.clone(),
                    ..KubeConfigOptions::default()
                };
                let named = settings.context.clone().or_else(|| kubeconfig.current_context.clone());
                let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                config.map_err(|source| ClusterFailure::Context {
                    context: named.unwrap_or_else(|| "of the kubeconfig".to_owned()),
                    source,
                })?
            }
            None if host.text("KUBERNETES_SERVICE_HOST").is_some() => {
                Config::incluster().map_err(|source| ClusterFailure::ServiceAccount { source })?
            }
            None => return Err(ClusterFailure::NoCluster),
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace =
            settings.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = make_client(&config)?;
        Ok(Cluster { config, client, server, namespace, context: settings.context.clone() })
    }

    /// Returns the same cluster with a connection of its own. A client works only as long as the
    /// runtime in which it was made.
    pub(super) fn reconnect(&self) -> Result<Cluster, ClusterFailure> {
        Ok(Cluster { client: make_client(&self.config)?, ..self.clone() })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn network_policies(&self) -> Api<NetworkPolicy> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Sends a request, and waits for the answer at most [`REQUEST_TIMEOUT`].
    pub(super) async fn ask<T>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ClusterFailure> {
        match timeout(REQUEST_TIMEOUT, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(ClusterFailure::from_request(what, &self.namespace, source)),
            Err(_) => {
                Err(ClusterFailure::NoAnswer { what: what.to_owned(), server: self.server.clone() })
            }
        }
    }
}

fn make_client(config: &Config) -> Result<Client, ClusterFailure> {
    Client::try_from(config.clone()).map_err(|source| ClusterFailure::Request {
        what: "prepare the connection to the cluster".to_owned(),
        source,
    })
}

/// Returns the parameters for the creation of an object.
pub(super) fn creation() -> PostParams {
    PostParams { field_manager: Some("ringfence".to_owned()), ..PostParams::default() }
}

/// Reads the kubeconfig files that the variable `KUBECONFIG` names, or else the file of the user.
/// Returns `None` if there is no file.
fn kubeconfig(host: &Host) -> Result<Option<Kubeconfig>, ClusterFailure> {
    let paths: Vec<PathBuf> = match host.text("KUBECONFIG").filter(|text| !text.is_empty()) {
        Some(paths) => std::env::split_paths(paths).filter(|path| path.exists()).collect(),
        None => {
            let usual = host.home.as_ref().map(|home| home.join(".kube/config"));
            usual.into_iter().filter(|path| path.exists()).collect()
        }
    };
    let mut merged: Option<Kubeconfig> = None;
    for path in paths {
        let failed = |source| ClusterFailure::Kubeconfig { path: path.clone(), source };
        let read = Kubeconfig::read_from(&path).map_err(failed)?;
        merged = Some(match merged {
            Some(before) => before.merge(read).map_err(failed)?,
            None => read,
        });
    }
    Ok(merged)
}
