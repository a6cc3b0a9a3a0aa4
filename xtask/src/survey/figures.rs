//! The figures of a tree of source files, counted file by file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::check::prose::{STAND_INS, doc_comments};
use crate::check::source::{MAX_LINE_WIDTH, code_of, comments_of};
use crate::check::type_names::{definitions, package_of};

/// Words up to which a documentation comment counts as short.
const SHORT_COMMENT_WORDS: usize = 4;
/// Directory of the command line, whose length shows whether it is a thin layer.
const COMMAND_LINE: &str = "crates/ringfence-cli/src";

/// One measure of the code, and its value as text.
pub(super) struct Figure {
    pub(super) measure: String,
    pub(super) value: String,
}

/// Counts over the files that were added so far.
#[derive(Default)]
pub(super) struct CodeFigures {
    /// Names of defined types, each with the crate that defines it.
    types: Vec<(PathBuf, String)>,
    doc_comments: usize,
    short_doc_comments: usize,
    /// Documentation comments that open with a stand-in, by the stand-in.
    stand_ins: BTreeMap<&'static str, usize>,
    line_comments: usize,
    code_lines: usize,
    wide_rust_lines: usize,
    wide_script_lines: usize,
    command_line_lines: usize,
    /// Number of Rust files directly in each folder of each crate.
    folders: BTreeMap<PathBuf, BTreeMap<PathBuf, usize>>,
}

impl CodeFigures {
    /// Adds a file, whose name is relative to the root of the workspace.
    pub(super) fn add_file(&mut self, name: &Path, text: &str) {
        let wide = text.lines().filter(|line| line.chars().count() > MAX_LINE_WIDTH).count();
        if name.extension().is_none_or(|extension| extension != "rs") {
            self.wide_script_lines += wide;
            return;
        }
        self.wide_rust_lines += wide;
        let Some(package) = package_of(name) else { return };
        let types = definitions(text).into_iter().map(|(_, name)| (package.clone(), name));
        self.types.extend(types);
        for (_, comment) in doc_comments(text) {
            self.add_doc_comment(&comment);
        }
        self.line_comments += comments_of(text).filter(|comment| is_line_comment(comment)).count();
        self.code_lines += code_of(text).lines().filter(|line| !line.trim().is_empty()).count();
        if name.starts_with(COMMAND_LINE) {
            self.command_line_lines += text.lines().count();
        }
        let folder = name.parent().unwrap_or(name).to_owned();
        *self.folders.entry(package).or_default().entry(folder).or_default() += 1;
    }

    fn add_doc_comment(&mut self, comment: &str) {
        let mut words = comment.split_whitespace();
        self.doc_comments += 1;
        if words.clone().count() <= SHORT_COMMENT_WORDS {
            self.short_doc_comments += 1;
        }
        let opening = words.next().unwrap_or_default().trim_end_matches(['.', ',', ':']);
        if let Some(stand_in) = STAND_INS.iter().find(|stand_in| **stand_in == opening) {
            *self.stand_ins.entry(stand_in).or_default() += 1;
        }
    }

    /// Returns all figures in the order in which they are printed.
    pub(super) fn into_list(self) -> Vec<Figure> {
        let types = self.types.len();
        let names = self.types.iter().map(|(_, name)| name.as_str());
        let one_word = names.clone().filter(|name| is_one_word(name)).count();
        let stand_ins: usize = self.stand_ins.values().sum();
        let mut figures = vec![
            figure("type definitions", types),
            figure(
                "type definitions whose name the crate defines again",
                share(count_shared(self.types.iter()), types),
            ),
            figure(
                "type definitions whose name the workspace defines again",
                share(count_shared(names), types),
            ),
            figure("type definitions with a name of one word", share(one_word, types)),
            figure("documentation comments", self.doc_comments),
            figure(
                "documentation comments that open with a stand-in for a noun",
                share(stand_ins, self.doc_comments),
            ),
        ];
        for stand_in in STAND_INS {
            let count = self.stand_ins.get(stand_in).copied().unwrap_or_default();
            figures.push(figure(
                &format!("documentation comments that open with “{stand_in}”"),
                share(count, self.doc_comments),
            ));
        }
        figures.extend([
            figure(
                "documentation comments of four words or fewer",
                share(self.short_doc_comments, self.doc_comments),
            ),
            figure("lines of code", self.code_lines),
            figure(
                "line comments per 100 lines of code",
                format!("{:.1}", percentage(self.line_comments, self.code_lines)),
            ),
            figure("lines over 100 columns in Rust", self.wide_rust_lines),
            figure(
                "lines over 100 columns in Python, JavaScript and shell",
                self.wide_script_lines,
            ),
            figure("lines in `ringfence-cli`", self.command_line_lines),
        ]);
        figures.extend(self.folders.iter().filter_map(|(package, folders)| {
            let (folder, files) = folders.iter().max_by_key(|(_, files)| **files)?;
            let folder = folder.strip_prefix(package).unwrap_or(folder).display();
            let measure = format!("most files in one folder of `{}`", package.display());
            Some(figure(&measure, format!("{files} (`{folder}`)")))
        }));
        figures
    }
}

fn figure(measure: &str, value: impl ToString) -> Figure {
    Figure { measure: measure.to_owned(), value: value.to_string() }
}

/// Formats a count and its share of a whole.
fn share(count: usize, whole: usize) -> String {
    format!("{count} ({:.1} %)", percentage(count, whole))
}

fn percentage(count: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { count as f64 * 100.0 / whole as f64 }
}

/// Counts the items that are equal to another item.
fn count_shared<T: Ord>(items: impl Iterator<Item = T>) -> usize {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    for item in items {
        *counts.entry(item).or_default() += 1;
    }
    counts.into_values().filter(|count| *count > 1).sum()
}

/// Tells whether a type name such as `Sandbox`, unlike `SandboxId`, has one word.
///
/// A word starts at a capital letter that follows a small letter or a digit, or that a small letter
/// follows.
fn is_one_word(name: &str) -> bool {
    let characters: Vec<char> = name.chars().collect();
    let starts_word = |index: usize| {
        let follows_small = !characters[index - 1].is_uppercase();
        let precedes_small = characters.get(index + 1).is_some_and(|next| next.is_lowercase());
        characters[index].is_uppercase() && (follows_small || precedes_small)
    };
    !(1..characters.len()).any(starts_word)
}

/// Tells a comment in the code from documentation and from a block comment.
fn is_line_comment(comment: &str) -> bool {
    let is_documentation =
        comment.starts_with("//!") || (comment.starts_with("///") && !comment.starts_with("////"));
    comment.starts_with("//") && !is_documentation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[(&str, &str)]) {
        let mut figures = CodeFigures::default();
        for (name, text) in files {
            figures.add_file(Path::new(name), text);
        }
        let figures = figures.into_list();
        for (measure, value) in expected {
            let found = figures.iter().find(|figure| figure.measure == *measure);
            assert_eq!(found.map(|figure| figure.value.as_str()), Some(*value), "{measure}");
        }
    }

    #[test]
    fn a_name_is_shared_within_its_crate_or_with_another_crate() {
        check(
            &[
                ("crates/a/src/lib.rs", "struct Place;\nstruct SandboxId;\n"),
                ("crates/a/src/b.rs", "enum Place {}\ntrait GuestPath {}\n"),
                ("crates/c/src/lib.rs", "struct GuestPath;\n"),
                ("examples/d.rs", "struct GuestPath;\n"),
            ],
            &[
                ("type definitions", "5"),
                ("type definitions whose name the crate defines again", "2 (40.0 %)"),
                ("type definitions whose name the workspace defines again", "4 (80.0 %)"),
                ("type definitions with a name of one word", "2 (40.0 %)"),
            ],
        );
    }

    #[test]
    fn words_of_a_name_start_at_capital_letters() {
        for name in ["Sandbox", "E2b", "IO", "T", "Ipv4"] {
            assert!(is_one_word(name), "{name}");
        }
        for name in ["SandboxId", "IOError", "Ipv4Address", "ABox"] {
            assert!(!is_one_word(name), "{name}");
        }
    }

    #[test]
    fn documentation_comments_are_counted_by_opening_and_length() {
        let text = "/// Where it is.\nstruct A;\n/// Directory of\n/// all the files there.\n\
                    struct B;\n/// How.\nstruct C;\n/// Where the path that leads there ends.\n";
        check(
            &[("crates/a/src/lib.rs", text)],
            &[
                ("documentation comments", "4"),
                ("documentation comments that open with a stand-in for a noun", "3 (75.0 %)"),
                ("documentation comments that open with “Where”", "2 (50.0 %)"),
                ("documentation comments that open with “How”", "1 (25.0 %)"),
                ("documentation comments that open with “Who”", "0 (0.0 %)"),
                ("documentation comments of four words or fewer", "2 (50.0 %)"),
            ],
        );
    }

    #[test]
    fn line_comments_are_counted_without_documentation_and_strings() {
        let text = "//! Documentation.\n\n// One.\nfn a() {\n    b(\"// none\"); // Two.\n}\n\
                    /* block */\n";
        check(
            &[("crates/a/src/lib.rs", text)],
            &[("lines of code", "3"), ("line comments per 100 lines of code", "66.7")],
        );
    }

    #[test]
    fn wide_lines_of_scripts_are_counted_apart() {
        let wide = format!("# {}\n# {}\n", "x".repeat(98), "y".repeat(99));
        check(
            &[("tests/a.py", &wide), ("examples/a.rs", &wide), ("examples/b.sh", &wide)],
            &[
                ("lines over 100 columns in Rust", "1"),
                ("lines over 100 columns in Python, JavaScript and shell", "2"),
            ],
        );
    }

    #[test]
    fn files_count_for_the_folder_that_holds_them() {
        check(
            &[
                ("crates/ringfence-cli/src/main.rs", "fn main() {\n}\n"),
                ("crates/ringfence-cli/src/cli/a.rs", "fn a() {}\n"),
                ("crates/ringfence-cli/src/cli/b.rs", "fn b() {}\n"),
                ("crates/ringfence-cli/tests/it/main.rs", "fn c() {}\n"),
            ],
            &[
                ("lines in `ringfence-cli`", "4"),
                ("most files in one folder of `crates/ringfence-cli`", "2 (`src/cli`)"),
            ],
        );
    }
}
