//! Check of the names of types: a crate defines a name once, so that a reader who searches for the
//! name finds one type.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::CheckFindings;
use super::source::code_of;
use crate::workspace::{Workspace, files_below};

/// Keywords that define a type.
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "union", "type"];

pub(super) fn check(workspace: &Workspace) -> Result<CheckFindings> {
    let mut places: BTreeMap<(PathBuf, String), Vec<String>> = BTreeMap::new();
    for path in files_below(&workspace.root)? {
        let name = path.strip_prefix(&workspace.root)?;
        let is_source = name.extension().is_some_and(|extension| extension == "rs");
        let Some(package) = package_of(name).filter(|_| is_source) else { continue };
        for (line, defined) in definitions(&fs_err::read_to_string(&path)?) {
            let place = format!("{}:{line}", name.display());
            places.entry((package.clone(), defined)).or_default().push(place);
        }
    }
    let twice = places.into_iter().filter(|(_, places)| places.len() > 1);
    Ok(twice
        .map(|((_, name), places)| format!("`{name}` is defined at {}", places.join(" and ")))
        .collect())
}

/// Returns the directory of the crate that a file belongs to.
pub(crate) fn package_of(file: &Path) -> Option<PathBuf> {
    let parts: Vec<_> = file.components().take(2).collect();
    match parts.first()?.as_os_str().to_str()? {
        "crates" | "tests" => Some(parts.iter().collect()),
        "xtask" => Some("xtask".into()),
        _ => None,
    }
}

/// Returns the names of the types that a file defines at the level of a module, with their lines.
/// Associated types of traits and types inside functions do not count.
pub(crate) fn definitions(text: &str) -> Vec<(usize, String)> {
    let code = code_of(text);
    let mut module_depths = vec![0];
    let (mut depth, mut found) = (0_usize, Vec::new());
    for (index, line) in code.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let rest: Vec<&str> =
            words.into_iter().skip_while(|word| word.starts_with("pub")).collect();
        let is_in_module = module_depths.last() == Some(&depth);
        if let (true, [keyword, name, ..]) = (is_in_module, rest.as_slice())
            && KEYWORDS.contains(keyword)
        {
            let end =
                name.find(|character: char| !(character.is_alphanumeric() || character == '_'));
            found.push((index + 1, name[..end.unwrap_or(name.len())].to_owned()));
        }
        let opens_module = is_in_module && rest.first() == Some(&"mod") && line.ends_with('{');
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
        if opens_module {
            module_depths.push(depth);
        }
        while module_depths.last().is_some_and(|module| *module > depth) {
            module_depths.pop();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let names: Vec<String> = definitions(text).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn types_of_modules_and_of_their_tests_count() {
        check("pub(crate) struct A<T>(T);\nenum B {\n    C,\n}\ntype D = u8;\n", &["A", "B", "D"]);
        check(
            "mod tests {\n    struct A;\n    mod inner {\n        enum B {}\n    }\n}\n",
            &["A", "B"],
        );
    }

    #[test]
    fn associated_types_local_types_and_comments_do_not_count() {
        check("impl Iterator for A {\n    type Item = u8;\n}\n", &[]);
        check("fn a() {\n    struct Local;\n}\n// struct Comment;\n", &[]);
    }

    #[test]
    fn a_file_belongs_to_the_crate_of_its_directory() {
        let package = |file: &str| package_of(Path::new(file));
        assert_eq!(package("crates/a/src/b.rs"), Some("crates/a".into()));
        assert_eq!(package("tests/conformance/src/b.rs"), Some("tests/conformance".into()));
        assert_eq!(package("xtask/src/main.rs"), Some("xtask".into()));
        assert_eq!(package("examples/a.rs"), None);
    }
}
