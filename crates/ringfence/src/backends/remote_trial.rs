//! Backend for tests: a guest that is reached over TCP with a token, shares no file with the host,
//! and offers no facets.
//!
//! The backend shows that sandboxes on other machines fit the seam: the code outside the backends
//! must not need more of a sandbox than this backend provides. The guest runs in a process tree of
//! the `native` backend, with the host's network, and with a directory of its own in place of the
//! workspace.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use hyper::header::HeaderValue;
use ringfence_core::policy::Network;
use ringfence_core::{Backend as Name, Capabilities, Clause, Support, UnstatedClauses};
use ringfence_linux::{LaunchFiles, TerminalMode};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::facets::{KeptSandbox, PortRoute, SandboxFacets, WorkspaceSource};
use super::instance::{SandboxInstance, StopError};
use super::native::NativeBackend;
use super::process_tree::ProcessInstance;
use super::{Backend, BackendStart, ProbeRequest, ProcessLaunch, StartedSandbox, Unavailable};
use crate::run::identity;
use crate::run::prepare::PreparedRun;
use crate::session::{GuestConnector, GuestStream};
use crate::{Command, Manifest, RunError, StartError};

/// Name of the file in a sandbox's directory that says how to reach the guest.
const ENDPOINT_FILE: &str = "endpoint.json";
/// Path of the workspace on the other machine.
const WORKSPACE_PATH: &str = "/workspace";
/// Number of the descriptor that is the guest's end of the leash.
const OWNER_DESCRIPTOR: i32 = 3;

/// Backend whose sandboxes share nothing with the host but a TCP connection.
pub(super) struct RemoteTrial;

/// Address and token of a guest.
#[derive(Debug, Serialize, Deserialize)]
struct GuestEndpoint {
    address: SocketAddr,
    token: String,
}

/// Connector to a guest that listens on TCP and requires a token.
#[derive(Debug)]
struct TcpConnector {
    address: SocketAddr,
    host: HeaderValue,
    token: HeaderValue,
}

impl GuestConnector for TcpConnector {
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn GuestStream>>> {
        Box::pin(async {
            let stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn GuestStream>)
        })
    }

    fn host(&self) -> HeaderValue {
        self.host.clone()
    }

    fn token(&self) -> Option<&HeaderValue> {
        Some(&self.token)
    }
}

/// A sandbox on the other machine, and the disk of that machine.
#[derive(Debug)]
struct RemoteInstance {
    tree: Box<ProcessInstance>,
    _disk: TempDir,
}

impl SandboxInstance for RemoteInstance {
    fn ended(&self) -> BoxFuture<'static, ()> {
        self.tree.ended()
    }

    fn stop(self: Box<Self>) -> BoxFuture<'static, Result<(), StopError>> {
        Box::pin(async {
            let RemoteInstance { tree, _disk } = *self;
            tree.stop().await
        })
    }

    fn complete_manifest(&self, manifest: &mut Manifest) {
        manifest.workspace_inside = WORKSPACE_PATH.into();
    }
}

impl Backend for RemoteTrial {
    fn probe(&self, _question: &ProbeRequest<'_>) -> Result<Capabilities, Unavailable> {
        let support = Clause::ALL.map(|clause| (clause, Support::enforced("the other machine")));
        Ok(Capabilities {
            backend: Name::E2b,
            summary: "another machine".to_owned(),
            defaults: UnstatedClauses::Required,
            support: support.into(),
        })
    }

    fn start<'a>(
        &'a self,
        request: BackendStart<'a>,
    ) -> BoxFuture<'a, Result<StartedSandbox, StartError>> {
        Box::pin(async { Ok(start(request).await?) })
    }

    fn attach(&self, sandbox: KeptSandbox<'_>) -> io::Result<SandboxFacets> {
        let text = fs_err::read(sandbox.directory.join(ENDPOINT_FILE))?;
        let GuestEndpoint { address, token } = serde_json::from_slice(&text)?;
        let header = |text: &str| HeaderValue::from_str(text).map_err(io::Error::other);
        let host = header(&format!("49983-{}.example.test", sandbox.manifest.name))?;
        Ok(SandboxFacets {
            connector: Arc::new(TcpConnector { address, host, token: header(&token)? }),
            workspace: WorkspaceSource::Copy,
            pause: None,
            observer: None,
            ports: PortRoute::Guest,
        })
    }
}

async fn start(request: BackendStart<'_>) -> Result<StartedSandbox, RunError> {
    let BackendStart { core, mut context, sandbox_dir, .. } = request;
    let failed = |source: io::Error| RunError::Setup { step: "try it".to_owned(), source };
    let disk = TempDir::new_in("/var/tmp").map_err(failed)?;
    let workspace = disk.path().join("workspace");
    fs_err::create_dir(&workspace).map_err(failed)?;
    let endpoint = GuestEndpoint { address: free_address().map_err(failed)?, token: identity() };
    let token_file = disk.path().join("token");
    fs_err::write(&token_file, &endpoint.token).map_err(failed)?;
    write_endpoint(&sandbox_dir.path, &endpoint).map_err(failed)?;

    // The other machine knows nothing of the host's workspace, nor of paths guarded there.
    context.workspace.source = workspace.clone();
    context.workspace.destination = WORKSPACE_PATH.into();
    context.plan.policy.network = Some(Network::Open);
    let command =
        guest_command(&sandbox_dir.guest.path, &endpoint, &token_file).directory(&workspace);
    let shown = [sandbox_dir.guest.path.clone(), token_file];
    let preparation = NativeBackend.prepare(&core.launch_inputs(&context, &shown), &command)?;
    let (owner, leash) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let files = files(owner).map_err(failed)?;
    let tree =
        core.launch(PreparedRun { context, preparation }, files, TerminalMode::Detached, None)?;
    let tree = ProcessInstance::new(tree, leash).map_err(failed)?;
    tree.started().await?;
    let instance = Box::new(RemoteInstance { tree: Box::new(tree), _disk: disk });
    Ok(StartedSandbox { instance, egress: None, variables: BTreeMap::new() })
}

fn guest_command(guest: &Path, endpoint: &GuestEndpoint, token_file: &Path) -> Command {
    Command::new(guest)
        .arguments(["--listen".to_owned(), endpoint.address.to_string()])
        .arguments(["--owner".to_owned(), OWNER_DESCRIPTOR.to_string()])
        .arguments(["--directory", WORKSPACE_PATH])
        .argument("--token-file")
        .argument(token_file)
}

fn files(owner: OwnedFd) -> io::Result<LaunchFiles> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let stdio = [Some(null.try_clone()?), Some(null.try_clone()?), Some(null)];
    Ok(LaunchFiles { stdio, passed: vec![(OWNER_DESCRIPTOR, owner)], ..LaunchFiles::default() })
}

fn write_endpoint(directory: &Path, endpoint: &GuestEndpoint) -> io::Result<()> {
    let path: PathBuf = directory.join(ENDPOINT_FILE);
    fs_err::write(path, serde_json::to_vec(endpoint)?)
}

/// Returns an address of the loopback on which nothing listens.
fn free_address() -> io::Result<SocketAddr> {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
