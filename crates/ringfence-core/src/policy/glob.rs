//! Patterns that name paths in the workspace.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use globset::{Glob, GlobBuilder};

use super::glob_tokens::{GlobToken, expand_braces, names_parent, split_pattern, token_text};
use super::name_matcher::NameMatcher;

/// Maximum length of a pattern in bytes, because no path is longer (path_resolution(7)).
const MAX_PATTERN_LENGTH: usize = 4096;

/// Paths in the workspace: one path such as `.git/config`, or a pattern such as `**/.env`.
///
/// `*`, `?` and classes such as `[!a]` match within one directory, and `**` crosses directories.
/// `{a,b}` lists alternatives, one of which may be empty. A pattern matches only the path itself.
/// The caller must treat everything beneath a matching directory like the directory.
#[derive(Debug, Clone)]
pub struct PathGlob {
    text: String,
    kind: GlobKind,
}

#[derive(Debug, Clone)]
enum GlobKind {
    Literal(PathBuf),
    /// Tokens of the pattern, by alternative and component.
    Pattern(Vec<Vec<Vec<GlobToken>>>),
}

impl PathGlob {
    /// Creates a glob for one path that is known when the program is compiled.
    ///
    /// # Panics
    ///
    /// Panics if the path is empty, is absolute, contains `..`, or is a pattern.
    pub fn literal(path: &'static str) -> Self {
        let glob: Self =
            path.parse().expect("a path in the source code is one that the workspace can hold");
        assert!(glob.is_literal(), "`{path}` is a pattern");
        glob
    }

    /// Returns `true` if the glob is one path and not a pattern.
    pub fn is_literal(&self) -> bool {
        matches!(self.kind, GlobKind::Literal(_))
    }

    /// Returns the path of the glob, relative to the workspace, or `None` for a pattern.
    pub fn as_literal(&self) -> Option<&Path> {
        match &self.kind {
            GlobKind::Literal(path) => Some(path),
            GlobKind::Pattern(_) => None,
        }
    }

    /// Returns `true` if the glob matches `path`, which is relative to the workspace.
    pub fn matches(&self, path: &Path) -> bool {
        match &self.kind {
            GlobKind::Literal(literal) => path == literal,
            GlobKind::Pattern(_) => {
                let names: Vec<&Path> = path.iter().map(Path::new).collect();
                self.components().iter().any(|components| is_path_match(components, &names))
            }
        }
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
        let literal = |path: &Path| {
            let names = path.iter().filter_map(|name| name.to_str());
            vec![names.map(|name| name.chars().map(GlobToken::Character).collect()).collect()]
        };
        let alternatives = match &self.kind {
            GlobKind::Literal(path) => &literal(path),
            GlobKind::Pattern(alternatives) => alternatives,
        };
        alternatives
            .iter()
            .map(|components| components.iter().map(|tokens| compile_component(tokens)).collect())
            .collect()
    }
}

fn compile_component(tokens: &[GlobToken]) -> GlobComponent {
    if let [GlobToken::AnyDepth { .. }] = tokens {
        return GlobComponent::AnyDepth;
    }
    let compiled = "each component was compiled when the pattern was read";
    let bytes = build_glob(&token_text(tokens)).expect(compiled).compile_matcher();
    GlobComponent::Name(NameMatcher::new(bytes, expand_braces(tokens).expect(compiled)))
}

fn build_glob(text: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(text).literal_separator(true).empty_alternates(true).build()
}

fn is_path_match(components: &[GlobComponent], names: &[&Path]) -> bool {
    // `reached[n]` is true if the names read so far match the first `n` components.
    let mut reached = vec![false; components.len() + 1];
    reached[0] = true;
    skip_any_depth(components, &mut reached);
    for name in names {
        let mut next = vec![false; components.len() + 1];
        for (at, component) in components.iter().enumerate().filter(|(at, _)| reached[*at]) {
            match component {
                GlobComponent::AnyDepth => {
                    next[at] = true;
                    next[at + 1] |= at + 1 == components.len();
                }
                GlobComponent::Name(matcher) => next[at + 1] |= matcher.is_match(name),
            }
        }
        skip_any_depth(components, &mut next);
        reached = next;
    }
    reached[components.len()]
}

/// Marks the component after each reached `**` as reached too, because `**` can match no directory
/// at all. A `**` at the end is an exception, because it needs a name.
fn skip_any_depth(components: &[GlobComponent], reached: &mut [bool]) {
    for (at, component) in components.iter().enumerate() {
        if reached[at] && matches!(component, GlobComponent::AnyDepth) && at + 1 < components.len()
        {
            reached[at + 1] = true;
        }
    }
}

/// Reason why a text does not name paths in the workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GlobError {
    /// The text is empty, or consists only of slashes and `.` components.
    #[error(
        "`{0}` names nothing in the workspace: write a path such as `.git/hooks` or a pattern such \
         as `**/.env`"
    )]
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
        /// Description of the error, with a hint.
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
        let refused = |reason: String| GlobError::Syntax { text: text.clone(), reason };
        if text.contains('\0') {
            return Err(refused("no path contains a NUL character".to_owned()));
        }
        if text.len() > MAX_PATTERN_LENGTH {
            return Err(refused(format!(
                "it has more than {MAX_PATTERN_LENGTH} bytes: write several rules"
            )));
        }
        let kind = if text.contains(['*', '?', '[', ']', '{', '}', '\\']) {
            let alternatives = split_pattern(&text).map_err(|reason| refused(reason.to_owned()))?;
            if alternatives.iter().flatten().any(|component| names_parent(component)) {
                return Err(GlobError::Parent(text));
            }
            let components = alternatives.iter().flatten().map(|component| token_text(component));
            for glob in [text.clone()].into_iter().chain(components) {
                build_glob(&glob).map_err(|error| refused(error.kind().to_string()))?;
            }
            GlobKind::Pattern(alternatives)
        } else {
            GlobKind::Literal(PathBuf::from(&text))
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
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

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
        assert_eq!(
            (glob.as_str(), glob.as_literal()),
            (".git/hooks", Some(Path::new(".git/hooks")))
        );
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
        assert!(
            matches("x{a/b,c}/d", "xa/b/d")
                && matches("x{a/b,c}/d", "xc/d")
                && !matches("x{a/b,c}/d", "a/b/d")
        );
        assert!(matches("{a,{b/c,d}}/e", "b/c/e") && matches("{a,{b/c,d}}/e", "d/e"));
        assert!(matches("**/.env", "anything/.env"));
        assert_eq!("**/a/*".parse::<PathGlob>().unwrap().components()[0].len(), 3);
    }

    #[test]
    fn a_name_is_matched_by_characters() {
        let matches = |pattern: &str, name: &str| {
            let glob: PathGlob = pattern.parse().unwrap();
            assert_eq!(
                glob.matches(Path::new(name)),
                matches_component(&glob, name),
                "{pattern} {name}"
            );
            matches_component(&glob, name)
        };
        fn matches_component(glob: &PathGlob, name: &str) -> bool {
            let lists = glob.components();
            lists.iter().any(|components| match components.as_slice() {
                [GlobComponent::Name(matcher)] => matcher.is_match(Path::new(name)),
                _ => false,
            })
        }
        for pattern in [
            "key?",
            "key[é]",
            "key[!a]",
            "key[à-ü]",
            "*[é]",
            "{key,kez}[!x]",
            "k?y?",
            "key\\é?*",
            "*é*",
        ] {
            assert!(
                matches(pattern, "keyé") || pattern.ends_with("?*") && matches(pattern, "keyéü"),
                "{pattern}"
            );
        }
        for pattern in ["key", "key[!é]", "key[a-z]", "?", "{key,kez}", "[!k]ey?", "ke?"] {
            assert!(!matches(pattern, "keyé"), "{pattern}");
        }
        for piece in ["*a", "?", "[!à-ü]", "{a,é}é"] {
            let longest = piece.repeat(if piece.contains('{') {
                9
            } else {
                MAX_PATTERN_LENGTH / piece.len()
            });
            assert!(!matches(&longest, "é"), "{piece}");
        }
        let slow = "*a".repeat(60) + "b";
        assert!(!matches(&slow, &("a".repeat(250) + "é")));
    }

    #[test]
    fn an_alternative_may_be_empty() {
        check(".env{,.local}", &[".env", ".env.local"], &[".env.", ".env.locals"]);
        check("**/key{,.bak,.{old,}}", &["key", "a/key.bak", "key.old", "key."], &["key.o"]);
        check("secrets{,/**}", &["secrets", "secrets/a", "secrets/a/b"], &["secret", "a/secrets"]);
        check("conf{,/sub}/key", &["conf/key", "conf/sub/key"], &["conf", "conf/other/key"]);
    }

    #[test]
    fn an_escape_or_a_class_makes_syntax_a_character() {
        check(r"a\{b/key", &["a{b/key"], &["ab/key", "a{b"]);
        check("a[{]b/key", &["a{b/key"], &["ab/key"]);
        check(r"{a\,b,c}/key", &["a,b/key", "c/key"], &["a/key", "b/key"]);
        check("{a[,}]b,c}/key", &["a,b/key", "a}b/key", "c/key"], &["a/key"]);
        check(r"sec\/key", &["sec/key"], &["sec", "key"]);
        check(r"{sec\/key,x}", &["sec/key", "x"], &["key"]);
        check("a[]]b", &["a]b"], &["ab"]);
        check(r"a[\]b", &[r"a\b"], &["ab"]);
        check("a[c-]b", &["acb", "a-b"], &["adb"]);
        check("sec[!a]key", &["sec-key"], &["sec/key", "secakey"]);
        check(r"\*", &["*"], &["a"]);
    }

    #[test]
    fn a_byte_that_is_no_character_counts_as_one() {
        for (pattern, name) in [
            ("k??.env", "ké\u{0}.env"),
            ("k[!a]?.env", "ké\u{0}.env"),
            ("*é?*", "ké\u{0}.env"),
            (r"\{?\}", "{é}"),
            ("[{]?[}]", "{é}"),
        ] {
            let name: Vec<u8> =
                name.bytes().map(|byte| if byte == 0 { 0xff } else { byte }).collect();
            let glob: PathGlob = pattern.parse().unwrap();
            assert!(glob.matches(Path::new(OsStr::from_bytes(&name))), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_could_guard_less_than_it_says_is_refused() {
        for (text, reason) in [
            ("sec[/]key", "cannot contain `/`"),
            ("sec[+-9]key", "cannot contain `/`"),
            ("sec[!/]key", "cannot contain `/`"),
            ("{a,**}/key", "`**` must stand between"),
            ("{a/,b/}**/key", "`**` must stand between"),
            ("{a/**,b}/key", "`**` must stand between"),
            ("x{**/key,b}", "`**` must stand between"),
            (r"{a\,**}", "`**` must stand between"),
            ("{a,**/**}", "`**` must stand between"),
            (r"**\/key", "`**` must stand between"),
            ("sec/{key,}", "nothing before, between or after"),
            ("{,a}/key", "nothing before, between or after"),
            ("{,a}", "nothing before, between or after"),
            (r"\/etc/*", "nothing before, between or after"),
            ("{./a,b}", "leave it out"),
            ("a[", "never closed"),
            ("{a", "never closed"),
            ("a}", "has no `{`"),
            (r"*\", "nothing to escape"),
            ("[b-a]", "invalid range"),
            ("a\0", "NUL"),
            (&"{a,b}".repeat(40), "too many combinations"),
            (&("{".repeat(400) + &"}".repeat(400)), "nested more than"),
            (&"*a".repeat(4096), "more than 4096 bytes"),
        ] {
            let message = text.parse::<PathGlob>().unwrap_err().to_string();
            assert!(
                message.contains(reason) && message.starts_with(&format!("`{text}`")),
                "{message}"
            );
        }
        for text in ["{.,a}./key", r"a/\../b", "a/[.]./b", "{a,b/..}/c"] {
            assert_eq!(text.parse::<PathGlob>(), Err(GlobError::Parent(text.to_owned())));
        }
    }

    /// Compares an accepted pattern with `globset`, which matches the whole path at once.
    fn check_agreement(text: &str, path: &str) -> Result<(), TestCaseError> {
        let Ok(glob) = text.parse::<PathGlob>() else { return Ok(()) };
        // Add the slash to negated classes, because those of `globset` also match a slash.
        let reference = build_glob(&glob.as_str().replace("[!", "[!/")).unwrap().compile_matcher();
        let (own, theirs) = (glob.matches(Path::new(path)), reference.is_match(path));
        // Names that are not ASCII are also matched by characters, so only our glob may match them.
        prop_assert!(
            own == theirs || own && !path.is_ascii(),
            "`{text}` on `{path}`: {own}, globset {theirs}"
        );
        Ok(())
    }

    fn paths() -> impl Strategy<Value = String> {
        let names = [
            "a", "b", "ab", "aab", "{", "}", "a,b", ",", ".a", "[", "]", "\\", "é", "aé", "-", "*",
        ];
        prop::collection::vec(prop::sample::select(names.to_vec()), 1..5)
            .prop_map(|names| names.join("/"))
    }

    fn patterns(pieces: &[&'static str]) -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(pieces.to_vec()), 1..10)
            .prop_map(|pieces| pieces.concat())
    }

    /// Pieces of random patterns in which braces are frequent.
    const BRACE_PIECES: [&str; 20] = [
        "a", "b", "/", "/", "*", "**", "**/", "/**", "?", "{a,", "{,", "{", "}", "}", ",", "\\",
        "[!a]", "[ab]", "é", ".",
    ];
    /// Pieces of random patterns in which classes are frequent.
    const CLASS_PIECES: [&str; 15] =
        ["a", "b", "/", "*", "**", "[", "[", "]", "]", "-", "{", "}", ",", "\\", "é"];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn an_accepted_pattern_with_braces_matches_what_globset_matches(
            pattern in patterns(&BRACE_PIECES),
            path in paths(),
        ) {
            check_agreement(&pattern, &path)?;
        }

        #[test]
        fn an_accepted_pattern_with_classes_matches_what_globset_matches(
            pattern in patterns(&CLASS_PIECES),
            path in paths(),
        ) {
            check_agreement(&pattern, &path)?;
        }
    }

    #[test]
    fn each_wrong_pattern_is_refused_with_its_own_message() {
        let nothing = "names nothing in the workspace: write a path such as `.git/hooks` or a \
            pattern such as `**/.env`";
        refuse("", &format!("`` {nothing}"));
        refuse("./", &format!("`./` {nothing}"));
        refuse("/etc/passwd", "`/etc/passwd` is absolute: a pattern is relative to the workspace");
        refuse("a/../../b", "`a/../../b` contains `..`: a pattern cannot leave the workspace");
        assert!(matches!("a[".parse::<PathGlob>(), Err(GlobError::Syntax { .. })));
    }
}
