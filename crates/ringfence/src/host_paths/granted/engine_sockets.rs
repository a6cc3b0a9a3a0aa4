//! Sockets of container engines, which no policy may give to a sandbox: code that reaches such a
//! socket can leave its sandbox. The list is part of every build, also of one without container
//! engines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::Host;

/// Sockets of engines, relative to `/run` and `/var/run`.
const SYSTEM_SOCKETS: [&str; 9] = [
    "docker.sock",
    "podman/podman.sock",
    "containerd/containerd.sock",
    "containerd/containerd.sock.ttrpc",
    "k3s/containerd/containerd.sock",
    "docker/containerd/containerd.sock",
    "crio/crio.sock",
    "cri-dockerd.sock",
    "buildkit/buildkitd.sock",
];
/// Sockets of rootless engines, relative to a user's runtime directory.
const OWN_SOCKETS: [&str; 5] = [
    "docker.sock",
    "podman/podman.sock",
    "containerd/containerd.sock",
    "containerd-rootless/api.sock",
    "buildkit/buildkitd.sock",
];
/// Sockets of engines, relative to a home directory.
const HOME_SOCKETS: [&str; 2] = [".docker/run/docker.sock", ".docker/desktop/docker.sock"];
/// Variables that may name an engine's socket.
const SOCKET_VARIABLES: [&str; 5] = [
    "DOCKER_HOST",
    "CONTAINER_HOST",
    "CONTAINERD_ADDRESS",
    "CONTAINER_RUNTIME_ENDPOINT",
    "BUILDKIT_HOST",
];

/// Returns all paths at which container engines may listen, whether or not an engine runs here.
pub(crate) fn engine_sockets(host: &Host) -> Vec<PathBuf> {
    // On most hosts `/var/run` is a link to `/run` and holds the same sockets.
    let runs = ["/run", "/var/run"].map(Path::new).into_iter().filter(|run| !run.is_symlink());
    let system = runs.flat_map(|run| SYSTEM_SOCKETS.map(|name| run.join(name)));
    let named = host.text("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{}", host.user_id));
    let own: BTreeSet<PathBuf> =
        named.into_iter().chain([usual]).filter(|run| run.is_dir()).collect();
    let own = own.into_iter().flat_map(|run| OWN_SOCKETS.map(|name| run.join(name)));
    let home = host.home.iter().flat_map(|home| HOME_SOCKETS.map(|name| home.join(name)));
    let said = SOCKET_VARIABLES.iter().filter_map(|variable| host.text(variable));
    let said =
        said.map(|address| PathBuf::from(address.strip_prefix("unix://").unwrap_or(address)));
    system.chain(own).chain(home).chain(said.filter(|path| path.is_absolute())).collect()
}
