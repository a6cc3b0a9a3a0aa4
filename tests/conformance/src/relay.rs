//! An engine of root's for a user whom its socket shuts out: what an administrator allows by a group.

use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use ringfence_test_ledger::engine::Engine;
use tempfile::TempDir;

/// A socket at which everybody reaches an engine. Who listens there is root, as it is at the engine's own.
#[derive(Debug)]
pub(crate) struct Relay {
    directory: TempDir,
}

impl Relay {
    /// Starts one; it ends with this process, and its socket goes when it is dropped.
    pub(crate) fn to(engine: &Engine) -> Relay {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let relay = Relay { directory };
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

    /// Spells its address as an engine's is.
    pub(crate) fn address(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("engine.sock")
    }
}

/// Carries what one says to the other, until either has said all.
fn carry(from: &UnixStream, to: &UnixStream) {
    let (Ok(mut from), Ok(mut to)) = (from.try_clone(), to.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to); // either may hang up at any time
        let _ = to.shutdown(Shutdown::Write); // as above
    });
}
