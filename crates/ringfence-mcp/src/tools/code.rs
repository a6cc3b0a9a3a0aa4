//! The tools that run code. The code is a file in an empty directory of its own, and the program of
//! its language runs it.

use ringfence::{CodeError, Records, chain};
use ringfence_service::telemetry::Caller;
use rmcp::handler::server::tool::{Extension, schema_for_output};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::client::{Client, ClientSandbox, LONGEST_CALL};
use crate::tool_result::{Refusal, ToolResult};
use crate::tools::commands::time;
use crate::tools::outcome::Outcome;

/// Parameters of the tool `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCode {
    /// Source code to run, as UTF-8 text of at most 16 MiB.
    code: String,
    /// Language of the code: `python`, `bash`, `javascript`, or another language that the tool
    /// `sandbox_info` lists.
    language: String,
    /// Time limit in seconds, 1 to 600; the default is 30. A larger value counts as 600, and a
    /// shorter time limit of the policy applies instead. When the time is up, the code is ended
    /// together with all processes that the code started.
    timeout: Option<u32>,
}

/// Parameters of the tool `run_python_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunPythonCode {
    /// Python source code to run, as UTF-8 text of at most 16 MiB. The result contains the text
    /// that the code prints, and not the value of its last expression.
    code: String,
    /// Time limit in seconds, 1 to 600; the default is 30. A larger value counts as 600, and a
    /// shorter time limit of the policy applies instead. When the time is up, the code is ended
    /// together with all processes that the code started.
    timeout: Option<u32>,
}

#[tool_router(router = code_tools, vis = "pub(crate)")]
impl Client {
    /// Runs code in the sandbox, waits for its end, and returns the exit code and the output. Each
    /// call runs in a new interpreter, which keeps no variables of earlier calls. The code starts
    /// in an empty directory, which is removed when the code ends, so use absolute paths for files
    /// of the workspace. Of each output stream, at most 32 KiB are returned: the beginning and the
    /// end.
    #[tool(
        output_schema = schema_for_output::<Outcome>(),
        annotations(title = "Run code", destructive_hint = true, open_world_hint = true)
    )]
    async fn run_code(
        &self,
        Parameters(parameters): Parameters<RunCode>,
        Extension(caller): Extension<Caller>,
    ) -> Result<ToolResult<Outcome>, Refusal> {
        self.execute(&parameters.code, &parameters.language, parameters.timeout, &caller).await
    }

    /// Runs Python code in the sandbox, waits for its end, and returns the exit code and the
    /// output. Each call runs in a new interpreter, which keeps no variables of earlier calls. The
    /// code starts in an empty directory, which is removed when the code ends, so use absolute
    /// paths for files of the workspace. Of each output stream, at most 32 KiB are returned: the
    /// beginning and the end.
    #[tool(
        output_schema = schema_for_output::<Outcome>(),
        annotations(title = "Run Python code", destructive_hint = true, open_world_hint = true)
    )]
    async fn run_python_code(
        &self,
        Parameters(parameters): Parameters<RunPythonCode>,
        Extension(caller): Extension<Caller>,
    ) -> Result<ToolResult<Outcome>, Refusal> {
        self.execute(&parameters.code, "python", parameters.timeout, &caller).await
    }

    async fn execute(
        &self,
        code: &str,
        language: &str,
        timeout: Option<u32>,
        caller: &Caller,
    ) -> Result<ToolResult<Outcome>, Refusal> {
        let client_sandbox = self.client_sandbox().await?;
        let span = client_sandbox.span.exec(caller);
        span.code(language);
        let time = time(timeout, &client_sandbox)?;
        let spare = client_sandbox.spare(language);
        let disturbance = client_sandbox.spares.disturbed();
        let result = match spare {
            Some(spare) => spare.execute_code(code, Some(time)).await,
            None => client_sandbox.sandbox.execute_code(code, language, Some(time)).await,
        };
        drop(disturbance);
        if result.is_ok() {
            client_sandbox.keep_spare(language.to_owned());
        }
        let result = result
            .inspect_err(|_| span.fail("the code was not run"))
            .map_err(|error| refusal(&error, &client_sandbox))?;
        span.end(&result);
        if let Err(error) =
            Records::keep_code(self.server_context.source.settings(), language, code, &result)
        {
            tracing::warn!(error = chain(&error), "cannot keep the record of an execution");
        }
        Ok(ToolResult(Outcome::from_result(result, client_sandbox.manifest(), time, LONGEST_CALL)))
    }
}

fn refusal(error: &CodeError, client_sandbox: &ClientSandbox) -> Refusal {
    let hint = match error {
        CodeError::Session(error) => return client_sandbox.refusal(error),
        CodeError::UnknownLanguage { .. } => {
            "use one of these languages, or run the program of the language with run_command"
                .to_owned()
        }
        CodeError::TooLong { .. } => {
            "write the data to files with write_file, and let the code read the files".to_owned()
        }
        error => format!("only the user can solve this: {}", error.hints().join("; ")),
    };
    Refusal::new(chain(error), hint)
}
