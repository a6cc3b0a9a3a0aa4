//! `GET /files`: sends the bytes of a file to a client.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, VARY};
use hyper::{HeaderMap, Response};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::content;
use ringfence_proto::query::UrlQuery;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};

use crate::connect_protocol::{Reply, full_body};
use crate::filesystem::path::{path_failure, resolve};
use crate::filesystem::run_blocking;
use crate::gzip::{self, GzipEncoder};
use crate::slices::{ByteSource, SLICE_BYTES, body_from_source};
use crate::user::SandboxUser;

/// Replies with the bytes of a file, compressed if the client accepts gzip.
pub(super) async fn download(
    query: &UrlQuery,
    user: &SandboxUser,
    headers: &HeaderMap,
) -> Result<Reply, Failure> {
    let path = resolve(query.get("path").unwrap_or_default(), user)?;
    let opened = run_blocking(move || OpenedFile::open(&path)).await?;
    let mut reply =
        if gzip::is_accepted(headers) { compressed_reply(opened)? } else { plain_reply(opened) };
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content::OCTETS));
    reply.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    Ok(reply)
}

fn plain_reply(opened: OpenedFile) -> Reply {
    let OpenedFile { first, length, rest } = opened;
    let mut reply = Response::new(match rest {
        Some(rest) => body_from_source(first, rest),
        None => full_body(first.into()),
    });
    if let Some(length) = length {
        reply.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    reply
}

fn compressed_reply(opened: OpenedFile) -> Result<Reply, Failure> {
    let OpenedFile { first, rest, .. } = opened;
    let source = GzipEncoder::new(&first, rest)
        .map_err(|error| Failure::new(Code::Internal, format!("cannot compress: {error}")))?;
    let mut reply = Response::new(body_from_source(Vec::new(), source));
    reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    Ok(reply)
}

/// Open file whose first slice was read.
struct OpenedFile {
    first: Vec<u8>,
    /// Total length of the file in bytes, if it is known.
    length: Option<u64>,
    rest: Option<UnreadFile>,
}

impl OpenedFile {
    fn open(path: &Path) -> Result<OpenedFile, Failure> {
        let mut file = open(path)?;
        let failed = |error: io::Error| path_failure("read", path, &error);
        let size = file.metadata().map_err(failed)?.len();
        let mut first = Vec::new();
        let read =
            (&mut file).take(SLICE_BYTES as u64).read_to_end(&mut first).map_err(failed)? as u64;
        if read < SLICE_BYTES as u64 {
            // The file has ended, whatever size the kernel reports: 0 for files in /proc, a page
            // for files in /sys.
            return Ok(OpenedFile { first, length: Some(read), rest: None });
        }
        let (length, left) =
            if size >= read { (Some(size), size - read) } else { (None, u64::MAX) };
        Ok(OpenedFile {
            first,
            length,
            rest: Some(UnreadFile { file, left, exact: length.is_some() }),
        })
    }
}

/// Opens a regular file. A file of another type is never opened for reading, because a FIFO would
/// block and a device may act on being opened.
fn open(path: &Path) -> Result<File, Failure> {
    let found = match openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(found) => found,
        Err(rustix::io::Errno::NOENT) => {
            return Err(Failure::new(
                Code::NotFound,
                format!("path '{}' does not exist", path.display()),
            ));
        }
        Err(error) => return Err(path_failure("read", path, &error.into())),
    };
    let failed = |error: rustix::io::Errno| path_failure("read", path, &error.into());
    refuse_unless_regular(path, fstat(&found).map_err(failed)?.st_mode)?;
    let reached = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(openat(CWD, reached, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed)?
        .into())
}

/// Refuses a file that is not a regular file, by the type in its mode.
pub(super) fn refuse_unless_regular(path: &Path, mode: u32) -> Result<(), Failure> {
    let what = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "is a directory",
        _ => "is not a regular file",
    };
    Err(Failure::new(Code::InvalidArgument, format!("path '{}' {what}", path.display())))
}

/// Part of a file that was not read yet.
struct UnreadFile {
    file: File,
    left: u64,
    /// True if `left` is the exact number of remaining bytes, so an earlier end of the file is an
    /// error.
    exact: bool,
}

impl ByteSource for UnreadFile {
    fn fill(&mut self, slice: &mut Vec<u8>) -> io::Result<()> {
        let read =
            (&mut self.file).take(self.left.min(SLICE_BYTES as u64)).read_to_end(slice)? as u64;
        if read == 0 && self.exact && self.left > 0 {
            return Err(io::Error::other("the file became shorter while it was sent"));
        }
        self.left -= read;
        Ok(())
    }
}

impl ByteSource for Option<UnreadFile> {
    fn fill(&mut self, slice: &mut Vec<u8>) -> io::Result<()> {
        self.as_mut().map_or(Ok(()), |rest| rest.fill(slice))
    }
}
