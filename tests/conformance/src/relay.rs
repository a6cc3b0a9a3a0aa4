//! Relay to an engine of root for a user who may not open the engine's socket, like access that an
//! administrator grants by a group.

use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use ringfence_test_ledger::engine::Engine;
use tempfile::TempDir;

/// A socket through which every user reaches an engine. The listener is root, as at the engine's
/// own socket.
#[derive(Debug)]
pub(crate) struct EngineRelay {
    directory: TempDir,
}

impl EngineRelay {
    /// Starts a relay. Its thread ends with this process, and its socket is removed when the relay
    /// is dropped.
    pub(crate) fn for_engine(engine: &Engine) -> EngineRelay {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let relay = EngineRelay { directory };
        let listener = UnixListener::bind(relay.socket()).expect("a socket can be made there");
        for (path, mode) in [(relay.directory.path(), 0o755), (&relay.socket(), 0o666)] {
            fs_err::set_permissions(path, PermissionsExt::from_mode(mode)).expect("it is ours");
        }
        let engine = engine.address().trim_start_matches("unix://").to_owned();
        std::thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                if let Ok(server) = UnixStream::connect(&engine) {
                    carry(&caller, &server);
                    carry(&server, &caller);
                }
            }
        });
        relay
    }

    /// Returns the address of the relay, in the form of an engine's address.
    pub(crate) fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("engine.sock")
    }
}

/// Copies bytes from one stream to the other in a thread, until the first stream ends.
fn carry(from: &UnixStream, to: &UnixStream) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to); // either side may hang up at any time
        let _ = to.shutdown(Shutdown::Write); // either side may hang up at any time
    });
}
