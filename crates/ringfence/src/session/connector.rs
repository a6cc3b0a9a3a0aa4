//! Connectors: ways to open a stream to a guest, wherever the guest runs.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::header::HeaderValue;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// Name of a guest's socket in its channel directory.
pub(crate) const GUEST_SOCKET: &str = "guest.sock";
/// Pause before the next attempt to connect to a guest whose queue is full.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// Stream of bytes to and from a guest.
pub(crate) trait GuestStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> GuestStream for T {}

/// A way to open streams to a guest, which the backend of the sandbox provides. The caller sets the
/// deadline.
pub(crate) trait GuestConnector: Send + Sync + Debug {
    /// Opens one more stream to the guest.
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn GuestStream>>>;

    /// Returns the value of the `Host` header of every request.
    fn host(&self) -> HeaderValue {
        HeaderValue::from_static("guest")
    }

    /// Returns the time for which streams may stand still because the way to the guest is lost, and
    /// still go on afterwards. Time limits for answers are longer by this time.
    fn outage_limit(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the access token that the guest requires, if it requires one.
    fn token(&self) -> Option<&HeaderValue> {
        None
    }
}

/// Connector to a socket in a directory of the host, which the other side may be able to write.
#[derive(Debug)]
pub(crate) struct UnixConnector {
    directory: OwnedFd,
    socket: &'static str,
    outage_limit: Duration,
}

impl UnixConnector {
    /// Returns the connector to the guest's socket in the directory at `path`, which must not be a
    /// link.
    pub(crate) fn for_guest_in(path: &Path) -> io::Result<UnixConnector> {
        UnixConnector::for_socket(path, GUEST_SOCKET)
    }

    /// Returns the connector to the socket `socket` in the directory at `path`, which must not be a
    /// link.
    pub(crate) fn for_socket(path: &Path, socket: &'static str) -> io::Result<UnixConnector> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        Ok(UnixConnector { directory, socket, outage_limit: Duration::ZERO })
    }

    /// Returns the connector for a socket at which the process that keeps the sandbox relays
    /// connections over a link, whose carrier may be lost for `outage_limit`.
    #[cfg_attr(not(any(test, feature = "kubernetes")), expect(dead_code, reason = "few link"))]
    pub(crate) fn with_outage_limit(self, outage_limit: Duration) -> UnixConnector {
        UnixConnector { outage_limit, ..self }
    }

    /// Opens the socket that lies in the directory now. A link in its place is not followed.
    fn socket(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let within =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let socket = openat2(&self.directory, self.socket, flags, Mode::empty(), within)?;
        match FileType::from_raw_mode(fstat(&socket)?.st_mode) {
            FileType::Socket => Ok(socket),
            _ => Err(io::Error::other(format!("`{}` is not a socket", self.socket))),
        }
    }

    pub(crate) async fn open(&self) -> io::Result<UnixStream> {
        let socket = self.socket()?;
        // Connect to exactly the socket that was checked. Its path might also be too long for an
        // address, unix(7).
        let address = format!("/proc/self/fd/{}", socket.as_raw_fd());
        loop {
            match UnixStream::connect(&address).await {
                // connect(2): on a non-blocking Unix socket, connect fails with EAGAIN if the
                // listener's queue is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(RETRY_DELAY).await
                }
                connected => return connected,
            }
        }
    }
}

impl GuestConnector for UnixConnector {
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn GuestStream>>> {
        Box::pin(async { Ok(Box::new(self.open().await?) as Box<dyn GuestStream>) })
    }

    fn outage_limit(&self) -> Duration {
        self.outage_limit
    }
}

/// Listens on a socket in a directory of a sandbox directory. The socket is bound through a
/// descriptor of the directory, because the path may be too long for a socket address.
pub(crate) fn listen_in(directory: &Path, name: &Path) -> io::Result<OwnedFd> {
    let directory = rustix::fs::open(
        directory,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let short = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(short)?)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_connector_opens_a_socket_but_no_link_to_one() {
        let directory = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let connector = UnixConnector::for_guest_in(directory.path()).unwrap();
        let socket = directory.path().join(GUEST_SOCKET);
        assert_eq!(refusal(&connector).await.kind(), io::ErrorKind::NotFound);

        let listener = UnixListener::bind(&socket).unwrap();
        connector.connect().await.unwrap();
        drop(listener);
        fs_err::remove_file(&socket).unwrap();

        let _other = UnixListener::bind(elsewhere.path().join(GUEST_SOCKET)).unwrap();
        symlink(elsewhere.path().join(GUEST_SOCKET), &socket).unwrap();
        assert_eq!(refusal(&connector).await.to_string(), "`guest.sock` is not a socket");
        fs_err::remove_file(&socket).unwrap();

        fs_err::write(&socket, "").unwrap();
        assert_eq!(refusal(&connector).await.to_string(), "`guest.sock` is not a socket");
    }

    async fn refusal(connector: &UnixConnector) -> io::Error {
        connector.connect().await.err().expect("nothing listens")
    }

    #[test]
    fn a_link_to_a_directory_has_no_connector() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        symlink(directory.path(), &link).unwrap();
        UnixConnector::for_guest_in(directory.path()).unwrap();
        assert!(UnixConnector::for_guest_in(&link).is_err());
    }

    #[tokio::test]
    async fn a_connector_opens_a_path_longer_than_an_address() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("d".repeat(120));
        fs_err::create_dir(&deep).unwrap();
        let connector = UnixConnector::for_guest_in(&deep).unwrap();
        let short = directory.path().join("short.sock");
        let _listener = UnixListener::bind(&short).unwrap();
        fs_err::rename(&short, deep.join(GUEST_SOCKET)).unwrap();
        connector.connect().await.unwrap();
    }
}
