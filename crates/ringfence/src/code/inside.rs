//! Execution of code in a sandbox that stays: each execution has a directory that is removed at its
//! end.

use std::time::Duration;

use ringfence_core::ExecutionResult;
use tokio::runtime::Handle;

use super::script::Script;
use super::stage::WORK_DIRECTORY;
use super::{CodeError, error, time_limit};
use crate::session::{CommandEnd, Exec, Session};
use crate::{Sandbox, SessionError};

/// Directory for temporary files, below the execution's own directory.
const TEMPORARY_DIRECTORY: &str = "tmp";
/// Number of attempts to remove a directory; between two attempts, the processes that still use it
/// get `REMOVAL_INTERVAL` to end.
const MAX_REMOVAL_ATTEMPTS: u32 = 5;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(100);

impl Sandbox {
    /// Runs code and returns its result. Dropping the future ends the code and every process that
    /// it started.
    ///
    /// `language` is a name in the settings of [`Sandbox::with_code`]. The code starts in an empty
    /// directory of its own and has another directory for temporary files. Both directories and all
    /// processes of the code are removed when the code ends. Files that the code writes elsewhere
    /// stay, as with every command. The code may run for 30 seconds unless `timeout` or the policy
    /// sets another limit. Code that fails is not an error: its result says so.
    pub async fn execute_code(
        &self,
        code: &str,
        language: &str,
        timeout: Option<Duration>,
    ) -> Result<ExecutionResult, CodeError> {
        let script = Script::new(self.code(), code, language)?;
        script.check(self.manifest().backend)?;
        let looked_at = script.clone();
        let lint = tokio::task::spawn_blocking(move || looked_at.lint())
            .await
            .expect("the lint answers in any case");
        if lint.blocks {
            return Ok(lint.refuse(self.observe().result(CommandEnd::not_started())));
        }
        let place = ExecutionDirectory::make(self).await?;
        let outcome = self.execute_in(&place, &script, timeout).await;
        place.remove().await;
        Ok(lint.complete(outcome.map_err(|error| error::for_script(error, &script))?))
    }

    async fn execute_in(
        &self,
        place: &ExecutionDirectory,
        script: &Script,
        timeout: Option<Duration>,
    ) -> Result<ExecutionResult, SessionError> {
        self.files().write(&place.file(script), script.text.as_bytes().to_vec()).await?;
        self.capture(place.exec(script).time(self.time_for_code(timeout))).await
    }
}

impl Sandbox {
    /// Returns the time limit of code: `timeout`, or else the policy's limit, or else 30 seconds.
    pub(super) fn time_for_code(&self, timeout: Option<Duration>) -> Duration {
        time_limit(timeout, self.manifest().limits.time.map(|time| time.duration()))
    }
}

/// Directory of one execution, inside the sandbox.
#[derive(Debug)]
pub(super) struct ExecutionDirectory {
    session: Session,
    path: String,
    runtime: Handle,
    is_there: bool,
}

impl ExecutionDirectory {
    /// Makes the directory at the first path that the sandbox can write.
    pub(super) async fn make(sandbox: &Sandbox) -> Result<ExecutionDirectory, SessionError> {
        let session = sandbox.session();
        let name = format!("code-{}", crate::run::identity());
        let mut candidates = Vec::new();
        // A sandbox that sees its own directory has the host's files. The directory is then the
        // best place, because the sandbox directory is private and is removed with the sandbox.
        let sandbox_dir = sandbox.directory();
        if let Some(sandbox_dir) = sandbox_dir.to_str()
            && session.files().stat(sandbox_dir).await.is_ok()
        {
            candidates.push(format!("{sandbox_dir}/{name}"));
        }
        candidates.push(format!("/tmp/.{name}"));
        // For a sandbox that can write only its home: relative paths are below the home.
        candidates.push(format!(".{name}"));
        let mut last = None;
        for path in candidates {
            match session.files().make_directory(&format!("{path}/{WORK_DIRECTORY}")).await {
                Ok(work) => {
                    // Keep the path that the guest returned, because only the guest knows where the
                    // home is.
                    let path = work
                        .path
                        .strip_suffix(&format!("/{WORK_DIRECTORY}"))
                        .unwrap_or(&path)
                        .to_owned();
                    let place = ExecutionDirectory {
                        session: session.clone(),
                        path,
                        runtime: Handle::current(),
                        is_there: true,
                    };
                    session.files().make_directory(&place.below(TEMPORARY_DIRECTORY)).await?;
                    return Ok(place);
                }
                Err(error @ SessionError::Refused { .. }) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.expect("there is a candidate"))
    }

    /// Returns the path of the code's file.
    pub(super) fn file(&self, script: &Script) -> String {
        self.below(&script.file())
    }

    /// Returns the command that runs the code in this directory.
    pub(super) fn exec(&self, script: &Script) -> Exec {
        let (program, arguments) = script.language.command();
        Exec::new(program)
            .arguments(arguments)
            .argument(self.file(script))
            .directory(self.below(WORK_DIRECTORY))
            .variable("TMPDIR", self.below(TEMPORARY_DIRECTORY))
            .leaving_nothing()
    }

    fn below(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    pub(super) async fn remove(mut self) {
        remove(&self.session, &self.path).await;
        self.is_there = false;
    }
}

impl Drop for ExecutionDirectory {
    fn drop(&mut self) {
        if self.is_there {
            let (session, path) = (self.session.clone(), std::mem::take(&mut self.path));
            // The execution was dropped, too, so its processes are being ended.
            self.runtime.spawn(async move { remove(&session, &path).await });
        }
    }
}

/// Removes a directory. The removal is repeated, because a process that is being ended may still
/// write there.
async fn remove(session: &Session, path: &str) {
    for _ in 0..MAX_REMOVAL_ATTEMPTS {
        match session.files().remove(path).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(
                error = crate::chain(&error),
                "the directory of an execution is not removed yet"
            ),
        }
        tokio::time::sleep(REMOVAL_INTERVAL).await;
    }
    tracing::warn!(
        path,
        "the directory of an execution was not removed; it is removed with the \
                          sandbox"
    );
}
