//! Check of the dependencies between our crates: command line → services → library → launcher,
//! proxy → core, protocol.

use anyhow::{Context, Result};

use super::Findings;
use crate::workspace::Workspace;

/// The crates from the bottom up. A crate may depend on a crate of a lower layer, but not on a
/// crate of its own or a higher layer.
const LAYERS: &[&[&str]] = &[
    &["ringfence-core", "ringfence-proto"],
    &["ringfence-linux", "ringfence-egress"],
    &["ringfence", "ringfence-guest"],
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
enum Use {
    Program,
    Tests,
}

pub(super) fn check(workspace: &Workspace) -> Result<Findings> {
    let mut findings = Findings::new();
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
            let purpose = if dependency["kind"] == "dev" { Use::Tests } else { Use::Program };
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
fn judge(from: &str, to: &str, purpose: Use) -> Option<String> {
    let allowed = match (layer_of(from), layer_of(to)) {
        (Some(upper), Some(lower)) => lower < upper,
        // The conformance crate may use the ledger anywhere, because the crate consists only of
        // tests.
        (Some(_), None) => to == LEDGER && (purpose == Use::Tests || from == CONFORMANCE),
        (None, _) => from == CHORES && to == LEDGER,
    };
    (!allowed).then(|| {
        format!(
            "`{from}` may not depend on `{to}`{}",
            if purpose == Use::Tests { ", in tests neither" } else { "" }
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: &str, to: &str, purpose: Use, expected: Option<&str>) {
        assert_eq!(judge(from, to, purpose).as_deref(), expected);
    }

    #[test]
    fn dependencies_go_down() {
        check("ringfence-cli", "ringfence", Use::Program, None);
        check("ringfence-cli", "ringfence-server", Use::Program, None);
        check("ringfence-mcp", "ringfence-service", Use::Program, None);
        check("ringfence", "ringfence-linux", Use::Program, None);
        check("ringfence", "ringfence-core", Use::Program, None);
        check("ringfence-egress", "ringfence-proto", Use::Tests, None);
    }

    #[test]
    fn dependencies_go_neither_up_nor_sideways() {
        check(
            "ringfence-core",
            "ringfence",
            Use::Program,
            Some("`ringfence-core` may not depend on `ringfence`"),
        );
        check(
            "ringfence-linux",
            "ringfence-egress",
            Use::Program,
            Some("`ringfence-linux` may not depend on `ringfence-egress`"),
        );
        check(
            "ringfence-server",
            "ringfence-mcp",
            Use::Program,
            Some("`ringfence-server` may not depend on `ringfence-mcp`"),
        );
        check(
            "ringfence-core",
            "ringfence-linux",
            Use::Tests,
            Some("`ringfence-core` may not depend on `ringfence-linux`, in tests neither"),
        );
    }

    #[test]
    fn the_ledger_serves_tests_and_chores_alone() {
        check("ringfence-linux", LEDGER, Use::Tests, None);
        check(CHORES, LEDGER, Use::Program, None);
        check(CONFORMANCE, LEDGER, Use::Program, None);
        check(
            "ringfence-linux",
            LEDGER,
            Use::Program,
            Some("`ringfence-linux` may not depend on `ringfence-test-ledger`"),
        );
        check(
            LEDGER,
            "ringfence-core",
            Use::Program,
            Some("`ringfence-test-ledger` may not depend on `ringfence-core`"),
        );
        check(CHORES, "ringfence", Use::Program, Some("`xtask` may not depend on `ringfence`"));
    }
}
