//! Commits of submodules that a run puts into an index. Git on the host checks these commits out
//! over files that git executes.

use super::vector::{FilePayload, GitScope, GitSetting, GitVector, WriteTrick, compose};

/// Script that makes the submodule track hooks, scripts and configuration, all of them harmless.
const TRACKED: &str = r#"(
    cd w/sub
    git checkout -q -b own
    mkdir .githooks tools
    printf '#!/bin/sh\n' > .githooks/pre-commit
    printf '#!/bin/sh\ncat\n' > tools/clean
    chmod +x .githooks/pre-commit tools/clean
    cp tools/clean clean
    printf '[core]\n\tabbrev = 12\n' > .gitconfig
    ln -s ../hooks linked
    git add .; git commit -q -m own
    cd ..
    git add sub; git commit -q -m own
)
git clone -q --bare w/sub lib.git
git -C w config submodule.sub.url '@S@/lib.git'
"#;

/// Script that makes `$commit`, a commit of the submodule at `$GIT_DIR` whose hooks and scripts are
/// the marker.
const OTHER_COMMIT: &str = concat!(
    r#"
export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export GIT_WORK_TREE='@W@'
marker=$(git hash-object -w '@M@')
settings=$(printf '[core]\n\tfsmonitor = @M@\n' | git hash-object -w --stdin)
export GIT_INDEX_FILE=$scratch/index
git read-tree HEAD
git update-index --force-remove linked
for name in post-checkout post-index-change post-commit pre-commit; do
    for directory in .githooks .other linked; do
        git update-index --add --cacheinfo 100755,$marker,$directory/$name
    done
done
for name in tools/clean clean later; do git update-index --add --cacheinfo 100755,$marker,$name; "#,
    r#"done
git update-index --add --cacheinfo 100644,$settings,.gitconfig
commit=$(git commit-tree -p HEAD -m x $(git write-tree))
unset GIT_INDEX_FILE GIT_WORK_TREE GIT_DIR
"#
);

/// Builds a script that sets a command as the filter of a file in the submodule.
macro_rules! filter {
    ($command:literal) => {
        concat!(
            "git -C w/sub config filter.x.clean '",
            $command,
            "'; echo 'file.txt filter=x' > w/.git/modules/sub/info/attributes"
        )
    };
}

const UPDATE: &str = "git submodule update";
const UPDATE_AND_STATUS: &str = "git submodule update; touch sub/file.txt; git status";
const UPDATE_AND_COMMIT: &str = "git submodule update; git commit --allow-empty -m next";

/// Name of each vector, the user's settings, and the user's commands after the run.
const OVER_FILES: [(&str, &str, &str); 11] = [
    ("relative-hooks", "git -C w/sub config core.hooksPath .githooks", UPDATE),
    ("absolute-hooks", "git -C w/sub config core.hooksPath '@W@/sub/.githooks'", UPDATE),
    (
        "included-file",
        "git -C w/sub config include.path ../../../sub/.gitconfig",
        UPDATE_AND_STATUS,
    ),
    (
        "linked-hook",
        "ln -s ../../../../sub/tools/clean w/.git/modules/sub/hooks/post-checkout",
        UPDATE,
    ),
    ("word", filter!("sh clean"), UPDATE_AND_STATUS),
    ("word-of-missing-script", filter!("sh later"), UPDATE_AND_STATUS),
    ("hooks-of-superproject", "git -C w config core.hooksPath sub/.githooks", UPDATE_AND_COMMIT),
    (
        "missing-hooks-of-superproject",
        "git -C w config core.hooksPath sub/.other",
        UPDATE_AND_COMMIT,
    ),
    ("missing-hooks-of-user", "git config --global core.hooksPath '@W@/sub/.other'", UPDATE),
    (
        "link-to-hooks-of-superproject",
        "mkdir w/hooks; : > w/hooks/x; git -C w config core.hooksPath sub/linked",
        UPDATE_AND_COMMIT,
    ),
    (
        "filter-of-superproject",
        "git -C w config core.fsmonitor \"sh '@W@/sub/tools/clean'\"",
        UPDATE_AND_STATUS,
    ),
];

/// Returns all vectors of this module.
pub(super) fn vectors() -> Vec<GitVector> {
    let mut vectors = Vec::new();
    let mut add =
        |scope: GitScope, name: &'static str, gitdir: &str, put: &str, host: &'static str| {
            let setting = GitSetting { name, config: "", extra: "", host };
            let mut vector = compose(
                &scope,
                &setting,
                FilePayload::Whole(""),
                &WriteTrick::scripted("plain", None, ""),
            );
            vector.prepare = format!("{TRACKED}{}", vector.prepare);
            vector.add_to_last_run(&format!("export GIT_DIR=\"{gitdir}\"{OTHER_COMMIT}{put}\n"));
            vectors.push(vector);
        };
    let scope =
        GitScope { name: "checkout", template: "super-sub", file: "sub", ..GitScope::PLAIN };
    for (name, prepare, host) in OVER_FILES {
        let put = "git update-index --cacheinfo 160000,$commit,sub";
        add(GitScope { prepare, ..scope }, name, "$W/.git/modules/sub", put, host);
    }
    let outside = GitScope {
        prepare: "git -C w worktree add -q ../tree; git -C tree submodule --quiet update --init
                  git -C tree/sub config core.hooksPath .githooks",
        directory: "../tree",
        file: ".git/worktrees/tree/index",
        ..scope
    };
    let put = "GIT_DIR=\"$W/.git/worktrees/tree\" GIT_WORK_TREE=\"$W\" git update-index \
               --cacheinfo 160000,$commit,sub";
    add(outside, "worktree-outside", "$W/.git/worktrees/tree/modules/sub", put, UPDATE);
    let main = GitScope {
        workspace: "tree",
        prepare: "git -C w/sub config core.hooksPath .githooks; git -C w worktree add -q ../tree",
        directory: "../w",
        file: "../w/.git/index",
        ..scope
    };
    let put =
        "GIT_DIR='@S@/w/.git' GIT_WORK_TREE=\"$W\" git update-index --cacheinfo 160000,$commit,sub";
    add(main, "main-worktree", "@S@/w/.git/modules/sub", put, UPDATE);
    vectors
}
