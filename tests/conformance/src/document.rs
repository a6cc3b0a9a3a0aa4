//! `docs/promises.md`: the claims of each backend, and the outcome of every attempt.

use std::collections::BTreeMap;
use std::fmt::Write;

use ringfence::prove::{Certificate, Verdict, corpus};
use ringfence::{Clause, Support};

use crate::{BackendSetup, BackendVariant};

/// Text of a cell that this host could not test. Another host may fill the cell.
const NOT_TESTED: &str = "not tested";

const INTRODUCTION: &str = "\
# Promises

<!-- Written by the conformance tests with RINGFENCE_BLESS=1; do not edit. -->

What each backend promises, and what becomes of everything that is tried against it. Every \
attempt is a pair: *held*
means that it was denied inside a sandbox, and that the very same attempt gets through without \
one. *Gets through* stands
only where the backend does not claim the promise, and then refuses to start unless that is \
accepted by name
(`--allow-weaker`). *Not tested* means that the host of this run does not have what the attempt \
would need. Each is made
as root and as an ordinary user, as far as a backend serves both; `ringfence doctor --prove` \
makes them on your host.
";

/// Heading of the section that `cargo xtask kernels --write-promises` writes, which reaches to the
/// end of the document.
const KERNELS_HEADING: &str = "## On other kernels\n";

const BYPASSES: &str = "\
### egress

These take servers, names and certificates of their own, in a network that leads nowhere: the \
tests make them, and
`ringfence doctor --prove` does not. *Held* means that the attempt was denied for the reason that \
its table names, that
no server saw anything of it, and that it gets through where there is no sandbox, and a proxy \
that lets all pass.
";

/// Outcomes of the attempts to bypass an allowlist, which need a network of their own.
#[derive(Debug, Default)]
pub struct BypassOutcomes {
    /// Mechanism that enforces the allowlist, as each backend claims.
    pub claims: BTreeMap<BackendVariant, String>,
    attempts: Vec<BypassAttempt>,
}

#[derive(Debug)]
struct BypassAttempt {
    name: String,
    what: String,
    is_held: BTreeMap<BackendVariant, bool>,
}

impl BypassOutcomes {
    /// Adds an attempt and its outcome. `is_held` is `None` if the attempt was not made or proves
    /// nothing.
    pub fn add(&mut self, name: &str, what: &str, variant: BackendVariant, is_held: Option<bool>) {
        let index =
            self.attempts.iter().position(|attempt| attempt.name == name).unwrap_or_else(|| {
                let attempt = BypassAttempt {
                    name: name.to_owned(),
                    what: what.to_owned(),
                    is_held: BTreeMap::new(),
                };
                self.attempts.push(attempt);
                self.attempts.len() - 1
            });
        self.attempts[index].is_held.extend(is_held.map(|is_held| (variant, is_held)));
    }
}

/// The certificates of every setup.
pub type Certificates = BTreeMap<BackendSetup, Certificate>;

/// Writes the text of the document.
pub fn write(certificates: &Certificates, bypasses: &BypassOutcomes) -> String {
    let mut text = INTRODUCTION.to_owned();
    let titles = BackendVariant::DOCUMENTED.map(BackendVariant::title).join(" | ");
    let rules = "---|".repeat(BackendVariant::DOCUMENTED.len());
    // Writing to a String never fails.
    let _ = write!(text, "\n## What is claimed\n\n| promise | {titles} |\n|---|{rules}\n");
    for clause in Clause::ALL {
        let claims =
            BackendVariant::DOCUMENTED.map(|variant| match bypasses.claims.get(&variant) {
                Some(claim) if clause == Clause::Egress => claim.clone(),
                _ => claim(certificates, variant, clause),
            });
        let claims = claims.join(" | ");
        // Writing to a String never fails.
        let _ = writeln!(text, "| **{clause}**: {} | {claims} |", clause.promise());
    }
    text.push_str("\n## What is tried\n");
    for clause in Clause::ALL {
        let mut attempts = corpus().iter().filter(|attempt| attempt.clause == clause).peekable();
        if attempts.peek().is_none() {
            continue;
        }
        // Writing to a String never fails.
        let _ = write!(
            text,
            "\n### {clause}\n\n| attempt | what is tried | {titles} |\n|---|---|{rules}\n"
        );
        for attempt in attempts {
            let cells = BackendVariant::DOCUMENTED
                .map(|variant| outcome(certificates, variant, clause, attempt.name))
                .join(" | ");
            // Writing to a String never fails.
            let _ = writeln!(text, "| `{}` | {} | {cells} |", attempt.name, attempt.what);
        }
    }
    // Writing to a String never fails.
    let _ =
        write!(text, "\n{BYPASSES}\n| attempt | what is tried | {titles} |\n|---|---|{rules}\n");
    for attempt in &bypasses.attempts {
        let cell = |variant: BackendVariant| match attempt.is_held.get(&variant) {
            Some(true) => "held",
            Some(false) => "gets through",
            None => NOT_TESTED,
        };
        let cells = BackendVariant::DOCUMENTED.map(cell).join(" | ");
        // Writing to a String never fails.
        let _ = writeln!(text, "| `{}` | {} | {cells} |", attempt.name, attempt.what);
    }
    text
}

/// Splits the document before the section about other kernels, which the conformance tests do not
/// write.
pub fn split_kernels(document: &str) -> (&str, &str) {
    document.split_at(document.find(KERNELS_HEADING).unwrap_or(document.len()))
}

/// Returns the document `found`, in which cells that this host could not test have the text of the
/// document `written`.
pub fn completed(found: &str, written: &str) -> String {
    let known: BTreeMap<_, _> = cells(written).filter(|(_, cell)| *cell != NOT_TESTED).collect();
    let mut titles = Vec::new();
    let complete = |line: &str| {
        let Some(row) = row(line) else { return line.to_owned() };
        if is_head(&row) {
            titles = row.iter().map(|title| (*title).to_owned()).collect();
        }
        let cell = |(cell, title): (&&str, &String)| match *cell {
            NOT_TESTED => known.get(&(row[0], title.as_str())).unwrap_or(cell).to_string(),
            tested => tested.to_owned(),
        };
        format!("| {} |", row.iter().zip(&titles).map(cell).collect::<Vec<_>>().join(" | "))
    };
    found.lines().map(complete).map(|line| line + "\n").collect()
}

/// Returns every cell of a document's tables, keyed by the first cell of its row and the title of
/// its column.
fn cells(text: &str) -> impl Iterator<Item = ((&str, &str), &str)> {
    let mut titles = Vec::new();
    text.lines().filter_map(row).flat_map(move |row| {
        if is_head(&row) {
            titles.clone_from(&row);
        }
        let named = titles.iter().zip(&row).map(|(title, cell)| ((row[0], *title), *cell));
        named.collect::<Vec<_>>()
    })
}

fn row(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect())
}

fn is_head(row: &[&str]) -> bool {
    ["promise", "attempt"].contains(&row[0])
}

/// Returns the pairs of lines in which two documents contradict each other. A cell that either host
/// could not test contradicts nothing.
pub fn contradictions<'a>(written: &'a str, found: &'a str) -> Vec<(&'a str, &'a str)> {
    let agrees = |(ours, theirs): &(&str, &str)| {
        let (mut left, mut right) = (ours.split(" | "), theirs.split(" | "));
        loop {
            match (left.next(), right.next()) {
                (None, None) => return true,
                (Some(one), Some(other)) if is_same(one, other) => {}
                _ => return false,
            }
        }
    };
    let longest = written.lines().count().max(found.lines().count());
    let padded = |text: &'a str| text.lines().chain(std::iter::repeat("")).take(longest);
    padded(written).zip(padded(found)).filter(|pair| !agrees(pair)).collect()
}

fn is_same(one: &str, other: &str) -> bool {
    let cell = |text: &'static str| move |cell: &str| cell.trim_end_matches(" |") == text;
    let is_untested = cell(NOT_TESTED);
    one == other || is_untested(one) || is_untested(other)
}

/// Returns the claim of a backend, in words that do not depend on the host.
fn claim(certificates: &Certificates, variant: BackendVariant, clause: Clause) -> String {
    if variant.depends_on_host(clause) {
        return "cgroup, where the host delegates it".to_owned();
    }
    let setup = BackendSetup { variant, caller: variant.callers()[0] };
    let Some(certificate) = certificates.get(&setup) else { return NOT_TESTED.to_owned() };
    let promise = certificate.promises.get(&clause);
    match promise.map(|promise| &promise.claimed) {
        Some(Support::Enforced { .. } | Support::Weaker { .. }) if clause == Clause::Memory => {
            "cgroup v2; weaker on cgroup v1".to_owned()
        }
        Some(Support::Enforced { by }) => {
            by.replace("cgroup v1", "cgroup").replace("cgroup v2", "cgroup")
        }
        Some(Support::Weaker { how }) => format!("weaker: {how}"),
        Some(Support::Absent { .. }) | None => "absent".to_owned(),
    }
}

/// Ranks a claim by the strength of its promise.
fn strength(claimed: &Support) -> u8 {
    match claimed {
        Support::Absent { .. } => 0,
        Support::Weaker { .. } => 1,
        Support::Enforced { .. } => 2,
    }
}

/// Returns the outcome of an attempt for all callers. If one caller is promised more than another,
/// as root is with limits, only the stronger promise counts.
fn outcome(
    certificates: &Certificates,
    variant: BackendVariant,
    clause: Clause,
    attempt: &str,
) -> &'static str {
    let on_variant = certificates.iter().filter(|(setup, _)| setup.variant == variant);
    let promises: Vec<_> =
        on_variant.filter_map(|(_, certificate)| certificate.promises.get(&clause)).collect();
    let best = promises.iter().map(|promise| strength(&promise.claimed)).max().unwrap_or_default();
    let is_claimed = promises.iter().any(|promise| promise.claimed.is_enforced());
    if variant.depends_on_host(clause) && !is_claimed {
        return NOT_TESTED;
    }
    let counted = promises.iter().filter(|promise| strength(&promise.claimed) == best);
    let proofs =
        counted.flat_map(|promise| &promise.proofs).filter(|proof| proof.attempt == attempt);
    let verdicts: Vec<&Verdict> = proofs.map(|proof| &proof.verdict).collect();
    if verdicts.contains(&&Verdict::Broken) && clause == Clause::Memory && !is_claimed {
        NOT_TESTED // on a host with cgroup v2 the promise is held
    } else if verdicts.contains(&&Verdict::Broken) {
        "gets through"
    } else if verdicts.contains(&&Verdict::Held) {
        "held"
    } else {
        NOT_TESTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untested_cells_of_a_host_contradict_no_document() {
        let row = |one: &str, other: &str| format!("| `a` | tries | {one} | {other} |");
        let (held, partly) = (row("held", "held"), row("held", NOT_TESTED));
        assert!(contradictions(&held, &partly).is_empty());
        assert!(contradictions(&partly, &row(NOT_TESTED, "gets through")).is_empty());
        assert_eq!(contradictions(&held, &row("held", "gets through")).len(), 1);
        assert_eq!(contradictions(&held, "").len(), 1);
        assert_eq!(contradictions(&held, &format!("{held}\n{held}")).len(), 1);
    }

    #[test]
    fn untested_cells_keep_the_result_of_another_host() {
        let table = |head: &str, row: &str| {
            format!("text\n| attempt | {head} |\n|---|---|\n| `a` | {row} |\n")
        };
        let written = table("one | two", "held | gets through");
        let complete = |row: &str| completed(&table("one | two", row), &written);
        assert_eq!(complete("not tested | not tested"), written);
        assert_eq!(
            complete("gets through | not tested"),
            table("one | two", "gets through | gets through")
        );
        let found = table("two | three", "not tested | not tested");
        assert_eq!(completed(&found, &written), table("two | three", "gets through | not tested"));
    }

    #[test]
    fn without_certificates_every_cell_is_untested() {
        let text = write(&Certificates::new(), &BypassOutcomes::default());
        let untested = |count| " not tested |".repeat(count);
        let variants = BackendVariant::DOCUMENTED.len();
        assert!(
            text.contains(&format!(
                "cannot be read, even inside the workspace |{}",
                untested(variants)
            )),
            "{text}"
        );
        let row =
            format!("| `read-outside` | read a file outside by its path |{}", untested(variants));
        assert!(text.contains(&row), "{text}");
    }
}
