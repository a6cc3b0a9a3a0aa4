//! The environment in which ringfence runs. The library reads the environment of its process only
//! in this module, and only when the caller asks for that.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use ringfence_core::settings::HostView;
use ringfence_core::workspace::remove_dots;

/// Paths at which hosts keep the certificates that they trust, as one file.
const BUNDLES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The caller's environment: variables, working directory, user.
#[derive(Debug, Clone)]
pub struct Host {
    /// Environment variables of the caller.
    pub variables: BTreeMap<OsString, OsString>,
    /// Directory at which relative paths start.
    pub directory: PathBuf,
    /// Home directory of the caller, if `HOME` is an absolute path and not `/`.
    pub home: Option<PathBuf>,
    /// Effective user id of the caller.
    pub user_id: u32,
    /// Effective group id of the caller.
    pub group_id: u32,
}

impl Host {
    /// Reads the environment of the calling process.
    pub fn for_this_process() -> std::io::Result<Host> {
        Ok(Host::new(std::env::vars_os().collect(), std::env::current_dir()?))
    }

    /// Makes an environment from the given values. Only the user id and the group id are read from
    /// the process.
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

    /// Returns the value of a variable if it is set, not empty, and UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.variables
            .get(OsStr::new(name))
            .and_then(|value| value.to_str())
            .filter(|value| !value.is_empty())
    }

    /// Returns the directories of the caller's `PATH`.
    pub(crate) fn path(&self) -> impl Iterator<Item = PathBuf> {
        self.variables.get(OsStr::new("PATH")).into_iter().flat_map(std::env::split_paths)
    }

    /// Returns the absolute form of a path of a policy: `~` is the home, a relative path starts at
    /// the working directory, and `.` and `..` are removed by name, without reading links.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        let expanded = match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => self.directory.join(path),
        };
        remove_dots(&expanded)
    }

    /// Resolves a path, so that no component of the result is a symbolic link. The error does not
    /// name the path.
    #[expect(clippy::disallowed_methods, reason = "its callers name the path in their own errors")]
    pub(crate) fn resolve(path: &Path) -> std::io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    /// Returns the directory that contains ringfence's state, such as the directories of the user's
    /// sandboxes.
    pub(crate) fn state_directory(&self) -> Option<PathBuf> {
        self.own_directory("XDG_STATE_HOME", ".local/state")
    }

    /// Returns the certificates that the host trusts, in PEM: those in the file that
    /// `SSL_CERT_FILE` names, or else the system's.
    pub fn trusted_certificates(&self) -> std::io::Result<Vec<u8>> {
        use std::io::{Error, ErrorKind};
        if let Some(path) = self.text("SSL_CERT_FILE") {
            return fs_err::read(path);
        }
        let found = BUNDLES.into_iter().find(|path| Path::new(path).exists());
        let none = || {
            Error::new(ErrorKind::NotFound, "there is no bundle of them: install `ca-certificates`")
        };
        fs_err::read(found.ok_or_else(none)?)
    }

    /// Returns a directory of the user: `$variable/ringfence`, or `~/fallback/ringfence` if that
    /// variable is not an absolute path.
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
