//! The tools for the sandbox itself: its description and its ports.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfence::{NetworkReach, Sandbox};
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::client::{Client, LONGEST_CALL};
use crate::tool_result::{Refusal, ToolResult};

/// Maximum number of forwarded ports of one client.
const MOST_FORWARDS: usize = 16;

/// Parameters of the tool `forward_port`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForwardPort {
    /// TCP port on the loopback interface of the sandbox, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    port: i64,
}

/// Port of the sandbox that is reachable from the machine of this server.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Forwarded {
    /// TCP port in the sandbox.
    port: u16,
    /// Address and port on the machine of this server, such as `127.0.0.1:40123`.
    address: String,
    /// Address as a URL for a browser, such as `http://127.0.0.1:40123/`.
    url: String,
    /// True if a program in the sandbox listened on the port at the time of the call.
    listening: bool,
}

/// Description of the sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxInfo {
    /// Name of the sandbox.
    name: String,
    /// Backend that enforces the policy, such as `native` or `docker`.
    backend: String,
    /// Clauses of the policy by name, each with the mechanism that enforces the clause. The text
    /// begins with `weaker:` or `absent:` if a clause is not fully enforced.
    held: BTreeMap<String, String>,
    /// Network of the sandbox: `closed` (nothing can be reached), `allow` (only the hosts that the
    /// policy allows), `allow (NAME)` (the same, and the containers of the container network NAME),
    /// `open` (everything that the host can reach) or `host` (the network of the host itself).
    #[schemars(with = "String")]
    network: NetworkReach,
    /// Path of the workspace in the sandbox. The workspace can be written, and its files are kept.
    workspace: String,
    /// Names of the languages that `run_code` accepts.
    languages: Vec<String>,
    /// Limits of the policy by name, such as `512M` for `memory` or `30s` for `time`.
    limits: BTreeMap<String, String>,
    /// Largest value of the parameter `timeout`, in seconds.
    longest_timeout: u64,
    /// Time at which the lease of the sandbox ends, in RFC 3339 format; null without a lease.
    ends: Option<String>,
    /// Processes that this client started with `start_process` and that still run.
    processes: Vec<RunningProcess>,
    /// Ports that this client forwarded with `forward_port`.
    forwards: Vec<Forward>,
}

/// Process that still runs.
#[derive(Debug, Serialize, JsonSchema)]
struct RunningProcess {
    /// Id of the process, for the tools `read_process_output` and `stop_process`.
    process_id: u32,
    /// Command line of the process.
    command: String,
}

/// Forwarded port of the sandbox.
#[derive(Debug, Serialize, JsonSchema)]
struct Forward {
    /// TCP port in the sandbox.
    port: u16,
    /// Address and port on the machine of this server, such as `127.0.0.1:40123`.
    address: String,
}

#[tool_router(router = sandbox_tools, vis = "pub(crate)")]
impl Client {
    /// Makes a TCP port of the sandbox reachable from the machine that runs this server, such as
    /// the port of a web server that start_process started. Returns an address on the loopback
    /// interface of that machine; the server chooses the port number. A port that is already
    /// forwarded keeps its address. At most 16 ports can be forwarded.
    #[tool(
        output_schema = schema_for_output::<Forwarded>(),
        annotations(
            title = "Forward a port",
            destructive_hint = false,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn forward_port(
        &self,
        Parameters(parameters): Parameters<ForwardPort>,
    ) -> Result<ToolResult<Forwarded>, Refusal> {
        let Some(port) = u16::try_from(parameters.port).ok().filter(|&port| port > 0) else {
            let message =
                format!("{} is not a port: a port is a number from 1 to 65535", parameters.port);
            return Err(Refusal::new(
                message,
                "set `port` to the port on which a program in the sandbox listens",
            ));
        };
        let client_sandbox = self.client_sandbox().await?;
        let address = client_sandbox.forwards.forward(&client_sandbox.sandbox, port).await?;
        let listening = client_sandbox.sandbox.ports().connect(port).await.is_ok();
        let (address, url) = (address.to_string(), format!("http://{address}/"));
        Ok(ToolResult(Forwarded { port, address, url, listening }))
    }

    /// Describes the sandbox: its name, backend and workspace, the network and limits of its
    /// policy, the clauses that are enforced, the languages of run_code, and the running processes
    /// and forwarded ports of this client.
    #[tool(
        output_schema = schema_for_output::<SandboxInfo>(),
        annotations(title = "Describe the sandbox", read_only_hint = true, open_world_hint = false)
    )]
    async fn sandbox_info(&self) -> Result<ToolResult<SandboxInfo>, Refusal> {
        let client_sandbox = self.client_sandbox().await?;
        let manifest = client_sandbox.manifest();
        let limits = serde_json::to_value(&manifest.limits).unwrap_or_default();
        let limits = limits.as_object().into_iter().flatten().filter(|(_, limit)| !limit.is_null());
        let processes = client_sandbox.processes.running().into_iter();
        Ok(ToolResult(SandboxInfo {
            name: manifest.name.to_string(),
            backend: manifest.backend.name().to_owned(),
            held: manifest
                .held
                .iter()
                .map(|(clause, by)| (clause.name().to_owned(), by.to_string()))
                .collect(),
            network: manifest.network.clone(),
            workspace: manifest.workspace_inside.display().to_string(),
            languages: self
                .server_context
                .source
                .settings()
                .code
                .languages
                .keys()
                .cloned()
                .collect(),
            limits: limits.map(|(name, limit)| (name.clone(), plain(limit))).collect(),
            longest_timeout: LONGEST_CALL.as_secs(),
            ends: manifest.ends.clone(),
            processes: processes
                .map(|(process_id, command)| RunningProcess { process_id, command })
                .collect(),
            forwards: client_sandbox.forwards.listed(),
        }))
    }
}

fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Ports of the sandbox that a client forwarded.
#[derive(Debug, Default)]
pub(crate) struct Forwards {
    all: Mutex<BTreeMap<u16, (SocketAddr, AbortHandle)>>,
}

impl Forwards {
    /// Forwards a port, unless it is already forwarded, and returns the address on the host. The
    /// host chooses its port, not the client, because a program of the host that expects another
    /// server at a known port must not reach the sandbox.
    async fn forward(&self, sandbox: &Sandbox, port: u16) -> Result<SocketAddr, Refusal> {
        if let Some((address, _)) = self.all().get(&port) {
            return Ok(*address);
        }
        let failed = |error: std::io::Error| {
            Refusal::new(
                format!("cannot listen on the loopback interface of this machine: {error}"),
                "try again later",
            )
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut all = self.all();
        if all.len() >= MOST_FORWARDS {
            let message = format!("{MOST_FORWARDS} ports are forwarded, which is the maximum");
            return Err(Refusal::new(
                message,
                "use one of the forwarded ports; sandbox_info lists them",
            ));
        }
        let session = sandbox.session().clone();
        let carrying = tokio::spawn(async move {
            if let Err(error) = session.ports().forward(listener, port).await {
                tracing::warn!(
                    port,
                    error = ringfence::chain(&error),
                    "the forwarding of a port failed"
                );
            }
        });
        all.insert(port, (address, carrying.abort_handle()));
        Ok(address)
    }

    fn listed(&self) -> Vec<Forward> {
        self.all()
            .iter()
            .map(|(&port, (address, _))| Forward { port, address: address.to_string() })
            .collect()
    }

    /// Ends all forwards.
    pub(crate) fn end(&self) {
        std::mem::take(&mut *self.all()).into_values().for_each(|(_, carrying)| carrying.abort());
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u16, (SocketAddr, AbortHandle)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Forwards {
    fn drop(&mut self) {
        self.end();
    }
}

impl Display for Forwarded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "port {} of the sandbox can be reached at {}", self.port, self.url)?;
        if !self.listening {
            formatter.write_str(
                "\n[note: no program listens on this port yet; start the server with \
                 start_process]",
            )?;
        }
        Ok(())
    }
}

impl Display for SandboxInfo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "sandbox `{}` on {}", self.name, self.backend)?;
        writeln!(
            formatter,
            "workspace: {} (can be written, and its files are kept)",
            self.workspace
        )?;
        let network = match self.network {
            NetworkReach::Closed => {
                "closed: no host can be reached; only the user can allow hosts, with --allow HOST"
            }
            NetworkReach::Open => "open: every host can be reached that this machine can reach",
            NetworkReach::Host => {
                "the network of the host: this machine, and every host that it can reach, can be \
                 reached"
            }
            NetworkReach::Allowed { .. } => {
                "only the hosts that the policy allows can be reached; only the user can allow \
                 more hosts, with --allow HOST"
            }
        };
        writeln!(formatter, "network: {network}")?;
        writeln!(formatter, "languages: {}", self.languages.join(", "))?;
        for (name, limit) in &self.limits {
            writeln!(formatter, "limit: {name} {limit}")?;
        }
        write!(formatter, "longest timeout: {} s", self.longest_timeout)?;
        if let Some(ends) = &self.ends {
            write!(formatter, "\nends: {ends}")?;
        }
        for (clause, by) in &self.held {
            write!(formatter, "\nheld: {clause}: {by}")?;
        }
        for RunningProcess { process_id, command } in &self.processes {
            write!(formatter, "\nprocess {process_id}: {command}")?;
        }
        self.forwards.iter().try_for_each(|Forward { port, address }| {
            write!(formatter, "\nport {port}: at {address}")
        })
    }
}
