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
        /// Specification of each sandbox.
        spec: Box<StartRequest>,
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
            SandboxSource::Own { engine, spec } => {
                match engine.start(StartRequest::clone(spec)).await {
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
        let hint = format!("the user, not you, can change that: {}", hints.join("; "));
        Err(Refusal::new(format!("there is no sandbox to work in: {error}"), hint))
    }

    /// Returns the instructions that a model gets before its first tool call.
    pub(crate) fn instructions(&self) -> String {
        let whose = match self {
            SandboxSource::Own { .. } => {
                "a sandbox of your own, which is gone when you leave; what is in its workspace \
                 stays"
            }
            SandboxSource::Shared { .. } => "a sandbox that others may use at the same time",
        };
        let network = match self {
            SandboxSource::Own { spec, .. } => reach(spec.policy.network.as_ref()),
            SandboxSource::Shared { .. } => "sandbox_info tells what its network reaches.",
        };
        format!(
            "The tools of this server work in {whose}. Paths are those inside, and relative ones \
             start in the workspace. {network} What the sandbox's policy denies stays denied \
             however it is tried: say so, and ask the user to change the policy. sandbox_info \
             tells what holds."
        )
    }
}

fn reach(network: Option<&Network>) -> &'static str {
    match network {
        None | Some(Network::Closed) => "The network is closed: nothing outside can be reached.",
        Some(Network::Open) => "The network is open.",
        Some(Network::Allow(_)) => "Only the hosts that the policy allows can be reached.",
    }
}
