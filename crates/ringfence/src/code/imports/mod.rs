//! The lint of imports: it finds which listed modules Python code imports, as far as the imports
//! are written plainly.
//!
//! The lint isolates nothing, because code that wants to hide an import from it can. The lint must
//! not fail on hostile code, so the length, the nesting and the number of findings are bounded
//! before the code is parsed. Code that cannot be examined counts as a finding.

mod bindings;
mod nesting;

use std::cell::Cell;

use ringfence_core::result::{BlockedImport, ImportedBy};
use ringfence_core::settings::PythonModule;
use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{Expr, ExprCall, PySourceType, Stmt, StmtImport, StmtImportFrom};
use ruff_python_parser::parse_unchecked_source;
use ruff_source_file::LineIndex;
use ruff_text_size::{Ranged, TextSize};

use bindings::{KnownObject, NameBindings, literal};

/// Longest code that is examined, in bytes. Its syntax tree is some fifty times as long.
const MAX_CODE_BYTES: usize = 1 << 20;
/// Stack size of the examining thread, in bytes. It is enough for the deepest nesting that is
/// examined, in a build without optimisation.
const STACK_BYTES: usize = 256 << 20;
/// Highest number of findings that are reported.
const MAX_FINDINGS: usize = 100;
/// Deepest nesting of executed literals that is examined.
const MAX_LITERAL_DEPTH: usize = 8;

/// Result of the examination of code.
#[derive(Debug)]
pub(crate) struct ExaminedCode {
    /// Imports in the order of the code.
    pub(crate) found: Vec<BlockedImport>,
    /// Line and column of the first syntax error, both from 1. The lint may have missed imports
    /// near it.
    pub(crate) error: Option<(usize, usize)>,
}

/// Finds imports of the listed modules, on a thread whose stack is large enough.
pub(crate) fn find(code: &str, listed: &[PythonModule]) -> ExaminedCode {
    let examined = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("imports".to_owned()).stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, || examine(code, listed)).ok()?.join().ok()
    });
    // Either no thread could be started, or the parser panicked in a build where a panic does not
    // abort. The code was not examined.
    let unexamined =
        || BlockedImport { module: String::new(), line: 1, column: 1, how: ImportedBy::Unexamined };
    examined.unwrap_or_else(|| ExaminedCode { found: vec![unexamined()], error: None })
}

/// Finding with its offset in the text.
struct ImportFinding {
    module: String,
    at: TextSize,
    how: ImportedBy,
}

/// Result of the search of one text, with offsets into it.
struct SearchedText {
    found: Vec<ImportFinding>,
    error: Option<TextSize>,
}

fn examine(code: &str, listed: &[PythonModule]) -> ExaminedCode {
    let budget = Cell::new(MAX_FINDINGS);
    let SearchedText { found, error } =
        search(code, &ImportSearch { listed, budget: &budget, depth: 0 }, None);
    let index = LineIndex::from_source_text(code);
    let place = |at: TextSize| {
        let place = index.line_column(at, code);
        (place.line.get(), place.column.get())
    };
    let describe = |ImportFinding { module, at, how }: ImportFinding| {
        let (line, column) = place(at);
        BlockedImport { module, line, column, how }
    };
    let mut found: Vec<BlockedImport> = found.into_iter().map(describe).collect();
    found.sort_by_key(|found| (found.line, found.column));
    ExaminedCode { found, error: error.map(place) }
}

/// Parameters of a search, for the code and for the literals that it executes.
struct ImportSearch<'a> {
    listed: &'a [PythonModule],
    /// Number of findings that may still be reported.
    budget: &'a Cell<usize>,
    /// Number of executed literals around this text.
    depth: usize,
}

fn search(text: &str, search: &ImportSearch<'_>, outer: Option<&NameBindings<'_>>) -> SearchedText {
    if text.len() > MAX_CODE_BYTES || nesting::is_too_deep(text) {
        let unexamined = ImportFinding {
            module: String::new(),
            at: TextSize::default(),
            how: ImportedBy::Unexamined,
        };
        return SearchedText { found: vec![unexamined], error: None };
    }
    // The interpreter reports syntax errors. The lint examines the statements that could be parsed.
    let parsed = parse_unchecked_source(text, PySourceType::Python);
    let mut words = NameBindings::new(outer);
    words.visit_body(parsed.suite());
    let mut calls = CallVisitor { search, words: &words, found: Vec::new() };
    calls.visit_body(parsed.suite());
    let error = parsed.errors().iter().map(|error| error.location.start()).min();
    SearchedText { found: calls.found, error }
}

/// Visitor that finds the imports, after [`NameBindings`] has collected the meaning of names.
struct CallVisitor<'a> {
    search: &'a ImportSearch<'a>,
    words: &'a NameBindings<'a>,
    found: Vec<ImportFinding>,
}

impl CallVisitor<'_> {
    /// Records an import if one of `names` is listed.
    fn note(&mut self, names: &[&str], at: TextSize, how: ImportedBy) {
        let listed = |name: &&&str| self.search.listed.iter().any(|module| module.holds(name));
        if let Some(name) = names.iter().find(listed) {
            self.push(ImportFinding { module: (*name).to_owned(), at, how });
        }
    }

    fn push(&mut self, finding: ImportFinding) {
        if let Some(left) = self.search.budget.get().checked_sub(1) {
            self.search.budget.set(left);
            self.found.push(finding);
        }
    }

    fn import(&mut self, import: &StmtImport) {
        for alias in &import.names {
            self.note(&[alias.name.as_str()], alias.start(), ImportedBy::Import);
        }
    }

    fn import_from(&mut self, import: &StmtImportFrom) {
        let Some(module) = import.module.as_ref().filter(|_| import.level == 0) else { return };
        let module = module.as_str();
        if self.search.listed.iter().any(|listed| listed.holds(module)) {
            return self.note(&[module], import.start(), ImportedBy::From);
        }
        // `from a import b` may import the module `a.b`.
        for alias in &import.names {
            self.note(&[&format!("{module}.{}", alias.name)], alias.start(), ImportedBy::From);
        }
    }

    fn call(&mut self, call: &ExprCall) {
        let Some(known) = self.words.resolve(&call.func) else { return };
        let (keyword, how) = match known {
            KnownObject::ImportModule => ("name", ImportedBy::ImportModule),
            KnownObject::BuiltInImport => ("name", ImportedBy::BuiltIn),
            KnownObject::Exec | KnownObject::Compile => ("source", ImportedBy::Exec),
            KnownObject::Eval => ("source", ImportedBy::Eval),
            KnownObject::Importlib | KnownObject::Builtins => return,
        };
        let named =
            || call.arguments.keywords.iter().find(|own| own.arg.as_deref() == Some(keyword));
        let Some(argument) = call.arguments.args.first().or_else(|| named().map(|own| &own.value))
        else {
            return;
        };
        let Some(text) = literal(argument) else { return };
        match known {
            KnownObject::ImportModule | KnownObject::BuiltInImport => {
                self.note(&[text.as_str()], call.start(), how)
            }
            _ => self.executed(&text, argument.start(), how),
        }
    }

    /// Searches text that is executed. Its findings are reported at the position of the text in the
    /// code.
    fn executed(&mut self, text: &str, at: TextSize, how: ImportedBy) {
        let ImportSearch { listed, budget, depth } = *self.search;
        if depth >= MAX_LITERAL_DEPTH {
            return self.push(ImportFinding {
                module: String::new(),
                at,
                how: ImportedBy::Unexamined,
            });
        }
        // `eval` skips blanks at the beginning, but the parser would take them as an indentation.
        let text = text.trim_start_matches([' ', '\t']);
        let inner =
            search(text, &ImportSearch { listed, budget, depth: depth + 1 }, Some(self.words));
        for ImportFinding { module, how: inner, .. } in inner.found {
            let how = if inner == ImportedBy::Unexamined { inner } else { how };
            self.found.push(ImportFinding { module, at, how });
        }
    }
}

impl<'a> Visitor<'a> for CallVisitor<'_> {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::Import(import) => self.import(import),
            Stmt::ImportFrom(import) => self.import_from(import),
            _ => walk_stmt(self, stmt),
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr {
            self.call(call);
        }
        walk_expr(self, expr);
    }
}

#[cfg(test)]
mod tests;
