//! Files that the host's git writes for the sandbox: through links in a repository, and from a
//! sequence or a stash that the sandbox left for git to continue with.

use super::vector::{FilePayload, GitScope, GitSetting, GitVector, WriteTrick, compose};

const PLAIN: GitScope = GitScope::PLAIN;
const CONFIG: &str = "[core]\n\tfsmonitor = @M@\n";
/// Commands that commit twice, because a hook that the first commit changes runs with the second
/// commit.
const COMMIT: &str = "echo x >> new.txt; git add new.txt; git commit; git status
    echo y >> new.txt; git add new.txt; git commit -m y";
/// User's preparation: tracked hooks in the work tree, like those of husky, which only git writes.
const TRACKED_HOOKS: &str = "mkdir w/.husky; printf '#!/bin/sh\\n' > w/.husky/pre-commit
    chmod +x w/.husky/pre-commit; git -C w add .husky; git -C w commit -q -m husky
    git -C w config core.hooksPath .husky";
/// Script that makes `$C`, a commit with the marker as hooks, and `$A`, a stash with the same
/// content.
const HOOKS_COMMIT: &str = "
export GIT_AUTHOR_NAME=d GIT_AUTHOR_EMAIL=d@e GIT_COMMITTER_NAME=d GIT_COMMITTER_EMAIL=d@e
export GIT_INDEX_FILE=$PWD/.evil/index
git read-tree HEAD
B=$(git hash-object -w .evil/m)
for hook in pre-commit commit-msg post-commit post-rewrite post-checkout; do
    git update-index --add --cacheinfo 100755,$B,.husky/$hook
done
X=$(git write-tree)
unset GIT_INDEX_FILE
C=$(git commit-tree -p HEAD -m hooks $X)
I=$(git commit-tree -p HEAD -m index HEAD^{tree})
A=$(git commit-tree -p HEAD -p $I -m stash $X)
";
/// Script that makes the state of a rebase of the merge backend, without a list.
const PLANT_REBASE: &str = "
git checkout -q --detach
mkdir .git/rebase-merge
git rev-parse HEAD > .git/rebase-merge/onto
git rev-parse HEAD > .git/rebase-merge/orig-head
echo refs/heads/main > .git/rebase-merge/head-name
: > .git/rebase-merge/interactive
";
const CONTINUE: &str = "git rebase --continue; git status
    echo x >> new.txt; git add new.txt; git commit -m x";

/// A link in a repository: its path and the user's preparation (in the scope), its target, and the
/// host's command. The payload is a commit message.
struct LinkVector {
    scope: GitScope,
    text: &'static str,
    message: &'static str,
    host: &'static str,
}

const HOOK: &str =
    "printf '#!/bin/sh\\n' > w/.git/hooks/pre-commit; chmod +x w/.git/hooks/pre-commit";
/// Commit subject that a shell executes when it reads the subject in a line of a reflog.
const SHELL_SUBJECT: &str = "; @M@ ;\n";

const LINKS: [LinkVector; 9] = [
    LinkVector {
        scope: GitScope { name: "message-is-config", file: ".git/COMMIT_EDITMSG", ..PLAIN },
        text: "config",
        message: CONFIG,
        host: COMMIT,
    },
    LinkVector {
        scope: GitScope { name: "message-is-global-config", file: ".git/COMMIT_EDITMSG", ..PLAIN },
        text: "@S@/home/.gitconfig",
        message: CONFIG,
        host: COMMIT,
    },
    LinkVector {
        scope: GitScope {
            name: "message-is-hook",
            file: ".git/COMMIT_EDITMSG",
            prepare: HOOK,
            ..PLAIN
        },
        text: "hooks/pre-commit",
        message: "#!@M@\n",
        host: "echo x >> new.txt; git add new.txt; git commit --cleanup=verbatim
            git commit --allow-empty -m y",
    },
    LinkVector {
        scope: GitScope {
            name: "message-of-submodule-is-config",
            template: "super-sub",
            directory: "sub",
            file: ".git/modules/sub/COMMIT_EDITMSG",
            ..PLAIN
        },
        text: "config",
        message: "[core]\n\tworktree = ../../../sub\n\tfsmonitor = @M@\n",
        host: COMMIT,
    },
    LinkVector {
        scope: GitScope {
            name: "message-of-worktree-is-config",
            workspace: "tree",
            prepare: "mv w main; git -C main worktree add -q ../tree",
            file: "../main/.git/worktrees/tree/COMMIT_EDITMSG",
            ..PLAIN
        },
        text: "../../config",
        message: CONFIG,
        host: COMMIT,
    },
    LinkVector {
        scope: GitScope {
            name: "message-of-main-worktree-is-config",
            workspace: "tree",
            directory: "../main",
            prepare: "mv w main; git -C main worktree add -q ../tree",
            file: "../main/.git/COMMIT_EDITMSG",
            ..PLAIN
        },
        text: "config",
        message: CONFIG,
        host: COMMIT,
    },
    LinkVector {
        scope: GitScope { name: "log-is-hook", file: ".git/logs/HEAD", prepare: HOOK, ..PLAIN },
        text: "../hooks/pre-commit",
        message: SHELL_SUBJECT,
        host: COMMIT,
    },
    LinkVector {
        scope: GitScope {
            name: "log-of-branch-is-hook",
            file: ".git/logs/refs/heads/main",
            prepare: HOOK,
            ..PLAIN
        },
        text: "../../../hooks/pre-commit",
        message: SHELL_SUBJECT,
        host: COMMIT,
    },
    LinkVector {
        // The branch is named `pre-commit`, so that its log is the hook.
        scope: GitScope {
            name: "logs-are-hooks",
            file: ".git/logs/refs/heads",
            prepare: "printf '#!/bin/sh\\n' > w/.git/hooks/pre-commit
                chmod +x w/.git/hooks/pre-commit; git -C w checkout -q -b pre-commit",
            ..PLAIN
        },
        text: "../../hooks",
        message: SHELL_SUBJECT,
        host: COMMIT,
    },
];

fn links() -> impl Iterator<Item = GitVector> {
    LINKS.iter().map(|LinkVector { scope, text, message, host }| {
        let setting = GitSetting { name: "link", config: "", extra: "", host };
        let script = format!(
            "rm -rf \"$P\"; mkdir -p \"$D\"; ln -s '{text}' \"$P\"
             cp .evil/payload \"$(cd '@R@' && git rev-parse --path-format=absolute --git-path \
             MERGE_MSG)\"\n"
        );
        let trick = WriteTrick::scripted("plain", None, "");
        let mut vector = compose(scope, &setting, FilePayload::Whole(message), &trick);
        vector.add_to_last_run(&script);
        vector
    })
}

/// Returns vectors with lists and stashes with which git continues, and which overwrite hooks of
/// the work tree with the marker.
fn sequences() -> Vec<GitVector> {
    let tracked = GitScope { prepare: TRACKED_HOOKS, ..PLAIN };
    let stopped = GitScope {
        prepare: "mkdir w/.husky; printf '#!/bin/sh\\n' > w/.husky/pre-commit
            chmod +x w/.husky/pre-commit; git -C w add .husky; git -C w commit -q -m husky
            git -C w checkout -q -b topic HEAD~2; echo conflict > w/file.txt
            git -C w commit -q -a -m conflict; git -C w rebase main > /dev/null 2>&1 || true
            test -d w/.git/rebase-merge; git -C w config core.hooksPath .husky",
        ..PLAIN
    };
    let cases: [(GitScope, &str, &str); 6] = [
        (
            GitScope { name: "merge-autostash", file: ".git/MERGE_AUTOSTASH", ..tracked },
            "echo $A > .git/MERGE_AUTOSTASH",
            "echo x >> new.txt; git add new.txt; git commit -m x; git commit --allow-empty -m y",
        ),
        (
            GitScope {
                name: "merge-autostash-of-main-worktree",
                workspace: "tree",
                directory: "../main",
                prepare: concat!(
                    "mkdir w/.husky; printf '#!/bin/sh\\n' > w/.husky/pre-commit
                    chmod +x w/.husky/pre-commit; git -C w add .husky; git -C w commit -q -m husky
                    git -C w config core.hooksPath .husky",
                    "\nmv w main; git -C main worktree add -q ../tree"
                ),
                file: "../main/.git/MERGE_AUTOSTASH",
                ..tracked
            },
            "echo $A > ../main/.git/MERGE_AUTOSTASH",
            "echo x >> new.txt; git add new.txt; git commit -m x; git commit --allow-empty -m y",
        ),
        (
            GitScope { name: "rebase-autostash", file: ".git/rebase-merge/autostash", ..tracked },
            "echo $A > .git/rebase-merge/autostash; echo noop > .git/rebase-merge/git-rebase-todo",
            CONTINUE,
        ),
        (
            GitScope { name: "am-autostash", file: ".git/rebase-apply/autostash", ..tracked },
            "mkdir .git/rebase-apply; cd .git/rebase-apply
            for f in onto orig-head abort-safety original-commit; do git rev-parse HEAD > $f; done
            echo refs/heads/main > head-name; : > rebasing; echo 1 > next; echo 1 > last
            echo message > final-commit
            printf \"GIT_AUTHOR_NAME='d'\\nGIT_AUTHOR_EMAIL='d@e'\\nGIT_AUTHOR_DATE='@1700000000 \
            +0000'\\n\" > author-script
            for f in threeway keep utf8 sign quiet messageid scissors; do echo f > $f; done
            : > apply-opt; echo $A > autostash; cd ../..",
            "echo x > new.txt; git add new.txt; git rebase --continue; git commit --allow-empty \
             -m y",
        ),
        (
            GitScope { name: "rebase-pick", file: ".git/rebase-merge/git-rebase-todo", ..tracked },
            "echo \"pick $C hooks\" > .git/rebase-merge/git-rebase-todo",
            CONTINUE,
        ),
        (
            GitScope {
                name: "rebase-of-the-user-pick",
                file: ".git/rebase-merge/git-rebase-todo",
                ..stopped
            },
            "git checkout -q --theirs file.txt; git add file.txt
             echo \"pick $C hooks\" >> .git/rebase-merge/git-rebase-todo",
            CONTINUE,
        ),
    ];
    let compose_case = |(scope, script, host): (GitScope, &str, &'static str)| {
        let setting = GitSetting { name: "tracked-hook", config: "", extra: "", host };
        let is_new_rebase =
            scope.file.contains("rebase-merge") && scope.name != "rebase-of-the-user-pick";
        let plant = if is_new_rebase { PLANT_REBASE } else { "" };
        let mut vector = compose(
            &scope,
            &setting,
            FilePayload::Whole(""),
            &WriteTrick::scripted("plain", None, ""),
        );
        vector.add_to_last_run(&format!("{HOOKS_COMMIT}{plant}{script}\n"));
        vector
    };
    cases.into_iter().map(compose_case).collect()
}

/// Returns vectors with repositories of submodules inside the repository of another submodule.
fn modules() -> impl Iterator<Item = GitVector> {
    let names = [
        ("module-in-module", "sub/foo", ""),
        ("module-deep-in-module", "sub/one/two/foo", ""),
        ("module-in-logs-of-module", "sub/logs/foo", ""),
        // Without the file, git takes the names from the index.
        ("module-of-the-index", "sub/foo", "git add .gitmodules; rm .gitmodules"),
    ];
    names.into_iter().map(|(name, module, more)| {
        let file: &'static str = format!(".git/modules/{module}").leak();
        let leads = &[".git/index", ".gitmodules"];
        let scope = GitScope { name, template: "super-sub", file, leads, ..PLAIN };
        let setting =
            GitSetting { name: "hidden-module", config: "", extra: "", host: "git fetch" };
        let mut vector = compose(
            &scope,
            &setting,
            FilePayload::Whole(""),
            &WriteTrick::scripted("plain", None, ""),
        );
        vector.add_to_last_run(&format!(
            "git init -q --bare {file}; git -C {file} config remote.origin.url /x
             git -C {file} config remote.origin.uploadpack '@M@'
             git config --file .gitmodules submodule.{module}.path new
             git config --file .gitmodules submodule.{module}.url ./x
             git config --file .gitmodules submodule.{module}.fetchRecurseSubmodules true
             git update-index --add --cacheinfo \"160000,$(git rev-parse HEAD),new\"\n{more}\n"
        ));
        vector
    })
}

/// Returns a vector with a commit of a submodule that the run chose. The commit has hooks in the
/// directory that the submodule's settings name.
fn checked_out_hooks() -> GitVector {
    let scope = GitScope {
        name: "submodule-commit",
        template: "super-sub",
        file: "sub",
        prepare: "git -C w/sub config core.hooksPath .husky",
        ..PLAIN
    };
    let setting =
        GitSetting { name: "tracked-hook", config: "", extra: "", host: "git submodule update" };
    let mut vector =
        compose(&scope, &setting, FilePayload::Whole(""), &WriteTrick::scripted("plain", None, ""));
    vector.add_to_last_run(&format!(
        "cp -r .evil sub/.evil; cd sub{HOOKS_COMMIT}rm -r .evil; cd ..
         git update-index --cacheinfo 160000,$C,sub\n"
    ));
    vector
}

/// Returns all vectors of this module.
pub(super) fn vectors() -> Vec<GitVector> {
    links().chain(sequences()).chain(modules()).chain([checked_out_hooks()]).collect()
}
