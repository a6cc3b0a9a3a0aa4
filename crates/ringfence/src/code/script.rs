//! Code whose language is known, and what the lint says of it.

use std::sync::Arc;

use ringfence_core::result::{BlockedImport, NotRun};
use ringfence_core::settings::{BlockImports, Code as CodeSettings, Language, Module};
use ringfence_core::{Backend, ExecutionResult};

use super::CodeError;
use super::imports::{self, Examined};

/// The longest code that is run.
const LONGEST: usize = 16 << 20;
/// What is said wherever the lint has looked.
const NOTE: &str = "blocked_imports is lint: it sees what is written plainly, and isolates nothing";

/// Code whose language is known.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// What its language is called.
    pub(crate) name: String,
    pub(crate) language: Language,
    pub(crate) text: Arc<str>,
    /// Whether a project's file alone says how it is run.
    pub(crate) is_projects: bool,
    block_imports: BlockImports,
    listed: Vec<Module>,
}

impl Script {
    pub(crate) fn new(settings: &CodeSettings, text: &str, language: &str) -> Result<Script, CodeError> {
        let Some((name, language)) = settings.languages.get_key_value(language) else {
            let known = settings.languages.keys().cloned().collect();
            return Err(CodeError::UnknownLanguage { language: language.to_owned(), known });
        };
        if text.len() > LONGEST {
            return Err(CodeError::TooLong { limit: LONGEST });
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

    /// What the file is called.
    pub(crate) fn file(&self) -> String {
        format!("main{}", self.language.suffix())
    }

    /// Whether the lint looks at it.
    pub(super) fn is_looked_at(&self) -> bool {
        self.block_imports != BlockImports::Off && self.language.is_python()
    }

    /// What the lint makes of it; nothing where it does not look.
    pub(crate) fn lint(&self) -> Lint {
        if !self.is_looked_at() {
            return Lint::default();
        }
        let Examined { found, error } = imports::find(&self.text, &self.listed);
        let blocks = self.block_imports == BlockImports::Block && !found.is_empty();
        let note = match error {
            None => NOTE.to_owned(),
            Some((line, column)) => {
                format!("{NOTE}; near the syntax error at line {line}, column {column} it may have missed some")
            }
        };
        Lint { found, blocks, note: Some(note) }
    }

    /// Refuses to run a command of a project's where that would be on the host.
    pub(crate) fn check(&self, backend: Backend) -> Result<(), CodeError> {
        if self.is_projects && matches!(backend, Backend::Local | Backend::Outer) {
            return Err(CodeError::FromProject { language: self.name.clone(), backend });
        }
        Ok(())
    }
}

/// What the lint found, and whether the code is not to be run for it.
#[derive(Debug, Default)]
pub(crate) struct Lint {
    found: Vec<BlockedImport>,
    pub(crate) blocks: bool,
    /// What to make of it; none where it did not look.
    note: Option<String>,
}

impl Lint {
    /// Adds what was found to a result.
    pub(crate) fn tell(self, mut result: ExecutionResult) -> ExecutionResult {
        result.meta.note = self.note;
        result.meta.blocked_imports = self.found;
        result
    }

    /// Why nothing was run.
    pub(crate) fn words(&self) -> String {
        let lines: String = self.found.iter().map(|found| format!("  {found}\n")).collect();
        format!("the code was not run, for the lint of imports found:\n{lines}  {NOTE}\n")
    }

    /// Makes a result tell that nothing was run.
    pub(crate) fn refuse(self, mut result: ExecutionResult) -> ExecutionResult {
        result.stderr = self.words();
        result.meta.not_run = Some(NotRun::BlockedImports);
        self.tell(ExecutionResult { ok: false, exit_code: None, signal: None, ..result })
    }
}
