//! `cargo xtask survey`: measures how easy the code is to read, in the working tree or in a
//! revision.

mod figures;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use self::figures::{CodeFigures, Figure};
use crate::arguments::ChoreArguments;
use crate::workspace::{Workspace, files_below, output_of};

/// Endings of the files that are read.
const EXTENSIONS: [&str; 5] = ["rs", "py", "js", "mjs", "sh"];
/// Heading of the column for the working tree.
const WORKING_TREE: &str = "working tree";
/// The library whose dependencies are counted.
const LIBRARY: &str = "ringfence";

pub(crate) fn run(workspace: &Workspace, mut arguments: ChoreArguments) -> Result<()> {
    let against = arguments.value("--against", "a revision")?;
    let mut rest = arguments.rest(&["--against"])?.into_iter();
    let revision = rest.next();
    ChoreArguments::new(rest).end(&[])?;
    let mut columns = Vec::new();
    if let Some(against) = against {
        columns.push(measure(workspace, Some(&against))?);
    }
    columns.push(measure(workspace, revision.as_deref())?);
    print!("{}", as_markdown(&columns));
    Ok(())
}

/// The figures of one state of the code, and the name of that state.
struct SurveyColumn {
    name: String,
    figures: Vec<Figure>,
}

/// Measures a revision, or the working tree if there is none.
fn measure(workspace: &Workspace, revision: Option<&str>) -> Result<SurveyColumn> {
    let Some(revision) = revision else {
        let figures = measure_directory(workspace, &workspace.root)?;
        return Ok(SurveyColumn { name: WORKING_TREE.to_owned(), figures });
    };
    let directory = tempfile::tempdir()?;
    unpack_revision(workspace, revision, directory.path())?;
    let figures = measure_directory(workspace, directory.path())?;
    Ok(SurveyColumn { name: format!("`{revision}`"), figures })
}

/// Writes the files of a revision to a directory.
fn unpack_revision(workspace: &Workspace, revision: &str, directory: &Path) -> Result<()> {
    let commit = format!("{revision}^{{commit}}");
    let mut git = Command::new("git");
    git.args(["rev-parse", "--verify", "--quiet", &commit]).current_dir(&workspace.root);
    let commit = output_of(&mut git)
        .with_context(|| format!("`{revision}` is no commit of this repository"))?;
    let mut git = Command::new("git");
    git.args(["archive", "--format=tar", commit.trim()]).current_dir(&workspace.root);
    let mut child = git.stdout(Stdio::piped()).spawn().context("cannot run `git archive`")?;
    let archive = child.stdout.take().context("the output of git is not piped")?;
    let unpacked = tar::Archive::new(archive).unpack(directory);
    let status = child.wait().context("cannot wait for git")?;
    unpacked.with_context(|| format!("cannot unpack `{revision}`"))?;
    ensure!(status.success(), "`git archive` ended with {status}");
    Ok(())
}

fn measure_directory(workspace: &Workspace, directory: &Path) -> Result<Vec<Figure>> {
    let mut figures = CodeFigures::default();
    for path in files_below(directory)? {
        let name = path.strip_prefix(directory)?;
        if is_surveyed(name) {
            figures.add_file(name, &fs_err::read_to_string(&path)?);
        }
    }
    let mut figures = figures.into_list();
    // A revision whose dependencies cannot be resolved any more still has all other figures.
    match count_library_crates(workspace, directory.to_owned()) {
        Ok(count) => figures.push(Figure {
            measure: "crates in the default library".to_owned(),
            value: count.to_string(),
        }),
        Err(error) => eprintln!("warning: the crates of the library are not counted: {error:#}"),
    }
    Ok(figures)
}

/// Tells whether a file is code of ours. Files of others are in directories called `vendor`.
fn is_surveyed(name: &Path) -> bool {
    let extension = name.extension().and_then(|extension| extension.to_str());
    let is_foreign = name.iter().any(|part| part == "vendor");
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) && !is_foreign
}

/// Counts the crates that a program with the library's default features builds, the library
/// included.
fn count_library_crates(workspace: &Workspace, directory: PathBuf) -> Result<usize> {
    let mut tree = workspace.cargo(["tree", "--locked", "--package", LIBRARY]);
    tree.args(["--edges", "normal", "--prefix", "none"]).current_dir(directory);
    Ok(unique_crates(&output_of(&mut tree)?).len())
}

/// Lists the crates that `cargo tree --prefix none` names, which repeats a crate with `(*)`.
fn unique_crates(tree: &str) -> BTreeSet<&str> {
    let crates = tree.lines().map(|line| line.trim_end_matches("(*)").trim());
    crates.filter(|name| !name.is_empty()).collect()
}

/// Formats columns beside each other. A measure that a column lacks has a dash there.
fn as_markdown(columns: &[SurveyColumn]) -> String {
    let mut measures: Vec<&str> = Vec::new();
    // The last column is the newest state, whose order counts.
    for figure in columns.iter().rev().flat_map(|column| &column.figures) {
        if !measures.contains(&figure.measure.as_str()) {
            measures.push(&figure.measure);
        }
    }
    let head: String = columns.iter().map(|column| format!(" {} |", column.name)).collect();
    let rule: String = columns.iter().map(|_| "---:|").collect();
    let mut text = format!("| measure |{head}\n|---|{rule}\n");
    for measure in measures {
        let value = |column: &SurveyColumn| {
            let found = column.figures.iter().find(|figure| figure.measure == measure);
            format!(" {} |", found.map_or("–", |figure| figure.value.as_str()))
        };
        text += &format!("| {measure} |{}\n", columns.iter().map(value).collect::<String>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, figures: &[(&str, &str)]) -> SurveyColumn {
        let figure = |(measure, value): &(&str, &str)| Figure {
            measure: (*measure).to_owned(),
            value: (*value).to_owned(),
        };
        SurveyColumn { name: name.to_owned(), figures: figures.iter().map(figure).collect() }
    }

    #[test]
    fn columns_stand_beside_each_other_and_a_missing_figure_is_a_dash() {
        let columns = [
            column("before", &[("lines", "7"), ("files in a", "1")]),
            column("after", &[("lines", "5"), ("files in b", "2")]),
        ];
        let expected = "| measure | before | after |\n|---|---:|---:|\n| lines | 7 | 5 |\n\
                        | files in b | – | 2 |\n| files in a | 1 | – |\n";
        assert_eq!(as_markdown(&columns), expected);
    }

    #[test]
    fn code_of_others_is_not_surveyed() {
        assert!(is_surveyed(Path::new("crates/a/src/page/web/app.js")));
        assert!(!is_surveyed(Path::new("crates/a/src/page/web/vendor/xterm.mjs")));
        assert!(!is_surveyed(Path::new("docs/README.md")));
    }

    #[test]
    fn a_crate_that_the_tree_repeats_counts_once() {
        let tree = "ringfence v0.1.0 (/a)\nlibc v0.2.1\nbytes v1.0.0\nlibc v0.2.1 (*)\n\n";
        assert_eq!(unique_crates(tree).len(), 3);
    }
}
