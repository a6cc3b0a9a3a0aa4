//! Doors: ways to open a stream to a guest.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// Name of a guest's socket in its channel directory.
pub(crate) const SOCKET: &str = "guest.sock";
/// Pause before the next attempt to connect to a guest whose queue is full.
const PAUSE: Duration = Duration::from_millis(1);

/// Stream of bytes to and from a guest.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A way to open streams to a guest. The caller sets the deadline.
pub(crate) trait Door: Send + Sync + Debug {
    /// Opens one more stream to the guest.
    fn open(&self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>>;
}

/// The socket in a channel directory, which the other side may be able to write.
#[derive(Debug)]
pub(crate) struct ChannelDoor {
    directory: OwnedFd,
    socket: &'static str,
}

impl ChannelDoor {
    /// Returns the door for the guest's socket in the directory at `path`, which must not be a
    /// link.
    pub(crate) fn of(path: &Path) -> io::Result<ChannelDoor> {
        ChannelDoor::to(path, SOCKET)
    }

    /// Returns the door for the socket `socket` in the directory at `path`, which must not be a
    /// link.
    pub(crate) fn to(path: &Path, socket: &'static str) -> io::Result<ChannelDoor> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(ChannelDoor { directory: openat(CWD, path, flags, Mode::empty())?, socket })
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

    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        let socket = self.socket()?;
        // Connect to exactly the socket that was checked. Its path might also be too long for an
        // address, unix(7).
        let address = format!("/proc/self/fd/{}", socket.as_raw_fd());
        loop {
            match UnixStream::connect(&address).await {
                // connect(2): on a non-blocking Unix socket, connect fails with EAGAIN if the
                // listener's queue is full.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(PAUSE).await
                }
                connected => return connected,
            }
        }
    }
}

impl Door for ChannelDoor {
    fn open(&self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        Box::pin(async { Ok(Box::new(self.connect().await?) as Box<dyn Stream>) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_socket_opens_and_what_only_leads_to_one_does_not() {
        let place = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let door = ChannelDoor::of(place.path()).unwrap();
        let socket = place.path().join(SOCKET);
        assert_eq!(refusal(&door).await.kind(), io::ErrorKind::NotFound);

        let listener = UnixListener::bind(&socket).unwrap();
        door.open().await.unwrap();
        drop(listener);
        fs_err::remove_file(&socket).unwrap();

        let _other = UnixListener::bind(elsewhere.path().join(SOCKET)).unwrap();
        symlink(elsewhere.path().join(SOCKET), &socket).unwrap();
        assert_eq!(refusal(&door).await.to_string(), "`guest.sock` is not a socket");
        fs_err::remove_file(&socket).unwrap();

        fs_err::write(&socket, "").unwrap();
        assert_eq!(refusal(&door).await.to_string(), "`guest.sock` is not a socket");
    }

    async fn refusal(door: &ChannelDoor) -> io::Error {
        door.open().await.err().expect("the door is shut")
    }

    #[test]
    fn a_directory_behind_a_link_has_no_door() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("link");
        symlink(place.path(), &link).unwrap();
        ChannelDoor::of(place.path()).unwrap();
        assert!(ChannelDoor::of(&link).is_err());
    }

    #[tokio::test]
    async fn a_path_longer_than_an_address_opens() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("d".repeat(120));
        fs_err::create_dir(&deep).unwrap();
        let door = ChannelDoor::of(&deep).unwrap();
        let short = place.path().join("short.sock");
        let _listener = UnixListener::bind(&short).unwrap();
        fs_err::rename(&short, deep.join(SOCKET)).unwrap();
        door.open().await.unwrap();
    }
}
