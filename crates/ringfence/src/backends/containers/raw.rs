//! Requests to engines that the API client does not support.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::http::request::Builder;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::UnixStream;

use super::client::EngineClient;
use super::error::printable;

/// Maximum size of an answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Sends one request to an engine, and reads the whole answer.
pub(super) async fn send_request(
    socket: &Path,
    request: Builder,
    body: impl Into<Bytes>,
) -> io::Result<Response<Bytes>> {
    let request = request.header(header::HOST, "engine").header(header::CONNECTION, "close");
    let request = request.body(Full::new(body.into())).map_err(io::Error::other)?;
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let answer = async move {
        let (head, body) =
            sender.send_request(request).await.map_err(io::Error::other)?.into_parts();
        let body =
            Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(io::Error::other)?;
        Ok(Response::from_parts(head, body.to_bytes()))
    };
    // An error of the connection also shows in the answer.
    let (answer, _) = tokio::join!(answer, connection);
    answer
}

/// Creates an internal network without a resolver at a Podman engine.
pub(super) async fn create_network(
    client: &EngineClient,
    name: &str,
    labels: &HashMap<String, String>,
) -> io::Result<()> {
    let network = json!({
        "name": name,
        "driver": "bridge",
        "internal": true,
        "dns_enabled": false,
        "ipv6_enabled": false,
        "labels": labels,
    });
    let request = Request::post("/v4.0.0/libpod/networks/create")
        .header(header::CONTENT_TYPE, "application/json");
    let answer = send_request(&client.socket, request, network.to_string()).await?;
    match answer.status().is_success() {
        true => Ok(()),
        false => Err(io::Error::other(printable(&String::from_utf8_lossy(answer.body())))),
    }
}
