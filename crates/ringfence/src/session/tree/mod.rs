//! Transfer of files and whole trees into and out of a sandbox, as a tar stream.
//!
//! A tree that comes out of a sandbox is built by the guest, which is not trusted: see [`unpack`].
//! A tree that goes in may lie in a workspace, where sandboxed code can plant links: see [`pack`].

mod host_files;
mod pack;
mod parts;
mod unpack;

#[cfg(test)]
mod hostile;

use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use ringfence_proto::code::Code;
use ringfence_proto::filesystem::FileType;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::SessionError;
use super::error::{Operation, clean};
use super::files::{MAX_QUEUED_PIECES, SandboxFiles};
pub(super) use host_files::HostFiles;
pub(crate) use parts::{FileStream, FileStreamEnd};
pub(crate) use unpack::stays_below;

/// Highest number of bytes of a tree that are handed on at once.
const MAX_PIECE_BYTES: usize = 256 << 10;
/// Highest number of left-out entries that are named.
const MAX_NAMED_ENTRIES: usize = 100;

/// Summary of a copy into or out of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferSummary {
    /// Number of files that were copied.
    pub files: u64,
    /// Number of bytes in these files.
    pub bytes: u64,
    /// Entries that were not copied, at most the first hundred.
    pub left_out: Vec<OmittedEntry>,
    /// Number of entries that were not copied.
    pub left_out_count: u64,
}

/// An entry that was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OmittedEntry {
    /// Path of the entry in the tree, without control characters.
    pub name: String,
    /// Reason why the entry was not copied.
    pub why: &'static str,
}

impl TransferSummary {
    fn leave_out(&mut self, name: &[u8], why: &'static str) {
        self.left_out_count += 1;
        if self.left_out.len() < MAX_NAMED_ENTRIES {
            self.left_out.push(OmittedEntry { name: clean(&String::from_utf8_lossy(name)), why });
        }
    }
}

impl SandboxFiles<'_> {
    /// Copies a file, or a directory with all its contents, from the host to a path of the sandbox.
    /// Existing files are replaced. `progress` is called with the number of file bytes that have
    /// been read so far.
    ///
    /// Links are copied as links. A `from` that is itself a link is refused, because anyone who may
    /// write its directory could have planted the link.
    pub async fn upload(
        &self,
        from: &Path,
        to: &str,
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<TransferSummary, SessionError> {
        let operation = Operation { verb: "write", object: to };
        let source = pack::open(&self.session.host_files, from)?;
        // A file is sent as a tree with one entry, so that its mode is copied, too. A directory is
        // sent as its contents.
        let (below, name) = match &source {
            pack::PackSource::Directory(_) => (to, ""),
            pack::PackSource::File(_) => split(to),
        };
        if let pack::PackSource::Directory(_) = source {
            match self.make_directory(to).await {
                Err(error) if error.code() != Some(Code::AlreadyExists) => return Err(error),
                _ => {}
            }
        }
        let count = Arc::new(AtomicU64::new(0));
        let (pieces, body) = mpsc::channel(MAX_QUEUED_PIECES);
        let (writer, mut packed) = mpsc::channel(MAX_QUEUED_PIECES);
        let packing: JoinHandle<Result<TransferSummary, SessionError>> = {
            let (from, name, count) = (from.to_owned(), name.to_owned(), Arc::clone(&count));
            spawn_blocking(move || {
                pack::pack(source, &from, &name, PieceWriter::new(writer), &count)
            })
        };
        let feeding = async move {
            while let Some(piece) = packed.recv().await {
                self.queue_piece(operation, &pieces, piece).await?;
                progress(count.load(Ordering::Relaxed));
            }
            let transferred = join_job(packing).await?;
            progress(transferred.bytes);
            Ok(transferred)
        };
        self.send_bytes(operation, "/tree", below, body, feeding).await
    }

    /// Copies a file, or a directory with all its contents, from a path of the sandbox to a path on
    /// the host. An existing file is replaced, an existing directory is filled. `progress` is
    /// called with the number of file bytes that have been written.
    ///
    /// Nothing is written outside `to`, whatever the sandbox answers. No link is followed. Links
    /// that lead out of the tree, devices and pipes are left out. New files belong to the caller
    /// and have no special bits.
    pub async fn download(
        &self,
        from: &str,
        to: &Path,
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<TransferSummary, SessionError> {
        let operation = Operation { verb: "read", object: from };
        let entry = self.stat(from).await?;
        let count = Arc::new(AtomicU64::new(0));
        let (to, counter, host_files) =
            (to.to_owned(), Arc::clone(&count), self.session.host_files.clone());
        let tick = || progress(count.load(Ordering::Relaxed));
        let done =
            match entry.kind {
                FileType::File => {
                    let exchange = self.get(operation, "/files", from).await?;
                    let job = move |reader| {
                        unpack::unpack_file(&host_files, reader, &to, entry.mode, &counter)
                    };
                    self.receive_pieces(operation, exchange, tick, job).await
                }
                FileType::Directory => {
                    let exchange = self.get(operation, "/tree", from).await?;
                    let job = move |reader| unpack::unpack_tree(&host_files, reader, &to, &counter);
                    self.receive_pieces(operation, exchange, tick, job).await
                }
                FileType::Symlink | FileType::Unspecified => Err(operation
                    .refused(Code::InvalidArgument, "it is neither a file nor a directory")),
            }?;
        progress(done.bytes);
        Ok(done)
    }
}

async fn join_job<T>(job: JoinHandle<Result<T, SessionError>>) -> Result<T, SessionError> {
    match job.await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => {
            // The runtime is shutting down.
            Err(Operation { verb: "copy the tree", object: "" }.local(io::Error::other(error)))
        }
    }
}

/// Splits a path of the sandbox into its directory and its name there.
fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(parts) => parts,
        None => (".", path),
    }
}

/// Writer through which a blocking job sends a stream to its task, in large pieces.
struct PieceWriter {
    buffer: Vec<u8>,
    pieces: mpsc::Sender<Bytes>,
}

impl PieceWriter {
    fn new(pieces: mpsc::Sender<Bytes>) -> PieceWriter {
        PieceWriter { buffer: Vec::with_capacity(MAX_PIECE_BYTES), pieces }
    }

    /// Reads up to `most` bytes of a file directly into the next piece, and returns their number.
    fn read_from(&mut self, file: &mut File, most: u64) -> io::Result<u64> {
        let free = (MAX_PIECE_BYTES - self.buffer.len()) as u64;
        let read = file.take(most.min(free)).read_to_end(&mut self.buffer)?;
        if self.buffer.len() >= MAX_PIECE_BYTES {
            self.flush()?;
        }
        Ok(read as u64)
    }
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= MAX_PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(MAX_PIECE_BYTES));
        self.pieces.blocking_send(piece.into()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Message to a blocking job that reads a stream.
enum PieceMessage {
    Piece(Bytes),
    /// All bytes have arrived. A queue that closes without this message means that the stream
    /// broke.
    End,
}

/// Reader through which a blocking job receives a stream from its task.
struct PieceReader {
    piece: Bytes,
    arrivals: mpsc::Receiver<PieceMessage>,
    over: bool,
}

impl PieceReader {
    fn new(arrivals: mpsc::Receiver<PieceMessage>) -> PieceReader {
        PieceReader { piece: Bytes::new(), arrivals, over: false }
    }
}

impl BufRead for PieceReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.piece.is_empty() && !self.over {
            match self.arrivals.blocking_recv() {
                Some(PieceMessage::Piece(piece)) => self.piece = piece,
                Some(PieceMessage::End) => self.over = true,
                None => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, length: usize) {
        self.piece.advance(length);
    }
}

impl Read for PieceReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let piece = self.fill_buf()?;
        let length = piece.len().min(into.len());
        into[..length].copy_from_slice(&piece[..length]);
        self.consume(length);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_splits_into_where_and_what() {
        assert_eq!(split("/a/b"), ("/a", "b"));
        assert_eq!(split("/b"), ("/", "b"));
        assert_eq!(split("b"), (".", "b"));
        assert_eq!(split("~/b"), ("~", "b"));
    }
}
