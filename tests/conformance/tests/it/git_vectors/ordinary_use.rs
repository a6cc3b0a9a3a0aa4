//! Ordinary work with git inside a sandbox with default settings, which must succeed and report
//! nothing.

use conformance::{BackendSetup, BackendVariant, Caller};
use ringfence_test_ledger::require;

use super::site::RepositoryTemplates;
use super::vector::{FilePayload, GitScope, GitSetting, GitVector, PLAIN, compose};

/// Start of each script. It sets the identity of the user, because the home directory inside is
/// empty, and ends the script at the first failure.
const BEGIN: &str = "set -e
export GIT_AUTHOR_NAME=demo GIT_AUTHOR_EMAIL=demo@example.org
export GIT_COMMITTER_NAME=demo GIT_COMMITTER_EMAIL=demo@example.org
export GIT_SEQUENCE_EDITOR=: GIT_EDITOR=:
";

const COMMITS: &str = "git status > /dev/null
echo more >> file.txt
echo new > new.txt
git add new.txt
git diff > /dev/null
git commit -q -a -m more
git log -p > /dev/null
git commit -q --amend --no-edit
git tag one
echo '*.txt text' > .gitattributes
git add .gitattributes
git commit -q -m attributes
";

const BRANCHES: &str = "git branch other
git checkout -q -b topic HEAD~1
echo topic > topic.txt
git add topic.txt
git commit -q -m topic
git checkout -q main
echo main > main.txt
git add main.txt
git commit -q -m main
git checkout -q topic
git rebase -q main
git rebase -q -i --exec true HEAD~1
git checkout -q main
git merge -q --no-ff -m merge topic
git revert --no-edit -m 1 HEAD > /dev/null
git cherry-pick --strategy-option theirs --keep-redundant-commits topic > /dev/null
git reset -q --hard HEAD~1
git branch -D other > /dev/null
";

const STASHES: &str = "echo more >> file.txt
git stash -q
git stash list > /dev/null
git stash pop -q
git checkout -q -- file.txt
git gc -q
git fsck > /dev/null 2>&1
git worktree list > /dev/null
";

const SUBMODULES: &str = "git submodule status > /dev/null
cd sub
git checkout -q -b work
echo more >> file.txt
git commit -q -a -m more
cd ..
git add sub
git commit -q -m sub
git submodule foreach --quiet 'git status > /dev/null'
";

/// Resolved conflicts of a rebase, of a merge with a stash and of cherry-picks, followed by a
/// bisection.
const CONFLICTS: &str = "git checkout -q -b conflict main~1
sed -i 's/^10$/conflict/' file.txt
git commit -q -a -m conflict
git rebase main > /dev/null 2>&1 || {
    git checkout -q --theirs file.txt; git add file.txt; git rebase --continue > /dev/null
}
git checkout -q -b stashed main~1
sed -i 's/^10$/stashed/' file.txt
git commit -q -a -m stashed
echo more >> src/deep/er/x.c
git merge -q --autostash main > /dev/null 2>&1 || {
    git checkout -q --ours file.txt; git add file.txt; git commit -q --no-edit
}
git checkout -q -- src
git cherry-pick side main > /dev/null 2>&1 || {
    git checkout -q --theirs file.txt; git add file.txt; git cherry-pick --continue > /dev/null 2>&1
} || git cherry-pick --skip > /dev/null 2>&1 || git cherry-pick --quit
git bisect start > /dev/null; git bisect bad > /dev/null; git bisect good main~1 > /dev/null
git bisect reset > /dev/null 2>&1
git checkout -q main
";

/// Rebase of a merge, which uses labels. The dates are fixed, because commits that are made again
/// within the same second would be the same ones.
const MERGES: &str =
    "export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
git checkout -q -b one
echo 1 > one.txt; git add one.txt; git commit -q -m one
git checkout -q main
echo 2 > two.txt; git add two.txt; git commit -q -m two
git merge -q --no-ff -m merge one
GIT_COMMITTER_DATE='1700000060 +0000' git rebase -q -r --force-rebase HEAD~2
";

/// Workspace of a user, and the work that is done in it.
struct GitSession {
    name: &'static str,
    template: &'static str,
    workspace: &'static str,
    prepare: &'static str,
    work: &'static [&'static str],
}

const SESSION: GitSession = GitSession {
    name: "",
    template: "plain",
    workspace: "w",
    prepare: "",
    work: &[COMMITS, BRANCHES, STASHES],
};

const SESSIONS: [GitSession; 16] = [
    GitSession { name: "repository", ..SESSION },
    GitSession { name: "conflicts", work: &[CONFLICTS, COMMITS], ..SESSION },
    GitSession {
        name: "worktree-added-inside",
        work: &[
            "git worktree add -q -b wt wt; cd wt; echo wt > wt.txt; git add wt.txt; git commit -q \
             -m wt; cd ..\n",
            "git status > /dev/null\n",
        ],
        ..SESSION
    },
    GitSession {
        name: "repository-without-hooks",
        prepare: "rmdir w/.git/hooks w/.git/info",
        ..SESSION
    },
    GitSession {
        name: "superproject",
        template: "super-sub",
        work: &[COMMITS, SUBMODULES, BRANCHES],
        ..SESSION
    },
    GitSession {
        name: "superproject-of-a-user-with-filters",
        template: "super-sub",
        prepare: "git config --global filter.lfs.clean 'git-lfs clean -- %f'
            git config --global filter.lfs.process 'git-lfs filter-process'
            git config --global credential.helper '!f() { /usr/bin/helper \"$1\"; }; f'
            git config --global core.hooksPath '~/.hooks'; git config --global diff.submodule log
            mkdir -p w/tools/hooks; : > w/tools/hooks/x; git -C w config core.hooksPath \
            tools/hooks",
        work: &[SUBMODULES, COMMITS, STASHES],
        ..SESSION
    },
    GitSession {
        name: "far-repository-of-superproject",
        template: "super-sub",
        prepare: "for number in $(seq 100 145); do mkdir w/0$number; done
            git clone -q '@W@/.git' w/z/vendor; echo z >> w/.git/info/exclude",
        work: &[
            "sleep 0.5; cd z/vendor; echo new > new.txt; git add new.txt; git commit -q -m \
                 new\n",
            STASHES,
        ],
        ..SESSION
    },
    GitSession { name: "rebased-merges", work: &[MERGES, COMMITS], ..SESSION },
    GitSession {
        name: "superproject-nine-parts",
        template: "super-1-2-3-4-5-6-7-8-9",
        work: &[SUBMODULES, COMMITS],
        ..SESSION
    },
    GitSession { name: "uninitialised-submodule", template: "uninitialised", ..SESSION },
    GitSession {
        name: "worktree",
        workspace: "tree",
        prepare: "mv w main; git -C main checkout -q side; git -C main worktree add -q ../tree \
                  main",
        ..SESSION
    },
    GitSession {
        name: "worktree-inside",
        prepare: "git -C w worktree add -q wt; echo wt >> w/.git/info/exclude",
        work: &[
            COMMITS,
            "cd wt\n",
            "echo wt > wt.txt; git add wt.txt; git commit -q -m wt; git \
                                     status > /dev/null\n",
        ],
        ..SESSION
    },
    GitSession {
        name: "several-repositories",
        template: "several",
        work: &["cd one\n", COMMITS, BRANCHES, STASHES],
        ..SESSION
    },
    GitSession {
        name: "nested-repository",
        prepare: "git clone -q '@W@/.git' w/vendor; echo vendor >> w/.git/info/exclude",
        work: &[COMMITS, "cd vendor\n", COMMITS, STASHES],
        ..SESSION
    },
    GitSession {
        name: "hooks-and-scripts-of-the-user",
        prepare: "mkdir -p w/tools/hooks; printf '#!/bin/sh\\n' > w/tools/hooks/pre-commit
            printf '#!/bin/sh\\nexec cat\\n' > w/tools/x.sh; chmod +x w/tools/x.sh \
            w/tools/hooks/pre-commit
            git -C w add tools; git -C w commit -q -m tools
            git -C w config core.hooksPath tools/hooks; git -C w config filter.own.clean tools/x.sh
            git -C w config filter.own.smudge tools/x.sh; echo '*.txt filter=own' > \
            w/.git/info/attributes
            mkdir w/conf; : > w/conf/inc; git -C w config include.path ../conf/inc",
        ..SESSION
    },
    GitSession {
        name: "rebase-of-the-user-goes-on",
        template: "rebasing",
        work: &[
            "git status > /dev/null
            git rebase --continue > /dev/null 2>&1 || {
                git checkout --theirs file.txt; git add file.txt; git rebase --continue > /dev/null
            }\n",
            COMMITS,
        ],
        ..SESSION
    },
];

impl GitSession {
    fn as_vector(&self) -> GitVector {
        let scope = GitScope {
            name: self.name,
            template: self.template,
            workspace: self.workspace,
            prepare: self.prepare,
            ..GitScope::PLAIN
        };
        let setting = GitSetting { name: "work", config: "", extra: "", host: "" };
        let mut vector = compose(&scope, &setting, FilePayload::Whole(""), &PLAIN);
        vector.runs = vec![format!("{BEGIN}{}", self.work.concat())];
        vector
    }
}

fn check_ordinary_use(setup: BackendSetup) {
    let templates = RepositoryTemplates::build(setup);
    let vectors: Vec<GitVector> = SESSIONS.iter().map(GitSession::as_vector).collect();
    super::check_each(&vectors, |vector| {
        let control = templates.copy_for(vector);
        let output = control.run_on_host(&vector.runs[0], vector);
        if !output.status.success() {
            return Err(format!(
                "fails without a sandbox, too: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        let site = templates.copy_for(vector);
        let report = site.run_in_sandbox(&vector.runs[0], vector);
        if let Some(words) = report.refusal {
            return Err(format!("the work does not reach its end: {words}"));
        }
        if !report.planted.is_empty() {
            return Err(format!("reported as planted: {:?}", report.planted));
        }
        let counts = [&control, &site]
            .map(|site| site.run_on_host("git log --oneline --all | wc -l", vector).stdout);
        if counts[0] != counts[1] {
            return Err(format!(
                "the commits of the sandbox and of the control differ: {counts:?}"
            ));
        }
        Ok(())
    });
}

#[test]
fn ordinary_work_with_git_succeeds_in_native_sandboxes_of_root() {
    require!(root, binary, user_namespaces, git);
    check_ordinary_use(BackendSetup { variant: BackendVariant::Native, caller: Caller::Root });
}

#[test]
fn ordinary_work_with_git_succeeds_in_native_sandboxes_of_an_ordinary_user() {
    require!(binary, ordinary_user, ordinary_user_namespaces, git);
    check_ordinary_use(BackendSetup { variant: BackendVariant::Native, caller: Caller::Ordinary });
}

#[test]
fn ordinary_work_with_git_succeeds_in_bubblewrap() {
    require!(root, binary, user_namespaces, bwrap, git);
    check_ordinary_use(BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Root });
}
