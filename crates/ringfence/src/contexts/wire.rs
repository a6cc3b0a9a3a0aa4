//! Contexts in the form of E2B's code interpreter: requests and answers in JSON, and one line of
//! JSON for each event.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CellEvent, CodeContext, ContextError, OmittedOutput, RaisedError, ShownValue};

/// Body of `POST /execute`, which runs a cell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ExecuteRequest {
    /// Code of the cell.
    pub code: String,
    /// Id of the context that runs the cell; the usual context of the language when absent.
    #[serde(default)]
    pub context_id: Option<String>,
    /// Language of the code; Python when absent.
    #[serde(default)]
    pub language: Option<String>,
    /// Environment variables for this cell alone.
    #[serde(default)]
    pub env_vars: Option<BTreeMap<String, String>>,
}

/// Body of `POST /contexts`, which starts a context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct CreateRequest {
    /// Language of the context; Python when absent.
    #[serde(default)]
    pub language: Option<String>,
    /// Directory in which the context starts; where commands of the sandbox start when absent.
    #[serde(default)]
    pub cwd: Option<String>,
}

/// A context as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedContext {
    /// Id of the context.
    pub id: String,
    /// Name of the context's language.
    pub language: String,
    /// Directory in which the context starts.
    pub cwd: String,
}

impl From<&CodeContext> for ListedContext {
    fn from(context: &CodeContext) -> ListedContext {
        ListedContext {
            id: context.id().to_owned(),
            language: context.language().to_owned(),
            cwd: context.directory().to_owned(),
        }
    }
}

/// One line of the answer to `POST /execute`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ExecutionLine {
    /// The cell wrote to its standard output.
    Stdout {
        /// Text that the cell wrote.
        text: String,
        /// Time of the event, in RFC 3339.
        timestamp: String,
    },
    /// The cell wrote to its standard error.
    Stderr {
        /// Text that the cell wrote.
        text: String,
        /// Time of the event, in RFC 3339.
        timestamp: String,
    },
    /// The cell showed a value.
    Result(Box<ResultLine>),
    /// The cell failed.
    Error {
        /// Kind of the error, such as `ValueError`.
        name: String,
        /// Message of the error.
        value: String,
        /// Traceback of the error, as text.
        traceback: String,
    },
    /// The cell has begun.
    NumberOfExecutions {
        /// Number of cells that the context has run, including this one.
        execution_count: u64,
    },
    /// The cell is over.
    EndOfExecution,
}

/// A value in the forms that E2B's clients know.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ResultLine {
    is_main_result: bool,
    #[serde(flatten)]
    forms: BTreeMap<&'static str, Value>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Value>,
}

/// Media types, each with E2B's name for it.
const MEDIA_TYPES: [(&str, &str); 12] = [
    ("text/plain", "text"),
    ("text/html", "html"),
    ("text/markdown", "markdown"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("application/pdf", "pdf"),
    ("text/latex", "latex"),
    ("application/json", "json"),
    ("application/javascript", "javascript"),
    ("e2b/data", "data"),
    ("e2b/chart", "chart"),
];

impl From<ShownValue> for ResultLine {
    fn from(ShownValue { is_main_result, formats: mut extra }: ShownValue) -> ResultLine {
        let mut forms = BTreeMap::new();
        for (kind, name) in MEDIA_TYPES {
            if let Some(value) = extra.remove(kind) {
                forms.insert(name, if name == "text" { unquoted(value) } else { value });
            }
        }
        ResultLine { is_main_result, forms, extra }
    }
}

/// Removes the quotes of a string's representation, as E2B does.
fn unquoted(value: Value) -> Value {
    let inside =
        |quote: char| value.as_str()?.strip_prefix(quote)?.strip_suffix(quote).map(str::to_owned);
    inside('\'').or_else(|| inside('"')).map_or_else(|| value.clone(), Value::from)
}

impl ExecutionLine {
    /// Returns the lines that report an event that happened at the time `at`.
    pub fn from_event(event: CellEvent, at: Timestamp) -> Vec<ExecutionLine> {
        let timestamp = at.to_string();
        vec![match event {
            CellEvent::Begun { count } => {
                ExecutionLine::NumberOfExecutions { execution_count: count }
            }
            CellEvent::Stdout(text) => ExecutionLine::Stdout { text, timestamp },
            CellEvent::Stderr(text) => ExecutionLine::Stderr { text, timestamp },
            CellEvent::Result(shown) => ExecutionLine::Result(Box::new(shown.into())),
            CellEvent::Error(RaisedError { name, value, traceback }) => {
                ExecutionLine::Error { name, value, traceback }
            }
            CellEvent::Ended(left) if left.is_nothing() => ExecutionLine::EndOfExecution,
            CellEvent::Ended(left) => {
                return vec![
                    ExecutionLine::Stderr { text: describe_omitted(left), timestamp },
                    ExecutionLine::EndOfExecution,
                ];
            }
        }]
    }

    /// Returns the lines that report that the cell's context has ended.
    pub fn from_failure(error: &ContextError) -> [ExecutionLine; 2] {
        let (name, value) = ("ContextError".to_owned(), crate::chain(error));
        [
            ExecutionLine::Error { name, value, traceback: error.hints().join("\n") },
            ExecutionLine::EndOfExecution,
        ]
    }

    /// Returns the line as JSON, with a line feed at its end.
    pub fn text(&self) -> String {
        let mut text =
            serde_json::to_string(self).expect("its keys are text and no part of it fails");
        text.push('\n');
        text
    }
}

fn describe_omitted(left: OmittedOutput) -> String {
    let OmittedOutput { stdout, stderr, results } = left;
    format!(
        "\nringfence: {stdout} bytes of output, {stderr} bytes of errors and {results} results \
         were left out\n"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(event: CellEvent, expected: &str) {
        let lines = ExecutionLine::from_event(event, Timestamp::UNIX_EPOCH)
            .iter()
            .map(ExecutionLine::text)
            .collect::<String>();
        assert_eq!(lines, expected);
    }

    #[test]
    fn events_become_lines_that_clients_know() {
        check(
            CellEvent::Begun { count: 3 },
            "{\"type\":\"number_of_executions\",\"execution_count\":3}\n",
        );
        check(
            CellEvent::Stdout("a\n".to_owned()),
            "{\"type\":\"stdout\",\"text\":\"a\\n\",\"timestamp\":\"1970-01-01T00:00:00Z\"}\n",
        );
        let raised =
            RaisedError { name: "E".to_owned(), value: "v".to_owned(), traceback: "t".to_owned() };
        check(
            CellEvent::Error(raised),
            "{\"type\":\"error\",\"name\":\"E\",\"value\":\"v\",\"traceback\":\"t\"}\n",
        );
        check(CellEvent::Ended(OmittedOutput::default()), "{\"type\":\"end_of_execution\"}\n");
        let formats = [
            ("text/plain".to_owned(), json!("'quoted'")),
            ("application/json".to_owned(), json!({"a": 1})),
            ("text/x-own".to_owned(), json!("own")),
        ];
        check(
            CellEvent::Result(ShownValue { is_main_result: true, formats: formats.into() }),
            "{\"type\":\"result\",\"is_main_result\":true,\"json\":{\"a\":1},\"text\":\"quoted\",\
             \"extra\":{\"text/x-own\":\"own\"}}\n",
        );
    }

    #[test]
    fn omitted_output_is_reported_before_the_end() {
        let left = OmittedOutput { stdout: 5, ..OmittedOutput::default() };
        let lines = ExecutionLine::from_event(CellEvent::Ended(left), Timestamp::UNIX_EPOCH);
        let [ExecutionLine::Stderr { text, .. }, ExecutionLine::EndOfExecution] = &lines[..] else {
            panic!("the omission is reported before the end: {lines:?}")
        };
        assert!(text.contains("5 bytes"));
    }

    #[test]
    fn a_request_may_leave_out_all_but_the_code() {
        let request: ExecuteRequest =
            serde_json::from_str(r#"{"code":"1","context_id":null,"env_vars":null}"#).unwrap();
        assert_eq!(request, ExecuteRequest { code: "1".to_owned(), ..Default::default() });
    }
}
