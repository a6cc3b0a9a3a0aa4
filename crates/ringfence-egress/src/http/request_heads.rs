//! Check that each request head can be read in one way only.
//!
//! hyper reads a request as the standard allows: a bare line feed ends a line, a length beside
//! chunks is dropped, and two equal lengths count as one. A server behind the proxy may read the
//! same bytes differently. So [`StrictHeadStream`] checks each head before hyper sees it, and the
//! first head that allows two readings ends the connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::opening::is_token_byte;
use crate::stream::RewoundStream;

/// Most headers that hyper reads in one request.
const MAX_HEADERS: usize = 100;
/// Most bytes of a refused request's target that are reported.
const MAX_REPORTED_BYTES: usize = 300;

/// Reason why a request head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadFault {
    #[error("the request's head is longer than {0} bytes")]
    TooLong(usize),
    #[error(
        "the request's head has a line that does not end with a carriage return and a line feed"
    )]
    LineEnd,
    #[error(
        "the request line is not a method, a target and HTTP/1.0 or HTTP/1.1 with one space between"
    )]
    RequestLine,
    #[error("the request's target is not a URI")]
    Target,
    #[error("a header is folded over two lines, or its name is not a token")]
    Name,
    #[error("a header's value contains a control character")]
    Value,
    #[error("the request has more than {MAX_HEADERS} headers")]
    TooMany,
    #[error("the request has more than one Host header")]
    Hosts,
    #[error(
        "the request has a Content-Length that is not a number, or more than one Content-Length"
    )]
    Length,
    #[error("the request has a Transfer-Encoding other than `chunked`")]
    Encoding,
    #[error("the request has both a Content-Length and a Transfer-Encoding")]
    LengthAndEncoding,
    #[error("a CONNECT request has a body")]
    ConnectBody,
}

/// Body that follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyFraming {
    /// A body of this many bytes, after which another head follows.
    Length(u64),
    /// A body in chunks. Only hyper finds the end of the chunks, so no head is read after them: see
    /// [`ends_connection`].
    Chunks,
}

/// Returns whether a request with these headers must be the last on its connection.
pub(crate) fn ends_connection(headers: &hyper::HeaderMap) -> bool {
    headers.contains_key(hyper::header::TRANSFER_ENCODING)
}

/// Judges the lines of `head`, which lacks the line feed of its last line. Returns the body that
/// follows.
fn judge_head(head: &[u8]) -> Result<BodyFraming, HeadFault> {
    let mut lines = head
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").ok_or(HeadFault::LineEnd));
    let request_line = lines.next().unwrap_or(Ok(b""))?;
    let mut words = request_line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(version), None) = (method, target, version, words.next())
    else {
        return Err(HeadFault::RequestLine);
    };
    let is_visible = |byte: &u8| byte.is_ascii_graphic();
    if !is_token(method)
        || target.is_empty()
        || !target.iter().all(is_visible)
        || !matches!(version, b"HTTP/1.0" | b"HTTP/1.1")
    {
        return Err(HeadFault::RequestLine);
    }
    // hyper would refuse such a target too, but without a reason.
    if hyper::Uri::try_from(target).is_err() {
        return Err(HeadFault::Target);
    }

    let (mut hosts, mut length, mut encoding) = (0, None, None);
    for (count, line) in lines.enumerate() {
        let line = line?;
        if count >= MAX_HEADERS {
            return Err(HeadFault::TooMany);
        }
        let colon = line.iter().position(|byte| *byte == b':').ok_or(HeadFault::Name)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if !is_token(name) {
            return Err(HeadFault::Name);
        }
        if value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return Err(HeadFault::Value);
        }
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let number =
                parse_decimal(value).filter(|_| length.is_none()).ok_or(HeadFault::Length)?;
            length = Some(number);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if encoding.is_some()
                || !value.eq_ignore_ascii_case(b"chunked")
                || version == b"HTTP/1.0"
            {
                return Err(HeadFault::Encoding);
            }
            encoding = Some(BodyFraming::Chunks);
        }
    }
    match (length, encoding) {
        _ if hosts > 1 => Err(HeadFault::Hosts),
        (Some(_), Some(_)) => Err(HeadFault::LengthAndEncoding),
        (None | Some(0), None) => Ok(BodyFraming::Length(0)),
        _ if method == b"CONNECT" => Err(HeadFault::ConnectBody),
        (Some(length), None) => Ok(BodyFraming::Length(length)),
        (None, Some(chunks)) => Ok(chunks),
    }
}

/// Returns whether a text is a token, as methods and header names must be (RFC 9110, section
/// 5.6.2).
fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| is_token_byte(*byte))
}

/// Parses a number that has only digits. Refuses a sign, which `parse` alone would accept.
fn parse_decimal(text: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Client's stream whose request heads are checked before hyper reads them.
#[derive(Debug)]
pub(crate) struct StrictHeadStream<S> {
    inner: RewoundStream<S>,
    /// Longest head that is accepted, in bytes.
    most: usize,
    /// Bytes that were read and not passed on.
    buffer: BytesMut,
    /// Number of bytes, from the start of the buffer and beyond its end, that need no check.
    /// `u64::MAX` stands for all bytes that follow.
    cleared: u64,
    /// Position in the buffer at which the search for the end of a head continues.
    searched: usize,
    fault: Option<HeadFault>,
}

impl<S> StrictHeadStream<S> {
    pub(crate) fn new(inner: RewoundStream<S>, most: usize) -> StrictHeadStream<S> {
        StrictHeadStream {
            inner,
            most,
            buffer: BytesMut::new(),
            cleared: 0,
            searched: 0,
            fault: None,
        }
    }

    /// Returns the fault of the last head, if the head was refused.
    pub(crate) fn fault(&self) -> Option<HeadFault> {
        self.fault
    }

    /// Returns the host that a refused request names, as far as the host can be recognised.
    ///
    /// Leaves out the path, the user and the password, because they may hold a secret.
    pub(crate) fn refused_host(&self) -> String {
        let line =
            self.buffer[..].split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
        let target = line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let target =
            String::from_utf8_lossy(&target[..target.len().min(MAX_REPORTED_BYTES)]).into_owned();
        let rest = target.split_once("://").map_or(target.as_str(), |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit('@').next().unwrap_or_default().to_owned()
    }

    /// Returns the inner stream, after putting back the bytes that hyper did not use: `unused`, and
    /// the bytes that hyper was not given yet.
    pub(crate) fn into_inner(self, unused: Bytes) -> RewoundStream<S> {
        let mut inner = self.inner;
        inner.put_back(self.buffer.freeze());
        inner.put_back(unused);
        inner
    }

    /// Checks the head at the start of the buffer, if the whole head is there, and clears the head
    /// and its body to pass.
    fn check_next_head(&mut self) -> Result<(), HeadFault> {
        // Empty lines before a request are skipped (RFC 9112, section 2.2), because old clients
        // send an empty line after a body.
        while self.buffer.starts_with(b"\r\n") {
            self.buffer.advance(2);
            self.searched = 0;
        }
        // Input that does not begin like a request, such as TLS or SOCKS4, is refused at once,
        // because no end of a head would come.
        if self
            .buffer
            .first()
            .is_some_and(|byte| !matches!(byte, b'\r' | b'\n') && !is_token(&[*byte]))
        {
            return Err(HeadFault::RequestLine);
        }
        // The search includes `\n\n`, because a server that takes a bare line feed for the end of a
        // line sees the head end there.
        let end = (self.searched..self.buffer.len()).find(|index| {
            let rest = &self.buffer[*index..];
            rest.starts_with(b"\n\r\n") || rest.starts_with(b"\n\n")
        });
        let Some(end) = end else {
            self.searched = self.buffer.len().saturating_sub(2);
            return if self.buffer.len() > self.most {
                Err(HeadFault::TooLong(self.most))
            } else {
                Ok(())
            };
        };
        if end > self.most {
            return Err(HeadFault::TooLong(self.most));
        }
        if !self.buffer[end..].starts_with(b"\n\r\n") {
            return Err(HeadFault::LineEnd);
        }
        let body = judge_head(&self.buffer[..end])?;
        let length = end as u64 + 3;
        self.cleared = match body {
            BodyFraming::Length(body) => length.saturating_add(body),
            BodyFraming::Chunks => u64::MAX,
        };
        self.searched = 0;
        Ok(())
    }

    fn passable_bytes(&self, room: usize) -> usize {
        usize::try_from(self.cleared).unwrap_or(usize::MAX).min(room)
    }

    fn consume_allowance(&mut self, length: usize) {
        if self.cleared != u64::MAX {
            self.cleared -= length as u64;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StrictHeadStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.cleared > 0 && !this.buffer.is_empty() {
                let length = this.passable_bytes(into.remaining().min(this.buffer.len()));
                into.put_slice(&this.buffer.split_to(length));
                this.consume_allowance(length);
                if this.buffer.is_empty() {
                    this.buffer = BytesMut::new();
                }
                return Poll::Ready(Ok(()));
            }
            if this.cleared > 0 {
                let before = into.filled().len();
                if this.passable_bytes(into.remaining()) == into.remaining() {
                    ready!(Pin::new(&mut this.inner).poll_read(cx, into))?;
                } else {
                    let mut part = ReadBuf::new(
                        into.initialize_unfilled_to(this.passable_bytes(into.remaining())),
                    );
                    ready!(Pin::new(&mut this.inner).poll_read(cx, &mut part))?;
                    let length = part.filled().len();
                    into.advance(length);
                }
                this.consume_allowance(into.filled().len() - before);
                return Poll::Ready(Ok(()));
            }
            if let Err(fault) = this.check_next_head() {
                this.fault = Some(fault);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, fault)));
            }
            if this.cleared == 0 {
                let before = this.buffer.len();
                ready!(poll_read_more(cx, &mut this.inner, &mut this.buffer))?;
                if this.buffer.len() == before {
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

/// Reads once from `stream` and appends the bytes to `buffer`.
fn poll_read_more<S: AsyncRead + Unpin>(
    cx: &mut Context<'_>,
    stream: &mut S,
    buffer: &mut BytesMut,
) -> Poll<io::Result<()>> {
    let mut space = [0; 4096];
    let mut into = ReadBuf::new(&mut space);
    ready!(Pin::new(stream).poll_read(cx, &mut into))?;
    buffer.extend_from_slice(into.filled());
    Poll::Ready(Ok(()))
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StrictHeadStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
