//! The table of docs/promises.md that has a column for each kernel.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::cells::CELLS;
use super::results::CellReport;
use crate::workspace::Workspace;

/// Heading of the section, which reaches to the end of the document. The conformance tests write
/// the text above the heading.
const HEADING: &str = "## On other kernels\n";
const INTRODUCTION: &str = "
<!-- Written by `cargo xtask kernels --write-promises`; do not edit. -->

Claims for an ordinary user with a login session, as `ringfence doctor` finds them on stock \
Debian kernels in virtual
machines. Where `native` and `bwrap` claim the same, the claim stands once. The last rows count \
the attempts of
`ringfence doctor --prove` that were made there and broke nothing. \
[tests/kernels](../tests/kernels/README.md) says what
else is checked on each.
";
const NOT_RUN: &str = "not run";

/// Texts of the table by row and cell.
type CellTexts = BTreeMap<(String, String), String>;

/// Writes the results of this run into the document, and keeps the columns of cells that did not
/// run.
pub(super) fn write(workspace: &Workspace, reports: &[CellReport]) -> Result<()> {
    let path = workspace.root.join("docs/promises.md");
    let document = fs_err::read_to_string(&path)?;
    let start = document
        .find(HEADING)
        .with_context(|| format!("`{}` has no section for kernels", path.display()))?;
    let section = updated_section(&document[start..], reports);
    fs_err::write(&path, format!("{}{section}", &document[..start]))?;
    println!("wrote {}", path.display());
    Ok(())
}

fn updated_section(section: &str, reports: &[CellReport]) -> String {
    let (mut rows, mut texts) = parse_table(section);
    for report in reports {
        for (row, text) in &report.promises {
            if !rows.contains(row) {
                rows.push(row.clone());
            }
            texts.insert((row.clone(), report.cell.to_owned()), text.clone());
        }
    }
    // Clauses keep the order of `doctor`; proved rows come last.
    rows.sort_by_key(|row| row.starts_with("proved-"));
    let names: Vec<&str> = CELLS.iter().map(|cell| cell.name).collect();
    let mut text = format!("{HEADING}{INTRODUCTION}\n| promise | {} |\n", names.join(" | "));
    text.push_str(&format!("|---|{}\n", "---|".repeat(names.len())));
    for row in rows {
        let find = |cell: &&str| {
            texts.get(&(row.clone(), (*cell).to_owned())).map_or(NOT_RUN, String::as_str)
        };
        let cells: Vec<&str> = names.iter().map(find).collect();
        text.push_str(&format!("| {row} | {} |\n", cells.join(" | ")));
    }
    text
}

fn parse_table(section: &str) -> (Vec<String>, CellTexts) {
    let mut lines = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let names: Vec<&str> =
        lines.next().map(|head| head.split(" | ").skip(1).collect()).unwrap_or_default();
    let mut rows = Vec::new();
    let mut texts = CellTexts::new();
    for line in lines {
        let mut cells = line.split(" | ");
        let row = cells.next().unwrap_or_default().to_owned();
        for (name, text) in names.iter().zip(cells).filter(|(_, text)| *text != NOT_RUN) {
            texts.insert((row.clone(), (*name).to_owned()), text.to_owned());
        }
        rows.push(row);
    }
    (rows, texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cell: &'static str, promises: &[(&str, &str)]) -> CellReport {
        let promises =
            promises.iter().map(|(row, text)| ((*row).to_owned(), (*text).to_owned())).collect();
        CellReport { promises, ..CellReport::new(cell) }
    }

    #[track_caller]
    fn check_row(section: &str, row: &str, expected: &str) {
        let line = section.lines().find(|line| line.starts_with(&format!("| {row} |"))).unwrap();
        assert_eq!(line, expected);
    }

    #[test]
    fn columns_of_cells_that_did_not_run_stay() {
        let first = updated_section(
            "",
            &[report("6.1", &[("hide", "mount namespace"), ("proved-native-dev", "9 of 9")])],
        );
        let second =
            updated_section(&first, &[report("5.10", &[("hide", "absent"), ("tmp", "tmpfs")])]);
        check_row(
            &second,
            "hide",
            "| hide | absent | not run | mount namespace | not run | not run | not run |",
        );
        check_row(
            &second,
            "tmp",
            "| tmp | tmpfs | not run | not run | not run | not run | not run |",
        );
        assert!(second.ends_with(
            "| proved-native-dev | not run | not run | 9 of 9 | not run | not run | not run |\n"
        ));
        assert_eq!(updated_section(&second, &[]), second);
    }
}
