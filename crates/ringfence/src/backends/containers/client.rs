//! Connections to container engines: finding the socket and asking for the version.

use std::error::Error;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::models::SystemVersion;
use bollard::{API_DEFAULT_VERSION, ClientVersion, Docker};
use ringfence_core::Backend;
use tokio::time::timeout;

use super::version::EngineVersionQuery;
use crate::backends::Freshness;
use crate::backends::version::VersionNumber;
use crate::{Host, Unavailable};

/// Timeout for one request to an engine, in seconds.
const REQUEST_TIMEOUT: u64 = 120;
/// Time within which an engine must tell its version. Behind a socket of systemd there may be no
/// engine that ever answers. On a slow machine, Podman takes several seconds.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);

/// Kind of container engine. Both kinds speak the same API, with small differences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineKind {
    /// The Docker engine.
    Docker,
    /// The Podman engine.
    Podman,
}

/// Connection to an engine that answered.
#[derive(Debug, Clone)]
pub(crate) struct EngineClient {
    pub(crate) kind: EngineKind,
    /// Path of the engine's socket.
    pub(crate) socket: PathBuf,
    /// ID of the user that the engine runs as.
    pub(crate) user_id: u32,
    /// Client of the engine's API.
    pub(crate) api: Docker,
    /// Versions that the engine reports for itself and its components.
    pub(crate) version: SystemVersion,
}

/// Error for an engine that cannot be used over its socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// A variable names an engine on another host.
    #[error(
        "{variable} is `{address}`: the workspace and the guest's socket can be shared only with \
         an engine on this host"
    )]
    OnOtherHost { kind: EngineKind, variable: &'static str, address: String },
    /// No socket exists at any of the usual paths.
    #[error("there is no {kind} socket at {}", join_paths(sockets))]
    Missing { kind: EngineKind, sockets: Vec<PathBuf>, is_installed: bool, user_id: u32 },
    /// This user lacks the permission to connect to the socket.
    #[error("this user may not use the {kind} socket `{}`", socket.display())]
    Denied { kind: EngineKind, socket: PathBuf, source: io::Error },
    /// A socket exists, but nobody answers.
    #[error("nobody answers at the {kind} socket `{}`", socket.display())]
    NoAnswer { kind: EngineKind, socket: PathBuf, source: Box<dyn Error + Send + Sync> },
    /// The socket belongs to the other kind of engine.
    #[error("the engine at `{}` is not {kind}", socket.display())]
    WrongKind { kind: EngineKind, socket: PathBuf },
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            EngineKind::Docker => "Docker",
            EngineKind::Podman => "Podman",
        })
    }
}

fn join_paths(sockets: &[PathBuf]) -> String {
    sockets.iter().map(|socket| format!("`{}`", socket.display())).collect::<Vec<_>>().join(" or ")
}

impl ConnectError {
    /// Returns the next command for the user to type.
    pub(crate) fn hint(&self) -> String {
        match self {
            ConnectError::OnOtherHost { variable, .. } => {
                format!("unset {variable}, or have it name a socket: {variable}=unix:///a/socket")
            }
            ConnectError::Missing { kind: EngineKind::Podman, is_installed: false, .. } => {
                "apt install podman, and then: systemctl --user enable --now podman.socket"
                    .to_owned()
            }
            ConnectError::Missing { kind: EngineKind::Docker, is_installed: false, .. } => {
                "apt install docker.io, and then: sudo systemctl enable --now docker".to_owned()
            }
            ConnectError::Missing { kind: EngineKind::Podman, sockets, user_id, .. } => {
                let service =
                    if *user_id == 0 { "systemctl start" } else { "systemctl --user start" };
                let socket =
                    sockets.first().map(|socket| socket.display().to_string()).unwrap_or_default();
                format!(
                    "{service} podman.socket; or, without systemd: podman system service -t 0 \
                     unix://{socket} &"
                )
            }
            ConnectError::Missing { kind: EngineKind::Docker, .. } => {
                "sudo systemctl start docker; or, without systemd: sudo dockerd &".to_owned()
            }
            ConnectError::Denied { kind: EngineKind::Docker, .. } => {
                "sudo usermod -aG docker \"$USER\", and log in again: members of that group have \
                 the rights of root; or use your own engine: --backend podman"
                    .to_owned()
            }
            ConnectError::Denied { kind: EngineKind::Podman, .. } => {
                "start your own: systemctl --user start podman.socket".to_owned()
            }
            ConnectError::NoAnswer { kind: EngineKind::Podman, socket, .. } => {
                format!(
                    "systemctl --user restart podman.socket; or: podman system service -t 0 \
                     unix://{} &",
                    socket.display()
                )
            }
            ConnectError::NoAnswer { kind: EngineKind::Docker, .. } => {
                "sudo systemctl restart docker; `sudo journalctl -u docker` shows why it ended"
                    .to_owned()
            }
            ConnectError::WrongKind { kind: EngineKind::Docker, socket } => {
                format!("CONTAINER_HOST=unix://{} and --backend podman", socket.display())
            }
            ConnectError::WrongKind { kind: EngineKind::Podman, socket } => {
                format!("DOCKER_HOST=unix://{} and --backend docker", socket.display())
            }
        }
    }
}

impl From<&ConnectError> for Unavailable {
    fn from(error: &ConnectError) -> Unavailable {
        Unavailable { why: crate::chain(error), fix: error.hint() }
    }
}

impl EngineKind {
    /// Returns the backend that uses this engine.
    pub(crate) fn backend(self) -> Backend {
        match self {
            EngineKind::Docker => Backend::Docker,
            EngineKind::Podman => Backend::Podman,
        }
    }

    fn variable(self) -> &'static str {
        match self {
            EngineKind::Docker => "DOCKER_HOST",
            EngineKind::Podman => "CONTAINER_HOST",
        }
    }

    fn program(self) -> &'static str {
        match self {
            EngineKind::Docker => "docker",
            EngineKind::Podman => "podman",
        }
    }

    /// Returns the default sockets of the engine, for hosts where no variable names one.
    fn usual_sockets(self, host: &Host) -> Vec<PathBuf> {
        match self {
            EngineKind::Docker => vec!["/var/run/docker.sock".into()],
            EngineKind::Podman => {
                let runtime = host
                    .text("XDG_RUNTIME_DIR")
                    .map(PathBuf::from)
                    .filter(|path| path.is_absolute());
                let own = runtime.or_else(|| {
                    (host.user_id != 0).then(|| format!("/run/user/{}", host.user_id).into())
                });
                let own = own.map(|directory| directory.join("podman/podman.sock"));
                own.into_iter().chain(["/run/podman/podman.sock".into()]).collect()
            }
        }
    }

    /// Returns the sockets to try, in order.
    fn sockets(self, host: &Host) -> Result<Vec<PathBuf>, ConnectError> {
        let variable = self.variable();
        match host.text(variable) {
            None => Ok(self.usual_sockets(host)),
            Some(address) => match address.strip_prefix("unix://") {
                Some(path) if path.starts_with('/') => Ok(vec![path.into()]),
                _ => Err(ConnectError::OnOtherHost {
                    kind: self,
                    variable,
                    address: address.to_owned(),
                }),
            },
        }
    }
}

/// Connects to the engine of a flavour. The version in the result may be remembered from an earlier
/// connection.
pub(crate) async fn connect(host: &Host, kind: EngineKind) -> Result<EngineClient, ConnectError> {
    connect_with_freshness(host, kind, Freshness::Remembered).await
}

/// Connects to the engine of a flavour.
pub(super) async fn connect_with_freshness(
    host: &Host,
    kind: EngineKind,
    freshness: Freshness,
) -> Result<EngineClient, ConnectError> {
    let sockets = kind.sockets(host)?;
    let mut refusal = None;
    for socket in &sockets {
        match find_peer(kind, socket) {
            Ok(Some(peer)) => return query_engine(kind, socket, peer, Some(host), freshness).await,
            Ok(None) => {}
            Err(error) => drop(refusal.get_or_insert(error)),
        }
    }
    Err(refusal.unwrap_or_else(|| ConnectError::Missing {
        kind,
        sockets,
        is_installed: host.path().any(|directory| directory.join(kind.program()).is_file()),
        user_id: host.user_id,
    }))
}

/// Connects to the engine of a flavour at `socket`.
pub(crate) async fn connect_to(
    kind: EngineKind,
    socket: &Path,
) -> Result<EngineClient, ConnectError> {
    match find_peer(kind, socket)? {
        Some(peer) => query_engine(kind, socket, peer, None, Freshness::Now).await,
        None => Err(ConnectError::Missing {
            kind,
            sockets: vec![socket.into()],
            is_installed: true,
            user_id: 0,
        }),
    }
}

/// Process that listens at a socket.
#[derive(Debug, Clone, Copy)]
struct EnginePeer {
    user_id: u32,
    /// ID of the process, or zero when it is in a pid namespace that cannot be seen from here.
    pid: i32,
}

/// Returns the process that listens at a socket, as reported by the kernel, or `None` if there is
/// no socket.
fn find_peer(kind: EngineKind, socket: &Path) -> Result<Option<EnginePeer>, ConnectError> {
    let silent = |source: io::Error| ConnectError::NoAnswer {
        kind,
        socket: socket.into(),
        source: source.into(),
    };
    match UnixStream::connect(socket) {
        Ok(stream) => peer(stream).map(Some).map_err(silent),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            Err(ConnectError::Denied { kind, socket: socket.into(), source })
        }
        Err(source) => Err(silent(source)),
    }
}

fn peer(stream: UnixStream) -> io::Result<EnginePeer> {
    stream.set_nonblocking(true)?;
    let credentials = tokio::net::UnixStream::from_std(stream)?.peer_cred()?;
    Ok(EnginePeer { user_id: credentials.uid(), pid: credentials.pid().unwrap_or_default() })
}

/// Returns the highest API version that both sides support.
fn common_api_version(version: &SystemVersion) -> ClientVersion {
    let numbers = version.api_version.as_deref().and_then(|text| text.split_once('.'));
    let theirs =
        numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let ours = (API_DEFAULT_VERSION.major_version, API_DEFAULT_VERSION.minor_version);
    let (major_version, minor_version) =
        theirs.map_or(ours, |theirs: (usize, usize)| theirs.min(ours));
    ClientVersion { major_version, minor_version }
}

async fn query_engine(
    kind: EngineKind,
    socket: &Path,
    peer: EnginePeer,
    host: Option<&Host>,
    freshness: Freshness,
) -> Result<EngineClient, ConnectError> {
    let silent =
        |source| ConnectError::NoAnswer { kind, socket: socket.into(), source: Box::new(source) };
    let dial = |version| {
        Docker::connect_with_unix(&socket.to_string_lossy(), REQUEST_TIMEOUT, version)
            .map_err(silent)
    };
    let engine = EngineVersionQuery { socket, pid: peer.pid, host, freshness };
    let version = engine
        .version(async {
            let api = dial(API_DEFAULT_VERSION)?;
            let said = timeout(VERSION_TIMEOUT, api.version()).await;
            said.unwrap_or(Err(bollard::errors::Error::RequestTimeoutError)).map_err(silent)
        })
        .await?;
    let api = dial(&common_api_version(&version))?;
    let is_podman =
        version.components.iter().flatten().any(|component| component.name.starts_with("Podman"));
    if is_podman != (kind == EngineKind::Podman) {
        return Err(ConnectError::WrongKind { kind, socket: socket.into() });
    }
    Ok(EngineClient { kind, socket: socket.into(), user_id: peer.user_id, api, version })
}

impl EngineClient {
    /// Returns the engine's version as the engine reports it.
    pub(crate) fn version_text(&self) -> &str {
        self.version.version.as_deref().unwrap_or("of an unknown version")
    }

    /// Returns the engine's version if it can be parsed as numbers.
    pub(crate) fn version_number(&self) -> Option<VersionNumber> {
        VersionNumber::parse(self.version.version.as_deref()?)
    }

    /// Tells whether the engine runs as an ordinary user.
    pub(crate) fn is_rootless(&self) -> bool {
        self.user_id != 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn host(variables: &[(&str, &str)]) -> Host {
        let variables: BTreeMap<_, _> =
            variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Host { user_id: 1000, ..Host::new(variables, "/".into()) }
    }

    #[test]
    fn an_engine_on_another_host_is_refused_by_the_variable_that_names_it() {
        for address in ["tcp://10.0.0.1:2375", "ssh://me@there", "unix://relative"] {
            let error = EngineKind::Docker.sockets(&host(&[("DOCKER_HOST", address)])).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "DOCKER_HOST is `{address}`: the workspace and the guest's socket can be \
                     shared only with an engine on this host"
                )
            );
            assert_eq!(
                error.hint(),
                "unset DOCKER_HOST, or have it name a socket: DOCKER_HOST=unix:///a/socket"
            );
        }
    }

    #[test]
    fn sockets_are_looked_for_where_a_variable_says_and_else_where_they_usually_are() {
        let sockets = |kind: EngineKind, host: &Host| kind.sockets(host).unwrap();
        let named =
            host(&[("DOCKER_HOST", "unix:///d.sock"), ("CONTAINER_HOST", "unix:///p.sock")]);
        assert_eq!(sockets(EngineKind::Docker, &named), [Path::new("/d.sock")]);
        assert_eq!(sockets(EngineKind::Podman, &named), [Path::new("/p.sock")]);
        let own = host(&[("XDG_RUNTIME_DIR", "/run/user/7")]);
        let usual =
            ["/run/user/7/podman/podman.sock", "/run/podman/podman.sock"].map(PathBuf::from);
        assert_eq!(sockets(EngineKind::Podman, &own), usual);
        assert_eq!(sockets(EngineKind::Docker, &own), [Path::new("/var/run/docker.sock")]);
    }

    #[test]
    fn a_missing_a_dead_and_a_foreign_socket_are_told_apart() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("engine.sock");
        let address = format!("unix://{}", socket.display());
        let host = host(&[("CONTAINER_HOST", &address)]);
        let connect = || runtime.block_on(connect(&host, EngineKind::Podman)).unwrap_err();
        assert!(matches!(connect(), ConnectError::Missing { is_installed: false, .. }));
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let error = connect();
        assert!(matches!(error, ConnectError::NoAnswer { .. }), "{error}");
        assert!(error.hint().contains("podman system service"), "{}", error.hint());
    }

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_accepts_and_never_answers_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("engine.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let begun = tokio::time::Instant::now();
        let error = connect_to(EngineKind::Podman, &socket).await.unwrap_err();
        assert!(matches!(error, ConnectError::NoAnswer { .. }), "{error:?}");
        assert!(begun.elapsed() < 2 * VERSION_TIMEOUT, "{:?}", begun.elapsed());
    }
}
