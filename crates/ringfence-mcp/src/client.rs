//! State of one client: its sandbox, from the first tool call until the client is gone.

use std::borrow::Cow;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use ringfence::{Exec, Manifest, Sandbox, SessionError};
use ringfence_service::telemetry::{Caller, SandboxSpan, TRACE_PARENT, Telemetry};
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::{IntoCallToolResult as _, ToolCallContext};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorCode, Implementation,
    ProtocolVersion, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool_handler};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::sandbox_source::SandboxSource;
use crate::tool_result::Refusal;
use crate::tools::processes::Processes;
use crate::tools::progress::Progress;
use crate::tools::sandbox::Forwards;
use crate::tools::spares::SpareHolder;
use crate::transport::http::VERSION;
use crate::transport::keepalive::SessionKeepalive;

/// Maximum number of calls of one client that run at once.
const MOST_CALLS: usize = 16;
/// Maximum number of calls of one client that have no answer yet, with the calls that run.
const MOST_WAITING: usize = 64;
/// Maximum time that a command in one call may take.
pub(crate) const LONGEST_CALL: Duration = Duration::from_secs(600);
/// Maximum time to wait until a sandbox whose guest does not answer is known to have ended.
const LOSS_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Start of the result that `rmcp` returns when it cannot read the parameters of a call.
const PARAMETER_ERROR_START: &str = "failed to deserialize parameters:";
/// Maximum time for the end of all sandboxes when the server ends.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

static TOOLS: LazyLock<ToolRouter<Client>> = LazyLock::new(|| {
    let running = Client::command_tools() + Client::code_tools() + Client::process_tools();
    running + Client::file_tools() + Client::search_tools() + Client::sandbox_tools()
});

/// State and settings that all clients of a server share.
#[derive(Debug, Clone)]
pub(crate) struct ServerContext {
    /// Source of sandboxes for clients.
    pub(crate) source: Arc<SandboxSource>,
    /// Keeps the sessions of clients that wait for an answer; absent if silent clients are not
    /// dropped.
    pub(crate) keepalive: Option<SessionKeepalive>,
    /// Versions of the protocol that the server supports.
    pub(crate) versions: &'static [ProtocolVersion],
    /// Telemetry that records the sandboxes and calls of clients.
    pub(crate) telemetry: Telemetry,
}

/// Connected client and its sandbox.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) server_context: ServerContext,
    client_sandbox: Mutex<Arc<OnceCell<Arc<ClientSandbox>>>>,
    calls: Semaphore,
    waiting: Semaphore,
    reaper: ReaperSender,
    /// Permit that counts this client against the maximum number of clients.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Sandbox of a client, with the processes, forwarded ports and spare interpreters that belong to
/// the client.
#[derive(Debug)]
pub(crate) struct ClientSandbox {
    pub(crate) sandbox: Sandbox,
    pub(crate) processes: Processes,
    pub(crate) forwards: Forwards,
    pub(crate) spares: SpareHolder,
    /// Set if a spare interpreter is to wait for code.
    pub(crate) keeps_spares: bool,
    /// Telemetry span of the sandbox.
    pub(crate) span: SandboxSpan,
    is_own: bool,
    /// Set if a call could not reach the guest of the sandbox.
    is_lost: AtomicBool,
    /// Lock that is held during a change of a file, so that two edits of the same file run one
    /// after the other.
    pub(crate) write_lock: tokio::sync::Mutex<()>,
}

impl Client {
    pub(crate) fn new(
        server_context: ServerContext,
        reaper: ReaperSender,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Client {
        let (calls, waiting) = (Semaphore::new(MOST_CALLS), Semaphore::new(MOST_WAITING));
        Client {
            server_context,
            client_sandbox: Mutex::default(),
            calls,
            waiting,
            reaper,
            _permit: permit,
        }
    }

    /// Returns the sandbox of the client, and starts it on the first call.
    pub(crate) async fn client_sandbox(&self) -> Result<Arc<ClientSandbox>, Refusal> {
        let cell = Arc::clone(&self.cell());
        let client_sandbox = Arc::clone(cell.get_or_try_init(|| self.start()).await?);
        if client_sandbox.sandbox.ended().now_or_never().is_none() {
            return Ok(client_sandbox);
        }
        self.forget(&cell);
        Err(client_sandbox.ended_refusal(
            "its lease expired, a program in the sandbox ended it, or `ringfence stop` was called",
        ))
    }

    /// Keeps the session of the client alive while a call is answered, until this future is
    /// dropped.
    async fn keep_session(&self, context: &RequestContext<RoleServer>) -> Infallible {
        match &self.server_context.keepalive {
            Some(keepalive) => keepalive.keep(context).await,
            None => std::future::pending().await,
        }
    }

    /// Detaches the sandbox of `cell`, so that the next call starts a new sandbox. Sends the old
    /// sandbox to the task that ends it.
    fn forget(&self, cell: &Arc<OnceCell<Arc<ClientSandbox>>>) {
        let mut current = self.cell();
        if Arc::ptr_eq(&current, cell) {
            *current = Arc::default();
            if let Some(client_sandbox) = cell.get() {
                // The send fails only while the process ends, and then the sandbox ends with it.
                let _ = self.reaper.send(Arc::clone(client_sandbox));
            }
        }
    }

    /// Returns the refusal for a failed call if the sandbox of the call has ended, and `None` if
    /// the sandbox still runs.
    async fn refusal_if_ended(&self, cell: &Arc<OnceCell<Arc<ClientSandbox>>>) -> Option<Refusal> {
        let client_sandbox =
            cell.get().filter(|client_sandbox| client_sandbox.is_lost.load(Ordering::Relaxed))?;
        // The cleanup after the sandbox can take longer, so the call waits only until the sandbox
        // is down.
        let ended = async {
            while client_sandbox.sandbox.is_up() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(LOSS_TIMEOUT, ended).await.is_err() {
            // The sandbox may only have been paused.
            client_sandbox.is_lost.store(false, Ordering::Relaxed);
            return None;
        }
        self.forget(cell);
        Some(client_sandbox.ended_refusal(
            "the sandbox ended during the call, because its lease expired, a program in the \
             sandbox ended it, or `ringfence stop` was called",
        ))
    }

    /// Starts a sandbox. If the call that needs the sandbox is cancelled, the start completes, and
    /// then the sandbox is ended.
    async fn start(&self) -> Result<Arc<ClientSandbox>, Refusal> {
        let (server_context, reaper) = (self.server_context.clone(), self.reaper.clone());
        let (answer, started) = oneshot::channel();
        tokio::spawn(async move {
            let client_sandbox = ClientSandbox::start(&server_context).await;
            if let Err(Ok(unwanted)) = answer.send(client_sandbox) {
                // The send fails only while the process ends, and then the sandbox ends with it.
                let _ = reaper.send(unwanted);
            }
        });
        started.await.expect("an answer is sent in any case")
    }

    fn cell(&self) -> std::sync::MutexGuard<'_, Arc<OnceCell<Arc<ClientSandbox>>>> {
        self.client_sandbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(client_sandbox) = self.cell().get() {
            // The send fails only while the process ends, and then the sandbox ends with it.
            let _ = self.reaper.send(Arc::clone(client_sandbox));
        }
    }
}

impl ClientSandbox {
    async fn start(
        ServerContext { source, telemetry, .. }: &ServerContext,
    ) -> Result<Arc<ClientSandbox>, Refusal> {
        let requested_at = SystemTime::now();
        let sandbox = source.sandbox().await?;
        // The span has no caller: the sandbox outlives the trace of the call that happens to be
        // first.
        let span = telemetry.sandbox(sandbox.manifest(), &Caller::default(), requested_at);
        let (processes, forwards, spares) = Default::default();
        let is_own = source.is_own();
        // In a sandbox that existed before, other users run programs of which this process does not
        // know.
        let keeps_spares = is_own && source.settings().code.warm > 0;
        Ok(Arc::new(ClientSandbox {
            sandbox,
            processes,
            forwards,
            spares,
            keeps_spares,
            span,
            is_own,
            is_lost: AtomicBool::default(),
            write_lock: Default::default(),
        }))
    }

    /// Prepares a command for this sandbox. In a sandbox that existed before, the command leaves no
    /// processes behind.
    pub(crate) fn without_leftovers(&self, exec: Exec) -> Exec {
        if self.is_own { exec } else { exec.leaving_nothing() }
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        self.sandbox.manifest()
    }

    /// Resolves a path from a client to a path in the sandbox. Relative paths start in the
    /// workspace.
    pub(crate) fn resolve_path(&self, path: &str) -> String {
        if path == "~" || path.starts_with("~/") {
            return path.to_owned();
        }
        let joined = self.manifest().workspace_inside.join(path);
        joined.components().collect::<PathBuf>().to_string_lossy().into_owned()
    }

    /// Creates the refusal for a failed call to the guest, and marks the sandbox as lost if the
    /// guest did not answer.
    pub(crate) fn refusal(&self, error: &SessionError) -> Refusal {
        if let SessionError::Unreachable { .. }
        | SessionError::Lost { .. }
        | SessionError::NoAnswer { .. } = error
        {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        Refusal::from_session(error, self.manifest())
    }

    /// Creates the refusal that says that the sandbox has ended.
    fn ended_refusal(&self, why: &str) -> Refusal {
        let again = "call the tool again to start a new sandbox; the files of the workspace are \
                     kept, and processes and other files are gone";
        let hint = match self.is_own {
            true => again.to_owned(),
            false => format!(
                "only the user can start the sandbox again: ringfence up {}",
                self.manifest().name
            ),
        };
        Refusal::new(format!("the sandbox has ended: {why}"), hint)
    }

    /// Ends the processes that the client started, and the sandbox if the client owns it.
    async fn end(&self) {
        self.forwards.end();
        self.spares.disturb();
        if !self.is_own {
            self.processes.end().await;
        } else {
            if let Err(error) = self.sandbox.clone().stop().await {
                tracing::warn!(
                    error = ringfence::chain(&error),
                    "cannot stop a sandbox; the next start of ringfence sweeps it"
                );
            }
            self.sandbox.ended().await; // the sandbox may already have been ending by itself
        }
        self.span.end();
    }
}

/// Channel that carries sandboxes to the task that ends them.
pub(crate) type ReaperSender = mpsc::UnboundedSender<Arc<ClientSandbox>>;

/// Task that ends the sandboxes of clients that are gone.
#[derive(Debug)]
pub(crate) struct SandboxReaper {
    sender: ReaperSender,
    task: tokio::task::JoinHandle<()>,
}

impl SandboxReaper {
    pub(crate) fn new() -> SandboxReaper {
        let (sender, mut left) = mpsc::unbounded_channel::<Arc<ClientSandbox>>();
        let task = tokio::spawn(async move {
            let mut ending = JoinSet::new();
            while let Some(client_sandbox) = left.recv().await {
                while ending.try_join_next().is_some() {}
                ending.spawn(async move { client_sandbox.end().await });
            }
            ending.join_all().await;
        });
        SandboxReaper { sender, task }
    }

    /// Returns the channel on which a client hands over its sandbox.
    pub(crate) fn sender(&self) -> ReaperSender {
        self.sender.clone()
    }

    /// Waits until all clients are gone and their sandboxes have ended.
    pub(crate) async fn finish(self) {
        drop(self.sender);
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, self.task).await.is_err() {
            tracing::warn!("not all sandboxes stopped in time; the rest end with this process");
        }
    }
}

/// Returns the trace context of the caller of a tool, from the `_meta` field of the request or from
/// an HTTP header.
fn caller(context: &RequestContext<RoleServer>) -> Caller {
    let from_meta = context.meta.get(TRACE_PARENT).and_then(|value| value.as_str());
    let head = context.extensions.get::<hyper::http::request::Parts>();
    let header = head.and_then(|head| head.headers.get(TRACE_PARENT)?.to_str().ok());
    Caller::named(from_meta.or(header))
}

#[tool_handler(router = TOOLS)]
impl ServerHandler for Client {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("ringfence", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.server_context.source.instructions())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.server_context.versions)
    }

    /// Calls a tool. A cancelled call is dropped, which ends its command.
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some(version) = foreign_version(&context, self.server_context.versions) {
            let message = format!("protocol version {version} is not supported over HTTP");
            return Err(ErrorData::invalid_request(message, None));
        }
        let Ok(_permit) = self.waiting.try_acquire() else {
            let message = format!("{MOST_WAITING} calls wait for an answer, which is the maximum");
            return Refusal::new(message, "wait for the answer to an earlier call")
                .into_call_tool_result();
        };
        let is_known = TOOLS.has_route(&request.name);
        let progress = Progress::default();
        context.extensions.insert(progress.clone());
        context.extensions.insert(caller(&context));
        let call_context = context.clone();
        let call = async {
            let _turn = self.calls.acquire().await;
            let cell = Arc::clone(&self.cell());
            let answer = TOOLS.call(ToolCallContext::new(self, request, context)).await;
            match &answer {
                Ok(CallToolResponse::Complete(result)) if result.is_error == Some(true) => {
                    match self.refusal_if_ended(&cell).await {
                        Some(loss) => loss.into_call_tool_result(),
                        None => answer,
                    }
                }
                _ => answer,
            }
        };
        let answer = tokio::select! {
            answer = call => answer,
            // The client never sees this answer, because an answer to a cancelled request is not
            // sent.
            () = call_context.ct.cancelled() => {
                Refusal::new("the call was cancelled", "call the tool again")
                    .into_call_tool_result()
            }
            never = progress.send_notifications(&call_context) => match never {},
            never = self.keep_session(&call_context) => match never {},
        };
        // Wrong parameters give a tool result and not a protocol error, because a model sees only
        // results and can correct its parameters.
        let wrong = match &answer {
            Err(error) if is_known && error.code == ErrorCode::INVALID_PARAMS => {
                Some(error.message.to_string())
            }
            Ok(CallToolResponse::Complete(result)) => misread(result).map(str::to_owned),
            _ => None,
        };
        match wrong {
            Some(wrong) => {
                let hint = "correct the parameters by the input schema of the tool, and call the \
                            tool again";
                Refusal::new(
                    format!("the parameters do not match the input schema of the tool: {wrong}"),
                    hint,
                )
                .into_call_tool_result()
            }
            None => answer,
        }
    }
}

/// Returns the protocol version in the header of a request if that version is not in `spoken`.
/// Without this check, each such call would come from a new client with a sandbox of its own.
fn foreign_version(
    context: &RequestContext<RoleServer>,
    spoken: &[ProtocolVersion],
) -> Option<String> {
    let head = context.extensions.get::<hyper::http::request::Parts>()?;
    let named = head.headers.get(VERSION)?.to_str().unwrap_or_default();
    (!spoken.iter().any(|version| version.as_str() == named)).then(|| named.to_owned())
}

/// Returns the reason if `result` says that the parameters could not be read. Refusals of this
/// program begin with other words.
fn misread(result: &CallToolResult) -> Option<&str> {
    let words = &result.content.first()?.as_text()?.text;
    words
        .strip_prefix(PARAMETER_ERROR_START)
        .filter(|_| result.is_error == Some(true))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_what_it_takes_and_what_it_answers() {
        let mut names: Vec<String> = Vec::new();
        for tool in TOOLS.list_all() {
            assert!(
                tool.description.as_ref().is_some_and(|words| words.len() > 20),
                "{}",
                tool.name
            );
            let schema = tool
                .output_schema
                .as_ref()
                .unwrap_or_else(|| panic!("{} answers anything", tool.name));
            assert_eq!(
                schema.get("type").and_then(|kind| kind.as_str()),
                Some("object"),
                "{}",
                tool.name
            );
            assert!(tool.annotations.is_some(), "{}", tool.name);
            names.push(tool.name.into());
        }
        names.sort();
        assert_eq!(
            names,
            [
                "edit_file",
                "forward_port",
                "list_files",
                "read_file",
                "read_process_output",
                "run_code",
                "run_command",
                "run_python_code",
                "sandbox_info",
                "search_files",
                "start_process",
                "stop_process",
                "write_file",
            ]
        );
    }
}
