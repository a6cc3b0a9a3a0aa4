//! An interpreter that waits for code in a sandbox that stays.

use std::time::{Duration, Instant};

use ringfence_core::ExecutionResult;
use tokio::time::timeout;

use super::inside::ExecutionDirectory;
use super::script::Script;
use super::warm::INTERPRETER_SCRIPT;
use super::{CodeError, error};
use crate::host_paths::untrusted;
use crate::session::{CapturedCommand, CommandInput, Execution};
use crate::{Sandbox, SessionError, Stream};

/// Longest time that the interpreter may take to import its modules.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest message with which the interpreter reports that it is ready, in bytes.
const MAX_READY_BYTES: usize = 16 * 1024;
/// Longest excerpt of the interpreter's output in an error, in characters.
const MAX_EXCERPT_CHARS: usize = 500;

/// An interpreter in a sandbox that stays, started before there is code for it. It runs one piece
/// of code. If it is dropped before, its process is ended.
///
/// The interpreter waits among the sandbox's other processes, and its memory counts as theirs does.
/// It finds the modules that were installed when it was started. Drop it after an installation,
/// because it may not find the new modules.
#[derive(Debug)]
pub struct SpareInterpreter {
    sandbox: Sandbox,
    /// Script that the process runs until there is code: [`INTERPRETER_SCRIPT`], in the code's
    /// language.
    interpreter: Script,
    execution: Execution,
    not_imported: Vec<String>,
    /// Directory of the execution; dropped after the process that uses it is ended.
    place: ExecutionDirectory,
}

impl Sandbox {
    /// Starts an interpreter of `language`, which must be a Python language, and waits until it is
    /// ready for code. The interpreter first imports the modules of
    /// [`crate::CodeSettings::preload`].
    pub async fn spare_interpreter(&self, language: &str) -> Result<SpareInterpreter, CodeError> {
        let interpreter = Script::new(self.code(), INTERPRETER_SCRIPT, language)?;
        if !interpreter.language.is_python() {
            return Err(CodeError::NotPython { language: language.to_owned() });
        }
        interpreter.check(self.manifest().backend)?;
        let place = ExecutionDirectory::make(self).await?;
        self.files()
            .write(&place.file(&interpreter), INTERPRETER_SCRIPT.as_bytes().to_vec())
            .await?;
        let exec = place.exec(&interpreter).input(CommandInput::Piped);
        let execution =
            self.exec(&exec).await.map_err(|error| error::for_script(error, &interpreter))?;
        let mut spare = SpareInterpreter {
            sandbox: self.clone(),
            interpreter,
            execution,
            not_imported: Vec::new(),
            place,
        };
        let late = || CodeError::NotWaiting { why: "its imports did not end in time".to_owned() };
        timeout(IMPORT_TIMEOUT, spare.send_modules()).await.unwrap_or_else(|_| Err(late()))?;
        Ok(spare)
    }
}

impl SpareInterpreter {
    /// Returns the modules that could not be imported beforehand, each with the reason. Code runs
    /// without them.
    pub fn not_imported(&self) -> &[String] {
        &self.not_imported
    }

    /// Runs code in this interpreter and returns its result, as [`Sandbox::execute_code`] does. If
    /// the interpreter has ended, the code runs by [`Sandbox::execute_code`]. Dropping the future
    /// ends the code and every process that it started.
    pub async fn execute_code(
        self,
        code: &str,
        timeout: Option<Duration>,
    ) -> Result<ExecutionResult, CodeError> {
        let SpareInterpreter { sandbox, interpreter, execution, place, .. } = self;
        let script = Script::new(sandbox.code(), code, &interpreter.name)?;
        let looked_at = script.clone();
        let lint = tokio::task::spawn_blocking(move || looked_at.lint())
            .await
            .expect("the lint answers in any case");
        if lint.blocks {
            return sandbox.execute_code(code, &interpreter.name, timeout).await;
        }
        let (begun, before, input) = (Instant::now(), sandbox.observe(), execution.input());
        let given = async {
            sandbox.files().write(&place.file(&script), code.as_bytes().to_vec()).await?;
            input.write(b"!").await
        };
        if given.await.is_err() {
            return sandbox.execute_code(code, &interpreter.name, timeout).await;
        }
        let captured = execution
            .capture_within(sandbox.max_output_bytes(), sandbox.time_for_code(timeout))
            .await;
        place.remove().await;
        let CapturedCommand { ended, stdout, stderr, dropped } =
            captured.map_err(|error| error::for_script(error, &script))?;
        let duration = begun.elapsed().as_secs_f64();
        let mut result =
            ExecutionResult { stdout, stderr, dropped, duration, ..before.result(ended) };
        result.meta.warm = true;
        Ok(lint.complete(result))
    }

    /// Sends the list of modules to import, and waits for the message that the interpreter is
    /// ready.
    async fn send_modules(&mut self) -> Result<(), CodeError> {
        let preload = format!("{}\n", self.sandbox.code().preload_line());
        let written = self.execution.input().write(preload.as_bytes()).await;
        let (mut words, mut errors) = (Vec::new(), Vec::new());
        while words.last() != Some(&0) {
            match self.execution.next().await.transpose()? {
                Some(chunk) if chunk.stream == Stream::Stderr => errors.extend(chunk.bytes),
                Some(chunk) => words.extend(chunk.bytes),
                None => return Err(self.start_error(written, &errors)),
            }
            if words.len() + errors.len() > MAX_READY_BYTES + 1 {
                return Err(CodeError::NotWaiting { why: "its output is too long".to_owned() });
            }
        }
        let text =
            String::from_utf8_lossy(words.strip_suffix(b"\0").unwrap_or(&words)).into_owned();
        match text.strip_prefix("ready") {
            Some(failures) => {
                self.not_imported = failures.lines().skip(1).map(untrusted::printable).collect();
                Ok(())
            }
            None => Err(CodeError::NotWaiting { why: "its output is invalid".to_owned() }),
        }
    }

    /// Returns the error for an interpreter that ended before it was ready for code.
    fn start_error(&self, written: Result<(), SessionError>, errors: &[u8]) -> CodeError {
        let how = match self.execution.ended() {
            Ok(ended) => match (ended.exit_code, ended.signal) {
                (Some(code), _) => format!("exited with {code}"),
                (None, signal) => format!("ended by signal {}", signal.unwrap_or_default()),
            },
            Err(error) => return written.err().unwrap_or(error).into(),
        };
        let said: String = untrusted::printable(String::from_utf8_lossy(errors).trim())
            .chars()
            .take(MAX_EXCERPT_CHARS)
            .collect();
        CodeError::NotWaiting {
            why: format!("it {how}; {said}").trim_end_matches(['.', ';', ' ']).to_owned(),
        }
    }
}
