//! E2B's code interpreter API: cells and contexts, on top of the library's contexts. Its refusals
//! are plain text.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode};
use jiff::Timestamp;
use ringfence::Fault;
use ringfence::contexts::wire::{CreateRequest, ExecuteRequest, ExecutionLine, ListedContext};
use ringfence::contexts::{Cell, CellEvent, ContextError, Contexts, DEFAULT_LANGUAGE};
use ringfence_proto::header;
use ringfence_proto::signature::is_same_secret;
use ringfence_service::exchange::RequestBody;
use ringfence_service::telemetry::ExecSpan;

use crate::api::control::body;
use crate::api::reply::{Refusal, Reply, bare, json};
use crate::forwarding::executions::caller;
use crate::forwarding::route::text;
use crate::lifecycle::registry::ManagedSandbox;
use crate::page::activity::{ExecutionHandle, ExecutionInfo};
use crate::run_to_completion;
use crate::storage::store::SandboxRecord;

/// Port at which clients expect the code interpreter.
pub(crate) const PORT: u16 = 49999;

/// Returns whether a path belongs to the code interpreter. Other paths on its port go to the
/// sandbox.
pub(crate) fn is_its(path: &str) -> bool {
    matches!(path, "/execute" | "/contexts") || path.starts_with("/contexts/")
}

/// Checks that a request shows a token of its sandbox. E2B's packages send the guest's token for
/// `/execute` alone, and the traffic access token for contexts.
pub(crate) fn check_token(
    record: &SandboxRecord,
    path: &str,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let may = match (text(headers, header::TOKEN), text(headers, header::TRAFFIC)) {
        (Some(shown), _) => is_same_secret(shown, &record.token),
        (None, Some(shown)) if path != "/execute" => {
            is_same_secret(shown, &*record.traffic_access_token())
        }
        _ => false,
    };
    if may {
        return Ok(());
    }
    let header = if path == "/execute" { header::TOKEN } else { header::TRAFFIC };
    Err(Refusal::unauthenticated(format!(
        "the header `{header}` is missing, or its token does not belong to this sandbox"
    )))
}

/// Answers a request that [`check_token`] accepted.
pub(crate) async fn answer(managed: &ManagedSandbox, request: Request<RequestBody>) -> Reply {
    route(managed, request).await.unwrap_or_else(refuse)
}

/// Turns a refusal into a plain-text answer.
pub(crate) fn refuse(Refusal { status, message, .. }: Refusal) -> Reply {
    let mut reply = bare(status);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    *reply.body_mut() =
        http_body_util::Full::from(message).map_err(|never| match never {}).boxed_unsync();
    reply
}

async fn route(managed: &ManagedSandbox, request: Request<RequestBody>) -> Result<Reply, Refusal> {
    let contexts = managed.sandbox.contexts();
    contexts.keep().await.map_err(refusal)?;
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (request.method(), &segments[..]) {
        (&Method::POST, ["execute"]) => {
            let span = managed.span.exec(&caller(&request));
            let request: ExecuteRequest = body(request).await?;
            let (code, sandbox) = (request.code.clone(), managed.sandbox.clone());
            match run_to_completion(async move { execute(sandbox.contexts(), request).await }).await
            {
                Ok((language, cell)) => {
                    span.code(&language);
                    Ok(lines(cell, managed.activity.begin(ExecutionInfo::code(code)), span))
                }
                Err(refusal) => {
                    span.fail("the code was not run");
                    Err(refusal)
                }
            }
        }
        (&Method::POST, ["contexts"]) => {
            let CreateRequest { language, cwd } = body(request).await?;
            let (language, sandbox) = (named(language), managed.sandbox.clone());
            let created = async move {
                sandbox.contexts().create(&language, cwd.as_deref()).await.map_err(refusal)
            };
            Ok(json(StatusCode::OK, &ListedContext::from(&run_to_completion(created).await?)))
        }
        (&Method::GET, ["contexts"]) => {
            let listed: Vec<ListedContext> =
                contexts.list().iter().map(ListedContext::from).collect();
            Ok(json(StatusCode::OK, &listed))
        }
        (&Method::DELETE, ["contexts", id]) => {
            let (id, sandbox) = ((*id).to_owned(), managed.sandbox.clone());
            run_to_completion(async move { sandbox.contexts().remove(&id).await.map_err(refusal) })
                .await?;
            Ok(bare(StatusCode::NO_CONTENT))
        }
        (&Method::POST, ["contexts", id, "restart"]) => {
            let context = contexts.get(id).map_err(refusal)?;
            run_to_completion(async move { context.restart().await.map_err(refusal) }).await?;
            Ok(bare(StatusCode::NO_CONTENT))
        }
        (method, _) => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            format!("the interpreter has no endpoint {method} {path}"),
        )),
    }
}

/// Begins a cell and returns it with its language.
async fn execute(
    contexts: Contexts<'_>,
    request: ExecuteRequest,
) -> Result<(String, Cell), Refusal> {
    let ExecuteRequest { code, context_id, language, env_vars } = request;
    let env: BTreeMap<String, String> = env_vars.unwrap_or_default();
    let (language, begun) = match (context_id, language) {
        (Some(_), Some(_)) => {
            return Err(Refusal::wrong("set either `context_id` or `language`, not both"));
        }
        (Some(id), None) => {
            let context = contexts.get(&id).map_err(refusal)?;
            (context.language().to_owned(), context.execute(&code, &env).await)
        }
        (None, language) => {
            let language = named(language);
            let begun = contexts.execute(&language, &code, &env).await;
            (language, begun)
        }
    };
    Ok((language, begun.map_err(refusal)?))
}

/// Returns the name that the settings use for a client's name of a language.
fn named(language: Option<String>) -> String {
    match language.map(|language| language.to_lowercase()) {
        None => DEFAULT_LANGUAGE.to_owned(),
        Some(short) if short == "js" => "javascript".to_owned(),
        Some(language) => language,
    }
}

/// Streams the events of a cell, one line each. A client that disconnects drops the cell, which
/// interrupts the code.
fn lines(cell: Cell, begun: ExecutionHandle, span: ExecSpan) -> Reply {
    let pieces = stream::unfold((cell, begun, span), |(mut cell, begun, span)| async {
        let next = cell.next().await?;
        match &next {
            Ok(CellEvent::Error(raised)) => {
                begun.ended(false, raised.name.as_str());
                span.fail("the code raised an error");
            }
            Ok(CellEvent::Ended(_)) => {
                // After an error, these calls change nothing, because the first end counts.
                begun.ended(true, "done");
                span.succeed();
            }
            Err(error) => {
                begun.ended(false, error.to_string());
                span.fail("the end of the code is not known");
            }
            Ok(_) => {}
        }
        let lines = match next {
            Ok(event) => ExecutionLine::from_event(event, Timestamp::now()),
            Err(error) => ExecutionLine::from_failure(&error).into(),
        };
        let text: String = lines.iter().map(ExecutionLine::text).collect();
        Some((Bytes::from(text), (cell, begun, span)))
    });
    let mut reply = bare(StatusCode::OK);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    *reply.body_mut() = StreamBody::new(pieces.map(|piece| Ok(Frame::data(piece)))).boxed_unsync();
    reply
}

fn refusal(error: ContextError) -> Refusal {
    let message = ringfence::chain(&error);
    match error {
        ContextError::Absent { .. } => Refusal::new(StatusCode::NOT_FOUND, message),
        ContextError::TooMany { .. } => Refusal::new(StatusCode::TOO_MANY_REQUESTS, message),
        ContextError::Ended { id, .. } => Refusal::wrong(format!(
            "{message}; restart the context with POST /contexts/{id}/restart, \
             `restart_code_context` of the SDK; the values of its variables are lost"
        )),
        error if error.fault() == Fault::User => Refusal::wrong(message),
        error => {
            tracing::warn!(error = message, "a context failed");
            Refusal::failed(error.to_string())
        }
    }
}
