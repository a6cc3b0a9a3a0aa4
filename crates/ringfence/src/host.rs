//! What ringfence knows of the place it runs in. The library reads the process's environment only here, and
//! only when asked to.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use ringfence_core::settings::HostView;
use ringfence_core::workspace::without_dots;

/// Where hosts keep the certificates that they trust, as one file.
const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The caller's surroundings: variables, working directory, user.
#[derive(Debug, Clone)]
pub struct Host {
    /// The caller's environment.
    pub variables: BTreeMap<OsString, OsString>,
    /// Where relative paths start.
    pub directory: PathBuf,
    /// The caller's home, when it has a usable one.
    pub home: Option<PathBuf>,
    /// The caller's user id.
    pub user_id: u32,
    /// The caller's group id.
    pub group_id: u32,
}

impl Host {
    /// The surroundings of the calling process.
    pub fn of_this_process() -> std::io::Result<Host> {
        Ok(Host::new(std::env::vars_os().collect(), std::env::current_dir()?))
    }

    /// Surroundings that are given rather than read.
    pub fn new(variables: BTreeMap<OsString, OsString>, directory: PathBuf) -> Host {
        let home = variables.get(OsStr::new("HOME")).map(PathBuf::from);
        Host {
            home: home.filter(|home| home.is_absolute() && home.parent().is_some()),
            variables,
            directory,
            user_id: rustix::process::geteuid().as_raw(),
            group_id: rustix::process::getegid().as_raw(),
        }
    }

    /// A variable that is set, not empty, and text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.variables.get(OsStr::new(name)).and_then(|value| value.to_str()).filter(|value| !value.is_empty())
    }

    /// The directories of the caller's `PATH`.
    pub(crate) fn path(&self) -> impl Iterator<Item = PathBuf> {
        self.variables.get(OsStr::new("PATH")).into_iter().flat_map(std::env::split_paths)
    }

    /// The absolute form of a path of a policy: `~` is the home, what is relative starts at the working
    /// directory, and `.` and `..` are taken out by name.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        let expanded = match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => self.directory.join(path),
        };
        without_dots(&expanded)
    }

    /// Where a path really is: no component of the answer is a symbolic link. The error does not name the path.
    #[expect(clippy::disallowed_methods, reason = "its callers name the path in their own errors")]
    pub(crate) fn resolve(path: &Path) -> std::io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    /// The directory that what ringfence keeps of a user's sandboxes is in.
    pub(crate) fn state_directory(&self) -> Option<PathBuf> {
        self.own_directory("XDG_STATE_HOME", ".local/state")
    }

    /// The certificates that the host trusts, in PEM: those that the caller names, or the system's.
    pub fn trusted_certificates(&self) -> std::io::Result<Vec<u8>> {
        use std::io::{Error, ErrorKind};
        if let Some(path) = self.text("SSL_CERT_FILE") {
            return fs_err::read(path);
        }
        let found = BUNDLES.into_iter().find(|path| Path::new(path).exists());
        let none = || Error::new(ErrorKind::NotFound, "there is no bundle of them: install `ca-certificates`");
        fs_err::read(found.ok_or_else(none)?)
    }

    /// A directory of the user's own: `$name/ringfence`, or `~/fallback/ringfence`.
    pub fn own_directory(&self, variable: &str, fallback: &str) -> Option<PathBuf> {
        let base = self.text(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = base.or_else(|| self.home.as_ref().map(|home| home.join(fallback)))?;
        Some(base.join("ringfence"))
    }
}

impl HostView for Host {
    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn read(&self, path: &Path) -> Option<String> {
        fs_err::read_to_string(path).ok()
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }
}
