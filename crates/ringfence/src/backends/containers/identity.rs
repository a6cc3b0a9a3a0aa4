//! Identity of code in a container: an unprivileged user, whose files belong to the caller
//! outside.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::client::EngineClient;
use super::error::ContainerFailure;
use super::{EngineKind, HOME_OF_AGENTS, HOME_OF_DEVELOPERS};
use crate::backends::version::VersionNumber;
use crate::{Host, Preset};

/// User and group that images usually create for people. Ringfence's own images use the same user
/// and group.
const USUAL_OWNER: FileOwner = FileOwner { user: 1000, group: 1000 };
/// First version of Podman that can map the caller to any chosen user of the container.
const FIRST_WITH_CHOSEN_IDS: VersionNumber = VersionNumber::new(4, 3, 0);

/// Numeric IDs of a user and a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileOwner {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// User that code in a container runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerIdentity {
    /// Name of the user in the container.
    pub(super) name: &'static str,
    /// Home directory of the user in the container.
    pub(super) home: &'static str,
    /// Numeric IDs of the user in the container.
    pub(super) inside: FileOwner,
    /// User namespace mode that the engine is asked for.
    pub(super) namespace: Option<String>,
    /// Owner on the host of the files that the user inside creates and owns, if mounts must
    /// translate owners.
    pub(super) mapped: Option<FileOwner>,
}

/// Facts that the identity depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdentityInputs {
    pub(super) kind: EngineKind,
    pub(super) engine_user: u32,
    pub(super) engine_version: Option<VersionNumber>,
    pub(super) caller: FileOwner,
    pub(super) workspace: FileOwner,
}

impl FileOwner {
    /// Returns the owner of a file.
    pub(super) fn from_path(path: &Path) -> Result<FileOwner, ContainerFailure> {
        let metadata = fs_err::metadata(path)
            .map_err(|source| ContainerFailure::Files { what: "examine the workspace", source })?;
        Ok(FileOwner { user: metadata.uid(), group: metadata.gid() })
    }
}

impl IdentityInputs {
    pub(super) fn from_client(
        client: &EngineClient,
        host: &Host,
        workspace: FileOwner,
    ) -> IdentityInputs {
        IdentityInputs {
            kind: client.kind,
            engine_user: client.user_id,
            engine_version: client.version_number(),
            caller: FileOwner { user: host.user_id, group: host.group_id },
            workspace,
        }
    }
}

impl ContainerIdentity {
    /// Chooses the identity for a preset.
    pub(super) fn choose(
        inputs: &IdentityInputs,
        preset: Preset,
    ) -> Result<ContainerIdentity, ContainerFailure> {
        let IdentityInputs { kind, engine_user, engine_version, caller, workspace } = *inputs;
        let (name, home) = match preset {
            Preset::Dev => ("dev", HOME_OF_DEVELOPERS),
            Preset::Agent => ("sandbox", HOME_OF_AGENTS),
        };
        let identity =
            |inside| ContainerIdentity { name, home, inside, namespace: None, mapped: None };
        if engine_user != 0 {
            return match kind {
                EngineKind::Docker => Err(ContainerFailure::RootlessDocker),
                EngineKind::Podman if engine_user != caller.user => {
                    Err(ContainerFailure::ForeignEngine { engine_user })
                }
                EngineKind::Podman
                    if engine_version.is_some_and(|version| version >= FIRST_WITH_CHOSEN_IDS) =>
                {
                    Ok(ContainerIdentity {
                        namespace: Some(format!(
                            "keep-id:uid={},gid={}",
                            USUAL_OWNER.user, USUAL_OWNER.group
                        )),
                        ..identity(USUAL_OWNER)
                    })
                }
                EngineKind::Podman => Ok(ContainerIdentity {
                    namespace: Some("keep-id".to_owned()),
                    ..identity(caller)
                }),
            };
        }
        Ok(match (caller.user, workspace.user) {
            // Code inside never runs as root, and its files must not belong to a stranger outside.
            (0, 0) => ContainerIdentity { mapped: Some(workspace), ..identity(USUAL_OWNER) },
            (0, _) => identity(workspace),
            _ => identity(caller),
        })
    }

    /// Returns the user and group in the format of the engine's API.
    pub(super) fn user(&self) -> String {
        format!("{}:{}", self.inside.user, self.inside.group)
    }

    /// Returns the contents of an `/etc/passwd` that gives the user a name.
    pub(super) fn passwd(&self, shell: &str) -> String {
        let ContainerIdentity { name, home, inside: FileOwner { user, group }, .. } = self;
        format!(
            "root:x:0:0:root:/root:/bin/sh\n{name}:x:{user}:{group}:{name}:{home}:{shell}\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        )
    }

    /// Returns the contents of an `/etc/group` that gives the group a name.
    pub(super) fn groups(&self) -> String {
        format!("root:x:0:\n{}:x:{}:\nnogroup:x:65534:\n", self.name, self.inside.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: FileOwner = FileOwner { user: 1001, group: 1002 };
    const ROOT: FileOwner = FileOwner { user: 0, group: 0 };

    fn choose(
        kind: EngineKind,
        engine_user: u32,
        version: &str,
        caller: FileOwner,
        workspace: FileOwner,
    ) -> ContainerIdentity {
        try_to_choose(kind, engine_user, version, caller, workspace).unwrap()
    }

    fn try_to_choose(
        kind: EngineKind,
        engine_user: u32,
        version: &str,
        caller: FileOwner,
        workspace: FileOwner,
    ) -> Result<ContainerIdentity, ContainerFailure> {
        let engine_version = VersionNumber::parse(version);
        let inputs = IdentityInputs { kind, engine_user, engine_version, caller, workspace };
        ContainerIdentity::choose(&inputs, Preset::Dev)
    }

    #[test]
    fn an_ordinary_caller_of_roots_engine_is_itself_inside() {
        for kind in [EngineKind::Docker, EngineKind::Podman] {
            let identity = choose(kind, 0, "4.3.1", ME, ME);
            assert_eq!(
                (identity.user().as_str(), identity.namespace, identity.mapped),
                ("1001:1002", None, None)
            );
        }
    }

    #[test]
    fn the_caller_of_a_rootless_podman_is_the_usual_user_inside_where_that_can_be_chosen() {
        let identity = choose(EngineKind::Podman, 1001, "4.3.1", ME, ME);
        assert_eq!(
            (identity.inside, identity.namespace.as_deref()),
            (USUAL_OWNER, Some("keep-id:uid=1000,gid=1000"))
        );
        let older = choose(EngineKind::Podman, 1001, "4.2.0", ME, ME);
        assert_eq!((older.inside, older.namespace.as_deref()), (ME, Some("keep-id")));
    }

    #[test]
    fn root_is_nobody_inside_but_the_workspaces_owner() {
        assert_eq!(choose(EngineKind::Docker, 0, "20.10.24", ROOT, ME).inside, ME);
        let identity = choose(EngineKind::Docker, 0, "20.10.24", ROOT, ROOT);
        assert_eq!((identity.inside, identity.mapped), (USUAL_OWNER, Some(ROOT)));
    }

    #[test]
    fn engines_whose_files_would_be_a_strangers_are_refused() {
        assert!(matches!(
            try_to_choose(EngineKind::Docker, 1001, "27.0.0", ME, ME),
            Err(ContainerFailure::RootlessDocker)
        ));
        let foreign = try_to_choose(EngineKind::Podman, 1001, "5.0.0", ROOT, ROOT);
        assert!(matches!(foreign, Err(ContainerFailure::ForeignEngine { engine_user: 1001 })));
    }

    #[test]
    fn everybody_inside_has_a_name() {
        let identity = choose(EngineKind::Docker, 0, "20.10.24", ME, ME);
        let passwd = identity.passwd("/bin/zsh");
        assert!(passwd.contains("\ndev:x:1001:1002:dev:/home/dev:/bin/zsh\n"), "{passwd}");
        assert!(identity.groups().contains("\ndev:x:1002:\n"));
    }
}
