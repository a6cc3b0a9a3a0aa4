//! Server: accepts connections, and dispatches each request to its service.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use ringfence_linux::launcher::LauncherError;
use ringfence_linux::{Launcher, fd_passing, gate};
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::LocalSet;

use crate::authentication::AccessToken;
use crate::connect_protocol::{self, Reply, status_reply};
use crate::options::{GuestOptions, ListenOption, TokenOption};
use crate::{
    files, filesystem, first_process, link, log, metrics, ports, process, slices, tree, user,
};

/// Maximum number of open connections. Further clients wait in the backlog of the socket.
const MAX_CONNECTIONS: usize = 2048;
/// Time limit for a client to send the head of a request, and for the handover of the listening
/// socket.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of the head of a request in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Maximum number of bytes that a connection reads or buffers at once.
const MAX_BUFFER_BYTES: usize = 256 * 1024;
/// Pause after a failed accept(2), so that the guest does not spin while no descriptor is free.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Reason why the guest cannot serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    #[error("cannot read the token")]
    Token { source: io::Error },
    #[error("descriptor {number} is not a listening socket")]
    Inherited { number: i32, source: io::Error },
    #[error("cannot take over a listening socket at `{path}`")]
    Handover { path: PathBuf, source: io::Error },
    #[error("cannot listen on the socket `{path}`")]
    Path { path: PathBuf, source: io::Error },
    #[error("cannot listen on {address}")]
    Address { address: SocketAddr, source: io::Error },
    #[error("cannot watch descriptor {number} for its owner's end")]
    Owner { number: i32, source: io::Error },
    #[error("cannot wait for events")]
    Runtime { source: io::Error },
}

/// Listening socket of either kind.
#[derive(Debug)]
pub(crate) enum GuestListener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Stream of bytes to and from a caller, or a carrier of a link.
pub(crate) trait ConnectionStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ConnectionStream for T {}

/// State that all connections share.
#[derive(Debug)]
pub(crate) struct GuestServer {
    pub(crate) token: AccessToken,
    processes: Rc<process::ProcessService>,
    watchers: filesystem::WatcherTable,
}

/// Serves until the process is ended.
pub(crate) fn run_server(options: &GuestOptions) -> Result<(), ServeError> {
    let inherited = match &options.listen {
        Some(ListenOption::Inherited(number)) => {
            // The parent, which passed the socket to the guest, ends the guest. If the parent dies
            // and there is no pid namespace, no other process would end the guest. The call cannot
            // fail with a valid signal (prctl(2)).
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let refuse = |source| ServeError::Inherited { number: *number, source };
            Some(take_inherited(*number).and_then(check_listening).map_err(refuse)?)
        }
        Some(ListenOption::Handed(path)) => Some(receive_listener(path, options.gate)?),
        Some(ListenOption::Path(_) | ListenOption::Address(_)) | None => None,
    };
    let owner = options.owner.map(|number| match take_inherited(number) {
        Ok(owner) => Ok((number, owner)),
        Err(source) => Err(ServeError::Inherited { number, source }),
    });
    let owner = owner.transpose()?;
    let token = match &options.token {
        Some(TokenOption::File(path)) => AccessToken::new(
            &fs_err::read_to_string(path).map_err(|source| ServeError::Token { source })?,
        ),
        Some(TokenOption::Hash(hash)) => AccessToken::Hash(hash.clone()),
        None => AccessToken::default(),
    };
    // Start the launcher before this process has a second thread, and before it raises limits that
    // commands would inherit.
    let launcher = Launcher::spawn(Path::new("/proc/self/exe"))?;
    // Each command takes up to six descriptors in this process. If the limit cannot be raised,
    // fewer commands can run at once.
    let _ = ringfence_linux::sys::process::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|source| ServeError::Runtime { source })?;
    LocalSet::new().block_on(&runtime, async {
        let listener = match &options.listen {
            Some(listen) => Some(open_listener(listen, inherited)?),
            None => None,
        };
        let carriers = match &options.link {
            Some(listen) => Some(open_listener(listen, None)?),
            None => None,
        };
        let directory = options.directory.clone().unwrap_or_else(home_directory);
        let server = Rc::new(GuestServer {
            token,
            processes: process::ProcessService::new(launcher, directory),
            watchers: filesystem::WatcherTable::default(),
        });
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        if let Some((number, owner)) = owner {
            let owner = pipe::Receiver::from_owned_fd(owner)
                .map_err(|source| ServeError::Owner { number, source })?;
            tokio::task::spawn_local(end_with_owner(owner));
        }
        if let Some(carriers) = carriers {
            let service = link::LinkService::new(&server, &connections, options.link_lifetime);
            if options.ends_without_link {
                tokio::task::spawn_local(Rc::clone(&service).end_without_carrier());
            }
            tokio::task::spawn_local(service.accept_carriers(carriers));
        }
        match listener {
            Some(listener) => accept_connections(listener, server, connections).await,
            None => std::future::pending().await,
        }
    })
}

/// Ends the sandbox when the other end of the pipe `owner` is closed. The pipe covers the case that
/// the parent of the guest and the process that keeps the sandbox are killed together, before
/// either can end the guest.
async fn end_with_owner(mut owner: pipe::Receiver) {
    while let Ok(1..) = owner.read(&mut [0]).await {}
    log::write_line(format_args!("the process that kept the sandbox has ended"));
    std::process::exit(first_process::KEEPER_GONE_EXIT_CODE);
}

/// Moves an inherited descriptor to a new number with close-on-exec set, so that no child of the
/// guest inherits the descriptor.
fn take_inherited(number: i32) -> io::Result<OwnedFd> {
    let copy = ringfence_linux::sys::process::duplicate(number)?;
    let position = u32::try_from(number).map_err(io::Error::other)?;
    ringfence_linux::sys::process::close_range(position, position)?;
    Ok(copy)
}

/// Receives the listening socket from the process that listens at `path`. The socket was made on
/// the host, so no directory of the host has to be visible in the sandbox for the socket, least of
/// all a writable one. If `gives_gate` is set, the guest sends the gate of its network in return.
/// No other process runs in the sandbox yet that could send a different gate.
fn receive_listener(path: &Path, gives_gate: bool) -> Result<OwnedFd, ServeError> {
    let handed = || {
        let giver = std::os::unix::net::UnixStream::connect(path)?;
        giver.set_read_timeout(Some(HEAD_TIMEOUT))?;
        let (_, descriptors) = fd_passing::receive(&giver, &mut [0])?;
        if gives_gate {
            gate::open(gate::GateKind::Proxy, &giver)?;
        }
        check_listening(descriptors.into_iter().next().ok_or(io::ErrorKind::UnexpectedEof)?)
    };
    handed().map_err(|source| ServeError::Handover { path: path.into(), source })
}

fn check_listening(socket: OwnedFd) -> io::Result<OwnedFd> {
    match rustix::net::sockopt::socket_acceptconn(&socket)? {
        true => Ok(socket),
        false => Err(io::Error::other("it does not listen")),
    }
}

fn open_listener(
    listen: &ListenOption,
    inherited: Option<OwnedFd>,
) -> Result<GuestListener, ServeError> {
    let unix = |listener: std::os::unix::net::UnixListener| {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener).map(GuestListener::Unix)
    };
    match (listen, inherited) {
        (ListenOption::Inherited(number), Some(socket)) => {
            unix(socket.into()).map_err(|source| ServeError::Inherited { number: *number, source })
        }
        (ListenOption::Handed(path), Some(socket)) => unix(socket.into())
            .map_err(|source| ServeError::Handover { path: path.clone(), source }),
        (ListenOption::Path(path), _) => {
            // Remove a socket that an earlier guest left behind. Any other file stays, and makes
            // bind(2) fail.
            if fs_err::symlink_metadata(path).is_ok_and(|found| is_socket(&found)) {
                let _ = fs_err::remove_file(path); // if the file stays, bind(2) reports it
            }
            UnixListener::bind(path)
                .map(GuestListener::Unix)
                .map_err(|source| ServeError::Path { path: path.clone(), source })
        }
        (ListenOption::Address(address), _) => {
            let bound = std::net::TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener)
            });
            bound
                .map(GuestListener::Tcp)
                .map_err(|source| ServeError::Address { address: *address, source })
        }
        (ListenOption::Inherited(number), None) => {
            Err(ServeError::Inherited { number: *number, source: io::ErrorKind::NotFound.into() })
        }
        (ListenOption::Handed(path), None) => {
            Err(ServeError::Handover { path: path.clone(), source: io::ErrorKind::NotFound.into() })
        }
    }
}

fn is_socket(found: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&found.file_type())
}

/// Returns the user's home directory if it exists, else `/`.
fn home_directory() -> PathBuf {
    Some(user::current_user().home).filter(|home| home.is_dir()).unwrap_or_else(|| "/".into())
}

async fn accept_connections(
    listener: GuestListener,
    server: Rc<GuestServer>,
    connections: Arc<Semaphore>,
) -> Result<(), ServeError> {
    loop {
        let permit = connections.clone().acquire_owned().await.expect("it is never closed");
        let accepted = match &listener {
            GuestListener::Unix(listener) => listener
                .accept()
                .await
                .map(|(stream, _)| serve_connection(server.clone(), Box::new(stream), permit)),
            GuestListener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                let _ = stream.set_nodelay(true); // a failure only makes the connection slower
                serve_connection(server.clone(), Box::new(stream), permit)
            }),
        };
        if accepted.is_err() {
            // Either the peer has disconnected already, or no descriptor is free.
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
        }
    }
}

/// Serves the requests of a connection. All kinds of streams share one type, so that the code of
/// the HTTP server is in the program once.
pub(crate) fn serve_connection(
    server: Rc<GuestServer>,
    stream: Box<dyn ConnectionStream>,
    permit: OwnedSemaphorePermit,
) {
    let service = service_fn(move |request| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(server.answer_request(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::task::spawn_local(async move {
        let _ = connection.await; // a broken connection concerns only its peer
        drop(permit);
    });
}

impl GuestServer {
    /// Returns the server for callers that have presented the token already.
    pub(crate) fn for_authenticated_callers(&self) -> GuestServer {
        GuestServer {
            token: AccessToken::default(),
            processes: Rc::clone(&self.processes),
            watchers: self.watchers.clone(),
        }
    }

    async fn answer_request(self: Rc<Self>, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().to_owned();
        if path == "/health" {
            return status_reply(StatusCode::NO_CONTENT);
        }
        // `files` checks the token itself, because a signed URL needs no token.
        if path == "/files" {
            return files::answer_files(request, &self.token).await;
        }
        if let Some(refusal) = self.token.refusal(request.headers()) {
            return slices::refuse_unread(request, refusal).await;
        }
        if request.method() == Method::CONNECT {
            return ports::connect_port(request).await;
        }
        match path.as_str() {
            "/tree" => return tree::answer_tree(request).await,
            "/metrics" => return metrics::metrics_reply(),
            "/envs" => return self.processes.variables(),
            "/init" => return self.processes.clone().init(request).await,
            _ => {}
        }
        match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            Some((ringfence_proto::process::SERVICE, method)) => {
                self.processes.clone().answer_call(method, request).await
            }
            Some((ringfence_proto::filesystem::SERVICE, method)) => {
                filesystem::answer_call(method, request, &self.watchers).await
            }
            _ => {
                let refusal = connect_protocol::refusal_reply(
                    StatusCode::NOT_FOUND,
                    format!("there is nothing at `{path}`"),
                );
                slices::refuse_unread(request, refusal).await
            }
        }
    }
}
