//! The tools that run a command and wait for its end.

use std::time::Duration;

use ringfence::{Command, Exec, ExecutionResult, Records, chain};
use ringfence_service::telemetry::Caller;
use rmcp::handler::server::tool::{Extension, schema_for_output};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::client::{Client, ClientSandbox, LONGEST_CALL};
use crate::tool_result::{Refusal, ToolResult};
use crate::tools::outcome::{LONGEST_OUTPUT, Outcome, policy_time};
use crate::tools::progress::Progress;

/// Maximum number of bytes to keep of each stream. The kept text and the line that counts the
/// omitted bytes fit into [`LONGEST_OUTPUT`].
const LONGEST_CAPTURE: u64 = LONGEST_OUTPUT as u64 - 64;

/// Parameters of the tool `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// Command line for `sh -c`, such as `cd src && make test`.
    command: String,
    /// Working directory of the command in the sandbox, absolute or relative to the workspace. The
    /// default is the workspace.
    directory: Option<String>,
    /// Time limit in seconds, 1 to 600; the default is 30. A larger value counts as 600, and a
    /// shorter time limit of the policy applies instead. When the time is up, the command is ended
    /// together with all processes that the command started.
    timeout: Option<u32>,
}

#[tool_router(router = command_tools, vis = "pub(crate)")]
impl Client {
    /// Runs a shell command in the sandbox, waits for its end, and returns the exit code and the
    /// output. Standard input is empty. A command that takes longer than its timeout is ended
    /// together with all processes that the command started, so start servers and long jobs with
    /// start_process. Of each output stream, at most 32 KiB are returned: the beginning and the
    /// end.
    #[tool(
        output_schema = schema_for_output::<Outcome>(),
        annotations(title = "Run a command", destructive_hint = true, open_world_hint = true)
    )]
    async fn run_command(
        &self,
        Parameters(parameters): Parameters<RunCommand>,
        Extension(progress): Extension<Progress>,
        Extension(caller): Extension<Caller>,
    ) -> Result<ToolResult<Outcome>, Refusal> {
        let client_sandbox = self.client_sandbox().await?;
        let _disturbance = client_sandbox.spares.disturbed();
        let span = client_sandbox.span.exec(&caller);
        let time = time(parameters.timeout, &client_sandbox)?;
        let mut exec =
            client_sandbox.without_leftovers(Exec::shell(&parameters.command).time(time));
        if let Some(directory) = &parameters.directory {
            exec = exec.directory(client_sandbox.resolve_path(directory));
        }
        span.program(&exec.program, exec.arguments.len());
        let result = captured(&client_sandbox, &exec, &progress)
            .await
            .inspect_err(|_| span.fail("the command was not run"))?;
        span.end(&result);
        let command = Command::new(&exec.program).arguments(&exec.arguments);
        if let Err(error) = Records::keep(self.server_context.source.settings(), &command, &result)
        {
            tracing::warn!(error = chain(&error), "cannot keep the record of a command");
        }
        Ok(ToolResult(Outcome::from_result(result, client_sandbox.manifest(), time, LONGEST_CALL)))
    }
}

/// Returns the time limit of a command: the time in `requested` or the default, but not more than
/// the policy and [`LONGEST_CALL`] allow.
pub(crate) fn time(
    requested: Option<u32>,
    client_sandbox: &ClientSandbox,
) -> Result<Duration, Refusal> {
    if requested == Some(0) {
        let hint = format!(
            "set `timeout` to 1 to {} seconds, or leave it out for the default of 30 seconds",
            LONGEST_CALL.as_secs()
        );
        return Err(Refusal::new("a `timeout` of 0 seconds leaves no time for the command", hint));
    }
    let requested =
        requested.map_or(ringfence::DEFAULT_TIME, |seconds| Duration::from_secs(seconds.into()));
    Ok(requested.min(policy_time(client_sandbox.manifest())).min(LONGEST_CALL))
}

/// Runs a command and keeps only as much of its output as a model is shown.
async fn captured(
    client_sandbox: &ClientSandbox,
    exec: &Exec,
    progress: &Progress,
) -> Result<ExecutionResult, Refusal> {
    let ClientSandbox { sandbox, .. } = client_sandbox;
    let limit =
        sandbox.manifest().limits.output.map_or(u64::MAX, |size| size.bytes()).min(LONGEST_CAPTURE);
    let before = sandbox.observe();
    let execution = sandbox.exec(exec).await.map_err(|error| client_sandbox.refusal(&error))?;
    let captured = execution.capture_with(limit, |_, bytes| progress.record_output(bytes)).await;
    let captured = captured.map_err(|error| client_sandbox.refusal(&error))?;
    let (stdout, stderr, dropped) = (captured.stdout, captured.stderr, captured.dropped);
    Ok(ExecutionResult { stdout, stderr, dropped, ..before.result(captured.ended) })
}
