//! The tools that run code. The code is a file in an empty directory of its own, and the program of
//! its language runs it.

use ringfence::{CodeError, Records, chain};
use rmcp::handler::server::tool::{Extension, schema_for_output};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::Deserialize;

use super::client::{Client, LONGEST_CALL, Tenancy};
use super::commands::time;
use super::outcome::Outcome;
use super::told::{Refusal, Told};
use crate::telemetry::Caller;

/// What is asked of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCode {
    /// The code.
    code: String,
    /// What it is written in: python, bash, javascript, or another that sandbox_info lists.
    language: String,
    /// After how many seconds it is ended, 1 at least and 600 at most; 30 when absent.
    timeout: Option<u32>,
}

/// What is asked of `run_python_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunPythonCode {
    /// The code. What it prints is answered with.
    code: String,
    /// After how many seconds it is ended, 1 at least and 600 at most; 30 when absent.
    timeout: Option<u32>,
}

#[tool_router(router = code_tools, vis = "pub(super)")]
impl Client {
    /// Runs code in the sandbox and answers with what it prints. It starts in an empty directory of its own, with nothing
    /// of what ran before; the workspace is reached by its absolute path.
    #[tool(
        output_schema = schema_for_output::<Outcome>(),
        annotations(title = "Run code", destructive_hint = true, open_world_hint = true)
    )]
    async fn run_code(
        &self,
        Parameters(asked): Parameters<RunCode>,
        Extension(caller): Extension<Caller>,
    ) -> Result<Told<Outcome>, Refusal> {
        self.execute(&asked.code, &asked.language, asked.timeout, &caller).await
    }

    /// Runs Python code in the sandbox and answers with what it prints. It starts in an empty directory of its own, with
    /// nothing of what ran before; the workspace is reached by its absolute path.
    #[tool(
        output_schema = schema_for_output::<Outcome>(),
        annotations(title = "Run Python code", destructive_hint = true, open_world_hint = true)
    )]
    async fn run_python_code(
        &self,
        Parameters(asked): Parameters<RunPythonCode>,
        Extension(caller): Extension<Caller>,
    ) -> Result<Told<Outcome>, Refusal> {
        self.execute(&asked.code, "python", asked.timeout, &caller).await
    }

    async fn execute(
        &self,
        code: &str,
        language: &str,
        timeout: Option<u32>,
        caller: &Caller,
    ) -> Result<Told<Outcome>, Refusal> {
        let tenancy = self.tenancy().await?;
        let span = tenancy.span.exec(caller);
        span.code(language);
        let time = time(timeout, &tenancy)?;
        let spare = tenancy.spare(language);
        let disturbance = tenancy.spares.disturbed();
        let result = match spare {
            Some(spare) => spare.execute_code(code, Some(time)).await,
            None => tenancy.sandbox.execute_code(code, language, Some(time)).await,
        };
        drop(disturbance);
        if result.is_ok() {
            tenancy.keep_spare(language.to_owned());
        }
        let result = result.inspect_err(|_| span.fail("it was not run")).map_err(|error| refusal(&error, &tenancy))?;
        span.end(&result);
        if let Err(error) = Records::keep_code(self.terms.supply.settings(), language, code, &result) {
            tracing::warn!(error = chain(&error), "no record was kept");
        }
        Ok(Told(Outcome::of(result, tenancy.manifest(), time, LONGEST_CALL)))
    }
}

fn refusal(error: &CodeError, tenancy: &Tenancy) -> Refusal {
    let hint = match error {
        CodeError::Session(error) => return tenancy.refusal(error),
        CodeError::UnknownLanguage { .. } => "take one of these, or run its program with run_command".to_owned(),
        CodeError::TooLong { .. } => "put data into files with write_file, and have the code read them".to_owned(),
        error => format!("the user, not you, can change that: {}", error.hints().join("; ")),
    };
    Refusal::new(chain(error), hint)
}
