//! Scripts in the workspace that the user's configuration names and that the sandbox rewrites.

use super::vector::{
    FilePayload, GitScope, GitSetting, GitVector, MARKER, PLAIN as PLAIN_TRICK, TRICKS, compose,
};

const NONE: GitSetting = GitSetting { name: "", config: "", extra: "", host: "" };
/// Script of the user in the workspace, which some configuration names.
const SCRIPT: GitScope =
    GitScope { file: "tools/x.sh", git_directory: ".git", prepare: "", ..GitScope::PLAIN };

macro_rules! with_script {
    ($command:literal) => {
        concat!(
            "mkdir -p w/tools; printf '#!/bin/sh\\nexit 1\\n' > w/tools/x.sh; chmod +x \
             w/tools/x.sh\n",
            "echo '* filter=own diff=own merge=own' > w/.git/info/attributes\n",
            $command
        )
    };
}

/// Name of a vector, the user's preparation, and the command that makes git run the script.
const SCRIPTS: [(&str, &str, &str); 49] = [
    ("fsmonitor", with_script!("git -C w config core.fsmonitor tools/x.sh"), STATUS),
    ("fsmonitor-dot", with_script!("git -C w config core.fsmonitor ./tools/x.sh"), STATUS),
    ("fsmonitor-absolute", with_script!("git -C w config core.fsmonitor '@W@/tools/x.sh'"), STATUS),
    (
        "fsmonitor-through-link",
        with_script!("ln -s w way; git -C w config core.fsmonitor '@S@/way/tools/x.sh'"),
        STATUS,
    ),
    ("clean", with_script!("git -C w config filter.own.clean tools/x.sh"), STATUS),
    (
        "clean-argument",
        with_script!("git -C w config filter.own.clean 'tools/x.sh --file %f'"),
        STATUS,
    ),
    ("clean-sh", with_script!("git -C w config filter.own.clean 'sh tools/x.sh'"), STATUS),
    (
        "clean-quoted",
        with_script!("git -C w config filter.own.clean \"sh 'tools/x.sh' %f\""),
        STATUS,
    ),
    ("clean-variable", with_script!("git -C w config filter.own.clean 'A=1 ./tools/x.sh'"), STATUS),
    ("clean-joined", with_script!("git -C w config filter.own.clean 'true && tools/x.sh'"), STATUS),
    (
        "clean-unspaced",
        with_script!("git -C w config filter.own.clean 'true;tools/x.sh;true'"),
        STATUS,
    ),
    (
        "clean-shell-words",
        with_script!("git -C w config filter.own.clean \"sh -c 'exec tools/x.sh'\""),
        STATUS,
    ),
    (
        "clean-directory-first",
        with_script!("git -C w config filter.own.clean 'cd tools && ./x.sh'"),
        STATUS,
    ),
    ("clean-sourced", with_script!("git -C w config filter.own.clean '. ./tools/x.sh'"), STATUS),
    ("clean-input", with_script!("git -C w config filter.own.clean 'sh < tools/x.sh'"), STATUS),
    (
        "clean-input-unspaced",
        with_script!("git -C w config filter.own.clean 'sh <tools/x.sh'"),
        STATUS,
    ),
    (
        "clean-option",
        with_script!("git -C w config filter.own.clean 'env --split-string=tools/x.sh'"),
        STATUS,
    ),
    (
        "clean-working-directory",
        with_script!("git -C w config filter.own.clean '$PWD/tools/x.sh'"),
        STATUS,
    ),
    (
        "clean-top-level",
        with_script!(
            "git -C w config filter.own.clean '\"$(git rev-parse --show-toplevel)\"/tools/x.sh'"
        ),
        STATUS,
    ),
    (
        "clean-space-in-name",
        with_script!(
            "cp w/tools/x.sh 'w/tools/a b.sh'; ln -f 'w/tools/a b.sh' w/tools/x.sh
             git -C w config filter.own.clean \"'tools/a b.sh' %f\""
        ),
        STATUS,
    ),
    (
        "clean-home",
        with_script!("git -C w config filter.own.clean '\"$HOME/../w/tools/x.sh\"'"),
        STATUS,
    ),
    (
        "clean-home-braces",
        with_script!("git -C w config filter.own.clean '${HOME}/../w/tools/x.sh %f'"),
        STATUS,
    ),
    (
        "clean-home-alternative",
        with_script!("git -C w config filter.own.clean 'sh \"${HOME:-/}\"/../w/tools/x.sh'"),
        STATUS,
    ),
    (
        "clean-git-directory",
        with_script!(
            "git -C w config filter.own.clean '\"$(git rev-parse --git-dir)\"/../tools/x.sh'"
        ),
        STATUS,
    ),
    (
        "clean-attached-option",
        with_script!("git -C w config filter.own.clean 'env -Stools/x.sh'"),
        STATUS,
    ),
    ("clean-glob", with_script!("git -C w config filter.own.clean 'sh tools/[a-x].s?'"), STATUS),
    (
        "clean-glob-of-directory",
        with_script!("git -C w config filter.own.clean 'exec t*/x.sh'"),
        STATUS,
    ),
    ("process", with_script!("git -C w config filter.own.process tools/x.sh"), STATUS),
    ("smudge", with_script!("git -C w config filter.own.smudge tools/x.sh"), "git checkout HEAD~1"),
    ("textconv", with_script!("git -C w config diff.own.textconv tools/x.sh"), DIFF),
    (
        "textconv-in-log",
        with_script!("git -C w config diff.own.textconv 'sh tools/x.sh'"),
        "git log -p",
    ),
    ("diff-command", with_script!("git -C w config diff.own.command tools/x.sh"), DIFF),
    ("diff-external", with_script!("git -C w config diff.external ./tools/x.sh"), DIFF),
    (
        "merge-driver",
        with_script!("git -C w config merge.own.driver 'tools/x.sh %O %A %B'"),
        "git merge side",
    ),
    ("alias", with_script!("git -C w config alias.ci '!tools/x.sh'"), "git ci"),
    ("alias-sh", with_script!("git -C w config alias.ci '!sh tools/x.sh'"), "git ci"),
    (
        "ssh",
        with_script!(
            "git -C w config core.sshCommand '@W@/tools/x.sh'
             git -C w config remote.origin.url ssh://127.0.0.1/x"
        ),
        "git fetch",
    ),
    (
        "gpg",
        with_script!("git -C w config gpg.program tools/x.sh; git -C w config commit.gpgSign true"),
        COMMIT,
    ),
    ("editor", with_script!("git -C w config core.editor tools/x.sh"), "git commit --amend"),
    (
        "credential",
        with_script!(
            "git -C w config credential.helper '!tools/x.sh'
             git -C w config remote.origin.url http://127.0.0.1:@PORT@/x"
        ),
        "git fetch",
    ),
    (
        "upload-pack",
        with_script!("git -C w config remote.origin.uploadpack '@W@/tools/x.sh'"),
        "git fetch",
    ),
    (
        "included-clean",
        with_script!(
            "git -C w config include.path '@S@/c'; git config --file c filter.own.clean tools/x.sh"
        ),
        STATUS,
    ),
    (
        "included-in-workspace-clean",
        with_script!(
            "git -C w config include.path ../c; git config --file w/c filter.own.clean tools/x.sh"
        ),
        STATUS,
    ),
    ("global-clean", with_script!("git config --global filter.own.clean tools/x.sh"), STATUS),
    (
        "global-fsmonitor",
        with_script!("git config --global core.fsmonitor '@W@/tools/x.sh'"),
        STATUS,
    ),
    (
        "global-textconv",
        with_script!("git config --global diff.own.textconv '~/../w/tools/x.sh'"),
        DIFF,
    ),
    (
        "system-clean",
        with_script!("git config --file system.gitconfig filter.own.clean tools/x.sh"),
        STATUS,
    ),
    (
        "worktree-config-clean",
        with_script!(
            "git -C w config extensions.worktreeConfig true
             git -C w config --worktree filter.own.clean tools/x.sh"
        ),
        STATUS,
    ),
    (
        "script-is-link",
        with_script!(
            "mv w/tools/x.sh w/real.sh; ln -s ../real.sh w/tools/x.sh
             git -C w config filter.own.clean tools/x.sh"
        ),
        STATUS,
    ),
];

const STATUS: &str = "touch -d tomorrow file.txt; git status; echo more >> file.txt; git status";
const DIFF: &str = "echo more >> file.txt; git diff";
const COMMIT: &str = "echo more >> file.txt; git commit -a -m more";

/// The marker as a Python module.
const PYTHON_MARKER: &str = "open('@S@/out/ran', 'w')\n";

/// Scripts that a repository other than the workspace's own names, and scripts that do not exist
/// yet.
const ELSEWHERE: [(GitScope, &str); 14] = [
    (
        GitScope {
            name: "script-of-rebase",
            template: "rebasing",
            prepare: "mkdir w/tools; printf '#!/bin/sh\n' > w/tools/x.sh; chmod +x w/tools/x.sh
                      echo 'exec tools/x.sh' > w/.git/rebase-merge/git-rebase-todo",
            ..SCRIPT
        },
        "git rebase --continue",
    ),
    (
        GitScope {
            name: "module-of-python",
            prepare: "echo '* filter=own' > w/.git/info/attributes
                      git -C w config filter.own.clean '\"/usr/bin/python3\" -m x %f'",
            file: "x.py",
            file_exists: false,
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "package-of-python",
            prepare: "echo '* filter=own' > w/.git/info/attributes
                      git -C w config filter.own.clean 'python3 -m some.x'",
            file: "some/x.py",
            file_exists: false,
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "attached-package-of-python",
            prepare: "echo '* filter=own' > w/.git/info/attributes
                      git -C w config filter.own.clean 'python3 -msome.x'",
            file: "some/x.py",
            file_exists: false,
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "import-of-python-module",
            prepare: "echo '* filter=own' > w/.git/info/attributes
                      git -C w config filter.own.clean 'python3 -m json.tool'",
            file: "argparse.py",
            file_exists: false,
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "package-for-python-module",
            prepare: "echo '* filter=own' > w/.git/info/attributes
                      git -C w config filter.own.clean 'python3 -m json.tool'",
            file: "json/__init__.py",
            file_exists: false,
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "import-of-python-script",
            prepare: "echo '* filter=own' > w/.git/info/attributes
                      mkdir w/tools; echo 'import json' > w/tools/x.py
                      git -C w config filter.own.clean 'python3 tools/x.py %f'",
            file: "tools/json.py",
            file_exists: false,
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "script-behind-two-directories",
            prepare: "echo '* filter=own' > w/.git/info/attributes
                      mkdir -p w/tools/in; printf '#!/bin/sh\n' > w/tools/in/y.sh; chmod +x \
                      w/tools/in/y.sh
                      git -C w config filter.own.clean 'cd tools && cd in && ./y.sh'",
            file: "tools/in/y.sh",
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "script-behind-variable",
            prepare: "echo '* filter=own' > w/.git/info/attributes
                      mkdir w/tools; printf '#!/bin/sh\n' > w/tools/x.sh; chmod +x w/tools/x.sh
                      git -C w config filter.own.clean '\"$OWN_TOOLS/x.sh\"'",
            environment: &[("OWN_TOOLS", "@W@/tools")],
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "script-above",
            workspace: "top/ws",
            prepare: "mv w top; mkdir -p top/ws; cp top/file.txt top/ws; printf '#!/bin/sh\n' > \
                      top/ws/x.sh
                      chmod +x top/ws/x.sh; git -C top add ws; git -C top commit -q -m ws
                      echo '* filter=own' > top/.git/info/attributes
                      git -C top config filter.own.clean ws/x.sh",
            file: "x.sh",
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "script-of-submodule",
            template: "super-sub",
            directory: "sub",
            prepare: "printf '#!/bin/sh\n' > w/sub/x.sh; chmod +x w/sub/x.sh
                      echo '* filter=own' > w/.git/modules/sub/info/attributes
                      git -C w/sub config filter.own.clean ./x.sh",
            file: "sub/x.sh",
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "script-of-worktree",
            workspace: "tree",
            prepare: "mv w main; git -C main worktree add -q ../tree; printf '#!/bin/sh\n' > \
                      tree/x.sh
                      chmod +x tree/x.sh; echo '* filter=own' > main/.git/info/attributes
                      git -C main config filter.own.clean ./x.sh",
            file: "x.sh",
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "script-absent",
            prepare: "echo '* filter=own' > w/.git/info/attributes
                      git -C w config filter.own.clean tools/x.sh",
            file_exists: false,
            ..SCRIPT
        },
        STATUS,
    ),
    (
        GitScope {
            name: "script-of-nested-repository",
            directory: "vendor",
            prepare: "git clone -q '@W@/.git' w/vendor; printf '#!/bin/sh\n' > w/vendor/x.sh
                      chmod +x w/vendor/x.sh; mkdir -p w/vendor/.git/info
                      echo '* filter=own' > w/vendor/.git/info/attributes
                      git -C w/vendor config filter.own.clean ./x.sh",
            file: "vendor/x.sh",
            ..SCRIPT
        },
        STATUS,
    ),
];

/// Returns all vectors of this module.
pub(super) fn vectors() -> Vec<GitVector> {
    let content = FilePayload::Whole(MARKER);
    let mut vectors = Vec::new();
    for (name, prepare, host) in SCRIPTS {
        let leads: &[&str] = if name == "script-is-link" { &["real.sh"] } else { &[] };
        let scope = GitScope { name: "script", prepare, leads, ..SCRIPT };
        let setting = GitSetting { name, host, ..NONE };
        vectors.push(compose(&scope, &setting, content, &PLAIN_TRICK));
        if ["fsmonitor-absolute", "clean-sh"].contains(&name) {
            let tricks = TRICKS.iter().filter(|trick| trick.fits(&scope));
            vectors.extend(tricks.map(|trick| compose(&scope, &setting, content, trick)));
        }
    }
    for (scope, host) in &ELSEWHERE {
        let setting = GitSetting { name: "clean", host, ..NONE };
        let tricks = TRICKS.iter().filter(|trick| trick.fits(scope)).step_by(3);
        let all = [PLAIN_TRICK].into_iter().chain(tricks.copied());
        let content =
            if scope.file.ends_with(".py") { FilePayload::Whole(PYTHON_MARKER) } else { content };
        vectors.extend(all.map(|trick| compose(scope, &setting, content, &trick)));
    }
    vectors
}
