//! Tunnels: the proxy judges the opening and carries the rest unchanged.
//!
//! Only the client's bytes are held back, and only until the protocol is known. The module
//! `opening` finds the protocol. The server may speak first, and its bytes go to the client at
//! once.
//!
//! - The proxy terminates TLS to a host that has a credential, and carries each request separately;
//!   see `credential`.
//! - TLS must name the host that the client asked for, in one hello that has one reading. A hello
//!   without a name is refused in a tunnel to a host name, and allowed in a tunnel to an address. A
//!   hello older than TLS 1.2 cannot be read and is refused in both. Other bytes that begin like
//!   TLS or SSL are refused in both, too. If the real name is encrypted (ECH), the outer name
//!   counts, because the connection is routed by the outer name. The proxy cannot see whether there
//!   is an inner name, because clients without an inner name pretend to have one (GREASE).
//! - A hello to a host name must not be an HTTP request at the same time, is refused on port 80,
//!   and must be answered in TLS.
//! - A server may ask for a second hello (HelloRetryRequest). Bytes that the client sends after its
//!   first hello are held back until the server has answered, and the second hello must name the
//!   same host as the first.
//! - In a tunnel to an address, every byte passes, unless the policy denies names. If the policy
//!   does, the tunnel is read like a tunnel to a name, and must not contain a denied name.
//! - Plain HTTP to a host name goes through the proxy's own HTTP code, which judges every request.
//! - In a protocol that changes to TLS (STARTTLS), each hello is judged, at whatever byte the hello
//!   begins; see `watch`.
//! - Any other protocol passes, with three exceptions. On port 80, only HTTP passes. If the server
//!   answers in TLS or HTTP, the tunnel is cut, because the server has then read the opening
//!   differently than the proxy. If the first line becomes a request, or a later line names a host
//!   before the server has answered, the tunnel is cut, too; see `watch`. The connection to the
//!   server is then reset, because some servers take the end of a stream for the end of a line.
//!
//! Thousands of tunnels may be open, and most of them wait most of the time. For this reason, state
//! that only some tunnels need is boxed.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::OptionFuture;
use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::answer::{AnswerKind, AnswerReader};
use crate::connect::TargetConnection;
use crate::copy::{self, CopyDirection};
use crate::hello::{ClientHello, HelloPosition, HelloReader};
use crate::opening::{LineRule, OpeningKind, OpeningReader, OtherNames};
use crate::proxy::{Proxy, ProxyMode};
use crate::stream::{ByteStream, RewoundStream, linger};
use crate::watch::StreamFinding;
use crate::{
    AllowedConnection, ConnectionRefusal, Denial, DenialReason, EgressEvent, RequestKind, Target,
    TargetHost, Verdict, http,
};

/// Silence after which the proxy assumes that a client waits for an answer.
const CLIENT_QUIET_PERIOD: Duration = Duration::from_millis(250);
/// Most bytes of a client that are held back until the server has answered a hello.
const MAX_HELD_BYTES: usize = 80 * 1024;
/// Alert record with a fatal `access_denied`, RFC 8446, 6.
const ACCESS_DENIED_ALERT: [u8; 7] = [21, 3, 1, 0, 2, 2, 49];

/// Carries a tunnel to `target` until the tunnel ends or the rules no longer allow it.
pub(crate) async fn carry_tunnel<S: ByteStream>(
    proxy: &Proxy,
    mut client: RewoundStream<S>,
    connection: TargetConnection,
    target: &Target,
) {
    let pass = connection.pass(target);
    let mut server = connection.stream;
    let step = tokio::select! {
        biased;
        denial = proxy.wait_until_withdrawn(&pass) => TunnelStep::from(proxy.report_denial(denial)),
        step = carry_bytes(proxy, &mut client, &mut server, target) => step,
    };
    match step {
        TunnelStep::Ended => {}
        TunnelStep::Cut => reset_connection(server),
        TunnelStep::Refused(words) => {
            reset_connection(server);
            if client.write_all(&words).await.is_ok() {
                linger(client).await;
            }
        }
        // Requests are judged one by one, and a client is told when its next request is denied.
        TunnelStep::Requests => {
            Box::pin(http::serve_plain_tunnel(proxy, client, server, pass)).await
        }
        TunnelStep::SecuredRequests => {
            Box::pin(http::serve_tls_tunnel(proxy, client, server, pass)).await
        }
    }
}

/// Next step for a tunnel.
enum TunnelStep {
    /// The tunnel has ended.
    Ended,
    /// The proxy ended the tunnel at a point where a server could take the end of the stream for
    /// the end of a line, so the connection to the server must be reset.
    Cut,
    /// The content of the tunnel was denied, and the owner was told. These bytes tell the client.
    Refused(Vec<u8>),
    /// The tunnel carries plain HTTP requests, which the proxy judges one by one.
    Requests,
    /// The tunnel carries HTTP requests in TLS, to a host that is sent credentials.
    SecuredRequests,
}

/// Carries the bytes of a tunnel, unless the tunnel carries requests that the proxy judges.
async fn carry_bytes<S: ByteStream>(
    proxy: &Proxy,
    client: &mut RewoundStream<S>,
    server: &mut TcpStream,
    target: &Target,
) -> TunnelStep {
    let other_names = OtherNames::for_tunnel(proxy, target);
    let mut opening = OpeningReader::new(other_names);
    let mut back = CopyDirection::default();

    // Set no time limit for a silent client, because the client may wait for the server.
    let spoken = poll_fn(|cx| {
        let _ = back.poll(cx, server, client)?; // `back` remembers the end of the server's stream
        poll_append(cx, client, &mut opening.bytes)
    });
    if spoken.await.is_err() {
        return TunnelStep::Ended;
    }
    let looked = async {
        loop {
            let looked = poll_fn(|cx| {
                // `back` remembers the end of the server's stream.
                let _ = back.poll(cx, server, client)?;
                poll_opening_kind(cx, client, &mut opening)
            });
            match timeout(CLIENT_QUIET_PERIOD, looked).await {
                Ok(kind) => return kind,
                Err(_) => {
                    if let Some(kind) = opening.kind_after_pause() {
                        return io::Result::Ok(kind);
                    }
                }
            }
        }
    };
    let kind = match timeout(proxy.settings().limits.greeting, looked).await {
        Ok(Ok(kind)) => kind,
        Ok(Err(_)) => return TunnelStep::Ended,
        Err(_) => {
            OpeningKind::Undecided("the client did not send enough in time to show its protocol")
        }
    };

    let is_judged = other_names == OtherNames::Judged;
    let is_name = matches!(target.host, TargetHost::Name(_));
    let (mut other, mut first) = (None, None);
    match kind {
        OpeningKind::Tls(_) if is_name && target.port == 80 => {
            let fault = "port 80 allows only plain HTTP, not TLS".to_owned();
            return refuse_tls(proxy, target, DenialReason::Malformed { fault });
        }
        OpeningKind::Tls(hello) => {
            let named = named_target(&hello, target);
            let is_for_target = named.as_ref() == Some(target);
            other = named.filter(|named| named != target);
            if let Err(reason) = check_hello(proxy, target, hello.clone()) {
                return refuse_tls(proxy, target, reason);
            }
            if is_for_target && proxy.credentials_for(target).is_some() {
                client.put_back(opening.bytes.into());
                return TunnelStep::SecuredRequests;
            }
            first = Some(hello);
        }
        OpeningKind::Undecided(fault) => {
            let reason = DenialReason::Malformed { fault: fault.to_owned() };
            return TunnelStep::Refused(
                proxy
                    .report_denial(Denial::for_target(target, RequestKind::Tunnel, reason))
                    .response_bytes(),
            );
        }
        kind if is_judged && kind == OpeningKind::Http || is_name && target.port == 80 => {
            client.put_back(opening.bytes.into());
            return TunnelStep::Requests;
        }
        // A server that speaks first, or has ended its stream, does not answer an opening.
        _ if is_judged && !back.has_spoken() => {
            back.read_answer(AnswerReader::for_other_protocol())
        }
        _ => {}
    }
    let denied =
        other.map(|named| Box::pin(async move { proxy.wait_until_name_denied(&named).await }));
    let carried = async {
        let mut forth = match first {
            Some(hello) => {
                let length = opening.hello_length();
                Box::pin(carry_hellos(
                    proxy,
                    client,
                    server,
                    target,
                    (opening.bytes, length),
                    hello,
                    &mut back,
                ))
                .await?
            }
            None if is_judged => {
                let mut forth = CopyDirection::default();
                // A server that speaks first does not speak HTTP.
                let rule = match opening.line_rule() {
                    LineRule::Every => LineRule::Every,
                    _ if back.has_spoken() => LineRule::None,
                    rule => rule,
                };
                forth.start_watch(opening.bytes, rule);
                forth
            }
            None => CopyDirection::with_pending(opening.bytes),
        };
        loop {
            // An error of either side ends the tunnel, unless the watch raised the error.
            let copied = copy::copy_both_ways(client, server, &mut forth, &mut back).await;
            let findings = forth.take_findings();
            if findings.is_empty() {
                // A client that breaks its connection off must not complete half a line.
                break if copied.is_err() && forth.has_open_line() {
                    Err(TunnelStep::Cut)
                } else {
                    Ok(())
                };
            }
            for finding in findings {
                judge_finding(proxy, target, finding)?;
            }
            forth.release();
        }
    };
    let carried = tokio::select! {
        biased;
        Some(denial) = OptionFuture::from(denied) => {
            return TunnelStep::from(proxy.report_denial(denial));
        }
        carried = carried => carried,
    };
    let fault = match back.answer() {
        Some(AnswerKind::UnexpectedTls) => {
            "the host answered in TLS to a client whose bytes are not readable TLS"
        }
        Some(AnswerKind::UnexpectedHttp) => {
            "the host answered in HTTP to a client whose bytes are not readable HTTP"
        }
        Some(AnswerKind::UnexpectedClear) => "the host answered a TLS hello in another protocol",
        _ => return carried.err().unwrap_or(TunnelStep::Ended),
    };
    let reason = DenialReason::Malformed { fault: fault.to_owned() };
    TunnelStep::from(proxy.report_denial(Denial::for_target(target, RequestKind::Tunnel, reason)))
}

impl From<ConnectionRefusal> for TunnelStep {
    /// Cuts an open tunnel. The client sees only the end of the stream, because it would take bytes
    /// of the proxy for bytes of the host.
    fn from(_: ConnectionRefusal) -> TunnelStep {
        TunnelStep::Cut
    }
}

/// Resets the connection to a server so that the server discards its input. Some servers take an
/// ordinary end of the stream for the end of a request, and act on half a request.
fn reset_connection(server: TcpStream) {
    // On failure, the stream ends in the ordinary way.
    let _ = set_socket_linger(&server, Some(Duration::ZERO));
}

impl OtherNames {
    fn for_tunnel(proxy: &Proxy, target: &Target) -> OtherNames {
        match target.host {
            TargetHost::Address(_) if !proxy.rules().denies_names(target.port) => {
                OtherNames::Ignored
            }
            _ => OtherNames::Judged,
        }
    }
}

fn refuse_tls(proxy: &Proxy, target: &Target, reason: DenialReason) -> TunnelStep {
    proxy.report_denial(Denial::for_target(target, RequestKind::Tls, reason));
    TunnelStep::Refused(ACCESS_DENIED_ALERT.to_vec())
}

/// Judges a finding of the watch in a tunnel that has used another protocol until now. A hello
/// without a name is allowed here, because it leads to no other host and clients of old protocols
/// send no name.
fn judge_finding(proxy: &Proxy, target: &Target, finding: StreamFinding) -> Result<(), TunnelStep> {
    let reason = match finding {
        StreamFinding::Hello(ClientHello::Unnamed) => return Ok(()),
        StreamFinding::Hello(hello) => match check_hello(proxy, target, hello) {
            Ok(()) => return Ok(()),
            Err(reason) => reason,
        },
        StreamFinding::Request => {
            let fault =
                "the client sent an HTTP request in a tunnel that began with another protocol"
                    .to_owned();
            let denial =
                Denial::for_target(target, RequestKind::Tunnel, DenialReason::Malformed { fault });
            return Err(TunnelStep::from(proxy.report_denial(denial)));
        }
        StreamFinding::TooManyHellos => DenialReason::Malformed {
            fault: "the client begins more TLS hellos at once than the proxy can read".to_owned(),
        },
    };
    Err(refuse_tls(proxy, target, reason))
}

/// Carries a hello, the server's answer to it, and the second hello if the answer asks for one.
///
/// `said` begins with the first hello, of `length` bytes. The returned direction, from client to
/// server, holds all bytes that may pass next. `back` continues in the caller.
async fn carry_hellos<S: ByteStream>(
    proxy: &Proxy,
    client: &mut RewoundStream<S>,
    server: &mut TcpStream,
    target: &Target,
    (mut said, length): (Vec<u8>, usize),
    first: ClientHello,
    back: &mut CopyDirection,
) -> Result<CopyDirection, TunnelStep> {
    // These bytes are early data, or a second hello that the client sent before the server asked.
    let mut ahead = said.split_off(length);
    let mut forth = CopyDirection::with_pending(said);
    let mut has_ended = false;
    let other_names = OtherNames::for_tunnel(proxy, target);
    back.read_answer(AnswerReader::for_hello(other_names));
    let answered = poll_fn(|cx| {
        let _ = forth.write_held(cx, server)?; // the rest follows when the server has room
        // The end of the server's stream counts as an answer.
        let _ = back.poll(cx, server, client)?;
        while back.answer().is_none() && !has_ended && ahead.len() < MAX_HELD_BYTES {
            match poll_append(cx, client, &mut ahead)? {
                Poll::Ready(read) => has_ended = read == 0,
                Poll::Pending => break,
            }
        }
        // A client that has ended its stream after the first hello sends no second hello.
        let is_answered = back.answer().is_some() || has_ended && ahead.is_empty();
        if is_answered { Poll::Ready(io::Result::Ok(())) } else { Poll::Pending }
    });
    if answered.await.is_err() {
        return Err(TunnelStep::Ended);
    }
    if back.answer() == Some(AnswerKind::Retry) {
        let mut reader = HelloReader::new(HelloPosition::AfterRetry);
        let read = poll_fn(|cx| {
            let _ = forth.write_held(cx, server)?; // the rest follows when the server has room
            // `back` remembers the end of the server's stream.
            let _ = back.poll(cx, server, client)?;
            loop {
                if let Some(hello) = reader.read(&ahead) {
                    return Poll::Ready(Ok(hello));
                }
                if ahead.len() > MAX_HELD_BYTES {
                    let fault = "the client sent too many bytes before its second hello".to_owned();
                    return Poll::Ready(Ok(ClientHello::Unreadable(fault)));
                }
                if ready!(poll_append(cx, client, &mut ahead))? == 0 {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
                }
            }
        });
        let second = match timeout(proxy.settings().limits.greeting, read).await {
            Ok(Ok(second)) => second,
            // Without a second hello there is no TLS connection on which data could pass.
            Ok(Err(_)) | Err(_) => return Err(TunnelStep::Ended),
        };
        let reason = match second {
            ClientHello::Unreadable(fault) => Some(DenialReason::Malformed { fault }),
            second if second == first => None,
            ClientHello::Named(name) => Some(DenialReason::OtherName { name }),
            ClientHello::Unnamed => Some(DenialReason::Unnamed),
        };
        if let Some(reason) = reason {
            return Err(refuse_tls(proxy, target, reason));
        }
    }
    // A server that has not agreed to TLS may do so later, in answer to another hello.
    if other_names == OtherNames::Judged && back.answer() == Some(AnswerKind::Other) {
        forth.start_watch(ahead, LineRule::None);
    } else {
        forth.queue_bytes(&ahead);
    }
    Ok(forth)
}

/// Reads once and appends the bytes to `bytes`. Returns the number of bytes.
fn poll_append<S: AsyncRead + Unpin>(
    cx: &mut Context<'_>,
    client: &mut S,
    bytes: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let mut space = [0; 4096];
    let mut into = ReadBuf::new(&mut space);
    ready!(Pin::new(client).poll_read(cx, &mut into))?;
    bytes.extend_from_slice(into.filled());
    Poll::Ready(Ok(into.filled().len()))
}

/// Reads until the protocol of the client is known.
fn poll_opening_kind<S: AsyncRead + Unpin>(
    cx: &mut Context<'_>,
    client: &mut S,
    opening: &mut OpeningReader,
) -> Poll<io::Result<OpeningKind>> {
    loop {
        if let Some(kind) = opening.kind() {
            return Poll::Ready(Ok(kind));
        }
        if ready!(poll_append(cx, client, &mut opening.bytes))? == 0 {
            return Poll::Ready(Ok(opening.kind_at_end()));
        }
    }
}

/// Returns the host that a TLS client names, on the port of its tunnel.
fn named_target(hello: &ClientHello, target: &Target) -> Option<Target> {
    let ClientHello::Named(name) = hello else { return None };
    Target::from_parts(name, target.port).ok()
}

/// Checks that the hello of a TLS client agrees with the target of its tunnel.
fn check_hello(proxy: &Proxy, target: &Target, hello: ClientHello) -> Result<(), DenialReason> {
    let observes = proxy.settings().mode == ProxyMode::Observe;
    let name = match (hello, &target.host) {
        (ClientHello::Unreadable(fault), _) => return Err(DenialReason::Malformed { fault }),
        (ClientHello::Unnamed, TargetHost::Name(_)) if !observes => {
            return Err(DenialReason::Unnamed);
        }
        (ClientHello::Unnamed, _) => return Ok(()),
        (ClientHello::Named(name), _) => name,
    };
    let Ok(named) = Target::from_parts(&name, target.port) else {
        return Err(DenialReason::OtherName { name });
    };
    if named == *target {
        return Ok(());
    }
    match proxy.rules().judge(&named) {
        Verdict::Denied(reason @ DenialReason::Listed { .. }) => Err(reason),
        // A rule that allows an address allows every name at that address.
        _ if matches!(target.host, TargetHost::Address(_)) => Ok(()),
        verdict if observes => {
            let listed = verdict == Verdict::Allowed;
            let passage = AllowedConnection {
                target: named.to_string(),
                via: RequestKind::Tls,
                address: None,
                listed,
            };
            proxy.report_event(EgressEvent::Allowed(passage));
            Ok(())
        }
        _ => Err(DenialReason::OtherName { name }),
    }
}
