//! Check of the manifests: every version and every lint is set at the root, where each dependency
//! has a comment with its reason.

use std::path::Path;

use anyhow::{Context, Result};

use super::CheckFindings;
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings =
        find_unexplained(&fs_err::read_to_string(workspace.root.join("Cargo.toml"))?);
    for package in &workspace.packages {
        let manifest =
            Path::new(package["manifest_path"].as_str().context("a package has no manifest")?);
        let name = manifest.strip_prefix(&workspace.root).unwrap_or(manifest).display().to_string();
        findings.extend(find_redundant_values(&name, &fs_err::read_to_string(manifest)?));
    }
    Ok(findings)
}

/// Finds the dependencies of the root manifest that no comment explains.
///
/// A comment explains the lines that follow, up to the next empty line. Our own crates, which have
/// a path, need no comment.
fn find_unexplained(manifest: &str) -> CheckFindings {
    let mut findings = CheckFindings::new();
    let mut explained = false;
    for (table, line) in lines_by_table(manifest) {
        if table != "workspace.dependencies" {
            continue;
        }
        match entry_name(line) {
            _ if line.trim().is_empty() => explained = false,
            _ if line.starts_with('#') => explained = true,
            Some(name) if !explained && !line.contains("path =") => {
                findings.push(format!("Cargo.toml: `{name}` has no reason above it"));
            }
            _ => {}
        }
    }
    findings
}

/// Finds the values that a crate's manifest sets although the root sets them for all crates.
fn find_redundant_values(name: &str, manifest: &str) -> CheckFindings {
    // A crate that depends on itself, to have all its features in its tests, names no version.
    let inherits = |line: &str| line.contains("workspace = true") || line.contains("path = \".\"");
    let mut findings = CheckFindings::new();
    let mut lints = false;
    for (table, line) in lines_by_table(manifest) {
        lints |= table == "lints" && inherits(line);
        let table_of_one = table.rsplit_once("dependencies.").map(|(_, dependency)| dependency);
        if let Some(dependency) = table_of_one.filter(|_| entry_name(line) == Some("version")) {
            findings.push(format!(
                "{name}: the version of `{dependency}` belongs in the root manifest"
            ));
        }
        if table.ends_with("dependencies") && !inherits(line) {
            let dependency = entry_name(line)
                .map(|entry| format!("{name}: `{entry}` must be inherited from the root"));
            findings.extend(dependency);
        }
    }
    if !lints {
        findings.push(format!("{name}: the lints must be inherited from the root"));
    }
    findings
}

/// Pairs each line of a manifest with the name of its table.
fn lines_by_table(manifest: &str) -> impl Iterator<Item = (&str, &str)> {
    manifest.lines().scan("", |table, line| {
        let head = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        *table = head.map_or(*table, |(name, _)| name);
        Some((*table, if head.is_some() { "" } else { line }))
    })
}

/// Returns the key that a line sets. A line that continues the previous line sets no key.
fn entry_name(line: &str) -> Option<&str> {
    let end = line
        .find(|character: char| !(character.is_ascii_alphanumeric() || "-_".contains(character)))?;
    let rest = line[end..].trim_start();
    (end > 0 && rest.starts_with(['=', '.'])).then(|| &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_explains_what_follows_up_to_the_next_empty_line() {
        let manifest = "\
[workspace.dependencies]
ringfence = { path = \"crates/ringfence\" }

# Errors.
thiserror = \"2\"
anyhow = { version = \"1\", features = [
  \"std\",
] }

tokio = \"1\"

[profile.release]
lto = \"fat\"
";
        assert_eq!(find_unexplained(manifest), ["Cargo.toml: `tokio` has no reason above it"]);
    }

    #[test]
    fn a_crate_takes_versions_and_lints_from_the_root() {
        let manifest = "\
[package]
version = \"1\"

[dependencies]
serde.workspace = true
toml = { workspace = true, features = [\"parse\"] }
itself = { path = \".\", features = [\"all\"] }
libc = \"0.2\"

[dev-dependencies.tempfile]
version = \"3\"
";
        assert_eq!(
            find_redundant_values("a/Cargo.toml", manifest),
            [
                "a/Cargo.toml: `libc` must be inherited from the root",
                "a/Cargo.toml: the version of `tempfile` belongs in the root manifest",
                "a/Cargo.toml: the lints must be inherited from the root",
            ]
        );
        assert_eq!(find_redundant_values("b", "[lints]\nworkspace = true\n"), CheckFindings::new());
    }
}
