//! Files in a sandbox.

use std::sync::Arc;

use bytes::BytesMut;
use hyper::{Method, header};
use ringfence_proto::filesystem::{
    EntriesResponse, EntryInfo, EntryResponse, FilesystemEvent, ListDirRequest, MoveRequest,
    PathRequest, WatchMessage, WatchRequest,
};
use ringfence_proto::process::EmptyMessage;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::error::Operation;
use super::messages::MessageStream;
use super::transport::{HttpExchange, RequestBody, Transport};
use super::{Session, SessionError};

/// Highest number of bytes of a file that are sent at once.
const MAX_PIECE_BYTES: usize = 256 << 10;
/// Number of pieces that wait for the guest.
pub(super) const MAX_QUEUED_PIECES: usize = 2;

/// The files of a sandbox. Paths are the sandbox's own: absolute, or relative to its user's home.
#[derive(Debug, Clone, Copy)]
pub struct SandboxFiles<'a> {
    pub(super) session: &'a Session,
}

/// Depth of a watch below its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchDepth {
    /// Only the entries of the directory.
    Directory,
    /// All entries below the directory.
    Tree,
}

impl SandboxFiles<'_> {
    /// Reads a file that is no longer than `limit` bytes.
    pub async fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, SessionError> {
        let operation = Operation { verb: "read", object: path };
        let mut exchange = self.get(operation, "/files", path).await?;
        let mut whole = Vec::new();
        while let Some(piece) = self.piece(operation, &mut exchange).await? {
            if (whole.len() + piece.len()) as u64 > limit {
                return Err(SessionError::TooLong { what: operation.to_string(), limit });
            }
            whole.extend_from_slice(&piece);
        }
        self.transport().return_to_pool(exchange);
        Ok(whole)
    }

    /// Reads a file of any length into a stream, and returns its length.
    pub async fn read_to(
        &self,
        path: &str,
        to: &mut (impl AsyncWrite + Unpin + ?Sized),
    ) -> Result<u64, SessionError> {
        let operation = Operation { verb: "read", object: path };
        let mut exchange = self.get(operation, "/files", path).await?;
        let mut length = 0;
        while let Some(piece) = self.piece(operation, &mut exchange).await? {
            to.write_all(&piece).await.map_err(|error| operation.local(error))?;
            length += piece.len() as u64;
        }
        to.flush().await.map_err(|error| operation.local(error))?;
        self.transport().return_to_pool(exchange);
        Ok(length)
    }

    /// Writes a file, and makes missing directories on the way to it.
    pub async fn write(
        &self,
        path: &str,
        bytes: impl Into<bytes::Bytes>,
    ) -> Result<(), SessionError> {
        self.write_from(path, &mut std::io::Cursor::new(bytes.into())).await.map(drop)
    }

    /// Writes the bytes of a stream into a file, and returns their number. Makes missing
    /// directories on the way to the file.
    pub async fn write_from(
        &self,
        path: &str,
        from: &mut (impl AsyncRead + Unpin + ?Sized),
    ) -> Result<u64, SessionError> {
        let operation = Operation { verb: "write", object: path };
        let (pieces, body) = mpsc::channel(MAX_QUEUED_PIECES);
        let reading = async move {
            let mut length = 0;
            loop {
                let mut piece = BytesMut::with_capacity(MAX_PIECE_BYTES);
                while piece.len() < MAX_PIECE_BYTES
                    && from.read_buf(&mut piece).await.map_err(|error| operation.local(error))? > 0
                {
                }
                if piece.is_empty() {
                    return Ok(length);
                }
                length += piece.len() as u64;
                self.queue_piece(operation, &pieces, piece.freeze()).await?;
            }
        };
        self.send_bytes(operation, "/files", path, body, reading).await
    }

    /// Returns information about the entry at a path.
    pub async fn stat(&self, path: &str) -> Result<EntryInfo, SessionError> {
        let message = PathRequest { path: path.to_owned() };
        let answer: EntryResponse =
            self.call("stat", path, "/filesystem.Filesystem/Stat", &message).await?;
        Ok(answer.entry)
    }

    /// Lists a directory, `depth` levels deep.
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<EntryInfo>, SessionError> {
        let message = ListDirRequest { path: path.to_owned(), depth };
        let answer: EntriesResponse =
            self.call("list", path, "/filesystem.Filesystem/ListDir", &message).await?;
        Ok(answer.entries)
    }

    /// Makes a directory, and missing directories on the way to it. A directory that exists already
    /// is an error.
    pub async fn make_directory(&self, path: &str) -> Result<EntryInfo, SessionError> {
        let message = PathRequest { path: path.to_owned() };
        let answer: EntryResponse = self
            .call("make the directory", path, "/filesystem.Filesystem/MakeDir", &message)
            .await?;
        Ok(answer.entry)
    }

    /// Removes a file, or a directory with all its contents.
    pub async fn remove(&self, path: &str) -> Result<(), SessionError> {
        let message = PathRequest { path: path.to_owned() };
        let EmptyMessage {} =
            self.call("remove", path, "/filesystem.Filesystem/Remove", &message).await?;
        Ok(())
    }

    /// Moves a file or a directory.
    pub async fn rename(&self, from: &str, to: &str) -> Result<EntryInfo, SessionError> {
        let message = MoveRequest { source: from.to_owned(), destination: to.to_owned() };
        let answer: EntryResponse =
            self.call("move", from, "/filesystem.Filesystem/Move", &message).await?;
        Ok(answer.entry)
    }

    /// Watches a directory. Every change after this function returns is reported.
    pub async fn watch(
        &self,
        path: &str,
        depth: WatchDepth,
    ) -> Result<DirectoryWatch, SessionError> {
        let message = WatchRequest {
            path: path.to_owned(),
            recursive: depth == WatchDepth::Tree,
            ..Default::default()
        };
        let operation = Operation { verb: "watch", object: path };
        let transport = Arc::clone(self.transport());
        let mut messages = MessageStream::open(
            transport,
            operation,
            "/filesystem.Filesystem/WatchDir",
            &message,
            None,
        )
        .await?;
        match messages.next(operation).await? {
            Some(WatchMessage::Start(_)) => {
                Ok(DirectoryWatch { path: path.to_owned(), messages, over: false })
            }
            _ => Err(operation.invalid_answer("it does not begin with a start")),
        }
    }

    pub(super) fn transport(&self) -> &Arc<Transport> {
        &self.session.transport
    }

    async fn call<Answer: serde::de::DeserializeOwned>(
        &self,
        verb: &'static str,
        path: &str,
        target: &str,
        message: &impl serde::Serialize,
    ) -> Result<Answer, SessionError> {
        self.transport().unary(Operation { verb, object: path }, target, message).await
    }

    /// Requests the bytes at a path.
    pub(super) async fn get(
        &self,
        operation: Operation<'_>,
        service: &str,
        path: &str,
    ) -> Result<HttpExchange, SessionError> {
        let request = self
            .transport()
            .request(Method::GET, &target(service, path))
            .body(RequestBody::Whole(bytes::Bytes::new()))
            .map_err(|error| operation.local(std::io::Error::other(error)))?;
        Ok(self.transport().send(operation, request).await?.into_body())
    }

    pub(super) async fn piece(
        &self,
        operation: Operation<'_>,
        exchange: &mut HttpExchange,
    ) -> Result<Option<bytes::Bytes>, SessionError> {
        let answer_timeout = self.transport().answer_timeout;
        match timeout(answer_timeout, exchange.piece()).await {
            Ok(piece) => piece.map_err(|error| operation.lost(error)),
            Err(_) => Err(operation.no_answer(answer_timeout)),
        }
    }

    /// Hands a piece to the connection. The guest must take it in time.
    pub(super) async fn queue_piece(
        &self,
        operation: Operation<'_>,
        pieces: &mpsc::Sender<bytes::Bytes>,
        piece: bytes::Bytes,
    ) -> Result<(), SessionError> {
        let answer_timeout = self.transport().answer_timeout;
        match timeout(answer_timeout, pieces.send(piece)).await {
            Ok(Ok(())) => Ok(()),
            // The connection is gone. The result of the request says why, so this future must never
            // complete.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => Err(operation.no_answer(answer_timeout)),
        }
    }

    /// Sends bytes to a path. `feeding` owns the sender of `body` and drops it only when all bytes
    /// are sent. If `feeding` fails, the body is never ended, so that the guest does not take it
    /// for complete.
    pub(super) async fn send_bytes<T>(
        &self,
        operation: Operation<'_>,
        service: &str,
        path: &str,
        body: mpsc::Receiver<bytes::Bytes>,
        feeding: impl Future<Output = Result<T, SessionError>>,
    ) -> Result<T, SessionError> {
        let request = self
            .transport()
            .request(Method::POST, &target(service, path))
            .header(header::CONTENT_TYPE, ringfence_proto::content::OCTETS)
            .body(RequestBody::Pieces(body))
            .map_err(|error| operation.local(std::io::Error::other(error)))?;
        self.transport().send_with_body(operation, request, feeding).await
    }
}

/// Returns the target of a request, with a path in its query.
pub(super) fn target(service: &str, path: &str) -> String {
    let mut target = format!("{service}?path=");
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                target.push(char::from(byte))
            }
            byte => target.push_str(&format!("%{byte:02X}")),
        }
    }
    target
}

/// A watched directory.
#[derive(Debug)]
pub struct DirectoryWatch {
    path: String,
    messages: MessageStream,
    over: bool,
}

impl DirectoryWatch {
    /// Returns the next event, or `None` after an error or when the guest no longer watches.
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Result<FilesystemEvent, SessionError>> {
        let operation = Operation { verb: "watch", object: &self.path };
        while !self.over {
            let failure = match self.messages.next(operation).await {
                Ok(Some(WatchMessage::Filesystem(event))) => return Some(Ok(event)),
                Ok(Some(WatchMessage::Keepalive(_))) => continue,
                Ok(Some(WatchMessage::Start(_))) => {
                    Some(operation.invalid_answer("it starts a second time"))
                }
                Ok(None) => None,
                Err(error) => Some(error),
            };
            self.over = true;
            return failure.map(Err);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_query_is_one_value() {
        assert_eq!(
            target("/files", "/a b/ü&c=d#e?f%+"),
            "/files?path=/a%20b/%C3%BC%26c%3Dd%23e%3Ff%25%2B"
        );
    }
}
