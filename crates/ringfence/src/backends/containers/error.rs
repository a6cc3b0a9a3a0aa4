//! Errors about containers, with the fault and with commands for the user to type.

use std::io;
use std::path::PathBuf;

use ringfence_core::{Clause, Fault};

use super::EngineKind;
use super::client::ConnectError;
use crate::{ContainerError, ViewError};

/// Error of an operation on a container.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContainerFailure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(
        "the Docker engine is rootless, and would give files in the workspace to another user than \
         the caller"
    )]
    RootlessDocker,
    #[error(
        "the Docker engine remaps users, and would give files in the workspace to another user \
         than the caller"
    )]
    Remapped,
    #[error(
        "the Podman engine belongs to the user {engine_user}, to whom files in the workspace would \
         belong"
    )]
    ForeignEngine { engine_user: u32 },
    #[error(
        "the capability `{name}` is not given to a container; the allowed capabilities are {}",
        .allowed.join(", ")
    )]
    Capability { name: String, allowed: &'static [&'static str] },
    #[error(
        "the capability `{name}` is not given by a Podman that runs as root: code inside could \
         become root with it"
    )]
    CapabilityOfRoot { name: String },
    #[error("cannot show `{}` inside: the workspace is there", path.display())]
    InWorkspace { path: PathBuf },
    #[error(
        "cannot show `{}` inside: a container engine accepts only paths in UTF-8",
        path.display()
    )]
    NotText { path: PathBuf },
    #[error("there is no image `{image}`")]
    NoImage { image: String, is_own: bool },
    #[error("the image `{image}` has a volume at `{volume}`, where the workspace is")]
    Volume { image: String, volume: String },
    #[error("cannot fetch the image `{image}`")]
    Pull { image: String, source: bollard::errors::Error },
    #[error("cannot build the image `{image}`: {why}")]
    Build { image: String, why: String },
    #[error(
        "there is a container `{container}` already, and this user's ringfence did not make \
             it"
    )]
    NameTaken { container: String, kind: EngineKind },
    #[error("there is a network `{network}` already, and this user's ringfence did not make it")]
    NetworkTaken { network: String, kind: EngineKind },
    #[error(
        "a proxy beside the container is for `network.mode = \"allow\"`, and the policy has \
         `{mode}`"
    )]
    ProxyWithout { mode: &'static str },
    #[error(
        "a proxy beside the container is not given credentials, and the policy allows hosts that \
         have some"
    )]
    ProxyWithCredentials,
    #[error(
        "the container engine gave the container `{container}` no address in the sandbox's network"
    )]
    NoAddress { container: String },
    #[error("the disk of the container engine is full: {message}")]
    DiskFull { message: String, kind: EngineKind },
    #[error("the container engine refuses the workspace `{}`: {message}", workspace.display())]
    Workspace { workspace: PathBuf, message: String },
    #[error("cannot {what}")]
    Engine { what: &'static str, source: bollard::errors::Error },
    #[error("cannot {what}")]
    Files { what: &'static str, source: io::Error },
    #[error("`{}` of the host was replaced while the container was made", path.display())]
    Replaced { path: PathBuf },
    #[error(
        "cannot verify what the container engine made: the container's processes cannot be \
         examined from here"
    )]
    Unseen,
    #[error(
        "the {who} in the container `{container}` {}{}",
        if *ended { "ended at once" } else { "did not start in time" },
        log_suffix(log)
    )]
    NotUp { who: &'static str, container: String, ended: bool, log: String },
    #[error("the registration of the container is missing or cannot be read")]
    Unregistered,
    #[error("the container engine failed its trial: {what}")]
    Trial { what: String },
    #[error("the container engine ignores the limit `{clause}` here")]
    Ignored { clause: Clause },
}

fn log_suffix(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; the last lines of its log: {log}") }
}

impl ContainerFailure {
    /// Classifies an error of the engine. Recognizes a full disk and a refused workspace by the
    /// engine's message.
    pub(super) fn from_engine_error(
        what: &'static str,
        kind: EngineKind,
        workspace: &std::path::Path,
        source: bollard::errors::Error,
    ) -> ContainerFailure {
        let bollard::errors::Error::DockerResponseServerError { message, .. } = &source else {
            return ContainerFailure::Engine { what, source };
        };
        let has = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
        if has(&["no space left on device", "ENOSPC", "disk quota exceeded"]) {
            return ContainerFailure::DiskFull { message: printable(message), kind };
        }
        let names_workspace =
            workspace.to_str().is_some_and(|workspace| message.contains(workspace));
        if names_workspace
            && has(&[
                "not shared",
                "mounts denied",
                "permission denied",
                "does not exist",
                "no such file",
            ])
        {
            return ContainerFailure::Workspace {
                workspace: workspace.into(),
                message: printable(message),
            };
        }
        ContainerFailure::Engine { what, source }
    }

    /// Returns the party that has to act on the error.
    fn fault(&self) -> Fault {
        match self {
            ContainerFailure::Capability { .. }
            | ContainerFailure::CapabilityOfRoot { .. }
            | ContainerFailure::InWorkspace { .. }
            | ContainerFailure::Volume { .. }
            | ContainerFailure::NotText { .. }
            | ContainerFailure::View(_)
            | ContainerFailure::ProxyWithout { .. }
            | ContainerFailure::ProxyWithCredentials
            | ContainerFailure::NetworkTaken { .. }
            | ContainerFailure::NameTaken { .. } => Fault::User,
            ContainerFailure::NotUp { .. }
            | ContainerFailure::NoAddress { .. }
            | ContainerFailure::Engine { .. }
            | ContainerFailure::Build { .. }
            | ContainerFailure::Replaced { .. } => Fault::Backend,
            _ => Fault::Host,
        }
    }

    /// Returns the next commands for the user to type.
    fn hints(&self) -> Vec<String> {
        let one = |hint: &str| vec![hint.to_owned()];
        match self {
            ContainerFailure::Connect(error) => vec![error.hint()],
            ContainerFailure::View(error) => vec![error.hint()],
            ContainerFailure::RootlessDocker | ContainerFailure::Remapped => {
                one("use Podman, which can map the caller's own user: --backend podman")
            }
            ContainerFailure::ForeignEngine { .. } => {
                one("run ringfence as that user, or unset CONTAINER_HOST")
            }
            ContainerFailure::Capability { .. } => {
                one("leave `--cap` out: code inside is not root, and cannot become root")
            }
            ContainerFailure::CapabilityOfRoot { .. } => one(
                "leave `--cap` out, or use a rootless engine: systemctl --user start podman.socket",
            ),
            ContainerFailure::InWorkspace { .. } | ContainerFailure::Volume { .. } => {
                one("give the workspace another place: --workspace DIR:/elsewhere")
            }
            ContainerFailure::NotText { .. } => one("rename it"),
            ContainerFailure::NoImage { is_own: true, .. } => one("build it: ringfence image \
                                                                   build"),
            ContainerFailure::NoImage { image, .. } => vec![
                format!("fetch it: ringfence up --image '{image}' --pull missing"),
                "or build ringfence's own image: ringfence image build".to_owned(),
            ],
            ContainerFailure::Pull { .. } => vec![
                "check the name of the image and the network".to_owned(),
                "or build ringfence's own image, and leave `--image` out: ringfence image build"
                    .to_owned(),
            ],
            ContainerFailure::Build { .. } => {
                one("read the lines above; the build needs a network")
            }
            ContainerFailure::NameTaken { container, kind } => vec![
                "give it another name: ringfence up NAME".to_owned(),
                format!(
                    "or remove that one: {} rm -f {container}",
                    kind.to_string().to_lowercase()
                ),
            ],
            ContainerFailure::NetworkTaken { network, kind } => vec![
                "give the sandbox another name: ringfence up NAME".to_owned(),
                format!(
                    "or remove that one: {} network rm {network}",
                    kind.to_string().to_lowercase()
                ),
            ],
            ContainerFailure::ProxyWithCredentials => {
                one("leave `--proxy` out: the process that keeps the sandbox shows them")
            }
            ContainerFailure::ProxyWithout { .. } => {
                one("name hosts that can be reached: --allow HOST; or leave `--proxy` out")
            }
            ContainerFailure::DiskFull { kind, .. } => {
                vec![format!("free some space: {} system prune", kind.to_string().to_lowercase())]
            }
            ContainerFailure::Workspace { .. } => one(
                "use a directory that the engine may read: on a local disk, and shared with its \
                 machine if it has one",
            ),
            ContainerFailure::Replaced { .. } => {
                one("stop other programs that change that directory, and try again")
            }
            ContainerFailure::Unseen => one(
                "run ringfence where the engine runs: on the same host, not in a container of its \
                 own",
            ),
            ContainerFailure::Ignored { clause } => vec![
                "use an engine that runs as root, or a host with cgroup v2".to_owned(),
                format!("or accept it by name: --allow-weaker {clause}"),
            ],
            ContainerFailure::Engine { .. }
            | ContainerFailure::Files { .. }
            | ContainerFailure::Unregistered
            | ContainerFailure::Trial { .. }
            | ContainerFailure::NotUp { .. }
            | ContainerFailure::NoAddress { .. } => {
                one("`ringfence doctor` tries again what works on this host")
            }
        }
    }
}

impl From<ContainerFailure> for ContainerError {
    fn from(failure: ContainerFailure) -> ContainerError {
        let (fault, hints, summary) = (failure.fault(), failure.hints(), failure.to_string());
        let source: Option<Box<dyn std::error::Error + Send + Sync>> = match failure {
            ContainerFailure::Engine { source, .. } | ContainerFailure::Pull { source, .. } => {
                Some(EngineMessage::from_error(&source).into())
            }
            ContainerFailure::Files { source, .. } => Some(source.into()),
            ContainerFailure::Connect(ConnectError::Denied { source, .. }) => Some(source.into()),
            ContainerFailure::Connect(ConnectError::NoAnswer { source, .. }) => Some(source),
            _ => None,
        };
        ContainerError { summary, fault, hints, source }
    }
}

/// Message of the engine, without the text that the client library adds.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct EngineMessage(String);

impl EngineMessage {
    fn from_error(error: &bollard::errors::Error) -> EngineMessage {
        EngineMessage(match error {
            bollard::errors::Error::DockerResponseServerError { message, .. } => printable(message),
            error => printable(&crate::chain(error)),
        })
    }
}

/// Makes foreign text safe to print: one line, without control characters, at most 2000 characters.
pub(super) fn printable(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|c| !c.is_control()).take(2000).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn engine_error(message: &str) -> bollard::errors::Error {
        bollard::errors::Error::DockerResponseServerError {
            status_code: 500,
            message: message.to_owned(),
        }
    }

    #[test]
    fn engine_messages_about_known_problems_are_understood() {
        let of = |message| {
            ContainerFailure::from_engine_error(
                "start the container",
                EngineKind::Docker,
                Path::new("/src/app"),
                engine_error(message),
            )
        };
        let full = of("mkdir /var/lib/docker/overlay2/x: no space left on device");
        assert!(matches!(full, ContainerFailure::DiskFull { .. }), "{full}");
        let refused = of("Mounts denied: the path /src/app is not shared from the host");
        assert!(matches!(refused, ContainerFailure::Workspace { .. }), "{refused}");
        assert!(matches!(of("something else"), ContainerFailure::Engine { .. }));
    }

    #[test]
    fn messages_of_an_engine_appear_once_and_cannot_steer_a_terminal() {
        let failure = ContainerFailure::from_engine_error(
            "start the container",
            EngineKind::Docker,
            Path::new("/w"),
            engine_error("OCI\n\x1b[31m failed"),
        );
        let error = ContainerError::from(failure);
        assert_eq!(crate::chain(&error), "cannot start the container: OCI [31m failed");
    }
}
