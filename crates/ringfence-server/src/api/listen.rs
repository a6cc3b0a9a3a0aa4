//! Accept loop of the server: limits on the number of connections and on their time, and the
//! shutdown.

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
use ringfence_service::connections::ConnectionLimit;
use ringfence_service::exchange::HeadTimeouts;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::server::Server;
use crate::tenants::connection_limits::{ConnectionCharge, ConnectionHolder};

/// Maximum number of open connections. For a further client, the server closes the connection that
/// has been idle for longest.
const MOST_CONNECTIONS: usize = 4096;
/// Maximum time from the connection, or from the end of the TLS handshake, to the end of the head
/// of the first request.
const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum idle time of a connection. E2B's clients keep their connections for five minutes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(330);
/// Maximum time for the head of a request, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of the head of a request, in bytes.
const LONGEST_HEAD: usize = 64 << 10;
/// Time that running requests have to finish when the server ends.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// Idle time after which the kernel probes whether the machine of a silent client is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Serves connections until `ended` completes, then lets running requests finish.
pub(crate) async fn serve(
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
            // Admit only after a client has connected, so that no idle connection is closed without
            // need.
            Ok::<_, io::Error>((accepted, limit.admit().await))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = &mut ended => break,
        };
        match accepted {
            Ok(((stream, peer), admission)) => {
                // All clients behind a proxy on this machine share one address, so loopback
                // addresses have no limit.
                let permit = match peer.ip().to_canonical() {
                    address if address.is_loopback() => None,
                    address => {
                        match server.connection_limits.take(ConnectionHolder::for_address(address))
                        {
                            Some(permit) => Some(permit),
                            None => continue, // this address has too many connections
                        }
                    }
                };
                let (server, ending, tls) = (Arc::clone(&server), ending.subscribe(), tls.clone());
                let exchanges = admission.exchanges().clone();
                let charge = ConnectionCharge::new(admission, permit);
                let conversation = async move {
                    // Without this option, the connection is only slower.
                    let _ = stream.set_nodelay(true);
                    // Without keepalive, the server would wait long for a client whose machine is
                    // gone. An error is ignored, because the connection works without it.
                    let _ = set_socket_keepalive(&stream, true);
                    let _ = set_tcp_keepidle(&stream, KEEPALIVE_IDLE);
                    match tls {
                        None => converse(stream, charge, server, ending).await,
                        Some(tls) => {
                            if let Ok(Ok(stream)) =
                                timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await
                            {
                                converse(stream, charge, server, ending).await;
                            }
                        }
                    }
                };
                connections.spawn(async move {
                    tokio::select! {
                        () = conversation => {}
                        // Another client needs the place of this connection.
                        () = exchanges.closed() => {}
                    }
                });
            }
            Err(error) => limit.recover_from(&error, &mut connections).await,
        }
    }
    drop(listener);
    ending.send_replace(true);
    while connections.join_next().await.is_some() {}
}

async fn converse<Stream>(
    stream: Stream,
    charge: ConnectionCharge,
    server: Arc<Server>,
    mut ending: watch::Receiver<bool>,
) where
    Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let exchanges = charge.exchanges().clone();
    let stream =
        exchanges.watch(stream, HeadTimeouts { first: FIRST_HEAD_TIMEOUT, later: HEAD_TIMEOUT });
    let service = service_fn(move |mut request: Request<Incoming>| {
        let server = Arc::clone(&server);
        request.extensions_mut().insert(charge.clone());
        let (request, exchange) = exchanges.begin(request);
        async move {
            let begun = Instant::now();
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let reply = exchange.end(server.answer(request).await).await;
            server.counters.answered(reply.status());
            // The query is not logged, because it may contain a signature.
            tracing::info!(
                %method,
                path,
                status = reply.status().as_u16(),
                took = ?begun.elapsed(),
                "request"
            );
            Ok::<_, Infallible>(reply)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_header_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    // Errors of the connection are ignored: the peer disconnected or violated the protocol.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ending.wait_for(|ending| *ending) => {} // an error means that the server is gone
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(SHUTDOWN_GRACE, connection).await; // errors are ignored for the same reason
}
