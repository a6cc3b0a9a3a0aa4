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

use super::error::What;
use super::messages::Messages;
use super::transport::{Exchange, Outgoing, Transport};
use super::{Session, SessionError};

/// Highest number of bytes of a file that are sent at once.
const PIECE: usize = 256 << 10;
/// Number of pieces that wait for the guest.
pub(super) const WAITING_PIECES: usize = 2;

/// The files of a sandbox. Paths are the sandbox's own: absolute, or relative to its user's home.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    pub(super) session: &'a Session,
}

/// Depth of a watch below its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only the entries of the directory.
    Directory,
    /// All entries below the directory.
    Tree,
}

impl Files<'_> {
    /// Reads a file that is no longer than `limit` bytes.
    pub async fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, SessionError> {
        let what = What { verb: "read", of: path };
        let mut exchange = self.get(what, "/files", path).await?;
        let mut whole = Vec::new();
        while let Some(piece) = self.piece(what, &mut exchange).await? {
            if (whole.len() + piece.len()) as u64 > limit {
                return Err(SessionError::TooLong { what: what.to_string(), limit });
            }
            whole.extend_from_slice(&piece);
        }
        self.transport().keep(exchange);
        Ok(whole)
    }

    /// Reads a file of any length into a stream, and returns its length.
    pub async fn read_to(
        &self,
        path: &str,
        to: &mut (impl AsyncWrite + Unpin + ?Sized),
    ) -> Result<u64, SessionError> {
        let what = What { verb: "read", of: path };
        let mut exchange = self.get(what, "/files", path).await?;
        let mut length = 0;
        while let Some(piece) = self.piece(what, &mut exchange).await? {
            to.write_all(&piece).await.map_err(|error| what.local(error))?;
            length += piece.len() as u64;
        }
        to.flush().await.map_err(|error| what.local(error))?;
        self.transport().keep(exchange);
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
        let what = What { verb: "write", of: path };
        let (pieces, body) = mpsc::channel(WAITING_PIECES);
        let reading = async move {
            let mut length = 0;
            loop {
                let mut piece = BytesMut::with_capacity(PIECE);
                while piece.len() < PIECE
                    && from.read_buf(&mut piece).await.map_err(|error| what.local(error))? > 0
                {
                }
                if piece.is_empty() {
                    return Ok(length);
                }
                length += piece.len() as u64;
                self.pass_on(what, &pieces, piece.freeze()).await?;
            }
        };
        self.post(what, "/files", path, body, reading).await
    }

    /// Returns information about the entry at a path.
    pub async fn stat(&self, path: &str) -> Result<EntryInfo, SessionError> {
        let question = PathRequest { path: path.to_owned() };
        let answer: EntryResponse =
            self.ask("stat", path, "/filesystem.Filesystem/Stat", &question).await?;
        Ok(answer.entry)
    }

    /// Lists a directory, `depth` levels deep.
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<EntryInfo>, SessionError> {
        let question = ListDirRequest { path: path.to_owned(), depth };
        let answer: EntriesResponse =
            self.ask("list", path, "/filesystem.Filesystem/ListDir", &question).await?;
        Ok(answer.entries)
    }

    /// Makes a directory, and missing directories on the way to it. A directory that exists already
    /// is an error.
    pub async fn make_directory(&self, path: &str) -> Result<EntryInfo, SessionError> {
        let question = PathRequest { path: path.to_owned() };
        let answer: EntryResponse = self
            .ask("make the directory", path, "/filesystem.Filesystem/MakeDir", &question)
            .await?;
        Ok(answer.entry)
    }

    /// Removes a file, or a directory with all its contents.
    pub async fn remove(&self, path: &str) -> Result<(), SessionError> {
        let question = PathRequest { path: path.to_owned() };
        let EmptyMessage {} =
            self.ask("remove", path, "/filesystem.Filesystem/Remove", &question).await?;
        Ok(())
    }

    /// Moves a file or a directory.
    pub async fn rename(&self, from: &str, to: &str) -> Result<EntryInfo, SessionError> {
        let question = MoveRequest { source: from.to_owned(), destination: to.to_owned() };
        let answer: EntryResponse =
            self.ask("move", from, "/filesystem.Filesystem/Move", &question).await?;
        Ok(answer.entry)
    }

    /// Watches a directory. Every change after this function returns is reported.
    pub async fn watch(&self, path: &str, reach: Reach) -> Result<Watch, SessionError> {
        let question = WatchRequest {
            path: path.to_owned(),
            recursive: reach == Reach::Tree,
            ..Default::default()
        };
        let what = What { verb: "watch", of: path };
        let transport = Arc::clone(self.transport());
        let mut messages =
            Messages::open(transport, what, "/filesystem.Filesystem/WatchDir", &question, None)
                .await?;
        match messages.next(what).await? {
            Some(WatchMessage::Start(_)) => {
                Ok(Watch { path: path.to_owned(), messages, over: false })
            }
            _ => Err(what.nonsense("it does not begin with a start")),
        }
    }

    pub(super) fn transport(&self) -> &Arc<Transport> {
        &self.session.transport
    }

    async fn ask<Answer: serde::de::DeserializeOwned>(
        &self,
        verb: &'static str,
        path: &str,
        target: &str,
        question: &impl serde::Serialize,
    ) -> Result<Answer, SessionError> {
        self.transport().unary(What { verb, of: path }, target, question).await
    }

    /// Requests the bytes at a path.
    pub(super) async fn get(
        &self,
        what: What<'_>,
        service: &str,
        path: &str,
    ) -> Result<Exchange, SessionError> {
        let request = self
            .transport()
            .request(Method::GET, &target(service, path))
            .body(Outgoing::Whole(bytes::Bytes::new()))
            .map_err(|error| what.local(std::io::Error::other(error)))?;
        Ok(self.transport().send(what, request).await?.into_body())
    }

    pub(super) async fn piece(
        &self,
        what: What<'_>,
        exchange: &mut Exchange,
    ) -> Result<Option<bytes::Bytes>, SessionError> {
        let patience = self.transport().patience;
        match timeout(patience, exchange.piece()).await {
            Ok(piece) => piece.map_err(|error| what.lost(error)),
            Err(_) => Err(what.silent(patience)),
        }
    }

    /// Hands a piece to the connection. The guest must take it in time.
    pub(super) async fn pass_on(
        &self,
        what: What<'_>,
        pieces: &mpsc::Sender<bytes::Bytes>,
        piece: bytes::Bytes,
    ) -> Result<(), SessionError> {
        let patience = self.transport().patience;
        match timeout(patience, pieces.send(piece)).await {
            Ok(Ok(())) => Ok(()),
            // The connection is gone. The result of the request says why, so this future must never
            // complete.
            Ok(Err(_)) => std::future::pending().await,
            Err(_) => Err(what.silent(patience)),
        }
    }

    /// Sends bytes to a path. `feeding` owns the sender of `body` and drops it only when all bytes
    /// are sent. If `feeding` fails, the body is never ended, so that the guest does not take it
    /// for complete.
    pub(super) async fn post<T>(
        &self,
        what: What<'_>,
        service: &str,
        path: &str,
        body: mpsc::Receiver<bytes::Bytes>,
        feeding: impl Future<Output = Result<T, SessionError>>,
    ) -> Result<T, SessionError> {
        let request = self
            .transport()
            .request(Method::POST, &target(service, path))
            .header(header::CONTENT_TYPE, ringfence_proto::content::OCTETS)
            .body(Outgoing::Pieces(body))
            .map_err(|error| what.local(std::io::Error::other(error)))?;
        self.transport().pour(what, request, feeding).await
    }
}

/// Returns the target of a request, with a path in its query.
fn target(service: &str, path: &str) -> String {
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
pub struct Watch {
    path: String,
    messages: Messages,
    over: bool,
}

impl Watch {
    /// Returns the next event, or `None` after an error or when the guest no longer watches.
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Result<FilesystemEvent, SessionError>> {
        let what = What { verb: "watch", of: &self.path };
        while !self.over {
            let failure = match self.messages.next(what).await {
                Ok(Some(WatchMessage::Filesystem(event))) => return Some(Ok(event)),
                Ok(Some(WatchMessage::Keepalive(_))) => continue,
                Ok(Some(WatchMessage::Start(_))) => Some(what.nonsense("it starts a second time")),
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
