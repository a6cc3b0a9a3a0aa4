//! Meaning of names in a program, as far as they lead to imports.

use std::collections::BTreeMap;

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{
    Expr, FStringPart, InterpolatedStringElement, Operator, Stmt, StmtImport, StmtImportFrom,
};

/// Longest chain of sub-expressions that is followed.
const MAX_CHAIN_LENGTH: usize = 16;

/// Object of Python that leads to imports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KnownObject {
    /// The module `importlib`.
    Importlib,
    /// The module `builtins`.
    Builtins,
    ImportModule,
    BuiltInImport,
    Exec,
    Eval,
    Compile,
}

impl KnownObject {
    /// Returns the module of this name.
    fn module(name: &str) -> Option<KnownObject> {
        match name {
            "importlib" => Some(KnownObject::Importlib),
            "builtins" => Some(KnownObject::Builtins),
            _ => None,
        }
    }

    /// Returns the built-in function of this name.
    fn built_in(name: &str) -> Option<KnownObject> {
        match name {
            "__import__" => Some(KnownObject::BuiltInImport),
            "exec" => Some(KnownObject::Exec),
            "eval" => Some(KnownObject::Eval),
            "compile" => Some(KnownObject::Compile),
            _ => None,
        }
    }

    /// Returns the member `name` of this module.
    fn member(self, name: &str) -> Option<KnownObject> {
        match (self, name) {
            (KnownObject::Importlib, "import_module") => Some(KnownObject::ImportModule),
            (KnownObject::Importlib, "__import__") => Some(KnownObject::BuiltInImport),
            (KnownObject::Builtins, name) => KnownObject::built_in(name),
            _ => None,
        }
    }
}

/// Names of a program that lead to imports. The position of a binding does not matter: a name
/// counts everywhere in the program.
#[derive(Debug)]
pub(super) struct NameBindings<'a> {
    own: BTreeMap<String, KnownObject>,
    /// Names of the program that executes this one.
    outer: Option<&'a NameBindings<'a>>,
}

impl<'a> NameBindings<'a> {
    pub(super) fn new(outer: Option<&'a NameBindings<'a>>) -> NameBindings<'a> {
        NameBindings { own: BTreeMap::new(), outer }
    }

    /// Returns the meaning of an expression.
    pub(super) fn resolve(&self, expr: &Expr) -> Option<KnownObject> {
        self.followed(expr, MAX_CHAIN_LENGTH)
    }

    fn followed(&self, expr: &Expr, left: usize) -> Option<KnownObject> {
        let left = left.checked_sub(1)?;
        match expr {
            Expr::Name(name) => self.lookup_name(name.id.as_str()),
            Expr::Named(named) => self.followed(&named.value, left),
            Expr::Attribute(attribute) => {
                self.followed(&attribute.value, left)?.member(attribute.attr.as_str())
            }
            Expr::Subscript(subscript) => {
                self.followed(&subscript.value, left)?.member(&literal(&subscript.slice)?)
            }
            // For example `__import__("importlib")`.
            Expr::Call(call) => {
                let imports = [KnownObject::BuiltInImport, KnownObject::ImportModule];
                self.followed(&call.func, left).filter(|known| imports.contains(known))?;
                KnownObject::module(&literal(call.arguments.args.first()?)?)
            }
            _ => None,
        }
    }

    fn lookup_name(&self, name: &str) -> Option<KnownObject> {
        if let Some(known) = self.own.get(name) {
            return Some(*known);
        }
        match self.outer {
            Some(outer) => outer.lookup_name(name),
            None if name == "__builtins__" => Some(KnownObject::Builtins),
            None => KnownObject::built_in(name),
        }
    }

    fn bind(&mut self, name: &str, known: Option<KnownObject>) {
        if let Some(known) = known {
            self.own.insert(name.to_owned(), known);
        }
    }

    fn import(&mut self, import: &StmtImport) {
        for alias in &import.names {
            match &alias.asname {
                Some(name) => self.bind(name.as_str(), KnownObject::module(alias.name.as_str())),
                // `import importlib.util` binds the name `importlib`.
                None => {
                    let first = alias.name.as_str().split('.').next().unwrap_or_default();
                    self.bind(first, KnownObject::module(first));
                }
            }
        }
    }

    fn import_from(&mut self, import: &StmtImportFrom) {
        let module = import.module.as_ref().filter(|_| import.level == 0);
        let Some(module) = module.and_then(|module| KnownObject::module(module.as_str())) else {
            return;
        };
        for alias in &import.names {
            match alias.name.as_str() {
                "*" => self.bind("import_module", module.member("import_module")),
                name => self.bind(
                    alias.asname.as_ref().map_or(name, |own| own.as_str()),
                    module.member(name),
                ),
            }
        }
    }
}

impl<'a> Visitor<'a> for NameBindings<'_> {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::Import(import) => self.import(import),
            Stmt::ImportFrom(import) => self.import_from(import),
            Stmt::Assign(assign) => {
                let known = self.resolve(&assign.value);
                let names = assign.targets.iter().filter_map(|target| target.as_name_expr());
                names.for_each(|name| self.bind(name.id.as_str(), known));
            }
            Stmt::AnnAssign(assign) => {
                let known = assign.value.as_ref().and_then(|value| self.resolve(value));
                if let Some(name) = assign.target.as_name_expr() {
                    self.bind(name.id.as_str(), known);
                }
            }
            _ => {}
        }
        walk_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Named(named) = expr
            && let Some(name) = named.target.as_name_expr()
        {
            let known = self.resolve(&named.value);
            self.bind(name.id.as_str(), known);
        }
        walk_expr(self, expr);
    }
}

/// Returns the text of an expression that is a literal: in one part, in several parts, or an
/// f-string without fields.
pub(super) fn literal(expr: &Expr) -> Option<String> {
    let mut text = String::new();
    append(expr, &mut text, MAX_CHAIN_LENGTH).then_some(text)
}

fn append(expr: &Expr, text: &mut String, left: usize) -> bool {
    let Some(left) = left.checked_sub(1) else { return false };
    match expr {
        Expr::StringLiteral(string) => text.push_str(string.value.to_str()),
        Expr::BytesLiteral(bytes) => {
            let bytes: Vec<u8> = bytes.value.bytes().collect();
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        Expr::FString(string) => {
            return string.value.iter().all(|part| match part {
                FStringPart::Literal(part) => {
                    text.push_str(part);
                    true
                }
                FStringPart::FString(part) => part.elements.iter().all(|element| match element {
                    InterpolatedStringElement::Literal(part) => {
                        text.push_str(part);
                        true
                    }
                    InterpolatedStringElement::Interpolation(_) => false,
                }),
            });
        }
        Expr::BinOp(sum) if sum.op == Operator::Add => {
            return append(&sum.left, text, left) && append(&sum.right, text, left);
        }
        Expr::Named(named) => return append(&named.value, text, left),
        _ => return false,
    }
    true
}
