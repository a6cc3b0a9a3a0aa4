//! Documentation comments: each names its subject, and says more than a name does.

use std::path::Path;

use anyhow::Result;

use super::CheckFindings;
use crate::workspace::{Workspace, files_below};

/// Words that a documentation comment has at least.
const MIN_WORDS: usize = 3;
/// Words with which no documentation comment opens, because they stand in for a noun.
pub(crate) const STAND_INS: [&str; 8] =
    ["What", "Who", "Whose", "Where", "Whether", "Which", "That", "How"];

pub(super) fn check(workspace: &Workspace) -> Result<CheckFindings> {
    let mut findings = CheckFindings::new();
    for path in files_below(&workspace.root)? {
        let name = path.strip_prefix(&workspace.root)?;
        if name.extension().is_some_and(|extension| extension == "rs") {
            findings.extend(judge_comments(name, &fs_err::read_to_string(&path)?));
        }
    }
    Ok(findings)
}

fn judge_comments(name: &Path, text: &str) -> CheckFindings {
    let mut findings = CheckFindings::new();
    for (line, comment) in doc_comments(text) {
        let mut words = comment.split_whitespace();
        let opening = words.clone().next().unwrap_or_default();
        if STAND_INS.contains(&opening) {
            findings.push(format!(
                "{}:{line}: name the subject instead of `{opening}`",
                name.display()
            ));
        }
        if words.by_ref().take(MIN_WORDS).count() < MIN_WORDS {
            let advice = "say more than the name does, or delete the comment";
            findings.push(format!("{}:{line}: {advice}: `{comment}`", name.display()));
        }
    }
    findings
}

/// Lists the documentation comments of a file: the number of the first line, and the text.
pub(crate) fn doc_comments(text: &str) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut previous = None;
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim_start();
        let marker = ["///", "//!"].into_iter().find(|marker| line.starts_with(marker));
        // Four slashes are no documentation.
        let marker = marker.filter(|_| !line.starts_with("////"));
        if let Some(marker) = marker {
            let content = line[marker.len()..].trim();
            match comments.last_mut().filter(|_| previous == Some(marker)) {
                Some((_, comment)) => {
                    comment.push(' ');
                    comment.push_str(content);
                }
                None => comments.push((number, content.to_owned())),
            }
        }
        previous = marker;
    }
    comments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_comments(text: &str, expected: &[&str]) {
        assert_eq!(judge_comments(Path::new("a.rs"), text), expected);
    }

    #[test]
    fn a_comment_that_opens_without_its_subject_is_found() {
        check_comments(
            "/// Where the file is kept.\n",
            &["a.rs:1: name the subject instead of `Where`"],
        );
        check_comments("/// Directory of the file.\n/// Where there is none, the home.\n", &[]);
        check_comments("//// Where four slashes are\n// Which is no documentation\n", &[]);
    }

    #[test]
    fn a_comment_that_says_nothing_is_found() {
        let advice = "say more than the name does, or delete the comment";
        check_comments("struct A;\n/// Its name.\n", &[&format!("a.rs:2: {advice}: `Its name.`")]);
        check_comments("/// A long\n/// sentence.\n", &[]);
    }
}
