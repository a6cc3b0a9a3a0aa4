//! Check of the seam: outside `backends/`, no code of the library, of the server, of MCP or of the
//! command line asks which backend a sandbox has.

use std::path::Path;

use anyhow::Result;

use super::CheckFindings;
use crate::workspace::{Workspace, files_below};

/// Sources that must not know the backends, except for the part in `BACKENDS`.
const SOURCES: [&str; 5] = [
    "crates/ringfence/src",
    "crates/ringfence-service/src",
    "crates/ringfence-server/src",
    "crates/ringfence-mcp/src",
    "crates/ringfence-cli/src",
];
const BACKENDS: &str = "crates/ringfence/src/backends";
/// Modules of single backends.
const MODULES: [&str; 5] = ["containers", "bwrap", "native", "bare", "process_tree"];
/// Names of the backends, as variants of the enum in `ringfence-core`.
const VARIANTS: [&str; 8] =
    ["Native", "Bwrap", "Docker", "Podman", "Kubernetes", "E2b", "Outer", "Local"];

pub(super) fn check(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings = CheckFindings::new();
    for sources in SOURCES {
        for path in files_below(&workspace.root.join(sources))? {
            let name = path.strip_prefix(&workspace.root)?;
            let is_source = name.extension().is_some_and(|extension| extension == "rs");
            if is_source && !name.starts_with(BACKENDS) && !is_test(name) {
                findings.extend(judge(name, &fs_err::read_to_string(&path)?));
            }
        }
    }
    Ok(findings)
}

fn is_test(name: &Path) -> bool {
    name.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

fn judge(name: &Path, text: &str) -> CheckFindings {
    let production = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = production.lines().enumerate().filter(|(_, line)| asks_for_backend(line));
    lines
        .map(|(index, _)| {
            let place = format!("{}:{}", name.display(), index + 1);
            format!("{place}: asks which backend it is; add a facet to the trait in {BACKENDS}")
        })
        .collect()
}

/// Tells whether a line reaches into the module of a backend, or decides by the backend's name.
///
/// A backend may only be named as the first argument of a function, which chooses it. A pattern or
/// a comparison may span several lines, so every other mention counts as a decision.
fn asks_for_backend(line: &str) -> bool {
    if line.trim_start().starts_with("//") {
        return false;
    }
    let reaches = MODULES.iter().any(|module| line.contains(&format!("backends::{module}")));
    let imports = ["Backend::{", "Backend::*"].iter().any(|import| line.contains(import));
    let decides = VARIANTS.iter().any(|variant| {
        let named = format!("Backend::{variant}");
        line.match_indices(&named).any(|(start, _)| !is_first_argument(&line[..start]))
    });
    reaches || imports || decides
}

/// Tells whether the text after `before` is the first argument of a function call. The name of a
/// function begins with a lower-case letter, unlike the name of a variant such as `Some`.
fn is_first_argument(before: &str) -> bool {
    before.strip_suffix('(').is_some_and(|call| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = &call[call.trim_end_matches(is_part).len()..];
        name.starts_with(|c: char| c.is_ascii_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: bool) {
        assert_eq!(asks_for_backend(line), expected, "{line}");
    }

    #[test]
    fn a_decision_by_the_name_of_a_backend_is_found() {
        check("use crate::backends::containers;", true);
        check("crate::backends::containers::clear_away(&directory);", true);
        check("if backend == Backend::Bwrap {", true);
        check("Backend::Docker | Backend::Podman => pause(),", true);
        check("if matches!(backend, Backend::Local | Backend::Outer) {", true);
        check("if matches!(backend, Backend::Local) {", true);
        check("if let Backend::Local = backend {", true);
        check("Some(Backend::Local) => pause(),", true);
        check("    | Backend::Podman", true);
        check("tried.remove(&Backend::Native)", true);
        check("use ringfence_core::Backend::{Docker, Podman};", true);
    }

    #[test]
    fn a_choice_of_a_backend_is_no_decision_by_its_name() {
        check("let policy = Policy::default().backend(Backend::Local);", false);
        check("None => policy.backend(Backend::Local),", false);
        check("use crate::backends::{self, Freshness};", false);
        check("backends::get(backend)?.probe(request)", false);
    }

    #[test]
    fn tests_at_the_end_of_a_file_may_name_backends() {
        let text = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    if b == Backend::Local {}\n}\n";
        assert_eq!(judge(Path::new("a.rs"), text), CheckFindings::new());
        assert_eq!(judge(Path::new("a.rs"), "if b == Backend::Local {}\n").len(), 1);
    }
}
