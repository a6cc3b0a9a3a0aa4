//! A tunnel: what it begins with is looked at, the rest is carried as it is.
//!
//! Only what the client says is held back, and only until it is known what it speaks. The server may speak first: its
//! words go to the client at once.
//!
//! - TLS to a host that a credential is for ends here, and is carried on request by request; see `credential`.
//! - TLS must name the host that was asked for. A client that names none is refused for a name and is fine for an
//!   address; one older than TLS 1.2 cannot be read, and is refused for both. Where the real name is encrypted (ECH), the outer one
//!   counts: it is what the connection is routed by. Whether there is an inner one cannot be seen, for clients that have
//!   none pretend to (GREASE).
//! - Plain HTTP to a name goes through the proxy's own HTTP code, which looks at every request.
//! - Anything else passes, except on port 80, where it is HTTP or nothing.
//!
//! Most tunnels wait most of the time, by the thousand: what only some of them need is boxed.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::OptionFuture;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connect::Connection;
use crate::copy::{self, Direction};
use crate::hello::{self, Hello};
use crate::proxy::{Mode, Proxy};
use crate::stream::{Rewound, Stream, linger};
use crate::{Denial, Event, Passage, Reason, Target, TargetHost, Verdict, Via, http};

/// The longest beginning that is looked at: a TLS client's first message has at most 64 KiB, in records.
const LONGEST_OPENING: usize = 80 * 1024;
/// The longest first line that may still turn out to be a request.
const LONGEST_LINE: usize = 8 * 1024;
/// A fatal `access_denied` in an alert record, RFC 8446, 6.
const ALERT: [u8; 7] = [21, 3, 1, 0, 2, 2, 49];

/// Carries a tunnel to `target` until it ends, or is no longer allowed.
pub(crate) async fn run<S: Stream>(proxy: &Proxy, mut client: Rewound<S>, connection: Connection, target: &Target) {
    let pass = connection.pass(target);
    let mut server = connection.stream;
    let turn = tokio::select! {
        biased;
        denial = proxy.withdrawn(&pass) => return drop(proxy.deny(denial)),
        turn = carry(proxy, &mut client, &mut server, target) => turn,
    };
    match turn {
        Turn::Ended => {}
        Turn::Refused => {
            drop(server);
            if client.write_all(&ALERT).await.is_ok() {
                linger(client).await;
            }
        }
        // Requests are judged one by one, and a client whose next one is denied is told so.
        Turn::Requests => Box::pin(http::serve_within(proxy, client, server, pass)).await,
        Turn::SecuredRequests => Box::pin(http::serve_secured(proxy, client, server, pass)).await,
    }
}

/// What becomes of a tunnel.
enum Turn {
    /// It is over.
    Ended,
    /// What is said inside it is not let through, and the owner was told.
    Refused,
    /// It carries requests that are looked into.
    Requests,
    /// The same in TLS, to a host that is shown credentials.
    SecuredRequests,
}

/// Carries what a tunnel has, unless it is requests that are looked into.
async fn carry<S: Stream>(proxy: &Proxy, client: &mut Rewound<S>, server: &mut TcpStream, target: &Target) -> Turn {
    let mut opening = Opening::default();
    let mut back = Direction::default();
    let is_name = matches!(target.host, TargetHost::Name(_));

    // A silent client has all the time it wants: it may wait for the server.
    let spoken = poll_fn(|cx| {
        let _ = back.poll(cx, server, client)?; // its end is remembered
        opening.poll_more(cx, client)
    });
    if spoken.await.is_err() {
        return Turn::Ended;
    }
    let looked = poll_fn(|cx| {
        let _ = back.poll(cx, server, client)?; // its end is remembered
        opening.poll_kind(cx, client)
    });
    let Ok(Ok(kind)) = timeout(proxy.settings().limits.greeting, looked).await else { return Turn::Ended };
    let opening = opening.bytes;

    let mut other = None;
    match kind {
        Kind::Tls(hello) => {
            let named = name_inside(&hello, target);
            let is_for_target = named.as_ref() == Some(target);
            other = named.filter(|named| named != target);
            if let Err(reason) = agree(proxy, target, hello) {
                proxy.deny(Denial::of(target, Via::Tls, reason));
                return Turn::Refused;
            }
            if is_for_target && proxy.credentials_for(target).is_some() {
                client.put_back(opening.into());
                return Turn::SecuredRequests;
            }
        }
        kind if is_name && (kind == Kind::Http || target.port == 80) => {
            client.put_back(opening.into());
            return Turn::Requests;
        }
        _ => {}
    }
    let denied = other.map(|named| Box::pin(async move { proxy.denied_inside(&named).await }));
    tokio::select! {
        biased;
        Some(denial) = OptionFuture::from(denied) => drop(proxy.deny(denial)),
        // Whoever broke it off, there is nothing left to carry.
        _ = copy::both(client, server, Direction::after(opening), back) => {}
    }
    Turn::Ended
}

/// The host that a TLS client wants, on the port of its tunnel.
fn name_inside(hello: &Hello, target: &Target) -> Option<Target> {
    let Hello::Named(name) = hello else { return None };
    Target::from_parts(name, target.port).ok()
}

/// Whether what a TLS client says is what its tunnel was asked for.
fn agree(proxy: &Proxy, target: &Target, hello: Hello) -> Result<(), Reason> {
    let observes = proxy.settings().mode == Mode::Observe;
    let name = match (hello, &target.host) {
        (Hello::Unreadable(fault), _) => return Err(Reason::Malformed { fault }),
        (Hello::Unnamed, TargetHost::Name(_)) if !observes => return Err(Reason::Unnamed),
        (Hello::Unnamed, _) => return Ok(()),
        (Hello::Named(name), _) => name,
    };
    let Ok(named) = Target::from_parts(&name, target.port) else { return Err(Reason::OtherName { name }) };
    if named == *target {
        return Ok(());
    }
    match proxy.rules().judge(&named) {
        Verdict::Denied(reason @ Reason::Listed { .. }) => Err(reason),
        // Whoever allows an address allows what is served there, under whatever name.
        _ if matches!(target.host, TargetHost::Address(_)) => Ok(()),
        verdict if observes => {
            let listed = verdict == Verdict::Allowed;
            let passage = Passage { target: named.to_string(), via: Via::Tls, address: None, listed };
            proxy.tell(Event::Allowed(passage));
            Ok(())
        }
        _ => Err(Reason::OtherName { name }),
    }
}

/// What a client began with.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Tls(Hello),
    Http,
    Other,
}

#[derive(Default)]
struct Opening {
    bytes: Vec<u8>,
    /// There as soon as it turns out to be TLS.
    hello: Option<Box<hello::Reader>>,
}

impl Opening {
    /// Reads once.
    fn poll_more<S: AsyncRead + Unpin>(&mut self, cx: &mut Context<'_>, client: &mut S) -> Poll<io::Result<usize>> {
        let mut space = [0; 4096];
        let mut into = ReadBuf::new(&mut space);
        ready!(Pin::new(client).poll_read(cx, &mut into))?;
        self.bytes.extend_from_slice(into.filled());
        Poll::Ready(Ok(into.filled().len()))
    }

    /// Reads until it is known what the client speaks.
    fn poll_kind<S: AsyncRead + Unpin>(&mut self, cx: &mut Context<'_>, client: &mut S) -> Poll<io::Result<Kind>> {
        loop {
            if let Some(kind) = self.kind() {
                return Poll::Ready(Ok(kind));
            }
            if ready!(self.poll_more(cx, client))? == 0 {
                // It said all it had to say, and that is no beginning of anything that is looked at.
                return Poll::Ready(Ok(Kind::Other));
            }
        }
    }

    fn kind(&mut self) -> Option<Kind> {
        match self.bytes.first() {
            Some(&hello::RECORD) if self.bytes.len() > LONGEST_OPENING => {
                Some(Kind::Tls(Hello::Unreadable("the client's first message is too long".to_owned())))
            }
            Some(&hello::RECORD) => self.hello.get_or_insert_default().read(&self.bytes).map(Kind::Tls),
            Some(_) => is_request(&self.bytes).map(|is| if is { Kind::Http } else { Kind::Other }),
            None => Some(Kind::Other),
        }
    }
}

/// Whether the first line is one of HTTP, of any version; nothing while that is open.
///
/// Protocols that begin with words differ early: `SSH-2.0-…`, `EHLO host`, `PING`, `0032git-upload-pack /…`.
fn is_request(bytes: &[u8]) -> Option<bool> {
    // A server skips empty lines before a request.
    let start = bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n'))?;
    let rest = &bytes[start..];
    let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    let line = &rest[..end.unwrap_or(rest.len())];
    let method = line.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default();
    let is_text = line.iter().all(|byte| !byte.is_ascii_control() || *byte == b'\t');
    if !is_text || !http::is_token(method) || line.len() > LONGEST_LINE {
        return Some(false);
    }
    end.map(|_| line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_told_from_http_by_their_first_line() {
        let cases: [(&[u8], Option<bool>); 16] = [
            (b"GET / HTTP/1.1\r\n", Some(true)),
            (b"\r\n\r\nGET / HTTP/1.1\r\n", Some(true)),
            (b"M-SEARCH * HTTP/1.1\n", Some(true)),
            (b"PRI * HTTP/2.0\r\n", Some(true)),
            (b"get\t/\xc3\xa9\thttp/1.1\r", Some(true)),
            (b"GET / HTTP/1.1", None),
            (b"GE", None),
            (b"\r\n", None),
            (b"GET /\r\n", Some(false)),
            (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", Some(false)),
            (b"EHLO client.test\r\n", Some(false)),
            (b"PING\r\n", Some(false)),
            (b"*1\r\n$4\r\nPING\r\n", Some(false)),
            (b"0032git-upload-pack /project.git\0host=a\0", Some(false)),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", Some(false)),
            (b"@RSYNCD: 31.0\n", Some(false)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(is_request(bytes), expected, "{}", bytes.escape_ascii());
        }
        assert_eq!(is_request(&[b'a'; LONGEST_LINE + 1]), Some(false));
    }
}
