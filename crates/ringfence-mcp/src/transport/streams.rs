//! One client on the standard streams of this process. Only protocol messages are written to
//! standard output.

use std::sync::Arc;

use ringfence_service::telemetry::Telemetry;
use rmcp::ServiceExt as _;
use rmcp::model::ProtocolVersion;
use rmcp::transport::io::stdio_pipes;

use crate::client::{Client, SandboxReaper, ServerContext};
use crate::sandbox_source::SandboxSource;

/// Serves the client on the standard streams until the client is gone or `ends` completes, then
/// ends its sandbox.
pub async fn serve(
    source: SandboxSource,
    telemetry: Telemetry,
    ends: impl Future,
) -> Result<(), String> {
    let (source, versions) = (Arc::new(source), ProtocolVersion::KNOWN_VERSIONS);
    let server_context = ServerContext { source, keepalive: None, versions, telemetry };
    let reaper = SandboxReaper::new();
    let client = Client::new(server_context, reaper.sender(), None);
    let served = async {
        let service =
            client.serve(stdio_pipes()).await.map_err(|error| ringfence::chain(&error))?;
        service.waiting().await.map_err(|error| ringfence::chain(&error))
    };
    let outcome = tokio::select! {
        outcome = served => outcome.map(drop),
        _ = ends => Ok(()),
    };
    reaper.finish().await;
    outcome
}
