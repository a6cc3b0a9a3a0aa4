//! Check of the library's cargo features: it builds with each of them alone, and a program that
//! embeds the library without features gets few other crates with it.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::workspace::{Workspace, output_of, run as run_command};

/// Features that are built alone. The rest of the checks builds the library with all of them.
const FEATURES: [&str; 6] = ["", "code", "containers", "egress", "kubernetes", "ssh"];
/// Limit on the crates that the library without features consists of, with itself.
const MAX_CRATES: usize = 119;

pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let tree = output_of(
        workspace
            .cargo(["tree", "--package", "ringfence", "--edges", "normal"])
            .args(["--prefix", "none", "--format", "{p}"]),
    )?;
    let count = count_crates(&tree);
    ensure!(count <= MAX_CRATES, "the library has {count} crates, more than {MAX_CRATES}");
    for feature in FEATURES {
        run_command(
            workspace
                .cargo(["clippy", "--package", "ringfence", "--lib", "--features", feature])
                .args(["--", "-D", "warnings"]),
        )?;
    }
    println!("   the library without features has {count} crates");
    Ok(())
}

/// Counts the crates in the output of `cargo tree`, which lists a crate once for each dependent.
fn count_crates(tree: &str) -> usize {
    let names = tree.lines().map(|line| line.split(" (").next().unwrap_or(line));
    names.filter(|name| !name.is_empty()).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_counts_once_and_each_version_counts() {
        let tree = "own v0.1.0 (/own)\nserde v1.0.0\nserde v1.0.0 (*)\n\nserde v2.0.0\n";
        assert_eq!(count_crates(tree), 3);
    }
}
