//! `GET` and `POST /tree`: transfer of whole directory trees as tar streams. This endpoint is an
//! extension of ringfence; envd has no equivalent.
//!
//! In an archive of a directory, names are relative to the directory, and the first entry is `.`
//! itself. An archive of any other file has one entry, under the file's own name. An archive that
//! is received is unpacked below the given path, which is created if it is missing.

mod pack;
mod unpack;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::query::UrlQuery;
use serde::Serialize;

use self::pack::TreePacker;
use self::unpack::TreeUnpacker;
use crate::connect_protocol::{Reply, json_reply, refusal_reply};
use crate::files;
use crate::filesystem::path::resolve;
use crate::filesystem::run_blocking;
use crate::slices::{body_from_source, body_stream, discard, refuse_unread, write_stream};

/// Answer of `POST /tree`: the number of entries and of file bytes that were unpacked.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct UnpackedCounts {
    entries: u64,
    bytes: u64,
}

/// Answers a request of the endpoint `/tree`.
pub(crate) async fn answer_tree(request: Request<Incoming>) -> Reply {
    let answer = match *request.method() {
        Method::GET => send_tree(&request).await,
        Method::POST => receive_tree(request).await,
        _ => {
            let why = "trees are read with GET and written with POST";
            return refuse_unread(request, refusal_reply(StatusCode::METHOD_NOT_ALLOWED, why))
                .await;
        }
    };
    answer.unwrap_or_else(|failure| files::files_failure_reply(&failure))
}

async fn send_tree(request: &Request<Incoming>) -> Result<Reply, Failure> {
    let path = requested_path(request)?;
    let packing = run_blocking(move || TreePacker::new(&path)).await?;
    let mut reply = Response::new(body_from_source(Vec::new(), packing));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    Ok(reply)
}

async fn receive_tree(request: Request<Incoming>) -> Result<Reply, Failure> {
    let path = requested_path(&request);
    let mut body = body_stream(request.into_body());
    let unpacked = async {
        let path = path?;
        let unpacking = run_blocking(move || TreeUnpacker::for_directory(&path)).await?;
        let unpacking = write_stream(&mut body, unpacking).await?;
        run_blocking(move || unpacking.finish()).await
    };
    let unpacked = unpacked.await;
    if unpacked.is_err() {
        discard(body).await;
    }
    unpacked.map(|unpacked| json_reply(StatusCode::OK, &unpacked))
}

fn requested_path(request: &Request<Incoming>) -> Result<std::path::PathBuf, Failure> {
    let query = UrlQuery::parse(request.uri().query().unwrap_or_default())?;
    let user = files::requested_user(&query, request.headers())?;
    let path = query.get("path").filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| {
        Failure::new(Code::InvalidArgument, "the query parameter `path` is missing")
    })?;
    resolve(path, &user)
}
