//! Files that are sent as a form: `multipart/form-data`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use multer::{Field, Multipart, parse_boundary};
use ringfence_proto::code::{Code, Failure};

use crate::slices::interrupted;

/// The field that carries a file.
const FIELD: &str = "file";
/// What the parser may read before it has found anything: a name and a few headers are far shorter.
const LONGEST_HEAD: usize = 1 << 20;

/// A form, of which the files are read.
pub(super) struct Form<'a> {
    fields: Multipart<'a>,
    unread: Arc<AtomicUsize>,
}

/// One file of a form.
pub(super) struct FormFile<'a> {
    field: Field<'a>,
    unread: Arc<AtomicUsize>,
}

impl<'a> Form<'a> {
    /// Reads a form of that content type.
    pub(super) fn new<S>(kind: &str, body: &'a mut S) -> Result<Form<'a>, Failure>
    where
        S: Stream<Item = io::Result<Bytes>> + Send + Unpin,
    {
        let boundary = parse_boundary(kind).map_err(|error| malformed(&error))?;
        let unread = Arc::new(AtomicUsize::new(0));
        let measured = Measured { stream: body, unread: Arc::clone(&unread), paused: false };
        Ok(Form { fields: Multipart::new(measured, boundary), unread })
    }

    /// The next file; other fields are passed over.
    pub(super) async fn next_file(&mut self) -> Result<Option<FormFile<'a>>, Failure> {
        loop {
            let field = self.fields.next_field().await.map_err(|error| malformed(&error))?;
            self.unread.store(0, Ordering::Relaxed);
            let Some(field) = field else { return Ok(None) };
            let is_file = field.name() == Some(FIELD);
            let mut file = FormFile { field, unread: Arc::clone(&self.unread) };
            if is_file {
                return Ok(Some(file));
            }
            while file.chunk().await?.is_some() {}
        }
    }
}

impl FormFile<'_> {
    /// What the form calls the file: its whole path, with E2B's clients.
    pub(super) fn name(&self) -> Option<&str> {
        self.field.file_name().filter(|name| !name.is_empty())
    }

    /// The next bytes of the file.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        let chunk = self.field.chunk().await.map_err(|error| malformed(&error))?;
        self.unread.store(0, Ordering::Relaxed);
        Ok(chunk)
    }
}

fn malformed(error: &multer::Error) -> Failure {
    match error {
        multer::Error::StreamReadFailed(cause) => interrupted(&io::Error::other(cause.to_string())),
        error => Failure::new(Code::InvalidArgument, format!("the form cannot be understood: {error}")),
    }
}

/// A stream for a parser that would otherwise take all that is ready, and look for ever for what is not there.
struct Measured<'a, S> {
    stream: &'a mut S,
    unread: Arc<AtomicUsize>,
    paused: bool,
}

impl<S: Stream<Item = io::Result<Bytes>> + Unpin> Stream for Measured<'_, S> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        // One piece at a time: after each the parser is told to wait, and woken at once.
        self.paused = !self.paused;
        if !self.paused {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let arrived = Pin::new(&mut *self.stream).poll_next(context);
        match &arrived {
            Poll::Ready(Some(Ok(bytes))) => {
                let unread = self.unread.fetch_add(bytes.len(), Ordering::Relaxed);
                // A piece alone may be long; several without a find are not a form.
                if unread > LONGEST_HEAD {
                    return Poll::Ready(Some(Err(io::Error::other("a part of the form has too long a head"))));
                }
            }
            // Nothing was given: the next poll may.
            Poll::Pending => self.paused = false,
            Poll::Ready(_) => {}
        }
        arrived
    }
}
