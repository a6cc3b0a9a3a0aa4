//! Subjects of commits: `area: verb object`, short enough for every tool that shows them.

use std::process::Command;

use anyhow::Result;

use super::CheckFindings;
use crate::workspace::{Workspace, output_of};

/// The last commit that was made before subjects were checked.
const LAST_UNCHECKED_COMMIT: &str = "4058d1b800387073468736ee6266fb06970078b4";
const MAX_SUBJECT_LENGTH: usize = 60;
/// Words that open a noun phrase or a clause. An imperative opens with a verb.
const FORBIDDEN_OPENINGS: [&str; 9] =
    ["a", "an", "the", "what", "who", "one", "no", "how", "where"];

pub(super) fn check(workspace: &Workspace) -> Result<CheckFindings> {
    let range = format!("{LAST_UNCHECKED_COMMIT}..HEAD");
    let mut command = Command::new("git");
    command.args(["log", "--no-merges", "--format=%h %s", &range]).current_dir(&workspace.root);
    // A copy of the sources without their history has no subjects.
    let Ok(subjects) = output_of(&mut command) else { return Ok(CheckFindings::new()) };
    Ok(subjects.lines().filter_map(|line| line.split_once(' ')).filter_map(judge).collect())
}

fn judge((commit, subject): (&str, &str)) -> Option<String> {
    let length = subject.chars().count();
    if length > MAX_SUBJECT_LENGTH {
        return Some(format!(
            "{commit} `{subject}`: {length} characters, more than {MAX_SUBJECT_LENGTH}"
        ));
    }
    let is_area = |area: &&str| {
        let is_plain = |character: char| {
            character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-'
        };
        !area.is_empty() && area.chars().all(is_plain)
    };
    let described = subject.split_once(": ").filter(|(area, _)| is_area(area));
    let Some((_, action)) = described else {
        return Some(format!(
            "{commit} `{subject}`: begin with the area that changes, as in `egress: refuse …`"
        ));
    };
    let opening = action.split_whitespace().next().unwrap_or_default();
    let is_noun_phrase = FORBIDDEN_OPENINGS.contains(&opening.to_lowercase().as_str());
    is_noun_phrase.then(|| {
        format!("{commit} `{subject}`: say with a verb what the commit does, not `{opening}`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_an_area_and_an_imperative() {
        assert_eq!(judge(("1a", "serve: keep a workspace until its sandbox is gone")), None);
        let nouns = judge(("1a", "serve: what may still be there keeps its files"));
        let expected = "1a `serve: what may still be there keeps its files`: say with a verb what \
                        the commit does, \
                        not `what`";
        assert_eq!(nouns.as_deref(), Some(expected));
        let expected =
            "1a `Keep a workspace`: begin with the area that changes, as in `egress: refuse …`";
        assert_eq!(judge(("1a", "Keep a workspace")).as_deref(), Some(expected));
        let long = format!("serve: keep {}", "x".repeat(MAX_SUBJECT_LENGTH));
        assert!(
            judge(("1a", &long))
                .is_some_and(|finding| finding.ends_with("72 characters, more than 60"))
        );
    }
}
