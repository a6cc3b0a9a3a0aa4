//! Check of the dependencies between our crates: command line → services → library → launcher,
//! proxy → core, protocol.

use anyhow::{Context, Result};

use super::CheckFindings;
use crate::workspace::Workspace;

/// The crates from the bottom up. A crate may depend on a crate of a lower layer, but not on a
/// crate of its own or a higher layer.
const LAYERS: &[&[&str]] = &[
    &["ringfence-core", "ringfence-proto"],
    &["ringfence-linux", "ringfence-egress", "ringfence-link"],
    &["ringfence-attempts", "ringfence-guest"],
    &["ringfence"],
    &["ringfence-service"],
    &["ringfence-server", "ringfence-mcp"],
    &["ringfence-cli"],
    &[CONFORMANCE],
];

const CONFORMANCE: &str = "conformance";
/// Crate for tests and chores. It depends on none of the crates above, and they may use it only in
/// tests.
const LEDGER: &str = "ringfence-test-ledger";
const CHORES: &str = "xtask";

#[derive(Clone, Copy, PartialEq)]
enum DependencyUse {
    Program,
    Tests,
}

pub(super) fn check(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings = CheckFindings::new();
    let name_of = |value: &serde_json::Value| {
        value["name"].as_str().map(str::to_owned).context("a name is missing")
    };
    for package in &workspace.packages {
        let name = name_of(package)?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Only our own crates have a path.
            if dependency["path"].is_null() {
                continue;
            }
            let purpose = if dependency["kind"] == "dev" {
                DependencyUse::Tests
            } else {
                DependencyUse::Program
            };
            findings.extend(judge(&name, &name_of(dependency)?, purpose));
        }
        if layer_of(&name).is_none() && ![LEDGER, CHORES].contains(&name.as_str()) {
            findings.push(format!(
                "`{name}` has no place among the layers; give it one in xtask/src/check/layers.rs"
            ));
        }
    }
    Ok(findings)
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

/// Returns the finding about a dependency that is not allowed.
fn judge(from: &str, to: &str, purpose: DependencyUse) -> Option<String> {
    let allowed = match (layer_of(from), layer_of(to)) {
        // With itself as a dependency, a crate has all its features in its tests.
        _ if from == to => purpose == DependencyUse::Tests,
        (Some(upper), Some(lower)) => lower < upper,
        // The conformance crate may use the ledger anywhere, because the crate consists only of
        // tests.
        (Some(_), None) => to == LEDGER && (purpose == DependencyUse::Tests || from == CONFORMANCE),
        (None, _) => from == CHORES && to == LEDGER,
    };
    (!allowed).then(|| {
        format!(
            "`{from}` may not depend on `{to}`{}",
            if purpose == DependencyUse::Tests { ", in tests neither" } else { "" }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: &str, to: &str, purpose: DependencyUse, expected: Option<&str>) {
        assert_eq!(judge(from, to, purpose).as_deref(), expected);
    }

    #[test]
    fn dependencies_go_down() {
        check("ringfence-cli", "ringfence", DependencyUse::Program, None);
        check("ringfence-cli", "ringfence-server", DependencyUse::Program, None);
        check("ringfence-mcp", "ringfence-service", DependencyUse::Program, None);
        check("ringfence", "ringfence-linux", DependencyUse::Program, None);
        check("ringfence", "ringfence-core", DependencyUse::Program, None);
        check("ringfence-egress", "ringfence-proto", DependencyUse::Tests, None);
        check("ringfence", "ringfence-guest", DependencyUse::Program, None);
        check("ringfence", "ringfence", DependencyUse::Tests, None);
    }

    #[test]
    fn dependencies_go_neither_up_nor_sideways() {
        check(
            "ringfence-core",
            "ringfence",
            DependencyUse::Program,
            Some("`ringfence-core` may not depend on `ringfence`"),
        );
        check(
            "ringfence-linux",
            "ringfence-egress",
            DependencyUse::Program,
            Some("`ringfence-linux` may not depend on `ringfence-egress`"),
        );
        check(
            "ringfence-linux",
            "ringfence-attempts",
            DependencyUse::Program,
            Some("`ringfence-linux` may not depend on `ringfence-attempts`"),
        );
        check(
            "ringfence-server",
            "ringfence-mcp",
            DependencyUse::Program,
            Some("`ringfence-server` may not depend on `ringfence-mcp`"),
        );
        check(
            "ringfence-core",
            "ringfence-linux",
            DependencyUse::Tests,
            Some("`ringfence-core` may not depend on `ringfence-linux`, in tests neither"),
        );
    }

    #[test]
    fn the_ledger_serves_tests_and_chores_alone() {
        check("ringfence-linux", LEDGER, DependencyUse::Tests, None);
        check(CHORES, LEDGER, DependencyUse::Program, None);
        check(CONFORMANCE, LEDGER, DependencyUse::Program, None);
        check(
            "ringfence-linux",
            LEDGER,
            DependencyUse::Program,
            Some("`ringfence-linux` may not depend on `ringfence-test-ledger`"),
        );
        check(
            LEDGER,
            "ringfence-core",
            DependencyUse::Program,
            Some("`ringfence-test-ledger` may not depend on `ringfence-core`"),
        );
        check(
            CHORES,
            "ringfence",
            DependencyUse::Program,
            Some("`xtask` may not depend on `ringfence`"),
        );
    }
}
