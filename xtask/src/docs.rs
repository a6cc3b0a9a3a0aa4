//! `cargo xtask docs`: writes the documents that are generated from the code.
//!
//! The binary itself writes the documents (`ringfence generate DIR`): man pages, completions, the
//! reference and the JSON Schemas.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::arguments::ChoreArguments;
use crate::workspace::{Workspace, files_below, run as run_command};

pub(crate) fn run(workspace: &Workspace, mut arguments: ChoreArguments) -> Result<()> {
    let check_only = arguments.flag("--check");
    arguments.end(&["--check"])?;
    if check_only { check(workspace) } else { write(workspace) }
}

fn write(workspace: &Workspace) -> Result<()> {
    generate(workspace, &workspace.root.join("docs"))
}

/// Fails if a generated document differs from the checked-in document, or if a checked-in document
/// is no longer generated.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let fresh = tempfile::tempdir()?;
    generate(workspace, fresh.path())?;
    let stale = find_differences(fresh.path(), &workspace.root.join("docs"))?;
    let names =
        stale.iter().map(|path| format!("docs/{}", path.display())).collect::<Vec<_>>().join(", ");
    ensure!(
        stale.is_empty(),
        "not as the code would generate: {names}; run `cargo xtask docs` and commit the result"
    );
    Ok(())
}

fn generate(workspace: &Workspace, directory: &Path) -> Result<()> {
    workspace.build_everything()?;
    run_command(
        Command::new(workspace.target.join("debug/ringfence")).arg("generate").arg(directory),
    )
}

/// Returns the files that differ between the generated tree and the checked-in tree, which also has
/// hand-written pages.
///
/// Every file of a generated directory is generated. A checked-in file there that is no longer
/// generated is therefore a difference.
fn find_differences(fresh: &Path, kept: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut different = BTreeSet::new();
    for path in files_below(fresh)? {
        let name = path.strip_prefix(fresh)?;
        if fs_err::read(kept.join(name)).ok() != Some(fs_err::read(&path)?) {
            different.insert(name.to_owned());
        }
        let directory = name.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(directory) =
            directory.map(|directory| kept.join(directory)).filter(|path| path.is_dir())
        {
            for path in files_below(&directory)? {
                let name = path.strip_prefix(kept)?;
                if !fresh.join(name).exists() {
                    different.insert(name.to_owned());
                }
            }
        }
    }
    Ok(different)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = directory.path().join(name);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        }
        directory
    }

    #[track_caller]
    fn check(fresh: &[(&str, &str)], kept: &[(&str, &str)], expected: &[&str]) {
        let found = find_differences(tree(fresh).path(), tree(kept).path()).unwrap();
        assert_eq!(found, expected.iter().map(PathBuf::from).collect());
    }

    #[test]
    fn pages_written_by_hand_are_no_difference() {
        check(
            &[("man/a.1", "x")],
            &[("man/a.1", "x"), ("guide.md", "y"), ("guides/b.md", "z")],
            &[],
        );
    }

    #[test]
    fn changed_missing_and_left_over_documents_are_differences() {
        check(
            &[("man/a.1", "new"), ("man/b.1", "x"), ("promises.md", "p")],
            &[("man/a.1", "old"), ("man/c.1", "x"), ("promises.md", "p")],
            &["man/a.1", "man/b.1", "man/c.1"],
        );
    }
}
