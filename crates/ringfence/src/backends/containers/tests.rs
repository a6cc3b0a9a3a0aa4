//! Tests with real containers, on the engines that the environment names.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Clause, Plan, Policy, Support};
use ringfence_test_ledger::{User, require};
use tempfile::TempDir;

use super::client::{EngineClient, EngineKind, connect};
use super::error::ContainerFailure;
use super::identity::FileOwner;
use super::instance::{ContainerInstance, ContainerRequest, start};
use super::{LABEL_PREFIX, SandboxPaths, block_on, container_name, image, probe, removal, sweep};
use crate::backends::instance::SandboxInstance;
use crate::backends::{Freshness, ProbeRequest};
use crate::host_paths::granted::{Grants, MountTable};
use crate::session::{CapturedCommand, Exec, Session, UnixConnector};
use crate::view::Guarded;
use crate::{ContainerSpec, Host, Preset, Pull, ResolvedWorkspace, Root};

mod inside;
mod life;

const TINY_IMAGE: &str = "ringfence-test-tiny";
const DEV_IMAGE: &str = "ringfence-test-dev";
const LIMIT_CLAUSES: [Clause; 3] = [Clause::Memory, Clause::Cpus, Clause::ProcessCount];
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);

/// Engine, its caller, and a home directory of the caller's with a workspace and a sandbox
/// directory.
struct EngineFixture {
    kind: EngineKind,
    host: Host,
    home: TempDir,
}

impl EngineFixture {
    /// Creates a fixture with the engine that `variable` names. `caller` calls the engine, and
    /// `owner` owns the workspace.
    fn new(kind: EngineKind, variable: &str, caller: FileOwner, owner: FileOwner) -> EngineFixture {
        let address = std::env::var(variable).expect("the need was met");
        let home = TempDir::new_in("/var/tmp").unwrap();
        let name = match kind {
            EngineKind::Docker => "DOCKER_HOST",
            EngineKind::Podman => "CONTAINER_HOST",
        };
        let variables =
            BTreeMap::from([(name.into(), address.into()), ("HOME".into(), home.path().into())]);
        let mut host = Host::new(variables, home.path().join("workspace"));
        (host.user_id, host.group_id) = (caller.user, caller.group);
        let fixture = EngineFixture { kind, host, home };
        for directory in [
            fixture.workspace(),
            fixture.sandbox_dir("one"),
            fixture.sandbox_dir("one").join("channel"),
        ] {
            fs_err::create_dir_all(directory).unwrap();
        }
        for directory in fixture
            .base_directory()
            .join("one/channel")
            .ancestors()
            .take_while(|path| path.starts_with(fixture.home.path()))
        {
            chown(directory, Some(caller.user), Some(caller.group)).unwrap();
        }
        chown(fixture.workspace(), Some(owner.user), Some(owner.group)).unwrap();
        fixture
    }

    fn workspace(&self) -> PathBuf {
        self.home.path().join("workspace")
    }

    fn base_directory(&self) -> PathBuf {
        self.home.path().join(".local/state/ringfence/sandboxes")
    }

    fn sandbox_dir(&self, name: &str) -> PathBuf {
        self.base_directory().join(name)
    }

    fn paths(&self) -> SandboxPaths {
        let directory = self.sandbox_dir("one");
        let state = self.home.path().join(".local/state/ringfence");
        let guest = crate::sandbox::guest::install(&state).unwrap().path;
        SandboxPaths {
            // Container names are global at an engine, so two tests need different names.
            name: format!(
                "test-{}",
                self.home
                    .path()
                    .file_name()
                    .unwrap()
                    .to_string_lossy()
                    .trim_start_matches('.')
                    .to_lowercase()
            ),
            channel: directory.join("channel"),
            guest,
            base_directory: self.base_directory(),
            directory,
        }
    }

    /// Removes from the sandbox directory what its owner would remove before another container is
    /// started.
    fn clear(&self) {
        fs_err::remove_dir_all(self.sandbox_dir("one").join("container")).unwrap();
        fs_err::remove_file(self.sandbox_dir("one").join("channel/guest.sock")).unwrap();
    }

    async fn client(&self) -> EngineClient {
        connect(&self.host, self.kind).await.unwrap()
    }

    /// Starts a container, and accepts that a rootless engine may not enforce limits here.
    async fn start(
        &self,
        policy: Policy,
        spec: ContainerSpec,
    ) -> Result<ContainerInstance, ContainerFailure> {
        self.start_strictly(LIMIT_CLAUSES.into_iter().fold(policy, Policy::allow_weaker), spec)
            .await
    }

    async fn start_strictly(
        &self,
        policy: Policy,
        spec: ContainerSpec,
    ) -> Result<ContainerInstance, ContainerFailure> {
        let policy = policy.workspace(self.workspace());
        let policy = super::with_defaults(&policy, &spec).with_defaults();
        let source = fs_err::canonicalize(self.workspace()).unwrap();
        let destination =
            policy.filesystem.workspace.as_ref().unwrap().destination.clone().unwrap();
        let given = source.clone();
        let mut workspace = ResolvedWorkspace { given, source, destination, granted: Vec::new() };
        workspace.granted =
            Grants::on(&self.host).grant_paths(&policy, &self.host, &workspace).unwrap();
        let guarded =
            Guarded::find(&policy, &workspace, &self.host, &MountTable::default(), &[]).unwrap();
        let plan = Plan {
            backend: self.kind.backend(),
            summary: String::new(),
            policy,
            policy_sha256: String::new(),
            held: LIMIT_CLAUSES.map(|clause| (clause, Support::enforced("test"))).into(),
        };
        let paths = self.paths();
        let request = ContainerRequest {
            plan: &plan,
            host: &self.host,
            spec: &spec,
            workspace: &workspace,
            guarded: &guarded,
            paths: &paths,
            credentials: None,
        };
        start(self.client().await, &request, None).await
    }

    async fn run(&self, line: &str) -> CapturedCommand {
        let session = Session::new(Arc::new(
            UnixConnector::for_guest_in(&self.sandbox_dir("one").join("channel")).unwrap(),
        ));
        session.wait_until_ready(COMMAND_TIMEOUT).await.unwrap();
        let execution = session.exec(&Exec::shell(line)).await.unwrap();
        tokio::time::timeout(COMMAND_TIMEOUT, execution.capture(1 << 20)).await.unwrap().unwrap()
    }

    /// Runs a shell line that must succeed, and returns its output.
    async fn run_successfully(&self, line: &str) -> String {
        let captured = self.run(line).await;
        assert!(captured.ended.ok(), "{line}: {captured:?}");
        captured.stdout.trim().to_owned()
    }

    fn owner_of(&self, name: &str) -> (u32, u32) {
        let metadata = fs_err::metadata(self.workspace().join(name)).unwrap();
        (metadata.uid(), metadata.gid())
    }
}

const ROOT: FileOwner = FileOwner { user: 0, group: 0 };

fn ordinary() -> FileOwner {
    let user = User::for_tests().unwrap();
    FileOwner { user: user.uid, group: user.gid }
}

fn agent(image: &str) -> ContainerSpec {
    ContainerSpec {
        image: Some(image.to_owned()),
        pull: Some(Pull::Never),
        ..ContainerSpec::default()
    }
}

fn developer() -> ContainerSpec {
    ContainerSpec { preset: Preset::Dev, ..agent(DEV_IMAGE) }
}

fn on_docker(caller: FileOwner, owner: FileOwner) -> EngineFixture {
    EngineFixture::new(
        EngineKind::Docker,
        ringfence_test_ledger::engine::DOCKER_VARIABLE,
        caller,
        owner,
    )
}

fn on_podman(caller: FileOwner, owner: FileOwner) -> EngineFixture {
    EngineFixture::new(
        EngineKind::Podman,
        ringfence_test_ledger::engine::PODMAN_VARIABLE,
        caller,
        owner,
    )
}

fn on_rootless_podman() -> EngineFixture {
    let variable = ringfence_test_ledger::engine::ROOTLESS_PODMAN_VARIABLE;
    EngineFixture::new(EngineKind::Podman, variable, ordinary(), ordinary())
}

async fn assert_left_nothing(fixture: &EngineFixture) {
    let client = fixture.client().await;
    let inspected = client
        .api
        .inspect_container(
            &fixture.paths().container(),
            None::<bollard::query_parameters::InspectContainerOptions>,
        )
        .await;
    assert!(inspected.is_err_and(|error| image::is_missing(&error)));
    let mounts = fs_err::read_to_string("/proc/self/mountinfo").unwrap();
    let home = fixture.home.path().to_str().unwrap();
    assert_eq!(mounts.lines().find(|mount| mount.contains(home)), None);
}
