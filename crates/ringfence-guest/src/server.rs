//! Taking connections, and sending each request to its service.

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
use ringfence_linux::{Launcher, gate, passing};
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::LocalSet;

use crate::caller::Token;
use crate::connect::{self, Reply, bare};
use crate::options::{Listen, Options};
use crate::{files, filesystem, first, log, metrics, ports, process, slices, tree, user};

/// How many connections are open at once; whoever comes then waits.
const MOST_CONNECTIONS: usize = 2048;
/// How long a client may take to send the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);
/// The longest head of a request.
const LONGEST_HEAD: usize = 64 * 1024;
/// How much of a body is read or written at once.
const BUFFER: usize = 256 * 1024;
/// How long to wait when the system has no descriptor left for a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// The guest cannot serve.
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

/// Where connections come from.
#[derive(Debug)]
enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Everything that calls need.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) token: Token,
    processes: Rc<process::Service>,
    watchers: filesystem::Watchers,
}

/// Serves until the process is ended.
pub(crate) fn run(options: &Options) -> Result<(), ServeError> {
    let inherited = match &options.listen {
        Listen::Inherited(number) => {
            // Whoever passed a socket on sees to our end, and where there is no pid namespace nobody does after it.
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)); // cannot fail, prctl(2)
            let refuse = |source| ServeError::Inherited { number: *number, source };
            Some(inherit(*number).and_then(listening).map_err(refuse)?)
        }
        Listen::Handed(path) => Some(take_over(path, options.gate)?),
        Listen::Path(_) | Listen::Address(_) => None,
    };
    let owner = options.owner.map(|number| match inherit(number) {
        Ok(owner) => Ok((number, owner)),
        Err(source) => Err(ServeError::Inherited { number, source }),
    });
    let owner = owner.transpose()?;
    let token = match &options.token_file {
        Some(path) => Token::new(&fs_err::read_to_string(path).map_err(|source| ServeError::Token { source })?),
        None => Token::default(),
    };
    // Before there is a thread, and before limits are raised that commands would inherit.
    let launcher = Launcher::spawn(Path::new("/proc/self/exe"))?;
    // A command has up to six descriptors here.
    let _ = ringfence_linux::sys::process::raise_descriptor_limit(); // then fewer commands fit
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|source| ServeError::Runtime { source })?;
    LocalSet::new().block_on(&runtime, async {
        let listener = listen(&options.listen, inherited)?;
        let directory = options.directory.clone().unwrap_or_else(home);
        let server = Rc::new(Server {
            token,
            processes: process::Service::new(launcher, directory),
            watchers: filesystem::Watchers::default(),
        });
        if let Some((number, owner)) = owner {
            let owner = pipe::Receiver::from_owned_fd(owner).map_err(|source| ServeError::Owner { number, source })?;
            tokio::task::spawn_local(end_with(owner));
        }
        accept(listener, server).await
    })
}

/// Ends the sandbox when nobody has the other end of a pipe any more. Who started us may have been killed together with
/// whoever wanted it, before either could see to our end.
async fn end_with(mut owner: pipe::Receiver) {
    while let Ok(1..) = owner.read(&mut [0]).await {}
    log::line(format_args!("the process that kept the sandbox has ended"));
    std::process::exit(first::UNWANTED);
}

/// Takes an inherited descriptor over, so that nothing that the guest starts inherits it, too.
fn inherit(number: i32) -> io::Result<OwnedFd> {
    let copy = ringfence_linux::sys::process::duplicate(number)?;
    let position = u32::try_from(number).map_err(io::Error::other)?;
    ringfence_linux::sys::process::close_range(position, position)?;
    Ok(copy)
}

/// Has whoever listens at `path` hand over the socket that callers reach us by. That one is on the host: nothing of it
/// has to be shown here, least of all a directory that could be written. In return it gets the gate of our network, if
/// there is to be one: nobody else runs here yet who could give another.
fn take_over(path: &Path, gives_gate: bool) -> Result<OwnedFd, ServeError> {
    let handed = || {
        let giver = std::os::unix::net::UnixStream::connect(path)?;
        giver.set_read_timeout(Some(HEAD_PATIENCE))?;
        let (_, descriptors) = passing::receive(&giver, &mut [0])?;
        if gives_gate {
            gate::open(gate::Kind::Proxy, &giver)?;
        }
        listening(descriptors.into_iter().next().ok_or(io::ErrorKind::UnexpectedEof)?)
    };
    handed().map_err(|source| ServeError::Handover { path: path.into(), source })
}

fn listening(socket: OwnedFd) -> io::Result<OwnedFd> {
    match rustix::net::sockopt::socket_acceptconn(&socket)? {
        true => Ok(socket),
        false => Err(io::Error::other("it does not listen")),
    }
}

fn listen(listen: &Listen, inherited: Option<OwnedFd>) -> Result<Listener, ServeError> {
    let unix = |listener: std::os::unix::net::UnixListener| {
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener).map(Listener::Unix)
    };
    match (listen, inherited) {
        (Listen::Inherited(number), Some(socket)) => {
            unix(socket.into()).map_err(|source| ServeError::Inherited { number: *number, source })
        }
        (Listen::Handed(path), Some(socket)) => {
            unix(socket.into()).map_err(|source| ServeError::Handover { path: path.clone(), source })
        }
        (Listen::Path(path), _) => {
            // One that a guest before left behind; anything else there stays, and is an error.
            if fs_err::symlink_metadata(path).is_ok_and(|found| is_socket(&found)) {
                let _ = fs_err::remove_file(path); // what is left shows when it is bound
            }
            UnixListener::bind(path)
                .map(Listener::Unix)
                .map_err(|source| ServeError::Path { path: path.clone(), source })
        }
        (Listen::Address(address), _) => {
            let bound = std::net::TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener)
            });
            bound.map(Listener::Tcp).map_err(|source| ServeError::Address { address: *address, source })
        }
        (Listen::Inherited(number), None) => {
            Err(ServeError::Inherited { number: *number, source: io::ErrorKind::NotFound.into() })
        }
        (Listen::Handed(path), None) => {
            Err(ServeError::Handover { path: path.clone(), source: io::ErrorKind::NotFound.into() })
        }
    }
}

fn is_socket(found: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&found.file_type())
}

/// The user's home, where there is one.
fn home() -> PathBuf {
    Some(user::current().home).filter(|home| home.is_dir()).unwrap_or_else(|| "/".into())
}

async fn accept(listener: Listener, server: Rc<Server>) -> Result<(), ServeError> {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let room = room.clone().acquire_owned().await.expect("it is never closed");
        let accepted = match &listener {
            Listener::Unix(listener) => {
                listener.accept().await.map(|(stream, _)| converse(server.clone(), stream, room))
            }
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                let _ = stream.set_nodelay(true); // slower without, and no worse
                converse(server.clone(), stream, room)
            }),
        };
        if accepted.is_err() {
            // The peer has gone already, or there is no descriptor left.
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn converse<Stream>(server: Rc<Server>, stream: Stream, room: OwnedSemaphorePermit)
where
    Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(server.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_header_size(LONGEST_HEAD)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::task::spawn_local(async move {
        let _ = connection.await; // a peer that breaks off, or breaks the rules, is nobody's concern
        drop(room);
    });
}

impl Server {
    async fn answer(self: Rc<Self>, request: Request<Incoming>) -> Reply {
        let path = request.uri().path().to_owned();
        if path == "/health" {
            return bare(StatusCode::NO_CONTENT);
        }
        // A signed URL proves by itself that its holder may.
        if path == "/files" {
            return files::serve(request, &self.token).await;
        }
        if let Some(refusal) = self.token.refusal(request.headers()) {
            return slices::decline(request, refusal).await;
        }
        if request.method() == Method::CONNECT {
            return ports::connect(request).await;
        }
        match path.as_str() {
            "/tree" => return tree::serve(request).await,
            "/metrics" => return metrics::metrics(),
            "/envs" => return self.processes.variables(),
            "/init" => return self.processes.clone().init(request).await,
            _ => {}
        }
        match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            Some((ringfence_proto::process::SERVICE, method)) => self.processes.clone().call(method, request).await,
            Some((ringfence_proto::filesystem::SERVICE, method)) => {
                filesystem::call(method, request, &self.watchers).await
            }
            _ => {
                let refusal = connect::refused(StatusCode::NOT_FOUND, format!("there is nothing at `{path}`"));
                slices::decline(request, refusal).await
            }
        }
    }
}
