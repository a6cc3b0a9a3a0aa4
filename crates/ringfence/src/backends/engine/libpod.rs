//! What only Podman's own API can say.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::UnixStream;

use super::client::Client;
use super::error::printable;

/// The longest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 1 << 20;

/// Makes a network that leads nowhere, and has no resolver.
pub(super) async fn create_network(client: &Client, name: &str, labels: &HashMap<String, String>) -> io::Result<()> {
    let network = json!({
        "name": name,
        "driver": "bridge",
        "internal": true,
        "dns_enabled": false,
        "ipv6_enabled": false,
        "labels": labels,
    });
    let request = Request::post("/v4.0.0/libpod/networks/create")
        .header(header::HOST, "podman")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(network.to_string())))
        .map_err(io::Error::other)?;
    let stream = UnixStream::connect(&client.socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let carried = tokio::spawn(connection);
    let asked = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = response.status();
        let answer = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await.map_err(io::Error::other)?;
        match status.is_success() {
            true => Ok(()),
            false => Err(io::Error::other(printable(&String::from_utf8_lossy(&answer.to_bytes())))),
        }
    };
    let asked = asked.await;
    carried.abort();
    asked
}
