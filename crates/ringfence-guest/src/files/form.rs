//! Files that are uploaded as a form: `multipart/form-data`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use multer::{Field, Multipart, parse_boundary};
use ringfence_proto::code::{Code, Failure};

use crate::slices::interrupted_failure;

/// Name of the form fields that carry a file.
const FILE_FIELD: &str = "file";
/// Maximum number of bytes that the parser may read without a result. The name and the headers of a
/// field are far shorter.
const MAX_UNPARSED_BYTES: usize = 1 << 20;

/// Parser of a form, which returns the files.
pub(super) struct UploadForm<'a> {
    fields: Multipart<'a>,
    unread: Arc<AtomicUsize>,
}

/// One file of a form.
pub(super) struct FormFile<'a> {
    field: Field<'a>,
    unread: Arc<AtomicUsize>,
}

impl<'a> UploadForm<'a> {
    /// Creates a parser for a body with the content type `kind`, which contains the boundary.
    pub(super) fn new<S>(kind: &str, body: &'a mut S) -> Result<UploadForm<'a>, Failure>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + Unpin,
    {
        let boundary = parse_boundary(kind).map_err(|error| malformed_form(&error))?;
        let unread = Arc::new(AtomicUsize::new(0));
        let measured = LimitedStream { stream: body, unread: Arc::clone(&unread), paused: false };
        Ok(UploadForm { fields: Multipart::new(measured, boundary), unread })
    }

    /// Returns the next file of the form. Other fields are skipped.
    pub(super) async fn next_file(&mut self) -> Result<Option<FormFile<'a>>, Failure> {
        loop {
            let field = self.fields.next_field().await.map_err(|error| malformed_form(&error))?;
            self.unread.store(0, Ordering::Relaxed);
            let Some(field) = field else { return Ok(None) };
            let is_file = field.name() == Some(FILE_FIELD);
            let mut file = FormFile { field, unread: Arc::clone(&self.unread) };
            if is_file {
                return Ok(Some(file));
            }
            while file.chunk().await?.is_some() {}
        }
    }
}

impl FormFile<'_> {
    /// Returns the file name in the form. E2B's clients send the full path as the file name.
    pub(super) fn name(&self) -> Option<&str> {
        self.field.file_name().filter(|name| !name.is_empty())
    }

    /// Returns the next bytes of the file, or `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        let chunk = self.field.chunk().await.map_err(|error| malformed_form(&error))?;
        self.unread.store(0, Ordering::Relaxed);
        Ok(chunk)
    }
}

fn malformed_form(error: &multer::Error) -> Failure {
    match error {
        multer::Error::StreamReadFailed(cause) => {
            interrupted_failure(&io::Error::other(cause.to_string()))
        }
        error => {
            Failure::new(Code::InvalidArgument, format!("the form cannot be understood: {error}"))
        }
    }
}

/// Stream wrapper that limits the parser. Without this wrapper, the parser would buffer everything
/// that is ready, and would search without a limit for a delimiter that is not there.
struct LimitedStream<'a, S> {
    stream: &'a mut S,
    /// Number of bytes that the parser has read since its last result.
    unread: Arc<AtomicUsize>,
    paused: bool,
}

impl<S: Stream<Item = io::Result<Bytes>> + Unpin> Stream for LimitedStream<'_, S> {
    type Item = io::Result<Bytes>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        // Return one piece at a time. After each piece the parser gets `Pending`, and is woken at
        // once.
        self.paused = !self.paused;
        if !self.paused {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let arrived = Pin::new(&mut *self.stream).poll_next(context);
        match &arrived {
            Poll::Ready(Some(Ok(bytes))) => {
                let unread = self.unread.fetch_add(bytes.len(), Ordering::Relaxed);
                // One piece alone may be longer than the limit. Several pieces in which the parser
                // finds nothing are not a form.
                if unread > MAX_UNPARSED_BYTES {
                    return Poll::Ready(Some(Err(io::Error::other(
                        "a part of the form has too long a head",
                    ))));
                }
            }
            // The stream had no piece ready, so the next poll asks the stream again.
            Poll::Pending => self.paused = false,
            Poll::Ready(_) => {}
        }
        arrived
    }
}
