//! Code with its language's settings, and the result of the lint on it.

use std::sync::Arc;

use ringfence_core::result::{BlockedImport, NotRunReason};
use ringfence_core::settings::{BlockImports, CodeSettings, Language, PythonModule};
use ringfence_core::{Backend, ExecutionResult};

use super::CodeError;
use super::imports::{self, ExaminedCode};
use crate::backends;

/// Longest code that is run, in bytes.
const MAX_CODE_BYTES: usize = 16 << 20;
/// Note in the result of every execution that the lint examined.
const LINT_NOTE: &str =
    "blocked_imports is lint: it sees what is written plainly, and isolates nothing";

/// Code with the settings of its language.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// Name of the language in the settings.
    pub(crate) name: String,
    pub(crate) language: Language,
    pub(crate) text: Arc<str>,
    /// True if only a project's file sets the command of the language.
    pub(crate) is_projects: bool,
    block_imports: BlockImports,
    listed: Vec<PythonModule>,
}

impl Script {
    pub(crate) fn new(
        settings: &CodeSettings,
        text: &str,
        language: &str,
    ) -> Result<Script, CodeError> {
        let Some((name, language)) = settings.languages.get_key_value(language) else {
            let known = settings.languages.keys().cloned().collect();
            return Err(CodeError::UnknownLanguage { language: language.to_owned(), known });
        };
        if text.len() > MAX_CODE_BYTES {
            return Err(CodeError::TooLong { limit: MAX_CODE_BYTES });
        }
        Ok(Script {
            name: name.clone(),
            language: language.clone(),
            text: text.into(),
            is_projects: settings.project_languages.contains(name),
            block_imports: settings.block_imports,
            listed: settings.imports.clone(),
        })
    }

    /// Returns the name of the code's file.
    pub(crate) fn file(&self) -> String {
        format!("main{}", self.language.suffix())
    }

    /// Returns true if the lint examines this code.
    pub(super) fn is_linted(&self) -> bool {
        self.block_imports != BlockImports::Off && self.language.is_python()
    }

    /// Runs the lint. The result is empty if the lint does not examine this code.
    pub(crate) fn lint(&self) -> LintResult {
        if !self.is_linted() {
            return LintResult::default();
        }
        let ExaminedCode { found, error } = imports::find(&self.text, &self.listed);
        let blocks = self.block_imports == BlockImports::Block && !found.is_empty();
        let note = match error {
            None => LINT_NOTE.to_owned(),
            Some((line, column)) => {
                format!(
                    "{LINT_NOTE}; near the syntax error at line {line}, column {column} it may \
                     have missed some"
                )
            }
        };
        LintResult { found, blocks, note: Some(note) }
    }

    /// Refuses a command that a project's file sets, if the backend would run it on the host.
    pub(crate) fn check(&self, backend: Backend) -> Result<(), CodeError> {
        let isolates = backends::get(backend).is_ok_and(backends::Backend::isolates);
        if self.is_projects && !isolates {
            return Err(CodeError::FromProject { language: self.name.clone(), backend });
        }
        Ok(())
    }
}

/// Findings of the lint, and the decision whether they block the code.
#[derive(Debug, Default)]
pub(crate) struct LintResult {
    found: Vec<BlockedImport>,
    pub(crate) blocks: bool,
    /// Note for the result; `None` if the lint did not examine the code.
    note: Option<String>,
}

impl LintResult {
    /// Adds the findings to a result.
    pub(crate) fn complete(self, mut result: ExecutionResult) -> ExecutionResult {
        result.meta.note = self.note;
        result.meta.blocked_imports = self.found;
        result
    }

    /// Returns the message that says why the code was not run.
    pub(crate) fn refusal_message(&self) -> String {
        let lines: String = self.found.iter().map(|found| format!("  {found}\n")).collect();
        format!("the code was not run, for the lint of imports found:\n{lines}  {LINT_NOTE}\n")
    }

    /// Turns a result into one that says that the code was not run.
    pub(crate) fn refuse(self, mut result: ExecutionResult) -> ExecutionResult {
        result.stderr = self.refusal_message();
        result.meta.not_run = Some(NotRunReason::BlockedImports);
        self.complete(ExecutionResult { ok: false, exit_code: None, signal: None, ..result })
    }
}
