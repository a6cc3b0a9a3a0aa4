//! Form of the results for a client: an answer as structured data and as text, or a refusal with a
//! hint for the next step.

use std::fmt::{self, Display};

use ringfence::{Code, Manifest, SessionError, chain};
use rmcp::ErrorData;
use rmcp::handler::server::tool::IntoCallToolResult;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use serde::Serialize;

/// Successful answer. Programs read its structured content, and models read its text.
#[derive(Debug)]
pub(crate) struct ToolResult<T>(pub(crate) T);

impl<T: Serialize + Display> IntoCallToolResult for ToolResult<T> {
    fn into_call_tool_result(self) -> Result<CallToolResponse, ErrorData> {
        let structure = serde_json::to_value(&self.0).map_err(|error| {
            ErrorData::internal_error(format!("cannot write the answer as JSON: {error}"), None)
        })?;
        let mut result = CallToolResult::success(vec![ContentBlock::text(self.0.to_string())]);
        result.structured_content = Some(structure);
        Ok(result.into())
    }
}

/// Reason why a call has no answer, with a hint for the next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    message: String,
    hint: String,
}

impl Refusal {
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal { message: message.into(), hint: hint.into() }
    }

    /// Creates the refusal for a failed call to the guest of a sandbox.
    pub(crate) fn from_session(error: &SessionError, manifest: &Manifest) -> Refusal {
        let workspace = manifest.workspace_inside.display();
        let hint = match error {
            SessionError::NotFound { .. } => {
                "check whether the program is installed: run_command with `command -v NAME`"
                    .to_owned()
            }
            SessionError::TooLong { .. } => {
                "read a part of the file with run_command, such as `sed -n 1,200p FILE` or `head \
                 -c 10000 FILE`"
                    .to_owned()
            }
            SessionError::Unreachable { .. }
            | SessionError::Lost { .. }
            | SessionError::NoAnswer { .. } => {
                "the sandbox may have ended: call sandbox_info, and tell the user if that call \
                 fails, too"
                    .to_owned()
            }
            SessionError::PortClosed { .. } => {
                "start the server that listens on the port first, with start_process".to_owned()
            }
            error => match error.code() {
                Some(Code::NotFound) => "call list_files to see which files exist".to_owned(),
                Some(
                    Code::PermissionDenied
                    | Code::FailedPrecondition
                    | Code::Internal
                    | Code::Unknown,
                ) => format!(
                    "the policy may deny access to this path: the sandbox can write the workspace \
                     `{workspace}` and /tmp; only the user can allow other paths, with --read PATH \
                     or --write PATH"
                ),
                Some(Code::ResourceExhausted) => {
                    "delete files that are not needed, or ask for less in one call".to_owned()
                }
                _ => "call sandbox_info for a description of the sandbox".to_owned(),
            },
        };
        Refusal::new(chain(error), hint)
    }
}

impl Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "error: {}\nhint: {}", self.message, self.hint)
    }
}

impl IntoCallToolResult for Refusal {
    fn into_call_tool_result(self) -> Result<CallToolResponse, ErrorData> {
        Ok(CallToolResult::error(vec![ContentBlock::text(self.to_string())]).into())
    }
}

/// Writes the notes that a reader of the text needs besides the answer, each on its own line.
pub(crate) fn write_notes(formatter: &mut fmt::Formatter<'_>, notes: &[String]) -> fmt::Result {
    notes.iter().try_for_each(|note| write!(formatter, "\n[note: {note}]"))
}
