//! Where attempts are made: behind which ring, and by whom.

use std::path::Path;
use std::process::{Command, Stdio};

use ringfence::Clause;
use ringfence_test_ledger::{User, binary};
use tempfile::TempDir;

/// A backend, in one of its ways to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ring {
    /// The native backend with namespaces.
    Native,
    /// The native backend where user namespaces are forbidden.
    NativeInPlace,
    /// Bubblewrap.
    Bwrap,
    /// Nothing: the control.
    Local,
}

/// Who runs ringfence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// The superuser.
    Root,
    /// A user without privileges.
    Ordinary,
}

/// A ring and a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stage {
    /// Behind what.
    pub ring: Ring,
    /// By whom.
    pub caller: Caller,
}

/// A variable of the caller that no policy passes.
const SECRET: (&str, &str) = ("CONFORMANCE_SECRET", "not for others");
/// A path that holds the programs of every distribution.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Runs a command where no further user namespace can be made, under the user id it has here: the first namespace
/// may limit how many are made below it, the second is the one that it allows.
const WITHOUT_NAMESPACES: &str = "user=$(id -u) group=$(id -g) exec unshare --user --map-root-user sh -c '
    echo 1 > /proc/sys/user/max_user_namespaces &&
    exec unshare --user --map-user=\"$user\" --map-group=\"$group\" -- \"$@\"' sh \"$@\"";

impl Ring {
    /// Every ring that isolates, in the order of the documentation.
    pub const ISOLATING: [Ring; 3] = [Ring::Native, Ring::NativeInPlace, Ring::Bwrap];

    /// What the documentation calls it.
    pub fn title(self) -> &'static str {
        match self {
            Ring::Native => "native",
            Ring::NativeInPlace => "native, without user namespaces",
            Ring::Bwrap => "bwrap",
            Ring::Local => "local",
        }
    }

    fn backend(self) -> &'static str {
        match self {
            Ring::Native | Ring::NativeInPlace => "native",
            Ring::Bwrap => "bwrap",
            Ring::Local => "local",
        }
    }

    /// What must be accepted by name for it to start.
    fn weaknesses(self) -> &'static [Clause] {
        match self {
            Ring::NativeInPlace => &[Clause::Filesystem, Clause::Processes, Clause::Ipc, Clause::Cleanup],
            Ring::Native | Ring::Bwrap | Ring::Local => &[],
        }
    }
}

impl Stage {
    /// Prepares `ringfence SUBCOMMAND --backend …` in a place, with an environment of the caller's own.
    pub fn ringfence(self, subcommand: &str, place: &Place) -> Command {
        let mut command = match self.ring {
            Ring::NativeInPlace => {
                let mut shell = self.command("sh", place);
                shell.args(["-c", WITHOUT_NAMESPACES, "sh"]).arg(binary());
                shell
            }
            Ring::Native | Ring::Bwrap | Ring::Local => self.command(binary(), place),
        };
        command.args([subcommand, "--backend", self.ring.backend()]);
        for weakness in self.ring.weaknesses() {
            command.args(["--allow-weaker", weakness.name()]);
        }
        command
    }

    fn command(self, program: impl AsRef<std::ffi::OsStr>, place: &Place) -> Command {
        let mut command = match &place.user {
            Some(user) => user.command(program),
            None => Command::new(program),
        };
        let home = place.user.as_ref().map_or(Path::new("/root"), |user| &user.home);
        command.env_clear().env("PATH", PATH).env("HOME", home).env(SECRET.0, SECRET.1);
        command.current_dir(place.path()).stdin(Stdio::null());
        command
    }
}

/// A directory of the caller's own, to be a workspace.
#[derive(Debug)]
pub struct Place {
    directory: TempDir,
    user: Option<User>,
}

impl Place {
    /// Makes one.
    ///
    /// # Panics
    ///
    /// Panics when it cannot be made, or there is no ordinary user to make it for.
    pub fn of(caller: Caller) -> Place {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let user = match caller {
            Caller::Root => None,
            Caller::Ordinary => Some(User::for_tests().expect("the test requires an ordinary user")),
        };
        if let Some(user) = &user {
            std::os::unix::fs::chown(directory.path(), Some(user.uid), Some(user.gid))
                .expect("it is given to whoever it is, or by root");
        }
        Place { directory, user }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}
