//! Errors about clusters, with the fault and with commands for the user to type.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{InClusterError, KubeconfigError};
use ringfence_core::Fault;

use super::pod_state::PodEnd;
use crate::ContainerError;
use crate::host_paths::untrusted::printable;

/// Error of an operation on a cluster.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterFailure {
    #[error("cannot find a cluster: there is no kubeconfig, and ringfence does not run in a pod")]
    NoCluster,
    #[error("cannot read the kubeconfig `{}`", path.display())]
    Kubeconfig { path: PathBuf, source: KubeconfigError },
    #[error("cannot use the context `{context}`")]
    Context { context: String, source: KubeconfigError },
    #[error("cannot use the service account of this pod")]
    ServiceAccount { source: InClusterError },
    #[error("the cluster at {server} did not answer the request to {what}")]
    NoAnswer { what: String, server: String },
    #[error("cannot {what}: the cluster does not accept the credentials: {message}")]
    NotAccepted { what: String, message: String },
    #[error("the account may not {what}: {message}")]
    Forbidden { what: String, namespace: String, message: String },
    #[error("cannot {what}: the quota of the namespace `{namespace}` is used up: {message}")]
    Quota { what: String, namespace: String, message: String },
    #[error("the namespace `{namespace}` does not admit the pod: {message}")]
    NotAdmitted { namespace: String, message: String },
    #[error("there is no namespace `{namespace}`")]
    NoNamespace { namespace: String },
    #[error("cannot {what}")]
    Request { what: String, source: kube::Error },
    #[error("there is a {kind} `{name}` already, which this user's ringfence did not make")]
    NameTaken { kind: &'static str, name: String },
    #[error("the {kind} `{name}` is not what ringfence made: {difference}")]
    Changed { kind: &'static str, name: String, difference: String },
    #[error("the network policy `{policy}` of the namespace opens the network of sandboxes")]
    Opened { policy: String },
    #[error("the pod `{pod}` did not start within {} seconds: {why}", limit.as_secs())]
    NotStarted { pod: String, why: String, limit: Duration },
    #[error("the pod `{pod}` cannot start: {why}")]
    CannotStart { pod: String, why: String },
    #[error("the pod `{pod}` ended before it was up: {end}")]
    Ended { pod: String, end: PodEnd },
    #[error("cannot {what} of the sandbox")]
    Files { what: &'static str, source: std::io::Error },
}

impl ClusterFailure {
    /// Classifies the error of a request, by the code and the message of the API server.
    pub(super) fn from_request(what: &str, namespace: &str, source: kube::Error) -> ClusterFailure {
        let (what, namespace) = (what.to_owned(), namespace.to_owned());
        let kube::Error::Api(status) = &source else {
            return ClusterFailure::Request { what, source };
        };
        let message = printable(&status.message);
        match status.code {
            403 if message.contains("exceeded quota") => {
                ClusterFailure::Quota { what, namespace, message }
            }
            403 if message.contains("violates PodSecurity")
                || message.contains("failed quota")
                || message.contains("per Container is")
                || message.contains("per Pod is")
                || message.contains("admission webhook") =>
            {
                ClusterFailure::NotAdmitted { namespace, message }
            }
            404 if message.contains("namespaces \"") => ClusterFailure::NoNamespace { namespace },
            401 => ClusterFailure::NotAccepted { what, message },
            403 => ClusterFailure::Forbidden { what, namespace, message },
            _ => ClusterFailure::Request { what, source },
        }
    }

    fn fault(&self) -> Fault {
        match self {
            ClusterFailure::NoCluster
            | ClusterFailure::Kubeconfig { .. }
            | ClusterFailure::Context { .. }
            | ClusterFailure::NotAccepted { .. }
            | ClusterFailure::NoNamespace { .. } => Fault::User,
            ClusterFailure::ServiceAccount { .. }
            | ClusterFailure::Forbidden { .. }
            | ClusterFailure::Quota { .. }
            | ClusterFailure::NotAdmitted { .. }
            | ClusterFailure::NameTaken { .. }
            | ClusterFailure::Opened { .. }
            | ClusterFailure::Files { .. } => Fault::Host,
            ClusterFailure::NoAnswer { .. }
            | ClusterFailure::Request { .. }
            | ClusterFailure::Changed { .. }
            | ClusterFailure::NotStarted { .. }
            | ClusterFailure::CannotStart { .. }
            | ClusterFailure::Ended { .. } => Fault::Backend,
        }
    }

    fn hints(&self) -> Vec<String> {
        let hint = match self {
            ClusterFailure::NoCluster => {
                "name one: export KUBECONFIG=/path/to/kubeconfig".to_owned()
            }
            ClusterFailure::Kubeconfig { .. } => {
                "`kubectl config view` shows what kubectl makes of the file".to_owned()
            }
            ClusterFailure::Context { .. } => {
                "`kubectl config get-contexts` lists the contexts; set `kubernetes.context`"
                    .to_owned()
            }
            ClusterFailure::ServiceAccount { .. } => {
                "let the pod mount its token: automountServiceAccountToken: true".to_owned()
            }
            ClusterFailure::NotAccepted { .. } => {
                "renew the token of the kubeconfig, and try it: kubectl auth whoami".to_owned()
            }
            ClusterFailure::NoAnswer { .. } | ClusterFailure::Request { .. } => {
                "check the cluster: kubectl get --raw /readyz".to_owned()
            }
            ClusterFailure::Forbidden { namespace, .. } => format!(
                "apply the role as an administrator: ringfence kubernetes manifest role \
                 --namespace {namespace} | kubectl apply -f -"
            ),
            ClusterFailure::Quota { namespace, .. } => {
                format!("see what uses the quota: kubectl describe quota --namespace {namespace}")
            }
            ClusterFailure::NotAdmitted { namespace, .. } => {
                format!("see the rules of the namespace: kubectl describe namespace {namespace}")
            }
            ClusterFailure::NoNamespace { namespace } => format!(
                "create it: ringfence kubernetes manifest namespace --namespace {namespace} \
                 | kubectl apply -f -"
            ),
            ClusterFailure::NameTaken { kind, name } => {
                format!(
                    "use another name for the sandbox, or look at it: kubectl get {kind} {name}"
                )
            }
            ClusterFailure::Changed { .. } => {
                "see which admission webhooks or limit ranges change pods: kubectl get \
                 mutatingwebhookconfigurations,limitranges"
                    .to_owned()
            }
            ClusterFailure::Opened { policy } => format!(
                "let its podSelector leave out pods with the label ringfence.dev/network, or use \
                 another namespace: kubectl describe networkpolicy {policy}"
            ),
            ClusterFailure::NotStarted { pod, .. }
            | ClusterFailure::CannotStart { pod, .. }
            | ClusterFailure::Ended { pod, .. } => {
                format!(
                    "see its events: kubectl get events --field-selector involvedObject.name={pod}"
                )
            }
            ClusterFailure::Files { .. } => {
                "check the permissions of ~/.local/state/ringfence".to_owned()
            }
        };
        vec![hint]
    }
}

impl From<ClusterFailure> for ContainerError {
    fn from(failure: ClusterFailure) -> ContainerError {
        let (fault, hints) = (failure.fault(), failure.hints());
        let summary = failure.to_string();
        let source: Option<Box<dyn std::error::Error + Send + Sync>> = match failure {
            // An error of the parser quotes the file, which contains secrets.
            ClusterFailure::Kubeconfig { source: KubeconfigError::Parse(_), .. } => None,
            ClusterFailure::Kubeconfig { source, .. } | ClusterFailure::Context { source, .. } => {
                Some(Box::new(source))
            }
            ClusterFailure::ServiceAccount { source } => Some(Box::new(source)),
            ClusterFailure::Request { source, .. } => Some(Box::new(source)),
            ClusterFailure::Files { source, .. } => Some(Box::new(source)),
            _ => None,
        };
        ContainerError { summary, fault, hints, source }
    }
}
