//! Patterns that name paths in the workspace.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use globset::{GlobBuilder, GlobMatcher};

use super::name_matcher::NameMatcher;

/// Paths in the workspace: one path such as `.git/config`, or a pattern such as `**/.env`.
///
/// `*` and `?` match within one directory; `**` crosses directories. A pattern matches only the
/// path itself. The caller must treat everything beneath a matching directory like the directory.
#[derive(Debug, Clone)]
pub struct PathGlob {
    text: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Literal(PathBuf),
    Pattern(GlobMatcher),
}

impl PathGlob {
    /// Creates a glob for one path that is known when the program is compiled.
    ///
    /// # Panics
    ///
    /// Panics if the path is empty, is absolute, contains `..`, or is a pattern.
    pub fn literal(path: &'static str) -> Self {
        let glob: Self = path.parse().expect("a path in the source code is one that the workspace can hold");
        assert!(glob.is_literal(), "`{path}` is a pattern");
        glob
    }

    /// Returns `true` if the glob is one path and not a pattern.
    pub fn is_literal(&self) -> bool {
        matches!(self.kind, Kind::Literal(_))
    }

    /// Returns the path of the glob, relative to the workspace, or `None` for a pattern.
    pub fn as_literal(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Literal(path) => Some(path),
            Kind::Pattern(_) => None,
        }
    }

    /// Returns `true` if the glob matches `path`, which is relative to the workspace.
    pub fn matches(&self, path: &Path) -> bool {
        match &self.kind {
            Kind::Literal(literal) => path == literal,
            Kind::Pattern(matcher) => matcher.is_match(path) || self.matches_names(path),
        }
    }

    /// Returns `true` if a path that is not ASCII matches the pattern name by name.
    ///
    /// `globset` matches bytes, and [`NameMatcher`] matches the characters of such a path.
    fn matches_names(&self, path: &Path) -> bool {
        let names: Vec<&Path> = path.iter().map(Path::new).collect();
        let is_ascii = path.as_os_str().is_ascii();
        !is_ascii && self.components().iter().any(|components| is_path_match(components, &names))
    }

    /// Returns the text of the glob, without empty and `.` components such as a leading `./` or a
    /// trailing `/`.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for PathGlob {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for PathGlob {}

impl fmt::Display for PathGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One component of a pattern, between two slashes.
#[derive(Debug, Clone)]
pub enum GlobComponent {
    /// `**`: any number of directories, or none. At the end of a pattern, `**` matches everything
    /// beneath a directory, but not the directory itself.
    AnyDepth,
    /// A name, or a pattern that names match.
    Name(NameMatcher),
}

impl PathGlob {
    /// Returns the components of the pattern, for a search that follows symbolic links directory by
    /// directory.
    ///
    /// The result has one list of components, or one per alternative if braces contain a slash.
    pub fn components(&self) -> Vec<Vec<GlobComponent>> {
        let has_slash_in_braces = split_outside_braces(&self.text).len() != self.text.split('/').count();
        let alternatives = if has_slash_in_braces { expand_braces(&self.text) } else { vec![self.text.clone()] };
        let component = |text: &str| match text {
            "**" => Some(GlobComponent::AnyDepth),
            name => {
                let glob = GlobBuilder::new(name).literal_separator(true).build().ok()?;
                Some(GlobComponent::Name(NameMatcher::new(glob.compile_matcher(), &expand_braces(name))))
            }
        };
        let components = |text: &String| split_outside_braces(text).into_iter().map(component).collect();
        alternatives.iter().filter_map(components).collect()
    }
}

fn is_path_match(components: &[GlobComponent], names: &[&Path]) -> bool {
    match (components, names) {
        ([], []) => true,
        ([GlobComponent::AnyDepth], names) => !names.is_empty(),
        ([GlobComponent::AnyDepth, rest @ ..], names) => {
            (0..names.len()).any(|skipped| is_path_match(rest, &names[skipped..]))
        }
        ([GlobComponent::Name(matcher), rest @ ..], [name, names @ ..]) => {
            matcher.is_match(name) && is_path_match(rest, names)
        }
        _ => false,
    }
}

fn split_outside_braces(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let is_separator = |character: char| {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == '/' && depth == 0
    };
    text.split(is_separator).collect()
}

/// Returns one text for each combination of alternatives in braces, such as `a` and `b` for
/// `{a,b}`. Text with unbalanced braces stays as it is.
fn expand_braces(text: &str) -> Vec<String> {
    let Some(start) = text.find('{') else { return vec![text.to_owned()] };
    let mut depth = 0_usize;
    let mut cuts = vec![start];
    for (at, character) in text.char_indices().skip_while(|(at, _)| *at < start) {
        match character {
            '{' => depth += 1,
            ',' if depth == 1 => cuts.push(at),
            '}' => {
                depth -= 1;
                if depth == 0 {
                    cuts.push(at);
                    break;
                }
            }
            _ => {}
        }
    }
    if depth != 0 {
        return vec![text.to_owned()];
    }
    let end = cuts[cuts.len() - 1];
    let choices = cuts.windows(2).map(|pair| &text[pair[0] + 1..pair[1]]);
    choices.flat_map(|choice| expand_braces(&format!("{}{choice}{}", &text[..start], &text[end + 1..]))).collect()
}

/// Reason why a text does not name paths in the workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GlobError {
    /// The text is empty, or consists only of slashes and `.` components.
    #[error("`{0}` names nothing in the workspace: write a path such as `.git/hooks` or a pattern such as `**/.env`")]
    Empty(String),
    /// The path is absolute.
    #[error("`{0}` is absolute: a pattern is relative to the workspace")]
    Absolute(String),
    /// The path contains `..`, which could leave the workspace.
    #[error("`{0}` contains `..`: a pattern cannot leave the workspace")]
    Parent(String),
    /// The text is not a valid pattern.
    #[error("`{text}` is no valid pattern: {reason}")]
    Syntax {
        /// The whole text that was parsed.
        text: String,
        /// Description of the syntax error, from `globset`.
        reason: String,
    },
}

impl FromStr for PathGlob {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with('/') {
            return Err(GlobError::Absolute(text.to_owned()));
        }
        let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if parts.is_empty() {
            return Err(GlobError::Empty(text.to_owned()));
        }
        if parts.contains(&"..") {
            return Err(GlobError::Parent(text.to_owned()));
        }
        let text = parts.join("/");
        let kind = if text.contains(['*', '?', '[', ']', '{', '}', '\\']) {
            let glob = GlobBuilder::new(&text).literal_separator(true).build();
            let glob =
                glob.map_err(|error| GlobError::Syntax { text: text.clone(), reason: error.kind().to_string() })?;
            Kind::Pattern(glob.compile_matcher())
        } else {
            Kind::Literal(PathBuf::from(&text))
        };
        Ok(PathGlob { text, kind })
    }
}

crate::policy::text::serde_as_text!(
    PathGlob,
    "a path of the workspace such as `.git/config`, or a pattern such as `**/.env`"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, matching: &[&str], others: &[&str]) {
        let glob: PathGlob = pattern.parse().unwrap();
        for path in matching {
            assert!(glob.matches(Path::new(path)), "`{pattern}` must match `{path}`");
        }
        for path in others {
            assert!(!glob.matches(Path::new(path)), "`{pattern}` must not match `{path}`");
        }
        assert_eq!(glob.to_string().parse::<PathGlob>().unwrap(), glob);
    }

    #[track_caller]
    fn refuse(text: &str, message: &str) {
        assert_eq!(text.parse::<PathGlob>().unwrap_err().to_string(), message);
    }

    #[test]
    fn a_double_star_matches_at_every_depth_and_at_the_top() {
        check("**/.env", &[".env", "a/.env", "a/b/.env"], &[".envrc", "a/.env/b", "x.env"]);
        check("secrets/**", &["secrets/a", "secrets/a/b"], &["secret/a", "a/secrets/b"]);
    }

    #[test]
    fn a_single_star_stays_in_its_directory() {
        check("*.pem", &["a.pem", ".pem"], &["a/b.pem", "a.pem.bak"]);
        check("{a,b}/key?", &["a/key1", "b/key2"], &["c/key1", "a/key", "a/key12"]);
    }

    #[test]
    fn text_without_a_pattern_is_one_path() {
        check(".git/config", &[".git/config"], &["a/.git/config", ".git/config/x", ".git"]);
        let glob: PathGlob = "./.git//hooks/".parse().unwrap();
        assert_eq!((glob.as_str(), glob.as_literal()), (".git/hooks", Some(Path::new(".git/hooks"))));
        assert!(!"**/.env".parse::<PathGlob>().unwrap().is_literal());
        assert_eq!("**/.env".parse::<PathGlob>().unwrap().as_literal(), None);
    }

    #[test]
    fn the_components_of_a_pattern_match_what_the_pattern_matches() {
        let matches = |pattern: &str, path: &str| {
            let lists = pattern.parse::<PathGlob>().unwrap().components();
            lists.iter().any(|components| {
                let names: Vec<&str> = path.split('/').collect();
                let is_match = |(component, name): (&GlobComponent, &&str)| match component {
                    GlobComponent::AnyDepth => true,
                    GlobComponent::Name(matcher) => matcher.is_match(Path::new(name)),
                };
                components.len() == names.len() && components.iter().zip(&names).all(is_match)
            })
        };
        assert!(matches("{a,b}/key?", "b/key2") && !matches("{a,b}/key?", "c/key2"));
        assert!(matches("x{a/b,c}/d", "xa/b/d") && matches("x{a/b,c}/d", "xc/d") && !matches("x{a/b,c}/d", "a/b/d"));
        assert!(matches("{a,{b/c,d}}/e", "b/c/e") && matches("{a,{b/c,d}}/e", "d/e"));
        assert!(matches("**/.env", "anything/.env"));
        assert_eq!("**/a/*".parse::<PathGlob>().unwrap().components()[0].len(), 3);
    }

    #[test]
    fn a_name_is_matched_by_characters() {
        let matches = |pattern: &str, name: &str| {
            let glob: PathGlob = pattern.parse().unwrap();
            assert_eq!(glob.matches(Path::new(name)), matches_component(&glob, name), "{pattern} {name}");
            matches_component(&glob, name)
        };
        fn matches_component(glob: &PathGlob, name: &str) -> bool {
            let lists = glob.components();
            lists.iter().any(|components| match components.as_slice() {
                [GlobComponent::Name(matcher)] => matcher.is_match(Path::new(name)),
                _ => false,
            })
        }
        for pattern in ["key?", "key[é]", "key[!a]", "key[à-ü]", "*[é]", "{key,kez}[!x]", "k?y?", "key\\é?*", "*é*"]
        {
            assert!(matches(pattern, "keyé") || pattern.ends_with("?*") && matches(pattern, "keyéü"), "{pattern}");
        }
        for pattern in ["key", "key[!é]", "key[a-z]", "?", "{key,kez}", "[!k]ey?", "ke?"] {
            assert!(!matches(pattern, "keyé"), "{pattern}");
        }
        let slow = "*a".repeat(60) + "b";
        assert!(!matches(&slow, &("a".repeat(250) + "é")));
    }

    #[test]
    fn each_wrong_pattern_is_refused_with_its_own_message() {
        let nothing =
            "names nothing in the workspace: write a path such as `.git/hooks` or a pattern such as `**/.env`";
        refuse("", &format!("`` {nothing}"));
        refuse("./", &format!("`./` {nothing}"));
        refuse("/etc/passwd", "`/etc/passwd` is absolute: a pattern is relative to the workspace");
        refuse("a/../../b", "`a/../../b` contains `..`: a pattern cannot leave the workspace");
        assert!(matches!("a[".parse::<PathGlob>(), Err(GlobError::Syntax { .. })));
    }
}
