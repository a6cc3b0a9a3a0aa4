//! One client: its sandbox, from the first tool that it calls until it is gone.

use std::borrow::Cow;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use ringfence::{Exec, Manifest, Sandbox, SessionError};
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::{IntoCallToolResult as _, ToolCallContext};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorCode, Implementation, ProtocolVersion,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool_handler};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::http::VERSION;
use super::processes::Processes;
use super::progress::Progress;
use super::pulse::Pulse;
use super::sandbox::Forwards;
use super::spares::Spares;
use super::supply::Supply;
use super::told::Refusal;
use crate::telemetry::{Caller, SandboxSpan, TRACE_PARENT, Telemetry};

/// How many tools one client can call at once, and how many calls can wait for that.
const MOST_CALLS: usize = 16;
const MOST_WAITING: usize = 64;
/// The longest that a call may take.
pub(super) const LONGEST_CALL: Duration = Duration::from_secs(600);
/// How long a sandbox whose guest does not answer may take to be known as ended.
const LOSS_PATIENCE: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(20);
/// What a result begins with when the parameters of a call could not be read.
const MISREAD: &str = "failed to deserialize parameters:";
/// How long the ends of all sandboxes may take when the server ends.
const ENDING_PATIENCE: Duration = Duration::from_secs(30);

static TOOLS: LazyLock<ToolRouter<Client>> = LazyLock::new(|| {
    let running = Client::command_tools() + Client::code_tools() + Client::process_tools();
    running + Client::file_tools() + Client::search_tools() + Client::sandbox_tools()
});

/// What all clients of a server share.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// Where sandboxes come from.
    pub(super) supply: Arc<Supply>,
    /// What keeps those that wait for an answer, where silent ones are not kept.
    pub(super) pulse: Option<Pulse>,
    /// What is spoken with clients.
    pub(super) versions: &'static [ProtocolVersion],
    /// Who is told of what they do.
    pub(super) telemetry: Telemetry,
}

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) terms: Terms,
    tenancy: Mutex<Arc<OnceCell<Arc<Tenancy>>>>,
    calls: Semaphore,
    waiting: Semaphore,
    leaving: Leaving,
    /// Its place among the clients that there can be.
    _place: Option<OwnedSemaphorePermit>,
}

/// A client's sandbox, and what it started in it.
#[derive(Debug)]
pub(super) struct Tenancy {
    pub(super) sandbox: Sandbox,
    pub(super) processes: Processes,
    pub(super) forwards: Forwards,
    pub(super) spares: Spares,
    /// Whether an interpreter is to wait for code.
    pub(super) keeps_spares: bool,
    /// What is told of the sandbox.
    pub(super) span: SandboxSpan,
    is_own: bool,
    /// Whether a call found nobody in it to answer.
    is_lost: AtomicBool,
    /// Held by whoever changes a file: two edits of one are made one after the other.
    pub(super) writing: tokio::sync::Mutex<()>,
}

impl Client {
    pub(super) fn new(terms: Terms, leaving: Leaving, place: Option<OwnedSemaphorePermit>) -> Client {
        let (calls, waiting) = (Semaphore::new(MOST_CALLS), Semaphore::new(MOST_WAITING));
        Client { terms, tenancy: Mutex::default(), calls, waiting, leaving, _place: place }
    }

    /// The client's sandbox; started, if this is the first that it wants of it.
    pub(super) async fn tenancy(&self) -> Result<Arc<Tenancy>, Refusal> {
        let cell = Arc::clone(&self.cell());
        let tenancy = Arc::clone(cell.get_or_try_init(|| self.begin()).await?);
        if tenancy.sandbox.ended().now_or_never().is_none() {
            return Ok(tenancy);
        }
        self.forget(&cell);
        Err(tenancy.over("its lease was over, what ran in it ended it, or somebody stopped it"))
    }

    /// Keeps the client while one of its calls is answered, until this future is dropped.
    async fn keep(&self, context: &RequestContext<RoleServer>) -> Infallible {
        match &self.terms.pulse {
            Some(pulse) => pulse.keep(context).await,
            None => std::future::pending().await,
        }
    }

    /// Has the next call start another sandbox than that of `cell`, and what is left of that one be ended.
    fn forget(&self, cell: &Arc<OnceCell<Arc<Tenancy>>>) {
        let mut current = self.cell();
        if Arc::ptr_eq(&current, cell) {
            *current = Arc::default();
            if let Some(tenancy) = cell.get() {
                let _ = self.leaving.send(Arc::clone(tenancy)); // then the process is ending, and all of it with it
            }
        }
    }

    /// What to tell of a call that failed, if its sandbox is the reason: that has ended under it.
    async fn loss(&self, cell: &Arc<OnceCell<Arc<Tenancy>>>) -> Option<Refusal> {
        let tenancy = cell.get().filter(|tenancy| tenancy.is_lost.load(Ordering::Relaxed))?;
        // What is left of it may take longer to go: no call waits for that.
        let ended = async {
            while tenancy.sandbox.is_up() {
                tokio::time::sleep(MOMENT).await;
            }
        };
        if tokio::time::timeout(LOSS_PATIENCE, ended).await.is_err() {
            tenancy.is_lost.store(false, Ordering::Relaxed); // it was at rest, perhaps
            return None;
        }
        self.forget(cell);
        Some(
            tenancy
                .over("the call was cut off, as what ran in it ended it, its lease was over, or somebody stopped it"),
        )
    }

    /// Starts a sandbox. When the call that wanted it is cancelled, it is started all the same, and then ended.
    async fn begin(&self) -> Result<Arc<Tenancy>, Refusal> {
        let (terms, leaving) = (self.terms.clone(), self.leaving.clone());
        let (answer, begun) = oneshot::channel();
        tokio::spawn(async move {
            let tenancy = Tenancy::begin(&terms).await;
            if let Err(Ok(unwanted)) = answer.send(tenancy) {
                let _ = leaving.send(unwanted); // then the process is ending, and all of it with it
            }
        });
        begun.await.expect("an answer is sent in any case")
    }

    fn cell(&self) -> std::sync::MutexGuard<'_, Arc<OnceCell<Arc<Tenancy>>>> {
        self.tenancy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(tenancy) = self.cell().get() {
            let _ = self.leaving.send(Arc::clone(tenancy)); // then the process is ending, and all of it with it
        }
    }
}

impl Tenancy {
    async fn begin(Terms { supply, telemetry, .. }: &Terms) -> Result<Arc<Tenancy>, Refusal> {
        let asked = SystemTime::now();
        let sandbox = supply.sandbox().await?;
        // Not of the trace of the call that happens to be the first: it outlives that.
        let span = telemetry.sandbox(sandbox.manifest(), &Caller::default(), asked);
        let (processes, forwards, spares) = Default::default();
        let is_own = supply.is_own();
        // What others run in a sandbox that is theirs, too, nobody here knows of.
        let keeps_spares = is_own && supply.settings().code.warm > 0;
        Ok(Arc::new(Tenancy {
            sandbox,
            processes,
            forwards,
            spares,
            keeps_spares,
            span,
            is_own,
            is_lost: AtomicBool::default(),
            writing: Default::default(),
        }))
    }

    /// What is run in it: in a sandbox that was there before, nothing is left of it.
    pub(super) fn as_guest(&self, exec: Exec) -> Exec {
        if self.is_own { exec } else { exec.leaving_nothing() }
    }

    pub(super) fn manifest(&self) -> &Manifest {
        self.sandbox.manifest()
    }

    /// The path inside that a client means: what is relative starts in the workspace.
    pub(super) fn inside(&self, path: &str) -> String {
        if path == "~" || path.starts_with("~/") {
            return path.to_owned();
        }
        let joined = self.manifest().workspace_inside.join(path);
        joined.components().collect::<PathBuf>().to_string_lossy().into_owned()
    }

    /// Tells of a call to the guest that failed.
    pub(super) fn refusal(&self, error: &SessionError) -> Refusal {
        if let SessionError::Unreachable { .. } | SessionError::Lost { .. } | SessionError::Silent { .. } = error {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        Refusal::of_session(error, self.manifest())
    }

    /// Tells that the sandbox has ended.
    fn over(&self, why: &str) -> Refusal {
        let again =
            "call the tool again: a new one is started. The workspace is as it was, processes and other files are gone";
        let hint = match self.is_own {
            true => again.to_owned(),
            false => format!("the user, not you, can start it again: ringfence up {}", self.manifest().name),
        };
        Refusal::new(format!("the sandbox has ended: {why}"), hint)
    }

    /// Ends what the client started, and the sandbox if it is its own.
    async fn end(&self) {
        self.forwards.end();
        self.spares.disturb();
        if !self.is_own {
            self.processes.end().await;
        } else {
            if let Err(error) = self.sandbox.clone().stop().await {
                tracing::warn!(error = ringfence::chain(&error), "a sandbox was not stopped; the next start sweeps it");
            }
            self.sandbox.ended().await; // it may have been ending by itself
        }
        self.span.end();
    }
}

/// The way of what a client leaves to whoever ends it.
pub(super) type Leaving = mpsc::UnboundedSender<Arc<Tenancy>>;

/// Ends what clients leave.
#[derive(Debug)]
pub(super) struct Endings {
    leaving: Leaving,
    task: tokio::task::JoinHandle<()>,
}

impl Endings {
    pub(super) fn new() -> Endings {
        let (leaving, mut left) = mpsc::unbounded_channel::<Arc<Tenancy>>();
        let task = tokio::spawn(async move {
            let mut ending = JoinSet::new();
            while let Some(tenancy) = left.recv().await {
                while ending.try_join_next().is_some() {}
                ending.spawn(async move { tenancy.end().await });
            }
            ending.join_all().await;
        });
        Endings { leaving, task }
    }

    /// The way of what a client leaves.
    pub(super) fn leaving(&self) -> Leaving {
        self.leaving.clone()
    }

    /// Waits until all clients are gone, and all that they left.
    pub(super) async fn over(self) {
        drop(self.leaving);
        if tokio::time::timeout(ENDING_PATIENCE, self.task).await.is_err() {
            tracing::warn!("not all sandboxes were stopped in time; they end with this process");
        }
    }
}

/// Who calls a tool, as far as their trace tells: in what the protocol has for that, or in a header.
fn caller(context: &RequestContext<RoleServer>) -> Caller {
    let said = context.meta.get(TRACE_PARENT).and_then(|value| value.as_str());
    let head = context.extensions.get::<hyper::http::request::Parts>();
    let header = head.and_then(|head| head.headers.get(TRACE_PARENT)?.to_str().ok());
    Caller::named(said.or(header))
}

#[tool_handler(router = TOOLS)]
impl ServerHandler for Client {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("ringfence", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.terms.supply.instructions())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(self.terms.versions)
    }

    /// Calls a tool. One that the client cancels is dropped: that ends the command.
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some(version) = foreign_version(&context, self.terms.versions) {
            let message = format!("version {version} of the protocol is not spoken here by HTTP");
            return Err(ErrorData::invalid_request(message, None));
        }
        let Ok(_place) = self.waiting.try_acquire() else {
            let message = format!("{MOST_WAITING} calls are not answered yet, which is the most");
            return Refusal::new(message, "wait for their answers").into_call_tool_result();
        };
        let is_known = TOOLS.has_route(&request.name);
        let progress = Progress::default();
        context.extensions.insert(progress.clone());
        context.extensions.insert(caller(&context));
        let asked_by = context.clone();
        let call = async {
            let _turn = self.calls.acquire().await;
            let cell = Arc::clone(&self.cell());
            let answer = TOOLS.call(ToolCallContext::new(self, request, context)).await;
            match &answer {
                Ok(CallToolResponse::Complete(result)) if result.is_error == Some(true) => match self.loss(&cell).await
                {
                    Some(loss) => loss.into_call_tool_result(),
                    None => answer,
                },
                _ => answer,
            }
        };
        let answer = tokio::select! {
            answer = call => answer,
            // Nobody hears of it: what answers a request that was cancelled is not sent.
            () = asked_by.ct.cancelled() => Refusal::new("the call was cancelled", "call it again").into_call_tool_result(),
            never = progress.tell(&asked_by) => match never {},
            never = self.keep(&asked_by) => match never {},
        };
        // A model can put its parameters right; of an error of the protocol it would not hear.
        let wrong = match &answer {
            Err(error) if is_known && error.code == ErrorCode::INVALID_PARAMS => Some(error.message.to_string()),
            Ok(CallToolResponse::Complete(result)) => misread(result).map(str::to_owned),
            _ => None,
        };
        match wrong {
            Some(wrong) => {
                let hint = "look at the tool's input schema, and call it again";
                Refusal::new(format!("the parameters are not what the tool takes: {wrong}"), hint)
                    .into_call_tool_result()
            }
            None => answer,
        }
    }
}

/// The version of the protocol that a request's header names, if it is none of these: each such call would be another
/// client's, with a sandbox of its own.
fn foreign_version(context: &RequestContext<RoleServer>, spoken: &[ProtocolVersion]) -> Option<String> {
    let head = context.extensions.get::<hyper::http::request::Parts>()?;
    let named = head.headers.get(VERSION)?.to_str().unwrap_or_default();
    (!spoken.iter().any(|version| version.as_str() == named)).then(|| named.to_owned())
}

/// Why parameters could not be read, if that is what a result tells: what we refuse ourselves begins with other words.
fn misread(result: &CallToolResult) -> Option<&str> {
    let words = &result.content.first()?.as_text()?.text;
    words.strip_prefix(MISREAD).filter(|_| result.is_error == Some(true)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_what_it_takes_and_what_it_answers() {
        let mut names: Vec<String> = Vec::new();
        for tool in TOOLS.list_all() {
            assert!(tool.description.as_ref().is_some_and(|words| words.len() > 20), "{}", tool.name);
            let schema = tool.output_schema.as_ref().unwrap_or_else(|| panic!("{} answers anything", tool.name));
            assert_eq!(schema.get("type").and_then(|kind| kind.as_str()), Some("object"), "{}", tool.name);
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
