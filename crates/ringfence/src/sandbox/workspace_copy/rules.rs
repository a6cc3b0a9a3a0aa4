//! Paths of a copied workspace that the policy hides or protects.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_core::Policy;
use ringfence_core::policy::PathGlob;
use ringfence_proto::bytes::Base64Bytes;
use serde::{Deserialize, Serialize};

use crate::view::Guarded;

/// Effect of the policy on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathRule {
    Free,
    /// The sandbox reads the path, and its changes do not come back.
    Protected,
    /// The path is not in the sandbox.
    Hidden,
}

/// Rules of the policy for the paths of a copied workspace: the paths that were found at the start
/// of the sandbox, and the patterns for paths that are made later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyRules {
    hide: Vec<PathGlob>,
    protect: Vec<PathGlob>,
    /// Relative paths that existed at the start, without links in them.
    hidden: BTreeSet<RulePath>,
    protected: BTreeSet<RulePath>,
}

/// Relative path in JSON, which need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Base64Bytes", into = "Base64Bytes")]
struct RulePath(PathBuf);

impl From<Base64Bytes> for RulePath {
    fn from(bytes: Base64Bytes) -> RulePath {
        RulePath(std::ffi::OsStr::from_bytes(&bytes.0).into())
    }
}

impl From<RulePath> for Base64Bytes {
    fn from(path: RulePath) -> Base64Bytes {
        Base64Bytes(path.0.as_os_str().as_bytes().to_vec())
    }
}

impl CopyRules {
    /// Makes the rules of a policy for the workspace at `root`, in which `guarded` was found.
    pub(crate) fn new(policy: &Policy, guarded: &Guarded, root: &Path) -> CopyRules {
        let files = policy.with_defaults().filesystem;
        let below = |paths: &BTreeSet<PathBuf>| {
            let relative = paths.iter().filter_map(|path| path.strip_prefix(root).ok());
            relative.map(|path| RulePath(path.to_owned())).collect()
        };
        CopyRules {
            hide: files.hide.unwrap_or_default(),
            protect: files.protect.unwrap_or_default(),
            hidden: below(guarded.hidden()),
            protected: below(guarded.protected()),
        }
    }

    /// Tells whether a path is a directory above a path that the policy names. A link or a file in
    /// its place would give the named path another meaning.
    pub(super) fn is_above_named(&self, path: &Path) -> bool {
        let named = self.hide.iter().chain(&self.protect).filter_map(PathGlob::as_literal);
        let mut above = named.flat_map(|literal| literal.ancestors().skip(1));
        above.any(|above| {
            above.as_os_str().as_bytes().eq_ignore_ascii_case(path.as_os_str().as_bytes())
        })
    }

    /// Returns the effect of the rules on a relative path.
    pub(super) fn rule(&self, path: &Path) -> PathRule {
        let is_named = |found: &BTreeSet<RulePath>, patterns: &[PathGlob]| {
            path.ancestors().filter(|above| !above.as_os_str().is_empty()).any(|above| {
                found.contains(&RulePath(above.to_owned()))
                    || patterns.iter().any(|pattern| is_match(pattern, above))
            })
        };
        if is_named(&self.hidden, &self.hide) {
            PathRule::Hidden
        } else if is_named(&self.protected, &self.protect) {
            PathRule::Protected
        } else {
            PathRule::Free
        }
    }
}

/// Tells whether a pattern matches a path. A literal also matches in other letter case, because the
/// host's file system may not distinguish the two.
fn is_match(pattern: &PathGlob, path: &Path) -> bool {
    match pattern.as_literal() {
        Some(literal) => {
            literal.as_os_str().as_bytes().eq_ignore_ascii_case(path.as_os_str().as_bytes())
        }
        None => pattern.matches(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_hold_for_paths_that_exist_and_for_those_that_are_made_later() {
        let policy =
            Policy::default().hide("**/.env".parse().unwrap()).hide("secrets".parse().unwrap());
        let rules = CopyRules {
            hidden: [RulePath("other-name-of-a-secret".into())].into(),
            ..CopyRules::new(&policy, &Guarded::default(), Path::new("/w"))
        };
        for (path, expected) in [
            ("a", PathRule::Free),
            (".env", PathRule::Hidden),
            ("a/b/.env", PathRule::Hidden),
            ("secrets", PathRule::Hidden),
            ("secrets/deep/key", PathRule::Hidden),
            ("other-name-of-a-secret", PathRule::Hidden),
            ("secrets-not", PathRule::Free),
            (".git", PathRule::Free),
            (".git/config", PathRule::Protected),
            (".git/hooks/pre-commit", PathRule::Protected),
            (".GIT/Hooks/pre-commit", PathRule::Protected),
            (".git/HEAD", PathRule::Free),
        ] {
            assert_eq!(rules.rule(Path::new(path)), expected, "{path}");
        }
        assert!(rules.is_above_named(Path::new(".git")) && rules.is_above_named(Path::new(".Git")));
        assert!(!rules.is_above_named(Path::new("a")));
        let text = serde_json::to_string(&rules).unwrap();
        assert_eq!(serde_json::from_str::<CopyRules>(&text).unwrap(), rules);
    }
}
