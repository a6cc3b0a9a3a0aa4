//! The tools for processes that keep running: servers, watchers, long jobs.

mod unread;

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfence::{Exec, Execution, ExecutionInput, Sandbox, SessionError, Stream};
use ringfence_service::telemetry::{Caller, ExecSpan};
use rmcp::handler::server::tool::{Extension, schema_for_output};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use unread::UnreadOutput;

use crate::client::{Client, ClientSandbox};
use crate::tool_result::{Refusal, ToolResult, write_notes};
use crate::tools::outcome::{ending, remarks, write_streams};

/// Maximum number of processes of one client.
const MOST_PROCESSES: usize = 32;
/// Time to wait for output of a new process.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Maximum time that a client can wait for output, in seconds.
const LONGEST_WAIT: u32 = 60;
/// Time that a process has to end after SIGTERM, and again after it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of SIGTERM, see signal(7).
const TERMINATE: i32 = 15;

/// Parameters of the tool `start_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartProcess {
    /// Command line for `sh -c`, without `&` at the end, such as `python3 -m http.server 8000`.
    command: String,
    /// Working directory of the command in the sandbox, absolute or relative to the workspace. The
    /// default is the workspace.
    directory: Option<String>,
}

/// Parameters of the tool `read_process_output`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadProcessOutput {
    /// Id of the process, from the result of `start_process`.
    process_id: u32,
    /// Maximum time in seconds to wait for new output or for the end of the process, 0 to 60. The
    /// default is 0, which means no waiting. A larger value counts as 60.
    wait: Option<u32>,
}

/// Parameters of the tool `stop_process`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopProcess {
    /// Id of the process, from the result of `start_process`.
    process_id: u32,
}

/// State of a process, and the output of the process that no earlier call has returned.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ProcessOutput {
    /// Id of the process, for the tools `read_process_output` and `stop_process`.
    process_id: u32,
    /// True if the process still runs.
    running: bool,
    /// Exit code of the process; null while the process runs, or if a signal ended the process.
    exit_code: Option<i32>,
    /// Number of the signal that ended the process; otherwise null.
    signal: Option<i32>,
    /// Text that the process wrote to standard output since the previous call: the last 32 KiB.
    stdout: String,
    /// Text that the process wrote to standard error since the previous call: the last 32 KiB.
    stderr: String,
    /// Number of bytes since the previous call that were dropped, because more than 32 KiB of a
    /// stream were unread.
    left_out: u64,
    /// Further facts about the process, and suggestions for the next call.
    notes: Vec<String>,
}

#[tool_router(router = process_tools, vis = "pub(crate)")]
impl Client {
    /// Starts a shell command that keeps running in the sandbox, such as a server. Waits up to 1
    /// second for the first output, then returns the id of the process and the output so far. Write
    /// the command without & at the end, because all processes that the command started are ended
    /// when the command ends. The process runs until it exits, until stop_process ends the process,
    /// until the time limit of the policy, or until the end of this session. At most 32 processes
    /// can run at once.
    #[tool(
        output_schema = schema_for_output::<ProcessOutput>(),
        annotations(title = "Start a process", destructive_hint = true, open_world_hint = true)
    )]
    async fn start_process(
        &self,
        Parameters(parameters): Parameters<StartProcess>,
        Extension(caller): Extension<Caller>,
    ) -> Result<ToolResult<ProcessOutput>, Refusal> {
        let client_sandbox = self.client_sandbox().await?;
        let mut exec = Exec::shell(&parameters.command).leaving_nothing();
        if let Some(directory) = &parameters.directory {
            exec = exec.directory(client_sandbox.resolve_path(directory));
        }
        if let Some(time) = client_sandbox.manifest().limits.time {
            exec = exec.time(time.duration());
        }
        let process = client_sandbox.processes.start(&client_sandbox, &exec, &caller).await?;
        // If the call is cancelled now, the client never learns the id, so the process must end.
        let unreported =
            UnreportedProcess { processes: &client_sandbox.processes, id: Some(process.id) };
        process.wait_for_news(Instant::now() + FIRST_WAIT).await;
        unreported.mark_reported();
        Ok(ToolResult(process.take_output()))
    }

    /// Returns the output of a process that no earlier call has returned, and whether the process
    /// still runs. The call can wait up to 60 seconds for output. Of each stream, at most the last
    /// 32 KiB of unread output are kept.
    #[tool(
        output_schema = schema_for_output::<ProcessOutput>(),
        annotations(
            title = "Read a process's output",
            read_only_hint = true,
            open_world_hint = false
        )
    )]
    async fn read_process_output(
        &self,
        Parameters(parameters): Parameters<ReadProcessOutput>,
    ) -> Result<ToolResult<ProcessOutput>, Refusal> {
        let process = self.client_sandbox().await?.processes.find(parameters.process_id)?;
        let wait = Duration::from_secs(parameters.wait.unwrap_or(0).min(LONGEST_WAIT).into());
        process.wait_for_news(Instant::now() + wait).await;
        Ok(ToolResult(process.take_output()))
    }

    /// Ends a process together with all processes that it started, and returns the remaining
    /// output. The process gets SIGTERM, and is killed if it still runs after 5 seconds. After the
    /// call, the id of the process is no longer valid.
    #[tool(
        output_schema = schema_for_output::<ProcessOutput>(),
        annotations(
            title = "Stop a process",
            destructive_hint = true,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn stop_process(
        &self,
        Parameters(parameters): Parameters<StopProcess>,
    ) -> Result<ToolResult<ProcessOutput>, Refusal> {
        let client_sandbox = self.client_sandbox().await?;
        let process = client_sandbox.processes.find(parameters.process_id)?;
        process.end().await.map_err(|error| client_sandbox.refusal(&error))?;
        client_sandbox.processes.forget(parameters.process_id);
        Ok(ToolResult(process.take_output()))
    }
}

/// Processes that a client started and that the server still remembers.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    all: Mutex<BTreeMap<u32, Arc<Process>>>,
}

impl Processes {
    async fn start(
        &self,
        client_sandbox: &ClientSandbox,
        exec: &Exec,
        caller: &Caller,
    ) -> Result<Arc<Process>, Refusal> {
        let full = || {
            let message = format!("{MOST_PROCESSES} processes run, which is the maximum");
            Refusal::new(
                message,
                "end a process with stop_process; sandbox_info lists the processes",
            )
        };
        if !self.has_room() {
            return Err(full());
        }
        let _disturbance = client_sandbox.spares.disturbed();
        let span = client_sandbox.span.exec(caller);
        span.program(&exec.program, exec.arguments.len());
        let execution = client_sandbox
            .sandbox
            .exec(exec)
            .await
            .inspect_err(|_| span.fail("the process was not started"));
        let execution = execution.map_err(|error| client_sandbox.refusal(&error))?;
        let process = Process::follow(execution, exec, client_sandbox.sandbox.clone(), span);
        // Calls can run in parallel, so check again. Dropping the process ends it.
        if !self.has_room() {
            return Err(full());
        }
        self.all().insert(process.id, Arc::clone(&process));
        Ok(process)
    }

    /// Returns whether one more process fits. If necessary, forgets a process that has ended.
    fn has_room(&self) -> bool {
        let mut all = self.all();
        if all.len() >= MOST_PROCESSES
            && let Some(id) = all
                .values()
                .find(|process| process.state().ended.is_some())
                .map(|process| process.id)
        {
            all.remove(&id);
        }
        all.len() < MOST_PROCESSES
    }

    fn find(&self, id: u32) -> Result<Arc<Process>, Refusal> {
        let found = self.all().get(&id).cloned();
        found.ok_or_else(|| {
            let hint = "sandbox_info lists the processes that you started; start_process starts a \
                        new process";
            Refusal::new(format!("you started no process with the id {id}"), hint)
        })
    }

    fn forget(&self, id: u32) {
        self.all().remove(&id);
    }

    /// Returns the id and the command of each process that runs.
    pub(crate) fn running(&self) -> Vec<(u32, String)> {
        let all = self.all();
        let running = all.values().filter(|process| process.state().ended.is_none());
        running.map(|process| (process.id, process.command.clone())).collect()
    }

    /// Ends all processes.
    pub(crate) async fn end(&self) {
        let all: Vec<Arc<Process>> = std::mem::take(&mut *self.all()).into_values().collect();
        for process in all {
            // The process may have ended by itself.
            let _ = timeout(STOP_TIMEOUT, process.input.kill()).await;
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Process>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard for a process whose id the client does not know yet. Dropping the guard forgets the
/// process, which ends it.
struct UnreportedProcess<'a> {
    processes: &'a Processes,
    id: Option<u32>,
}

impl UnreportedProcess<'_> {
    fn mark_reported(mut self) {
        self.id = None;
    }
}

impl Drop for UnreportedProcess<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.processes.all().remove(&id);
        }
    }
}

/// Process that keeps running. The process ends when the last reference is dropped.
#[derive(Debug)]
struct Process {
    id: u32,
    command: String,
    input: ExecutionInput,
    state: Arc<(Mutex<ProcessState>, Notify)>,
    reader: AbortHandle,
}

/// Output and end of a process that the client has not read yet.
#[derive(Debug, Default)]
struct ProcessState {
    stdout: UnreadOutput,
    stderr: UnreadOutput,
    ended: Option<ProcessEnd>,
}

/// End of a process, with notes for the client.
#[derive(Debug, Clone)]
struct ProcessEnd {
    exit_code: Option<i32>,
    signal: Option<i32>,
    notes: Vec<String>,
}

impl Process {
    /// Follows the output of a command that was just started.
    fn follow(
        mut execution: Execution,
        exec: &Exec,
        sandbox: Sandbox,
        span: ExecSpan,
    ) -> Arc<Process> {
        let state = Arc::new((Mutex::new(ProcessState::default()), Notify::new()));
        let (id, input) = (execution.pid(), execution.input());
        let command = exec.arguments.last().cloned().unwrap_or_default();
        let shared = Arc::clone(&state);
        let reader = tokio::spawn(async move {
            let before = sandbox.observe();
            let (state, news) = &*shared;
            while let Some(Ok(chunk)) = execution.next().await {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                match chunk.stream {
                    Stream::Stdout | Stream::Terminal => state.stdout.push(&chunk.bytes),
                    Stream::Stderr => state.stderr.push(&chunk.bytes),
                }
                news.notify_waiters();
            }
            let end = match execution.wait().await {
                Ok(ended) => {
                    let mut result = before.result(ended);
                    span.end(&result);
                    result.stderr =
                        state.lock().unwrap_or_else(PoisonError::into_inner).stderr.shown();
                    let mut notes = remarks(&result, sandbox.manifest());
                    if result.timed_out {
                        notes.push(
                            "the process was ended at the time limit of the policy, together with \
                             all processes that it started"
                                .to_owned(),
                        );
                    }
                    ProcessEnd { exit_code: result.exit_code, signal: result.signal, notes }
                }
                Err(error) => {
                    let notes = vec![format!(
                        "the end of the process is not known: {}",
                        ringfence::chain(&error)
                    )];
                    ProcessEnd { exit_code: None, signal: None, notes }
                }
            };
            state.lock().unwrap_or_else(PoisonError::into_inner).ended = Some(end);
            news.notify_waiters();
        });
        Arc::new(Process { id, command, input, state, reader: reader.abort_handle() })
    }

    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `condition` holds for the state of the process. Returns `false` if it does not
    /// hold at the deadline.
    async fn wait_until(
        &self,
        deadline: Instant,
        condition: impl Fn(&ProcessState) -> bool,
    ) -> bool {
        let waiting = async {
            loop {
                // Register for notifications before the check, so that no change after the check is
                // missed.
                let news = self.state.1.notified();
                if condition(&self.state()) {
                    return;
                }
                news.await;
            }
        };
        timeout_at(deadline, waiting).await.is_ok()
    }

    /// Waits for output or for the end of the process, until the deadline.
    async fn wait_for_news(&self, deadline: Instant) {
        // The answer says if there is nothing new.
        self.wait_until(deadline, ProcessState::has_news).await;
    }

    /// Waits up to [`STOP_TIMEOUT`] for the end of the process and returns whether it has ended.
    async fn wait_for_end(&self) -> bool {
        self.wait_until(Instant::now() + STOP_TIMEOUT, |state| state.ended.is_some()).await
    }

    /// Asks the process to end with SIGTERM, and kills it if it does not end in time.
    async fn end(&self) -> Result<(), SessionError> {
        if self.state().ended.is_some() {
            return Ok(());
        }
        // The process may have ended meanwhile; if not, it is killed.
        let _ = self.input.signal(TERMINATE).await;
        if !self.wait_for_end().await {
            self.input.kill().await?;
            self.wait_for_end().await;
        }
        Ok(())
    }

    /// Returns the output that the client has not read, and marks it as read.
    fn take_output(&self) -> ProcessOutput {
        let mut state = self.state();
        let is_over = state.ended.is_some();
        let (stdout, lost_stdout) = state.stdout.take(is_over);
        let (stderr, lost_stderr) = state.stderr.take(is_over);
        let left_out = lost_stdout + lost_stderr;
        let mut notes = state.ended.as_ref().map(|end| end.notes.clone()).unwrap_or_default();
        if left_out > 0 {
            notes.push(format!(
                "{left_out} bytes of older output were dropped; call read_process_output more \
                 often, or let the process write to a file"
            ));
        }
        ProcessOutput {
            process_id: self.id,
            running: !is_over,
            exit_code: state.ended.as_ref().and_then(|end| end.exit_code),
            signal: state.ended.as_ref().and_then(|end| end.signal),
            stdout,
            stderr,
            left_out,
            notes,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The reader task owns the execution, so aborting the task ends the command.
        self.reader.abort();
    }
}

impl ProcessState {
    fn has_news(&self) -> bool {
        self.ended.is_some() || !self.stdout.is_empty() || !self.stderr.is_empty()
    }
}

impl Display for ProcessOutput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_streams(formatter, &self.stdout, &self.stderr)?;
        let id = self.process_id;
        match self.running {
            true if self.stdout.is_empty() && self.stderr.is_empty() => {
                write!(formatter, "[process {id} is running, without new output]")?;
            }
            true => write!(formatter, "[process {id} is running]")?,
            false => write!(
                formatter,
                "[process {id} has ended: {}]",
                ending(self.exit_code, self.signal)
            )?,
        }
        write_notes(formatter, &self.notes)
    }
}
