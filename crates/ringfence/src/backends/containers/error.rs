//! Errors about containers, with the fault and with commands for the user to type.

use std::io;
use std::path::PathBuf;

use ringfence_core::{Clause, Fault};

use super::Flavour;
use super::client::ConnectError;
use crate::{ContainerError, ViewError};

/// Error of an operation on a container.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
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
        "the capability `{name}` is not given to a container; those that can be are {}",
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
    #[error("cannot show `{}` inside: an engine takes only paths that are text", path.display())]
    NotText { path: PathBuf },
    #[error("there is no image `{image}`")]
    NoImage { image: String, is_own: bool },
    #[error("the image `{image}` has a volume at `{volume}`, where the workspace is")]
    Volume { image: String, volume: String },
    #[error("cannot fetch the image `{image}`")]
    Pull { image: String, source: bollard::errors::Error },
    #[error("cannot build the image `{image}`: {why}")]
    Build { image: String, why: String },
    #[error("there is a container `{container}` already, and it is not of this user's ringfence")]
    NameTaken { container: String, flavour: Flavour },
    #[error("there is a network `{network}` already, and it is not of this user's ringfence")]
    NetworkTaken { network: String, flavour: Flavour },
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
    DiskFull { message: String, flavour: Flavour },
    #[error("the container engine refuses the workspace `{}`: {message}", workspace.display())]
    Workspace { workspace: PathBuf, message: String },
    #[error("cannot {what}")]
    Engine { what: &'static str, source: bollard::errors::Error },
    #[error("cannot {what}")]
    Files { what: &'static str, source: io::Error },
    #[error("`{}` of the host was replaced while the container was made", path.display())]
    Replaced { path: PathBuf },
    #[error(
        "cannot verify what the container engine made: the container's processes cannot be looked \
         at from here"
    )]
    Unseen,
    #[error(
        "the {who} in the container `{container}` {}{}",
        if *ended { "ended at once" } else { "did not come up in time" },
        said(log)
    )]
    NotUp { who: &'static str, container: String, ended: bool, log: String },
    #[error("it is not written down which container engine has the container")]
    Unregistered,
    #[error("the container engine failed its trial: {what}")]
    Trial { what: String },
    #[error("the container engine ignores the limit `{clause}` here")]
    Ignored { clause: Clause },
}

fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; its last words: {log}") }
}

impl Failure {
    /// Classifies an error of the engine. Recognizes a full disk and a refused workspace by the
    /// engine's message.
    pub(super) fn of(
        what: &'static str,
        flavour: Flavour,
        workspace: &std::path::Path,
        source: bollard::errors::Error,
    ) -> Failure {
        let bollard::errors::Error::DockerResponseServerError { message, .. } = &source else {
            return Failure::Engine { what, source };
        };
        let has = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
        if has(&["no space left on device", "ENOSPC", "disk quota exceeded"]) {
            return Failure::DiskFull { message: printable(message), flavour };
        }
        let names_it = workspace.to_str().is_some_and(|workspace| message.contains(workspace));
        if names_it
            && has(&[
                "not shared",
                "mounts denied",
                "permission denied",
                "does not exist",
                "no such file",
            ])
        {
            return Failure::Workspace { workspace: workspace.into(), message: printable(message) };
        }
        Failure::Engine { what, source }
    }

    /// Returns the party that has to act on the error.
    fn fault(&self) -> Fault {
        match self {
            Failure::Capability { .. }
            | Failure::CapabilityOfRoot { .. }
            | Failure::InWorkspace { .. }
            | Failure::Volume { .. }
            | Failure::NotText { .. }
            | Failure::View(_)
            | Failure::ProxyWithout { .. }
            | Failure::ProxyWithCredentials
            | Failure::NetworkTaken { .. }
            | Failure::NameTaken { .. } => Fault::User,
            Failure::NotUp { .. }
            | Failure::NoAddress { .. }
            | Failure::Engine { .. }
            | Failure::Build { .. }
            | Failure::Replaced { .. } => Fault::Backend,
            _ => Fault::Host,
        }
    }

    /// Returns the next commands for the user to type.
    fn hints(&self) -> Vec<String> {
        let one = |hint: &str| vec![hint.to_owned()];
        match self {
            Failure::Connect(error) => vec![error.hint()],
            Failure::View(error) => vec![error.hint()],
            Failure::RootlessDocker | Failure::Remapped => {
                one("use Podman, which can map the caller's own user: --backend podman")
            }
            Failure::ForeignEngine { .. } => {
                one("run ringfence as that user, or unset CONTAINER_HOST")
            }
            Failure::Capability { .. } => {
                one("leave `--cap` out: code inside is no root, and cannot become it")
            }
            Failure::CapabilityOfRoot { .. } => one(
                "leave `--cap` out, or use a rootless engine: systemctl --user start podman.socket",
            ),
            Failure::InWorkspace { .. } | Failure::Volume { .. } => {
                one("give the workspace another place: --workspace DIR:/elsewhere")
            }
            Failure::NotText { .. } => one("rename it"),
            Failure::NoImage { is_own: true, .. } => one("make it: ringfence image build"),
            Failure::NoImage { image, .. } => vec![
                format!("fetch it: ringfence up --image '{image}' --pull missing"),
                "or make ringfence's own: ringfence image build".to_owned(),
            ],
            Failure::Pull { .. } => vec![
                "look at the name and at the network".to_owned(),
                "or make ringfence's own, and leave `--image` out: ringfence image build"
                    .to_owned(),
            ],
            Failure::Build { .. } => one("look at the lines above; the build needs a network"),
            Failure::NameTaken { container, flavour } => vec![
                "give it another name: ringfence up NAME".to_owned(),
                format!(
                    "or remove that one: {} rm -f {container}",
                    flavour.to_string().to_lowercase()
                ),
            ],
            Failure::NetworkTaken { network, flavour } => vec![
                "give the sandbox another name: ringfence up NAME".to_owned(),
                format!(
                    "or remove that one: {} network rm {network}",
                    flavour.to_string().to_lowercase()
                ),
            ],
            Failure::ProxyWithCredentials => {
                one("leave `--proxy` out: the process that keeps the sandbox shows them")
            }
            Failure::ProxyWithout { .. } => {
                one("name hosts that can be reached: --allow HOST; or leave `--proxy` out")
            }
            Failure::DiskFull { flavour, .. } => {
                vec![format!(
                    "free some space: {} system prune",
                    flavour.to_string().to_lowercase()
                )]
            }
            Failure::Workspace { .. } => one(
                "use a directory that the engine may read: on a local disk, and shared with its \
                 machine if it has one",
            ),
            Failure::Replaced { .. } => {
                one("stop what else works on that directory, and try again")
            }
            Failure::Unseen => one(
                "run ringfence where the engine runs: on the same host, not in a container of its \
                 own",
            ),
            Failure::Ignored { clause } => vec![
                "use an engine that runs as root, or a host with cgroup v2".to_owned(),
                format!("or accept it by name: --allow-weaker {clause}"),
            ],
            Failure::Engine { .. }
            | Failure::Files { .. }
            | Failure::Unregistered
            | Failure::Trial { .. }
            | Failure::NotUp { .. }
            | Failure::NoAddress { .. } => {
                one("`ringfence doctor` shows what works here, tried afresh")
            }
        }
    }
}

impl From<Failure> for ContainerError {
    fn from(failure: Failure) -> ContainerError {
        let (fault, hints, summary) = (failure.fault(), failure.hints(), failure.to_string());
        let source: Option<Box<dyn std::error::Error + Send + Sync>> = match failure {
            Failure::Engine { source, .. } | Failure::Pull { source, .. } => {
                Some(Said::of(&source).into())
            }
            Failure::Files { source, .. } => Some(source.into()),
            Failure::Connect(ConnectError::Denied { source, .. }) => Some(source.into()),
            Failure::Connect(ConnectError::Silent { source, .. }) => Some(source),
            _ => None,
        };
        ContainerError { summary, fault, hints, source }
    }
}

/// Message of the engine, without the text that the client library adds.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Said(String);

impl Said {
    fn of(error: &bollard::errors::Error) -> Said {
        Said(match error {
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

    fn said(message: &str) -> bollard::errors::Error {
        bollard::errors::Error::DockerResponseServerError {
            status_code: 500,
            message: message.to_owned(),
        }
    }

    #[test]
    fn what_engines_say_of_known_troubles_is_understood() {
        let of = |message| {
            Failure::of(
                "start the container",
                Flavour::Docker,
                Path::new("/src/app"),
                said(message),
            )
        };
        let full = of("mkdir /var/lib/docker/overlay2/x: no space left on device");
        assert!(matches!(full, Failure::DiskFull { .. }), "{full}");
        let refused = of("Mounts denied: the path /src/app is not shared from the host");
        assert!(matches!(refused, Failure::Workspace { .. }), "{refused}");
        assert!(matches!(of("something else"), Failure::Engine { .. }));
    }

    #[test]
    fn the_engines_words_are_told_once_and_cannot_steer_a_terminal() {
        let failure = Failure::of(
            "start the container",
            Flavour::Docker,
            Path::new("/w"),
            said("OCI\n\x1b[31m failed"),
        );
        let error = ContainerError::from(failure);
        assert_eq!(crate::chain(&error), "cannot start the container: OCI [31m failed");
    }
}
