//! Files from which git takes its configuration and its hooks.

use super::vector::GitScope;

const PLAIN: GitScope = GitScope { git_directory: ".git", ..GitScope::PLAIN };
/// File in the workspace that some configuration includes.
const INCLUDED: GitScope = GitScope { file: "conf/inc", ..PLAIN };
const SUBMODULE: GitScope = GitScope { template: "super-sub", directory: "sub", ..GitScope::PLAIN };
/// Linked worktree, whose repository is outside the workspace.
const WORKTREE: GitScope = GitScope {
    workspace: "tree",
    prepare: "mv w main; git -C main worktree add -q ../tree; mkdir -p main/.git/info",
    ..GitScope::PLAIN
};
/// Workspace that is a subdirectory of a repository.
const ABOVE: GitScope = GitScope { workspace: "top/ws", ..GitScope::PLAIN };

/// Every file from which git reads settings.
pub(super) const CONFIGURATIONS: [GitScope; 58] = [
    GitScope { name: "config", file: ".git/config", ..PLAIN },
    GitScope {
        name: "config-worktree",
        prepare: "git -C w config extensions.worktreeConfig true; : > w/.git/config.worktree",
        file: ".git/config.worktree",
        ..PLAIN
    },
    GitScope {
        name: "config-worktree-absent",
        prepare: "git -C w config extensions.worktreeConfig true",
        file: ".git/config.worktree",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "include-relative",
        prepare: "mkdir w/conf; : > w/conf/inc; git -C w config include.path ../conf/inc",
        ..INCLUDED
    },
    GitScope {
        name: "include-absolute",
        prepare: "mkdir w/conf; : > w/conf/inc; git -C w config include.path '@W@/conf/inc'",
        ..INCLUDED
    },
    GitScope {
        name: "include-beside-config",
        prepare: ": > w/.git/inc; git -C w config include.path inc",
        file: ".git/inc",
        ..PLAIN
    },
    GitScope {
        name: "include-through-link",
        prepare: "mkdir w/conf; : > w/conf/inc; ln -s conf w/way
                  git -C w config include.path ../way/inc",
        leads: &["way"],
        ..INCLUDED
    },
    GitScope {
        name: "include-through-outer-link",
        prepare: "mkdir w/conf; : > w/conf/inc; ln -s w way
                  git -C w config include.path '@S@/way/conf/inc'",
        ..INCLUDED
    },
    GitScope {
        name: "include-of-link",
        prepare: "mkdir w/conf; : > w/conf/inc; ln -s conf/inc w/inc
                  git -C w config include.path ../inc",
        leads: &["inc"],
        ..INCLUDED
    },
    GitScope {
        name: "include-nested",
        prepare: "mkdir w/conf; : > w/conf/inc; git -C w config include.path ../conf/first
                  git config --file w/conf/first include.path inc",
        ..INCLUDED
    },
    GitScope {
        name: "include-nested-outside",
        prepare: "mkdir w/conf; : > w/conf/inc; git -C w config include.path '@S@/first'
                  git config --file first include.path second
                  git config --file second include.path '@W@/conf/inc'",
        ..INCLUDED
    },
    GitScope {
        name: "include-absent",
        prepare: "mkdir w/conf; git -C w config include.path ../conf/inc",
        file_exists: false,
        ..INCLUDED
    },
    GitScope {
        name: "include-absent-with-parent",
        prepare: "git -C w config include.path ../conf/inc",
        file_exists: false,
        ..INCLUDED
    },
    GitScope {
        name: "include-nested-absent",
        prepare: "mkdir w/conf; git -C w config include.path ../conf/first
                  git config --file w/conf/first include.path inc",
        file_exists: false,
        ..INCLUDED
    },
    GitScope {
        name: "include-if-directory",
        prepare: "mkdir w/conf; : > w/conf/inc
                  git -C w config 'includeIf.gitdir:@S@/.path' ../conf/inc",
        ..INCLUDED
    },
    GitScope {
        name: "include-if-branch",
        prepare: "mkdir w/conf; : > w/conf/inc
                  git -C w config includeIf.onbranch:main.path ../conf/inc",
        ..INCLUDED
    },
    GitScope {
        name: "include-if-other-branch",
        prepare: "mkdir w/conf; : > w/conf/inc
                  git -C w config includeIf.onbranch:side.path ../conf/inc",
        extra: "git checkout -q side",
        git_directory: "",
        ..INCLUDED
    },
    GitScope {
        name: "include-if-remote",
        prepare: "mkdir w/conf; : > w/conf/inc
                  git -C w config 'includeIf.hasconfig:remote.*.url:**/origin.git.path' \
                  ../conf/inc",
        ..INCLUDED
    },
    GitScope {
        name: "include-of-worktree-config",
        prepare: "mkdir w/conf; : > w/conf/inc; git -C w config extensions.worktreeConfig true
                  git -C w config --worktree include.path ../conf/inc",
        ..INCLUDED
    },
    GitScope {
        name: "global-include",
        prepare: "mkdir w/conf; : > w/conf/inc
                  git config --global include.path '@W@/conf/inc'",
        ..INCLUDED
    },
    GitScope {
        name: "global-include-of-home",
        prepare: "mkdir w/conf; : > w/conf/inc; git config --global include.path '~/../w/conf/inc'",
        ..INCLUDED
    },
    GitScope {
        name: "global-include-if-directory",
        prepare: "mkdir w/conf; : > w/conf/inc
                  git config --global 'includeIf.gitdir:@S@/.path' '@W@/conf/inc'",
        ..INCLUDED
    },
    GitScope {
        name: "global-include-absent",
        prepare: "git config --global include.path '@W@/conf/inc'",
        file_exists: false,
        ..INCLUDED
    },
    GitScope {
        name: "global-xdg-include",
        prepare: "mkdir w/conf; : > w/conf/inc; mkdir -p home/.config/git
                  git config --file home/.config/git/config include.path '@W@/conf/inc'",
        ..INCLUDED
    },
    GitScope {
        name: "global-file-is-link",
        prepare: "mkdir w/conf; mv home/.gitconfig w/conf/inc; ln -s ../w/conf/inc home/.gitconfig",
        ..INCLUDED
    },
    GitScope {
        name: "system-include",
        prepare: "mkdir w/conf; : > w/conf/inc
                  git config --file system.gitconfig include.path '@W@/conf/inc'",
        ..INCLUDED
    },
    GitScope {
        name: "above-include",
        prepare: "mv w top; mkdir -p top/ws/conf; : > top/ws/conf/inc; cp top/file.txt top/ws
                  git -C top add ws; git -C top commit -q -m ws
                  git -C top config include.path ../ws/conf/inc",
        file: "conf/inc",
        ..ABOVE
    },
    GitScope {
        name: "above-include-absent",
        prepare: "mv w top; mkdir -p top/ws; cp top/file.txt top/ws
                  git -C top add ws; git -C top commit -q -m ws
                  git -C top config include.path ../ws/conf/inc",
        file: "conf/inc",
        file_exists: false,
        ..ABOVE
    },
    GitScope {
        name: "submodule",
        file: ".git/modules/sub/config",
        git_directory: ".git/modules/sub",
        ..SUBMODULE
    },
    GitScope {
        name: "submodule-two-parts",
        template: "super-two-parts",
        file: ".git/modules/two/parts/config",
        git_directory: ".git/modules/two/parts",
        ..SUBMODULE
    },
    GitScope {
        name: "submodule-seven-parts",
        template: "super-1-2-3-4-5-6-7",
        file: ".git/modules/1/2/3/4/5/6/7/config",
        git_directory: ".git/modules/1/2/3/4/5/6/7",
        ..SUBMODULE
    },
    GitScope {
        name: "submodule-nine-parts",
        template: "super-1-2-3-4-5-6-7-8-9",
        file: ".git/modules/1/2/3/4/5/6/7/8/9/config",
        git_directory: ".git/modules/1/2/3/4/5/6/7/8/9",
        ..SUBMODULE
    },
    GitScope {
        name: "submodule-in-submodule",
        template: "inner",
        directory: "sub/inner",
        file: ".git/modules/sub/modules/inner/config",
        git_directory: ".git/modules/sub/modules/inner",
        ..SUBMODULE
    },
    GitScope {
        name: "submodule-include",
        prepare: "mkdir w/conf; : > w/conf/inc; git -C w/sub config include.path '@W@/conf/inc'",
        file: "conf/inc",
        git_directory: ".git/modules/sub",
        ..SUBMODULE
    },
    GitScope {
        name: "submodule-config-worktree",
        prepare: "git -C w/sub config extensions.worktreeConfig true",
        file: ".git/modules/sub/config.worktree",
        file_exists: false,
        git_directory: ".git/modules/sub",
        ..SUBMODULE
    },
    GitScope {
        name: "submodule-with-its-own-directory",
        prepare: "rm w/sub/.git; mv w/.git/modules/sub w/sub/.git
                  git config --file w/sub/.git/config --unset core.worktree",
        file: "sub/.git/config",
        git_directory: "sub/.git",
        ..SUBMODULE
    },
    GitScope {
        name: "worktree",
        file: "../main/.git/config",
        git_directory: "../main/.git",
        ..WORKTREE
    },
    GitScope {
        name: "worktree-include",
        prepare: "mv w main; git -C main worktree add -q ../tree; mkdir -p main/.git/info tree/conf
                  : > tree/conf/inc; git -C main config include.path ../../tree/conf/inc",
        file: "conf/inc",
        ..WORKTREE
    },
    GitScope {
        name: "worktree-config-worktree",
        prepare: "mv w main; git -C main worktree add -q ../tree; mkdir -p main/.git/info
                  git -C main config extensions.worktreeConfig true",
        file: "../main/.git/worktrees/tree/config.worktree",
        file_exists: false,
        ..WORKTREE
    },
    GitScope {
        name: "worktree-inside",
        prepare: "git -C w worktree add -q wt; git -C w config extensions.worktreeConfig true
                  : > w/.git/worktrees/wt/config.worktree",
        directory: "wt",
        file: ".git/worktrees/wt/config.worktree",
        git_directory: ".git/worktrees/wt",
        ..PLAIN
    },
    GitScope {
        name: "nested-repository",
        prepare: "mkdir -p w/vendor; cp -a w/.git nested.git
                  git clone -q '@W@/.git' w/vendor/nested; mkdir -p w/vendor/nested/.git/info
                  git -C w/vendor/nested branch -q side origin/side",
        directory: "vendor/nested",
        file: "vendor/nested/.git/config",
        git_directory: "vendor/nested/.git",
        ..GitScope::PLAIN
    },
    GitScope {
        name: "separate-directory",
        prepare: "git -C w init -q --separate-git-dir '@W@/real.git'",
        file: "real.git/config",
        git_directory: "real.git",
        ..GitScope::PLAIN
    },
    GitScope {
        name: "linked-directory",
        prepare: "mv w/.git w/real.git; ln -s real.git w/.git",
        file: "real.git/config",
        git_directory: "real.git",
        leads: &[".git"],
        ..GitScope::PLAIN
    },
    GitScope {
        name: "nested-repository-deep",
        prepare: "mkdir -p w/1/2/3/4/5/6/7/8; git clone -q '@W@/.git' w/1/2/3/4/5/6/7/8/nested
                  mkdir -p w/1/2/3/4/5/6/7/8/nested/.git/info",
        directory: "1/2/3/4/5/6/7/8/nested",
        file: "1/2/3/4/5/6/7/8/nested/.git/config",
        git_directory: "1/2/3/4/5/6/7/8/nested/.git",
        ..GitScope::PLAIN
    },
    GitScope {
        name: "nested-repository-ignored",
        prepare: "mkdir -p w/node_modules; echo node_modules >> w/.gitignore
                  git clone -q '@W@/.git' w/node_modules/nested
                  mkdir -p w/node_modules/nested/.git/info",
        directory: "node_modules/nested",
        file: "node_modules/nested/.git/config",
        git_directory: "node_modules/nested/.git",
        ..GitScope::PLAIN
    },
    GitScope {
        name: "nested-separate-directory",
        prepare: "mkdir w/gits; git clone -q --separate-git-dir w/gits/other '@W@/.git' w/other
                  mkdir -p w/gits/other/info",
        directory: "other",
        file: "gits/other/config",
        git_directory: "gits/other",
        leads: &["other/.git"],
        ..GitScope::PLAIN
    },
    GitScope {
        name: "several-repositories",
        template: "several",
        directory: "one",
        file: "one/.git/config",
        git_directory: "one/.git",
        ..GitScope::PLAIN
    },
    GitScope {
        name: "several-repositories-include",
        template: "several",
        prepare: "mkdir w/conf; : > w/conf/inc; git -C w/one config include.path '@W@/conf/inc'",
        directory: "one",
        file: "conf/inc",
        ..GitScope::PLAIN
    },
    GitScope {
        name: "worktree-of-superproject",
        template: "super-sub",
        prepare: "mv w main; git -C main worktree add -q ../tree",
        workspace: "tree",
        directory: "../main/sub",
        file: "../main/.git/modules/sub/config",
        ..GitScope::PLAIN
    },
    GitScope {
        name: "worktree-of-others",
        prepare:
            "mv w main; git -C main worktree add -q ../tree; git -C main worktree add -q ../other
                  git -C main config extensions.worktreeConfig true
                  : > main/.git/worktrees/other/config.worktree",
        directory: "../other",
        file: "../main/.git/worktrees/other/config.worktree",
        ..WORKTREE
    },
    GitScope {
        name: "variable-global",
        prepare: "mkdir w/conf; cp home/.gitconfig w/conf/inc",
        environment: &[("GIT_CONFIG_GLOBAL", "@W@/conf/inc")],
        ..INCLUDED
    },
    GitScope {
        name: "variable-global-include",
        prepare: "mkdir w/conf; : > w/conf/inc; cp home/.gitconfig other.gitconfig
                  git config --file other.gitconfig include.path '@W@/conf/inc'",
        environment: &[("GIT_CONFIG_GLOBAL", "@S@/other.gitconfig")],
        ..INCLUDED
    },
    GitScope {
        name: "variable-xdg-include",
        prepare: "mkdir -p w/conf xdg/git; : > w/conf/inc
                  git config --file xdg/git/config include.path '@W@/conf/inc'",
        environment: &[("XDG_CONFIG_HOME", "@S@/xdg")],
        ..INCLUDED
    },
    GitScope {
        name: "variable-count-include",
        prepare: "mkdir w/conf; : > w/conf/inc",
        environment: &[
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "include.path"),
            ("GIT_CONFIG_VALUE_0", "@W@/conf/inc"),
        ],
        ..INCLUDED
    },
    GitScope {
        name: "variable-xdg-empty",
        prepare: "mkdir -p w/conf home/.config/git; : > w/conf/inc
                  git config --file home/.config/git/config include.path '@W@/conf/inc'",
        environment: &[("XDG_CONFIG_HOME", "")],
        ..INCLUDED
    },
    GitScope {
        name: "variable-global-relative",
        prepare: "mkdir w/conf; cp home/.gitconfig w/conf/inc",
        environment: &[("GIT_CONFIG_GLOBAL", "conf/inc")],
        ..INCLUDED
    },
    GitScope {
        name: "include-of-named-home",
        // The home directory of `daemon` is two directories below the root.
        prepare: "mkdir w/conf; : > w/conf/inc; git -C w config include.path \
                  '~daemon/../..@W@/conf/inc'",
        ..INCLUDED
    },
    GitScope {
        name: "include-blank-at-end",
        prepare: "mkdir w/conf; : > 'w/conf/inc '
                  printf '[include]\\n\\tpath = \"../conf/inc \"\\n' >> w/.git/config",
        file: "conf/inc ",
        ..PLAIN
    },
];

/// Spellings of an include that git understands. Each script adds one to the configuration.
pub(super) const SPELLINGS: [(&str, &str); 14] = [
    ("one-line", "printf '[include]path=../conf/inc\n' >> w/.git/config"),
    ("upper-case", "printf '[INCLUDE]\nPATH = ../conf/inc\n' >> w/.git/config"),
    ("quoted", "printf '[include]\n\tpath = \"../conf/inc\" ; ours\n' >> w/.git/config"),
    ("half-quoted", "printf '[include]\n\tpath = ..\"/conf\"/inc # ours\n' >> w/.git/config"),
    ("continued", "printf '[include]\n\tpath = ../co\\\\\nnf/inc\n' >> w/.git/config"),
    ("two-sections", "printf '[core][include] path = ../conf/inc\n' >> w/.git/config"),
    ("spaced", "printf '[include]   \n\n# more\n   path\t=\t ../conf/inc  \t\n' >> w/.git/config"),
    ("carriage-returns", "printf '[include]\r\n\tpath = ../conf/inc\r\n' >> w/.git/config"),
    (
        "byte-order-mark",
        "{ printf '\\357\\273\\277[include]\n\tpath = ../conf/inc\n'; cat w/.git/config; } > c
         mv c w/.git/config",
    ),
    (
        "first-of-two",
        "git -C w config --add include.path ../conf/inc; git -C w config --add include.path \
         ../none",
    ),
    (
        "not-text",
        "printf '[x]\n\ty = \\377\\376\n[include]\n\tpath = ../conf/inc\n' >> w/.git/config",
    ),
    (
        "after-a-long-file",
        "{ yes '# a comment that is long' | head -n 20000; \
         printf '[include]\npath = ../conf/inc\n'; } \
         >> w/.git/config",
    ),
    (
        "condition-with-bracket",
        "printf '[includeIf \"gitdir:**/[.]git\"]\n\tpath = ../conf/inc\n' >> w/.git/config",
    ),
    (
        "deeply-nested",
        "git -C w config include.path '@S@/1'
         for n in 1 2 3 4 5 6 7; do git config --file $n include.path $((n + 1)); done
         git config --file 8 include.path '@W@/conf/inc'",
    ),
];

/// Scope of an include that is spelt in a special way.
pub(super) const SPELT: GitScope = INCLUDED;

/// Every directory from which git takes hooks. The file of such a scope is the directory.
pub(super) const HOOK_DIRECTORIES: [GitScope; 29] = [
    GitScope { name: "hooks", file: ".git/hooks", file_exists: false, ..PLAIN },
    GitScope {
        name: "hooks-with-hook",
        prepare: "printf '#!/bin/sh\n' > w/.git/hooks/pre-commit; chmod +x w/.git/hooks/pre-commit",
        file: ".git/hooks",
        ..PLAIN
    },
    GitScope {
        name: "hooks-absent",
        prepare: "rmdir w/.git/hooks",
        file: ".git/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-are-link",
        prepare: "rmdir w/.git/hooks; mkdir w/githooks; ln -s ../githooks w/.git/hooks",
        file: "githooks",
        file_exists: false,
        leads: &[".git/hooks"],
        ..PLAIN
    },
    GitScope {
        name: "hooks-are-dangling-link",
        prepare: "rmdir w/.git/hooks; ln -s ../githooks w/.git/hooks",
        file: "githooks",
        file_exists: false,
        leads: &[".git/hooks"],
        ..PLAIN
    },
    GitScope {
        name: "hook-is-link",
        prepare: "mkdir w/tools; printf '#!/bin/sh\n' > w/tools/pre-commit
                  chmod +x w/tools/pre-commit; ln -s ../../tools/pre-commit \
                  w/.git/hooks/pre-commit",
        file: "tools",
        leads: &[".git/hooks/pre-commit"],
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-relative",
        prepare: "mkdir -p w/tools/hooks; git -C w config core.hooksPath tools/hooks",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-with-hook",
        prepare: "mkdir -p w/tools/hooks; git -C w config core.hooksPath tools/hooks
                  printf '#!/bin/sh\n' > w/tools/hooks/pre-commit; chmod +x \
                  w/tools/hooks/pre-commit",
        file: "tools/hooks",
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-absolute",
        prepare: "mkdir -p w/tools/hooks; git -C w config core.hooksPath '@W@/tools/hooks'",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-through-link",
        prepare: "mkdir -p w/tools/hooks; ln -s w way
                  git -C w config core.hooksPath '@S@/way/tools/hooks'",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-absent",
        prepare: "git -C w config core.hooksPath tools/hooks",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "husky",
        prepare: "mkdir -p w/.husky/_; git -C w config core.hooksPath .husky/_
                  printf '#!/bin/sh\nexec sh \"${0%%/_/*}/pre-commit\"\n' > w/.husky/_/pre-commit
                  chmod +x w/.husky/_/pre-commit",
        file: ".husky",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "husky-own",
        prepare: "mkdir -p w/.husky/_; git -C w config core.hooksPath .husky/_",
        file: ".husky/_",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-global",
        prepare: "mkdir -p w/tools/hooks; git config --global core.hooksPath tools/hooks",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-of-home",
        prepare: "mkdir -p w/tools/hooks; git config --global core.hooksPath '~/../w/tools/hooks'",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-system",
        prepare: "git config --file system.gitconfig core.hooksPath tools/hooks",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-included",
        prepare: "mkdir -p w/tools/hooks w/conf; git -C w config include.path '@S@/first'
                  git config --file first core.hooksPath tools/hooks",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-worktree-config",
        prepare: "mkdir -p w/tools/hooks; git -C w config extensions.worktreeConfig true
                  git -C w config --worktree core.hooksPath tools/hooks",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-above",
        prepare: "mv w top; mkdir -p top/ws/hooks; cp top/file.txt top/ws
                  git -C top add ws; git -C top commit -q -m ws
                  git -C top config core.hooksPath ws/hooks",
        file: "hooks",
        file_exists: false,
        ..ABOVE
    },
    GitScope {
        name: "hooks-of-submodule",
        file: ".git/modules/sub/hooks",
        file_exists: false,
        git_directory: ".git/modules/sub",
        ..SUBMODULE
    },
    GitScope {
        name: "hooks-of-submodule-nine-parts",
        template: "super-1-2-3-4-5-6-7-8-9",
        file: ".git/modules/1/2/3/4/5/6/7/8/9/hooks",
        file_exists: false,
        git_directory: ".git/modules/1/2/3/4/5/6/7/8/9",
        ..SUBMODULE
    },
    GitScope {
        name: "hooks-path-of-submodule",
        prepare: "mkdir w/sub/hooks; git -C w/sub config core.hooksPath hooks",
        file: "sub/hooks",
        file_exists: false,
        git_directory: ".git/modules/sub",
        ..SUBMODULE
    },
    GitScope {
        name: "hooks-of-nested-repository",
        prepare: "git clone -q '@W@/.git' w/vendor; mkdir -p w/vendor/.git/hooks",
        directory: "vendor",
        file: "vendor/.git/hooks",
        file_exists: false,
        git_directory: "vendor/.git",
        ..GitScope::PLAIN
    },
    GitScope {
        name: "hooks-of-worktree",
        file: "../main/.git/hooks",
        file_exists: false,
        git_directory: "../main/.git",
        ..WORKTREE
    },
    GitScope {
        name: "hooks-path-of-worktree",
        prepare: "mv w main; git -C main worktree add -q ../tree; mkdir tree/hooks
                  git -C main config core.hooksPath hooks",
        file: "hooks",
        file_exists: false,
        ..WORKTREE
    },
    GitScope {
        name: "hooks-of-several-repositories",
        template: "several",
        directory: "one",
        file: "one/.git/hooks",
        file_exists: false,
        git_directory: "one/.git",
        ..GitScope::PLAIN
    },
    GitScope {
        name: "hooks-path-of-variable",
        prepare: "mkdir -p w/tools/hooks",
        file: "tools/hooks",
        file_exists: false,
        environment: &[
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "core.hooksPath"),
            ("GIT_CONFIG_VALUE_0", "tools/hooks"),
        ],
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-is-the-root",
        prepare: "git -C w config core.hooksPath '@W@'",
        file: ".",
        file_exists: false,
        ..PLAIN
    },
    GitScope {
        name: "hooks-path-of-named-home",
        prepare: "mkdir -p w/tools/hooks
                  git -C w config core.hooksPath '~daemon/../..@W@/tools/hooks'",
        file: "tools/hooks",
        file_exists: false,
        ..PLAIN
    },
];
