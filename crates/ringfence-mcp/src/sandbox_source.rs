//! Source of the sandboxes for clients.

use ringfence::policy::Network;
use ringfence::{Engine, Sandbox, Settings, StartRequest, chain};

use crate::tool_result::Refusal;

/// Source of the sandboxes for clients.
#[derive(Debug)]
pub enum SandboxSource {
    /// Each client gets a sandbox of its own, which ends with the client.
    Own {
        /// Engine that starts the sandboxes.
        engine: Box<Engine>,
        /// Request that starts each sandbox.
        request: Box<StartRequest>,
    },
    /// All clients use one existing sandbox, which another process keeps.
    Shared {
        /// Settings that apply to this server.
        settings: Box<Settings>,
        /// Name of the existing sandbox.
        name: String,
    },
}

impl SandboxSource {
    /// Returns the settings that apply to this server.
    pub fn settings(&self) -> &Settings {
        match self {
            SandboxSource::Own { engine, .. } => engine.settings(),
            SandboxSource::Shared { settings, .. } => settings,
        }
    }

    /// Returns whether the sandbox of a client ends with the client.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, SandboxSource::Own { .. })
    }

    /// Starts a sandbox, or connects to the existing sandbox.
    pub(crate) async fn sandbox(&self) -> Result<Sandbox, Refusal> {
        let (error, hints) = match self {
            SandboxSource::Own { engine, request } => {
                match engine.start(StartRequest::clone(request)).await {
                    Ok(sandbox) => return Ok(sandbox),
                    Err(error) => (chain(&error), error.hints()),
                }
            }
            SandboxSource::Shared { settings, name } => {
                match Sandbox::attach(&settings.host, name).await {
                    Ok(sandbox) => return Ok(sandbox.with_code(settings.code.clone())),
                    Err(error) => (chain(&error), error.hints()),
                }
            }
        };
        let hint = format!("only the user can solve this: {}", hints.join("; "));
        Err(Refusal::new(format!("cannot provide a sandbox: {error}"), hint))
    }

    /// Returns the instructions that a model gets before its first tool call.
    pub(crate) fn instructions(&self) -> String {
        let sandbox = match self {
            SandboxSource::Own { .. } => {
                "a sandbox that only you use. The sandbox ends with this session, and the files of \
                 its workspace are kept"
            }
            SandboxSource::Shared { .. } => "a sandbox that other users may use at the same time",
        };
        let network = match self {
            SandboxSource::Own { request, .. } => reach(request.policy.network.as_ref()),
            SandboxSource::Shared { .. } => {
                "The tool sandbox_info says which hosts the sandbox can reach."
            }
        };
        format!(
            "The tools of this server work in {sandbox}. All paths are paths in the sandbox; \
             relative paths start in the workspace. {network} If the policy of the sandbox denies \
             an action, no other way to do it works either: tell the user, and ask for a change of \
             the policy. The tool sandbox_info describes the policy."
        )
    }
}

fn reach(network: Option<&Network>) -> &'static str {
    match network {
        None | Some(Network::Closed) => "The network is closed: no host can be reached.",
        Some(Network::Open) => {
            "The network is open: every host can be reached that this machine can reach."
        }
        Some(Network::Allow(_)) => "Only the hosts that the policy allows can be reached.",
    }
}
