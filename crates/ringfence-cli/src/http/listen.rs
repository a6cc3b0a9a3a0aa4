//! Taking connections: how many, how long, and until when.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::seats::{Holder, Taken};
use super::server::Server;
use crate::connections::ConnectionLimit;
use crate::exchange::HeadTimeouts;

/// How many connections are open at once; for whoever comes then, the one that was idle for longest is closed.
const MOST_CONNECTIONS: usize = 4096;
/// How long a client may take from connecting, or agreeing on TLS, to the whole head of its first request.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may rest. E2B's clients keep theirs for five minutes.
const REST_PATIENCE: Duration = Duration::from_secs(330);
/// How long a client may take to send the head of a request that it has begun.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// How long a client may take to agree on TLS.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(10);
/// The longest head of a request.
const LONGEST_HEAD: usize = 64 << 10;
/// How long requests that are underway may take when the server ends.
const GRACE: Duration = Duration::from_secs(10);
/// After how long a silent client's machine is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// How long to wait when the system has no descriptor left for a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until `ended`, and lets what is underway then come to its end.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    server: Arc<Server>,
    ended: impl Future<Output = ()>,
) {
    let limit = ConnectionLimit::new(MOST_CONNECTIONS);
    let (ending, _) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut ended = pin!(ended);
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let accepted = listener.accept().await?;
            // Not before somebody comes: nobody idle is closed in vain.
            Ok::<_, io::Error>((accepted, limit.admit().await))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = &mut ended => break,
        };
        match accepted {
            Ok(((stream, peer), admission)) => {
                // Who comes through a proxy of this machine comes from the same address as all others.
                let seat = match peer.ip().to_canonical() {
                    address if address.is_loopback() => None,
                    address => match server.seats.take(Holder::at(address)) {
                        Some(seat) => Some(seat),
                        None => continue, // it has enough of them
                    },
                };
                let (server, ending, tls) = (Arc::clone(&server), ending.subscribe(), tls.clone());
                let exchanges = admission.exchanges().clone();
                let taken = Taken::new(admission, seat);
                let conversation = async move {
                    let _ = stream.set_nodelay(true); // slower without, and no worse
                    // A client whose machine is gone says nothing of it; without, it is waited for until it would speak.
                    let _ = set_socket_keepalive(&stream, true);
                    let _ = set_tcp_keepidle(&stream, KEEPALIVE);
                    match tls {
                        None => converse(stream, taken, server, ending).await,
                        Some(tls) => {
                            if let Ok(Ok(stream)) = timeout(HANDSHAKE_PATIENCE, tls.accept(stream)).await {
                                converse(stream, taken, server, ending).await;
                            }
                        }
                    }
                };
                connections.spawn(async move {
                    tokio::select! {
                        () = conversation => {}
                        () = exchanges.closed() => {} // somebody else needs its place
                    }
                });
            }
            Err(error) => {
                limit.make_room_after(&error);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    ending.send_replace(true);
    while connections.join_next().await.is_some() {}
}

async fn converse<Stream>(stream: Stream, taken: Taken, server: Arc<Server>, mut ending: watch::Receiver<bool>)
where
    Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let exchanges = taken.exchanges().clone();
    let stream = exchanges.watch(stream, HeadTimeouts { first: FIRST_HEAD_TIMEOUT, later: HEAD_PATIENCE });
    let service = service_fn(move |mut request: Request<Incoming>| {
        let server = Arc::clone(&server);
        request.extensions_mut().insert(taken.clone());
        let (request, exchange) = exchanges.begin(request);
        async move {
            let begun = Instant::now();
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let reply = exchange.end(server.answer(request).await).await;
            server.counters.answered(reply.status());
            // Not the query: it may be a signature.
            tracing::info!(%method, path, status = reply.status().as_u16(), took = ?begun.elapsed(), "request");
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REST_PATIENCE)
        .max_header_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    // A peer that breaks off, or breaks the rules, is nobody's concern.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ending.wait_for(|ending| *ending) => {} // or the server is gone
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(GRACE, connection).await; // see above
}
