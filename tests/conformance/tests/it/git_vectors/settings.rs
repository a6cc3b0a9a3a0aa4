//! Settings with which git runs a program, and hooks.

use super::vector::GitSetting;

const ATTRIBUTES: &str = "echo '* diff=evil filter=evil merge=evil' > '@R@/.gitattributes'";
/// Commands of a user who changes a file, which is what most git commands act on.
///
/// The timestamp changes first and the size later, because git compares, and for that filters, only
/// content of the same size.
const STATUS: &str = "touch -d tomorrow file.txt; git status; echo more >> file.txt; git status";
const DIFF: &str = "echo more >> file.txt; git diff; git log -p -2";
const COMMIT: &str = "echo more >> file.txt; git commit -a -m more";

const NONE: GitSetting = GitSetting { name: "", config: "", extra: "", host: STATUS };

/// Setting that is tried with every trick.
pub(super) const FSMONITOR: GitSetting =
    GitSetting { name: "fsmonitor", config: "[core]\n\tfsmonitor = @M@\n", ..NONE };

/// Settings that are tried in every scope.
pub(super) const MAIN: [GitSetting; 4] = [
    GitSetting {
        name: "hooks-path",
        config: "[core]\n\thooksPath = @W@/.evil/hooks\n",
        extra: "cp .evil/m .evil/hooks/pre-commit",
        host: COMMIT,
    },
    GitSetting {
        name: "filter-clean",
        config: "[filter \"evil\"]\n\tclean = @M@\n",
        extra: ATTRIBUTES,
        host: STATUS,
    },
    GitSetting {
        name: "textconv",
        config: "[diff \"evil\"]\n\ttextconv = @M@\n",
        extra: ATTRIBUTES,
        host: DIFF,
    },
    GitSetting {
        name: "include",
        config: "[include]\n\tpath = @W@/.evil/config.more\n",
        extra: "printf '[core]\\n\\tfsmonitor = @M@\\n' > .evil/config.more",
        ..NONE
    },
];

/// Settings that are tried in a repository's own configuration and a few other scopes.
pub(super) const MORE: [GitSetting; 36] = [
    GitSetting {
        name: "fsmonitor-relative",
        config: "[core]\nfsmonitor = @W@/.evil/../.evil/m",
        ..NONE
    },
    GitSetting { name: "fsmonitor-words", config: "[CORE] FsMonitor = \"@M@ one\" ; two", ..NONE },
    GitSetting {
        name: "editor",
        config: "[core]\n\teditor = @M@\n",
        host: "echo more >> file.txt; git commit -a",
        ..NONE
    },
    GitSetting {
        name: "editor-of-amend",
        config: "[core]\n\teditor = @M@\n",
        host: "git commit --amend",
        ..NONE
    },
    GitSetting {
        name: "sequence-editor",
        config: "[sequence]\n\teditor = @M@\n",
        host: "git rebase -i HEAD~1",
        ..NONE
    },
    GitSetting {
        name: "pager",
        config: "[core]\n\tpager = @M@\n",
        host: "script -q -e -c 'git log -p' /dev/null",
        ..NONE
    },
    GitSetting {
        name: "pager-of-status",
        config: "[pager]\n\tstatus = @M@\n",
        host: "script -q -e -c 'git status' /dev/null",
        ..NONE
    },
    GitSetting {
        name: "ssh-command",
        config: "[core]\n\tsshCommand = @M@\n[url \"ssh://127.0.0.1/\"]\n\tinsteadOf = /\n",
        host: "git fetch",
        ..NONE
    },
    GitSetting {
        name: "ask-pass",
        config: "[core]\n\taskPass = @M@\n[url \"http://127.0.0.1:@PORT@/\"]\n\tinsteadOf = /\n",
        host: "git fetch",
        ..NONE
    },
    GitSetting {
        name: "credential-helper",
        config: "[credential]\n\thelper = @M@\n[url \"http://127.0.0.1:@PORT@/\"]\n\tinsteadOf = \
                 /\n",
        host: "git fetch",
        ..NONE
    },
    GitSetting {
        name: "credential-helper-for-url",
        config: "[credential \"http://127.0.0.1:@PORT@\"]\n\thelper = !@M@\n\
                 [url \"http://127.0.0.1:@PORT@/\"]\n\tinsteadOf = /\n",
        host: "git fetch",
        ..NONE
    },
    GitSetting {
        name: "git-proxy",
        config: "[core]\n\tgitProxy = @M@\n[url \"git://127.0.0.1/\"]\n\tinsteadOf = /\n",
        host: "git fetch",
        ..NONE
    },
    GitSetting {
        name: "alternate-refs-command",
        config: "[core]\n\talternateRefsCommand = @M@\n",
        extra: "git init -q --bare .evil/alternate
                objects=$(git -C '@R@' rev-parse --git-path objects)
                (cd '@R@' && echo '@W@/.evil/alternate/objects' > \"$objects/info/alternates\")",
        host: "git fetch",
    },
    GitSetting { name: "diff-external", config: "[diff]\n\texternal = @M@\n", host: DIFF, ..NONE },
    GitSetting {
        name: "diff-command",
        config: "[diff \"evil\"]\n\tcommand = @M@\n",
        extra: ATTRIBUTES,
        host: DIFF,
    },
    GitSetting {
        name: "textconv-in-log",
        config: "[diff \"evil\"]\n\ttextconv = @M@\n\tcachetextconv = false\n",
        extra: ATTRIBUTES,
        host: "git log -p -2",
    },
    GitSetting {
        name: "filter-smudge",
        config: "[filter \"evil\"]\n\tsmudge = @M@\n",
        extra: ATTRIBUTES,
        host: "git checkout HEAD~1; git checkout -f HEAD~1 -- file.txt",
    },
    GitSetting {
        name: "filter-process",
        config: "[filter \"evil\"]\n\tprocess = @M@\n",
        extra: ATTRIBUTES,
        host: STATUS,
    },
    GitSetting {
        name: "attributes-file",
        config: "[core]\n\tattributesFile = @W@/.evil/attributes\n[filter \"evil\"]\n\tclean = \
                 @M@\n",
        extra: "echo '* filter=evil' > .evil/attributes",
        ..NONE
    },
    GitSetting {
        name: "attributes-of-the-repository",
        config: "[filter \"evil\"]\n\tclean = @M@\n",
        extra: "attributes=$(git -C '@R@' rev-parse --git-path info/attributes)
                (cd '@R@' && echo '* filter=evil' > \"$attributes\")",
        ..NONE
    },
    GitSetting {
        name: "merge-driver",
        config: "[merge \"evil\"]\n\tdriver = @M@ %O %A %B\n",
        extra: ATTRIBUTES,
        host: "git checkout -q -B mine origin/main; git merge -m merge origin/side",
    },
    GitSetting {
        name: "gpg-program",
        config: "[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = @M@\n",
        host: COMMIT,
        ..NONE
    },
    GitSetting {
        name: "gpg-ssh-program",
        config: "[commit]\n\tgpgSign = true\n[gpg]\n\tformat = ssh\n[gpg \"ssh\"]\n\tprogram = \
                 @M@\n\
                 [user]\n\tsigningKey = @M@\n",
        host: COMMIT,
        ..NONE
    },
    GitSetting {
        name: "gpg-ssh-default-key",
        config: "[commit]\n\tgpgSign = true\n[gpg]\n\tformat = ssh\n\
                 [gpg \"ssh\"]\n\tdefaultKeyCommand = @M@\n",
        host: COMMIT,
        ..NONE
    },
    GitSetting {
        name: "gpg-x509-program",
        config: "[commit]\n\tgpgSign = true\n[gpg]\n\tformat = x509\n[gpg \"x509\"]\n\tprogram = \
                 @M@\n",
        host: COMMIT,
        ..NONE
    },
    GitSetting {
        name: "gpg-of-log",
        config: "[log]\n\tshowSignature = true\n[gpg]\n\tprogram = @M@\n",
        extra: r#"(
            cd '@R@' || exit
            commit=$(git cat-file commit HEAD | sed 's/^committer.*/&\
gpgsig -----BEGIN PGP SIGNATURE-----\
 \
 x\
 -----END PGP SIGNATURE-----/' | git hash-object -t commit -w --stdin)
            git update-ref HEAD "$commit"
        )"#,
        host: "git log -p -2",
    },
    GitSetting {
        name: "external-transport",
        config: "[protocol \"ext\"]\n\tallow = always\n[url \"ext::@M@ \"]\n\tinsteadOf = /\n",
        host: "git fetch",
        ..NONE
    },
    GitSetting {
        name: "upload-pack",
        config: "[remote \"origin\"]\n\tuploadpack = @M@\n",
        host: "git fetch",
        ..NONE
    },
    GitSetting {
        name: "promisor",
        config: "[extensions]\n\tpartialClone = origin\n\
                 [remote \"origin\"]\n\tpromisor = true\n\tuploadpack = @M@\n",
        extra: "(
            cd '@R@' || exit
            objects=$(git rev-parse --git-path objects)
            rm -f \"$objects/$(git rev-parse HEAD~1:file.txt | sed 's,..,&/,')\"
        )",
        host: "git log -p -2",
    },
    GitSetting { name: "alias", config: "[alias]\n\tci = !@M@\n", host: "git ci", ..NONE },
    GitSetting {
        name: "diff-filter",
        config: "[interactive]\n\tdiffFilter = @M@\n",
        host: "echo more >> file.txt; TERM=xterm script -q -e -c 'git add -p' /dev/null",
        ..NONE
    },
    GitSetting {
        name: "trailer",
        config: "[trailer \"sign\"]\n\tcommand = @M@\n",
        host: "echo more >> file.txt; git commit -a -m more --trailer a=b",
        ..NONE
    },
    GitSetting {
        name: "include-in-include",
        config: "[include]\n\tpath = @W@/.evil/config.one\n",
        extra: "printf '[include]\\n\\tpath = config.two\\n' > .evil/config.one
                printf '[include]\\n\\tpath = ../.evil/config.three\\n' > .evil/config.two
                printf '[core]\\n\\tfsmonitor = @M@\\n' > .evil/config.three",
        ..NONE
    },
    GitSetting {
        name: "include-if-directory",
        config: "[includeIf \"gitdir:/\"]\n\tpath = @W@/.evil/config.more\n",
        extra: "printf '[core]\\n\\tfsmonitor = @M@\\n' > .evil/config.more",
        ..NONE
    },
    GitSetting {
        name: "include-if-branch",
        config: "[includeIf \"onbranch:**\"]\n\tpath = @W@/.evil/config.more\n",
        extra: "printf '[core]\\n\\tfsmonitor = @M@\\n' > .evil/config.more
                (cd '@R@' && git checkout -q -B here)",
        ..NONE
    },
    GitSetting {
        name: "include-if-remote",
        config: "[includeIf \"hasconfig:remote.*.url:**\"]\n\tpath = @W@/.evil/config.more\n",
        extra: "printf '[core]\\n\\tfsmonitor = @M@\\n' > .evil/config.more",
        ..NONE
    },
];

/// Setting that makes sense only in a superproject.
pub(super) const SUBMODULE_UPDATE: GitSetting = GitSetting {
    name: "submodule-update",
    config: "[submodule \"sub\"]\n\tupdate = !@M@\n",
    host: "git submodule update",
    ..NONE
};

/// Settings for the clones of new submodules, which read only the user's and the system's files.
pub(super) const OF_CLONES: [GitSetting; 2] = [
    GitSetting {
        name: "template-of-new-modules",
        config: "[init]\n\ttemplateDir = @W@/.evil/template\n",
        extra: "mkdir -p .evil/template/hooks; cp .evil/m .evil/template/hooks/post-checkout",
        host: "unset GIT_TEMPLATE_DIR; git submodule update --init",
    },
    GitSetting {
        name: "external-transport-of-modules",
        config: "[protocol \"ext\"]\n\tallow = always\n[url \"ext::@M@ \"]\n\tinsteadOf = /\n",
        host: "git submodule update --init",
        ..NONE
    },
];

/// Setting that git takes only from the user's and the system's configuration.
pub(super) const PACK_OBJECTS_HOOK: GitSetting = GitSetting {
    name: "pack-objects-hook",
    config: "[uploadpack]\n\tpackObjectsHook = @M@\n",
    host: "git fetch",
    ..NONE
};

/// Hook that is tried with every trick.
pub(super) const PRE_COMMIT: GitSetting = GitSetting { name: "pre-commit", host: COMMIT, ..NONE };

/// Hooks that the commands of the host call.
pub(super) const HOOKS: [GitSetting; 11] = [
    GitSetting { name: "prepare-commit-msg", host: COMMIT, ..NONE },
    GitSetting { name: "commit-msg", host: COMMIT, ..NONE },
    GitSetting { name: "post-commit", host: COMMIT, ..NONE },
    GitSetting { name: "post-checkout", host: "git checkout HEAD~1", ..NONE },
    GitSetting { name: "post-merge", host: "git reset --hard HEAD~1; git merge ORIG_HEAD", ..NONE },
    GitSetting { name: "post-rewrite", host: "git commit --amend --no-edit --allow-empty", ..NONE },
    GitSetting { name: "pre-rebase", host: "git rebase --force-rebase HEAD~1", ..NONE },
    GitSetting {
        name: "pre-merge-commit",
        host: "git merge --no-ff -X ours -m merge origin/side",
        ..NONE
    },
    GitSetting { name: "reference-transaction", host: "git fetch", ..NONE },
    GitSetting { name: "post-index-change", host: "touch file.txt; git status", ..NONE },
    GitSetting {
        name: "pre-auto-gc",
        // Create enough files that look like loose objects, so that git collects garbage after a
        // commit.
        extra: "(
            cd '@R@' || exit
            objects=$(git rev-parse --git-path objects)
            mkdir -p \"$objects/17\"
            for number in $(seq 10 50); do
                : > \"$objects/17/00000000000000000000000000000000000$number\"0
            done
        )",
        host: COMMIT,
        ..NONE
    },
];
