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
use ringfence_proto::query::Query;
use serde::Serialize;

use self::pack::Packing;
use self::unpack::Unpacking;
use crate::connect::{Reply, json, refused};
use crate::files;
use crate::filesystem::blocking;
use crate::filesystem::path::resolve;
use crate::slices::{decline, discard, incoming, pour, sending};

/// Answer of `POST /tree`: the number of entries and of file bytes that were unpacked.
#[derive(Debug, Default, Clone, Copy, Serialize)]
struct Unpacked {
    entries: u64,
    bytes: u64,
}

/// Answers a request of the endpoint `/tree`.
pub(crate) async fn serve(request: Request<Incoming>) -> Reply {
    let answer = match *request.method() {
        Method::GET => send(&request).await,
        Method::POST => receive(request).await,
        _ => {
            let why = "trees are read with GET and written with POST";
            return decline(request, refused(StatusCode::METHOD_NOT_ALLOWED, why)).await;
        }
    };
    answer.unwrap_or_else(|failure| files::failed(&failure))
}

async fn send(request: &Request<Incoming>) -> Result<Reply, Failure> {
    let path = path(request)?;
    let packing = blocking(move || Packing::of(&path)).await?;
    let mut reply = Response::new(sending(Vec::new(), packing));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    Ok(reply)
}

async fn receive(request: Request<Incoming>) -> Result<Reply, Failure> {
    let path = path(&request);
    let mut body = incoming(request.into_body());
    let unpacked = async {
        let path = path?;
        let unpacking = blocking(move || Unpacking::below(&path)).await?;
        let unpacking = pour(&mut body, unpacking).await?;
        blocking(move || unpacking.finish()).await
    };
    let unpacked = unpacked.await;
    if unpacked.is_err() {
        discard(body).await;
    }
    unpacked.map(|unpacked| json(StatusCode::OK, &unpacked))
}

fn path(request: &Request<Incoming>) -> Result<std::path::PathBuf, Failure> {
    let query = Query::of(request.uri().query().unwrap_or_default())?;
    let user = files::user(&query, request.headers())?;
    let path = query.get("path").filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| {
        Failure::new(Code::InvalidArgument, "the query parameter `path` is missing")
    })?;
    resolve(path, &user)
}
