//! One client on the standard streams of this process. Only protocol messages are written to
//! standard output.

use std::sync::Arc;

use ringfence_service::telemetry::Telemetry;
use rmcp::ServiceExt as _;
use rmcp::model::ProtocolVersion;
use rmcp::transport::io::stdio_pipes;

use crate::client::{Client, Endings, Terms};
use crate::supply::Supply;

/// Serves the client on the standard streams until the client is gone or `ends` completes, then
/// ends its sandbox.
pub async fn serve(supply: Supply, telemetry: Telemetry, ends: impl Future) -> Result<(), String> {
    let (supply, versions) = (Arc::new(supply), ProtocolVersion::KNOWN_VERSIONS);
    let terms = Terms { supply, pulse: None, versions, telemetry };
    let endings = Endings::new();
    let client = Client::new(terms, endings.leaving(), None);
    let served = async {
        let service =
            client.serve(stdio_pipes()).await.map_err(|error| ringfence::chain(&error))?;
        service.waiting().await.map_err(|error| ringfence::chain(&error))
    };
    let outcome = tokio::select! {
        outcome = served => outcome.map(drop),
        _ = ends => Ok(()),
    };
    endings.over().await;
    outcome
}
