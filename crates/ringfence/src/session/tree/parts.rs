//! Listing of a tree in a sandbox, and transfer of single entries of the tree. All streams are
//! compressed with gzip.

use std::io::{self, BufRead, Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use hyper::{Method, header};
use ringfence_proto::tree::{
    ACTION_READ, ACTION_REMOVE, FILE_BROKEN, FILE_END, LIST_DIGESTS, MAX_CHUNK_BYTES,
    ReadFilesRequest, RemoveEntriesRequest, RemoveEntriesResponse, TreeEntry,
};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::super::SessionError;
use super::super::error::Operation;
use super::super::files::{MAX_QUEUED_PIECES, SandboxFiles, target};
use super::super::transport::{HttpExchange, RequestBody};
use super::{PieceReader, PieceWriter, join_job};

/// Longest line of a listing, in bytes. A path and the target of a link have at most 4096 bytes
/// each, and base64 makes them longer by a third.
const MAX_LINE_BYTES: u64 = 16 << 10;
/// Longest answer to a request to remove entries, in bytes.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// Reader of the contents of requested files, which come one after the other.
pub(crate) struct FileStream {
    reader: io::BufReader<MultiGzDecoder<PieceReader>>,
}

/// End of a file that was read from a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileStreamEnd {
    Complete,
    /// The guest could not read the file, or not to its end.
    Broken,
}

impl FileStream {
    fn new(reader: PieceReader) -> FileStream {
        FileStream { reader: io::BufReader::new(MultiGzDecoder::new(reader)) }
    }

    /// Reads the next file, and passes its bytes to `on_bytes`. Fails if the file is longer than
    /// `size`.
    pub(crate) fn next_file(
        &mut self,
        size: u64,
        mut on_bytes: impl FnMut(&[u8]),
    ) -> io::Result<FileStreamEnd> {
        let mut left = size;
        let mut chunk = Vec::new();
        loop {
            let mut number = [0; 4];
            self.reader.read_exact(&mut number)?;
            let length = match u32::from_be_bytes(number) {
                FILE_END => return Ok(FileStreamEnd::Complete),
                FILE_BROKEN => return Ok(FileStreamEnd::Broken),
                length if length > MAX_CHUNK_BYTES || u64::from(length) > left => {
                    return Err(io::Error::other("the guest sends more bytes than were requested"));
                }
                length => length,
            };
            left -= u64::from(length);
            chunk.resize(usize::try_from(length).expect("a chunk is short"), 0);
            self.reader.read_exact(&mut chunk)?;
            on_bytes(&chunk);
        }
    }
}

/// Reads the lines of a listing, and passes them to `on_entry` up to the end of the listing.
fn read_listing(
    reader: impl Read,
    mut on_entry: impl FnMut(TreeEntry) -> Result<(), String>,
) -> io::Result<()> {
    let mut reader = io::BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Err(io::Error::other("a line is too long, or the listing has no end"));
        }
        match serde_json::from_slice(&line)? {
            TreeEntry::End => return Ok(()),
            entry => on_entry(entry).map_err(io::Error::other)?,
        }
    }
}

impl SandboxFiles<'_> {
    /// Lists the tree at a path with the digests of its files, and passes each entry to `on_entry`
    /// on a blocking thread. An error of `on_entry` says why the listing is invalid.
    pub(crate) async fn list_tree<T: Send + 'static>(
        &self,
        path: &str,
        mut listing: T,
        on_entry: impl Fn(&mut T, TreeEntry) -> Result<(), String> + Send + 'static,
    ) -> Result<T, SessionError> {
        let operation = Operation { verb: "list the tree", object: path };
        let target = format!("{}&list={LIST_DIGESTS}", target("/tree", path));
        let request = self
            .transport()
            .request(Method::GET, &target)
            .header(header::ACCEPT_ENCODING, "gzip")
            .body(RequestBody::Whole(Bytes::new()))
            .map_err(|error| operation.local(io::Error::other(error)))?;
        let exchange = self.transport().send(operation, request).await?.into_body();
        let shown = path.to_owned();
        let job = move |reader| {
            let operation = Operation { verb: "list the tree", object: &shown };
            read_listing(MultiGzDecoder::new(reader), |entry| on_entry(&mut listing, entry))
                .map_err(|error| operation.invalid_answer(error))?;
            Ok(listing)
        };
        self.receive_pieces(operation, exchange, || (), job).await
    }

    /// Requests the contents of files of the tree at a path, and passes them to `job` on a blocking
    /// thread. `tick` is called after each piece that arrived.
    pub(crate) async fn read_files<T: Send + 'static>(
        &self,
        path: &str,
        request: &ReadFilesRequest,
        tick: impl FnMut() + Send,
        job: impl FnOnce(FileStream) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let operation = Operation { verb: "read the files of", object: path };
        let exchange = self.act(operation, path, ACTION_READ, request).await?;
        self.receive_pieces(operation, exchange, tick, |reader| job(FileStream::new(reader))).await
    }

    /// Removes entries of the tree at a path, and returns the positions of those that still exist.
    pub(crate) async fn remove_entries(
        &self,
        path: &str,
        request: &RemoveEntriesRequest,
    ) -> Result<Vec<u32>, SessionError> {
        let operation = Operation { verb: "remove files of", object: path };
        let mut exchange = self.act(operation, path, ACTION_REMOVE, request).await?;
        let mut whole = Vec::new();
        while let Some(piece) = self.piece(operation, &mut exchange).await? {
            if (whole.len() + piece.len()) as u64 > MAX_ANSWER_BYTES {
                let limit = MAX_ANSWER_BYTES;
                return Err(SessionError::TooLong { what: operation.to_string(), limit });
            }
            whole.extend_from_slice(&piece);
        }
        self.transport().return_to_pool(exchange);
        let RemoveEntriesResponse { kept } =
            serde_json::from_slice(&whole).map_err(|error| operation.invalid_answer(error))?;
        Ok(kept)
    }

    async fn act(
        &self,
        operation: Operation<'_>,
        path: &str,
        action: &str,
        message: &impl Serialize,
    ) -> Result<HttpExchange, SessionError> {
        let message = serde_json::to_vec(message).expect("the message has no failing parts");
        let request = self
            .transport()
            .request(Method::POST, &format!("{}&action={action}", target("/tree", path)))
            .header(header::CONTENT_TYPE, ringfence_proto::content::UNARY)
            .header(header::ACCEPT_ENCODING, if action == ACTION_READ { "gzip" } else { "" })
            .body(RequestBody::Whole(message.into()))
            .map_err(|error| operation.local(io::Error::other(error)))?;
        Ok(self.transport().send(operation, request).await?.into_body())
    }

    /// Sends a tar stream that `job` writes on a blocking thread, and has it unpacked at a path.
    /// `tick` is called after each piece that was sent.
    pub(crate) async fn send_archive<T: Send + 'static>(
        &self,
        path: &str,
        mut tick: impl FnMut(),
        job: impl FnOnce(&mut dyn Write) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let operation = Operation { verb: "write the files of", object: path };
        let (pieces, body) = mpsc::channel(MAX_QUEUED_PIECES);
        let (writer, mut packed) = mpsc::channel(MAX_QUEUED_PIECES);
        let shown = path.to_owned();
        let packing = spawn_blocking(move || {
            let operation = Operation { verb: "write the files of", object: &shown };
            let failed = |error| operation.local(error);
            let mut encoder = GzEncoder::new(PieceWriter::new(writer), Compression::fast());
            let done = job(&mut encoder)?;
            encoder.finish().and_then(|mut writer| writer.flush()).map_err(failed)?;
            Ok(done)
        });
        let feeding = async move {
            while let Some(piece) = packed.recv().await {
                self.queue_piece(operation, &pieces, piece).await?;
                tick();
            }
            join_job(packing).await
        };
        let request = self
            .transport()
            .request(Method::POST, &target("/tree", path))
            .header(header::CONTENT_TYPE, ringfence_proto::content::OCTETS)
            .header(header::CONTENT_ENCODING, "gzip")
            .body(RequestBody::Pieces(body))
            .map_err(|error| operation.local(io::Error::other(error)))?;
        self.transport().send_with_body(operation, request, feeding).await
    }

    /// Passes the bytes of an answer to a job that may block, and waits for both.
    pub(super) async fn receive_pieces<T: Send + 'static>(
        &self,
        operation: Operation<'_>,
        mut exchange: HttpExchange,
        mut tick: impl FnMut() + Send,
        job: impl FnOnce(PieceReader) -> Result<T, SessionError> + Send + 'static,
    ) -> Result<T, SessionError> {
        let (pieces, reader) = mpsc::channel(MAX_QUEUED_PIECES);
        let job = spawn_blocking(move || job(PieceReader::new(reader)));
        let arrived = loop {
            match self.piece(operation, &mut exchange).await {
                Ok(Some(piece)) => {
                    if pieces.send(super::PieceMessage::Piece(piece)).await.is_err() {
                        break Ok(()); // the job has ended, and its result says why
                    }
                    tick();
                }
                Ok(None) => {
                    let _ = pieces.send(super::PieceMessage::End).await; // as above
                    self.transport().return_to_pool(exchange);
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        drop(pieces);
        let done = join_job(job).await;
        arrived?;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<usize, &str>) {
        let mut count = 0;
        let read = read_listing(text.as_bytes(), |_| {
            count += 1;
            Ok(())
        });
        assert_eq!(
            read.map(|()| count).map_err(|error| error.to_string()),
            expected.map_err(str::to_owned)
        );
    }

    #[test]
    fn a_listing_without_its_end_or_with_an_endless_line_is_refused() {
        let busy = "{\"kind\":\"busy\"}\n";
        check(&format!("{busy}{{\"kind\":\"end\"}}\n{busy}"), Ok(1));
        let cut = Err("a line is too long, or the listing has no end");
        check(busy, cut);
        check("", cut);
        check(&"x".repeat(1 << 20), cut);
        check(
            "{\"kind\":\"new\"}\n",
            Err("unknown variant `new`, expected one of `file`, \
            `directory`, `link`, `special`, `unreadable`, `busy`, `end` at line 1 column 13"),
        );
    }

    fn stream(bytes: &[u8]) -> FileStream {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        let (sender, arrivals) = mpsc::channel(2);
        let piece = super::super::PieceMessage::Piece(encoder.finish().unwrap().into());
        sender.try_send(piece).ok().unwrap();
        sender.try_send(super::super::PieceMessage::End).ok().unwrap();
        FileStream::new(PieceReader::new(arrivals))
    }

    fn chunk(text: &[u8]) -> Vec<u8> {
        [&u32::try_from(text.len()).unwrap().to_be_bytes(), text].concat()
    }

    #[test]
    fn files_of_a_stream_end_where_the_guest_says_and_never_beyond_their_size() {
        let end = FILE_END.to_be_bytes().to_vec();
        let broken = FILE_BROKEN.to_be_bytes().to_vec();
        let bytes = [chunk(b"ab"), chunk(b"c"), end.clone(), chunk(b"d"), broken, end].concat();
        let mut files = stream(&bytes);
        for (size, text, expected) in [
            (3, "abc", FileStreamEnd::Complete),
            (9, "d", FileStreamEnd::Broken),
            (0, "", FileStreamEnd::Complete),
        ] {
            let mut read = Vec::new();
            let found = files.next_file(size, |bytes| read.extend_from_slice(bytes)).unwrap();
            assert_eq!((found, read.as_slice()), (expected, text.as_bytes()));
        }
        assert!(files.next_file(1, |_| ()).is_err(), "the stream is over");
        for longer in [[chunk(b"ab"), chunk(b"cd")].concat(), vec![0x7f, 0xff, 0xff, 0xff]] {
            let error = stream(&longer).next_file(3, |_| ()).unwrap_err();
            assert!(error.to_string().contains("more bytes than were requested"), "{error}");
        }
    }
}
