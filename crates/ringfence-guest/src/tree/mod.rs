//! `GET` and `POST /tree`: transfer of whole directory trees as tar streams. This endpoint is an
//! extension of ringfence; envd has no equivalent.
//!
//! In an archive of a directory, names are relative to the directory, and the first entry is `.`
//! itself. An archive of any other file has one entry, under the file's own name. An archive that
//! is received is unpacked below the given path, which is created if it is missing. Archives and
//! listings are compressed with gzip if the headers of the request say so.
//!
//! `list=digests` in the query of `GET` asks for a listing instead of an archive. `action=read` and
//! `action=remove` in the query of `POST` ask for the contents of single files and for the removal
//! of single entries. The messages are in `ringfence_proto::tree`.

mod listing;
mod pack;
mod parts;
mod unpack;

use std::path::PathBuf;

use futures_util::future::Either;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::content;
use ringfence_proto::query::UrlQuery;
use ringfence_proto::tree::{ACTION_READ, ACTION_REMOVE, LIST_DIGESTS};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::listing::TreeLister;
use self::pack::TreePacker;
use self::parts::{RequestedFiles, remove_entries};
use self::unpack::TreeUnpacker;
use crate::connect_protocol::{Reply, collect_body, json_reply, refusal_reply};
use crate::files;
use crate::filesystem::path::resolve;
use crate::filesystem::run_blocking;
use crate::gzip::{self, GzipDecoder, GzipEncoder};
use crate::slices::{
    ByteSource, body_from_source, body_stream, discard, refuse_unread, write_stream,
};

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
        Method::POST => receive(request).await,
        _ => {
            let why = "trees are read with GET and written with POST";
            return refuse_unread(request, refusal_reply(StatusCode::METHOD_NOT_ALLOWED, why))
                .await;
        }
    };
    answer.unwrap_or_else(|failure| files::files_failure_reply(&failure))
}

async fn send_tree(request: &Request<Incoming>) -> Result<Reply, Failure> {
    let (path, query) = requested_path(request)?;
    match query.get("list") {
        None => {
            let packing = run_blocking(move || TreePacker::new(&path)).await?;
            stream_reply(request.headers(), packing, "application/x-tar")
        }
        Some(LIST_DIGESTS) => {
            let listing = run_blocking(move || TreeLister::new(&path)).await?;
            stream_reply(request.headers(), listing, "application/jsonl")
        }
        Some(other) => Err(unknown_parameter("list", other)),
    }
}

/// Returns a reply with the bytes of a source, compressed if the client accepts gzip.
fn stream_reply(
    headers: &HeaderMap,
    source: impl ByteSource,
    content_type: &'static str,
) -> Result<Reply, Failure> {
    let mut reply = if gzip::is_accepted(headers) {
        let source = GzipEncoder::new(&[], source)
            .map_err(|error| Failure::new(Code::Internal, format!("cannot compress: {error}")))?;
        let mut reply = Response::new(body_from_source(Vec::new(), source));
        reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        reply
    } else {
        Response::new(body_from_source(Vec::new(), source))
    };
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(reply)
}

async fn receive(request: Request<Incoming>) -> Result<Reply, Failure> {
    let checked =
        requested_path(&request).and_then(|found| Ok((found, gzip::is_sent(request.headers())?)));
    let ((path, query), is_compressed) = match checked {
        Ok(checked) => checked,
        Err(failure) => {
            discard(body_stream(request.into_body())).await;
            return Err(failure);
        }
    };
    match query.get("action") {
        None => unpack_tree(path, request.into_body(), is_compressed).await,
        Some(ACTION_READ) => {
            let (parts, body) = request.into_parts();
            let wanted = parse_body(body).await?;
            let files = run_blocking(move || RequestedFiles::new(&path, wanted)).await?;
            stream_reply(&parts.headers, files, content::OCTETS)
        }
        Some(ACTION_REMOVE) => {
            let named = parse_body(request.into_body()).await?;
            let removed = run_blocking(move || remove_entries(&path, &named)).await?;
            Ok(json_reply(StatusCode::OK, &removed))
        }
        Some(other) => {
            discard(body_stream(request.into_body())).await;
            Err(unknown_parameter("action", other))
        }
    }
}

async fn unpack_tree(path: PathBuf, body: Incoming, is_compressed: bool) -> Result<Reply, Failure> {
    let body = body_stream(body);
    let mut body =
        if is_compressed { Either::Left(GzipDecoder::new(body)) } else { Either::Right(body) };
    let unpacked = async {
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

async fn parse_body<Message: DeserializeOwned>(body: Incoming) -> Result<Message, Failure> {
    let body = collect_body(body).await?;
    serde_json::from_slice(&body).map_err(|error| {
        Failure::new(Code::InvalidArgument, format!("the request is not understood: {error}"))
    })
}

fn unknown_parameter(name: &str, value: &str) -> Failure {
    let message = format!("the query parameter `{name}` cannot be `{value}`");
    Failure::new(Code::InvalidArgument, message)
}

fn requested_path(request: &Request<Incoming>) -> Result<(PathBuf, UrlQuery), Failure> {
    let query = UrlQuery::parse(request.uri().query().unwrap_or_default())?;
    let user = files::requested_user(&query, request.headers())?;
    let path = query.get("path").filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| {
        Failure::new(Code::InvalidArgument, "the query parameter `path` is missing")
    })?;
    Ok((resolve(path, &user)?, query))
}
