//! Files that tell git what to do next: lists of a rebase, pointers to repositories, and planted
//! repositories.

use super::vector::{
    FilePayload, GitScope, GitSetting, GitVector, PLAIN as PLAIN_TRICK, TRICKS, WriteTrick, compose,
};

const PLAIN: GitScope = GitScope::PLAIN;
const NONE: GitSetting = GitSetting { name: "", config: "", extra: "", host: "" };
const CONTINUE: &str = "git rebase --continue";

/// Script that makes a repository of the sandbox's own at `.evil/repo`, like the repository of the
/// vector's directory.
macro_rules! make_repository {
    () => {
        r#"
rm -rf .evil/repo
if real=$(cd '@R@' && git rev-parse --path-format=absolute --git-common-dir 2> /dev/null); then
    cp -r "$real" .evil/repo
    rm -rf .evil/repo/worktrees .evil/repo/modules
    (cd '@R@' && cat "$(git rev-parse --git-path HEAD)") > .evil/repo/HEAD
    (cd '@R@' && cat "$(git rev-parse --git-path index)") > .evil/repo/index
else
    git init -q --bare .evil/repo
fi
cat - .evil/config > .evil/repo/config <<'END-OF-CONFIG'
[core]
    repositoryformatversion = 0
    bare = false
[remote "origin"]
    url = /x
    fetch = +refs/heads/*:refs/remotes/origin/*
END-OF-CONFIG
"#
    };
}

/// Script that makes the state of a rebase that the user did not start.
macro_rules! plant_rebase {
    () => {
        r#"(
    cd '@R@' || exit
    state=$(git rev-parse --git-path rebase-merge)
    mkdir -p "$state"
    git rev-parse HEAD > "$state/onto"
    git rev-parse HEAD > "$state/orig-head"
    echo refs/heads/main > "$state/head-name"
    : > "$state/interactive"
)"#
    };
}

/// Scopes whose file names a repository, each with that name as content. The setting goes to
/// `.evil/repo`.
pub(super) const POINTERS: [(GitScope, &str); 17] = [
    (
        GitScope {
            name: "submodule-pointer",
            template: "super-sub",
            directory: "sub",
            file: "sub/.git",
            ..PLAIN
        },
        "gitdir: ../.evil/repo",
    ),
    (
        GitScope {
            name: "submodule-pointer-nine-parts",
            template: "super-1-2-3-4-5-6-7-8-9",
            directory: "sub",
            file: "sub/.git",
            ..PLAIN
        },
        "gitdir: @W@/.evil/repo",
    ),
    (
        GitScope {
            name: "submodule-in-submodule-pointer",
            template: "inner",
            directory: "sub/inner",
            file: "sub/inner/.git",
            ..PLAIN
        },
        "gitdir: @W@/.evil/repo",
    ),
    (
        GitScope {
            name: "submodule-as-workspace",
            template: "super-sub",
            workspace: "w/sub",
            file: ".git",
            ..PLAIN
        },
        "gitdir: .evil/repo",
    ),
    (
        GitScope {
            name: "worktree-pointer",
            workspace: "tree",
            prepare: "mv w main; git -C main worktree add -q ../tree",
            file: ".git",
            ..PLAIN
        },
        "gitdir: .evil/repo",
    ),
    (
        GitScope {
            name: "worktree-inside-pointer",
            prepare: "git -C w worktree add -q wt",
            directory: "wt",
            file: "wt/.git",
            ..PLAIN
        },
        "gitdir: ../.evil/repo",
    ),
    (
        GitScope {
            name: "separate-directory-pointer",
            prepare: "git -C w init -q --separate-git-dir '@W@/real.git'",
            file: ".git",
            ..PLAIN
        },
        "gitdir: .evil/repo",
    ),
    (
        GitScope {
            name: "link-pointer",
            prepare: "mv w/.git w/real.git; ln -s real.git w/.git",
            extra: "rm -f .git",
            file: ".git",
            file_exists: false,
            ..PLAIN
        },
        "gitdir: .evil/repo",
    ),
    (
        GitScope {
            name: "outer-link-pointer",
            prepare: "mv w/.git real.git; ln -s '@S@/real.git' w/.git",
            extra: "rm -f .git",
            file: ".git",
            file_exists: false,
            ..PLAIN
        },
        "gitdir: .evil/repo",
    ),
    (
        GitScope {
            name: "pointer-in-subdirectory",
            directory: "src",
            file: "src/.git",
            file_exists: false,
            ..PLAIN
        },
        "gitdir: ../.evil/repo",
    ),
    (
        GitScope {
            name: "pointer-in-deep-subdirectory",
            directory: "src/deep/er",
            file: "src/deep/er/.git",
            file_exists: false,
            ..PLAIN
        },
        "gitdir: ../../../.evil/repo",
    ),
    (
        GitScope {
            name: "pointer-in-empty-workspace",
            template: "empty",
            file: ".git",
            file_exists: false,
            ..PLAIN
        },
        "gitdir: .evil/repo",
    ),
    (
        GitScope {
            name: "pointer-below-repository",
            workspace: "top/ws",
            prepare: "mv w top; mkdir -p top/ws; cp top/file.txt top/ws
                      git -C top add ws; git -C top commit -q -m ws",
            file: ".git",
            file_exists: false,
            ..PLAIN
        },
        "gitdir: .evil/repo",
    ),
    (
        GitScope {
            name: "uninitialised-submodule-pointer",
            template: "uninitialised",
            directory: "sub",
            file: "sub/.git",
            file_exists: false,
            ..PLAIN
        },
        "gitdir: ../.evil/repo",
    ),
    (
        GitScope { name: "common-directory", file: ".git/commondir", file_exists: false, ..PLAIN },
        "../.evil/repo",
    ),
    (
        GitScope {
            name: "common-directory-of-submodule",
            template: "super-sub",
            directory: "sub",
            file: ".git/modules/sub/commondir",
            file_exists: false,
            ..PLAIN
        },
        "../../../.evil/repo",
    ),
    (
        GitScope {
            name: "common-directory-of-worktree-inside",
            prepare: "git -C w worktree add -q wt",
            directory: "wt",
            file: ".git/worktrees/wt/commondir",
            ..PLAIN
        },
        "../../../.evil/repo",
    ),
];

/// Settings of the repositories that pointers lead to.
pub(super) const OF_POINTERS: [GitSetting; 3] = [
    GitSetting {
        name: "fsmonitor",
        config: "[core]\n\tfsmonitor = @M@\n",
        extra: make_repository!(),
        host: USE,
    },
    GitSetting {
        name: "hooks",
        config: "",
        extra: concat!(
            make_repository!(),
            "mkdir -p .evil/repo/hooks; cp .evil/m .evil/repo/hooks/pre-commit"
        ),
        host: USE,
    },
    GitSetting {
        name: "external-transport",
        config: "[protocol \"ext\"]\n\tallow = always\n[url \"ext::@M@ \"]\n\tinsteadOf = /\n",
        extra: make_repository!(),
        host: "git fetch",
    },
];

/// Commands that use a repository, even one without commits.
const USE: &str = "git status; echo x > x; git add x; git status; git commit -m x";

/// Scripts that hide git's own directory from git, so that git examines the root of the workspace.
const BREAKS: [(&str, &str); 13] = [
    ("head-moved", "mv .git/HEAD .git/HEAD.away"),
    ("head-deleted", "rm -f .git/HEAD"),
    ("head-senseless", "echo nothing > .git/HEAD"),
    ("head-empty", ": > .git/HEAD"),
    ("head-directory", "rm -f .git/HEAD; mkdir .git/HEAD"),
    ("head-link", "rm -f .git/HEAD; ln -s nowhere .git/HEAD"),
    ("objects-moved", "mv .git/objects .git/objects.away"),
    ("refs-moved", "mv .git/refs .git/refs.away"),
    ("refs-file", "mv .git/refs .git/refs.away; : > .git/refs"),
    ("head-closed", "chmod 000 .git/HEAD"),
    ("objects-closed", "chmod 000 .git/objects"),
    ("refs-closed", "chmod 000 .git/refs"),
    ("directory-moved", "mv .git .git.away"),
];

/// Returns a script that makes a directory a repository without a `.git`.
fn make_bare(directory: &str) -> String {
    format!(
        "cp -r .evil/repo/HEAD .evil/repo/objects .evil/repo/refs '{directory}'
         test -e .evil/repo/packed-refs && cp .evil/repo/packed-refs '{directory}'
         sed 's,bare = false,worktree = @W@/{directory},' .evil/repo/config > \
         '{directory}/config'\n"
    )
}

/// Returns vectors that put the sandbox's own repository in place of directories that the user has.
fn bare_repositories() -> Vec<GitVector> {
    let mut vectors = Vec::new();
    for setting in &OF_POINTERS[..2] {
        let hooks = |directory: &str| format!("cp -r .evil/repo/hooks '{directory}'\n");
        for (name, script) in BREAKS {
            let scope = GitScope { name: "bare-root", file: "HEAD", ..PLAIN };
            let trick = WriteTrick::scripted(name, None, "");
            let mut vector = compose(&scope, setting, FilePayload::Whole(""), &trick);
            vector.add_to_last_run(&format!("{}{}{script}\n", make_bare("."), hooks(".")));
            vector
                .effective
                .extend(["config", "objects", "refs", "hooks", ".git/HEAD"].map(String::from));
            vectors.push(vector);
        }
        // Git finds its directory through a file, or in a directory other than the root.
        for (scope, script) in [
            (
                GitScope {
                    name: "bare-submodule",
                    template: "super-sub",
                    directory: "sub",
                    ..PLAIN
                },
                "rm -f sub/.git",
            ),
            (
                GitScope {
                    name: "bare-submodule-workspace",
                    template: "super-sub",
                    workspace: "w/sub",
                    ..PLAIN
                },
                "rm -f .git",
            ),
            (
                GitScope {
                    name: "bare-worktree",
                    workspace: "tree",
                    prepare: "mv w main; git -C main worktree add -q ../tree",
                    ..PLAIN
                },
                "rm -f .git",
            ),
            (
                GitScope {
                    name: "bare-worktree-inside",
                    prepare: "git -C w worktree add -q wt",
                    directory: "wt",
                    ..PLAIN
                },
                "rm -f wt/.git",
            ),
            (
                GitScope {
                    name: "bare-among-several",
                    template: "several",
                    directory: "one",
                    ..PLAIN
                },
                "mv one/.git/HEAD one/.git/HEAD.away",
            ),
            (GitScope { name: "bare-above-several", template: "several", ..PLAIN }, ""),
        ] {
            let name = scope.directory;
            let mut vector = compose(
                &scope,
                setting,
                FilePayload::Whole(""),
                &WriteTrick::scripted("plain", None, ""),
            );
            vector.add_to_last_run(&format!("{}{}{script}\n", make_bare(name), hooks(name)));
            vector.effective = ["HEAD", "config", "objects", "refs", "hooks", ".git"]
                .map(|file| format!("{name}/{file}"))
                .into();
            vectors.push(vector);
        }
        for (name, scope) in [
            ("src", GitScope { directory: "src", ..PLAIN }),
            ("src/deep/er", GitScope { directory: "src/deep/er", ..PLAIN }),
            (".", GitScope { name: "empty", template: "empty", ..PLAIN }),
            (
                ".",
                GitScope {
                    name: "below-repository",
                    workspace: "top/ws",
                    prepare: "mv w top; mkdir top/ws",
                    ..PLAIN
                },
            ),
            ("sub", GitScope { template: "uninitialised", directory: "sub", ..PLAIN }),
        ] {
            let title = if scope.name.is_empty() { name } else { scope.name };
            let mut vector = compose(
                &scope,
                setting,
                FilePayload::Whole(""),
                &WriteTrick::scripted("plain", None, ""),
            );
            vector.id = format!("bare-in-{}/{}/plain", title.replace('/', "-"), setting.name);
            vector.add_to_last_run(&format!("{}{}", make_bare(name), hooks(name)));
            vector.effective = ["HEAD", "config", "objects", "refs", "hooks"]
                .map(|file| format!("{name}/{file}"))
                .into();
            vectors.push(vector);
        }
    }
    vectors
}

/// Returns vectors that put repositories where git looks for one.
fn planted_repositories() -> Vec<GitVector> {
    // Fields: name, template, directory of the host's git, script after `.evil/repo` is made,
    // effective reports.
    type Planted =
        (&'static str, &'static str, &'static str, &'static str, &'static [&'static str]);
    let planted: [Planted; 16] = [
        ("directory-in-subdirectory", "plain", "src", "cp -r .evil/repo src/.git", &["src/.git"]),
        ("link-in-subdirectory", "plain", "src", "ln -s ../.evil/repo src/.git", &["src/.git"]),
        (
            "directory-in-deep-subdirectory",
            "plain",
            "src/deep/er",
            "cp -r .evil/repo src/deep/er/.git",
            &["src/deep/er/.git"],
        ),
        (
            "directory-inside-submodule",
            "super-sub",
            "sub/src",
            "cp -r .evil/repo sub/src/.git",
            &["sub/src/.git"],
        ),
        (
            "directory-behind-many",
            "plain",
            "src/deep/er",
            "for number in $(seq 100 145); do mkdir \"0$number\"; done; cp -r .evil/repo \
             src/deep/er/.git",
            &["src/deep/er/.git"],
        ),
        ("directory-in-empty-workspace", "empty", ".", "cp -r .evil/repo .git", &[".git"]),
        ("link-in-empty-workspace", "empty", ".", "ln -s .evil/repo .git", &[".git"]),
        ("directory-renewed", "plain", ".", "mv .git .git.old; cp -r .evil/repo .git", &[".git"]),
        ("directory-linked", "plain", ".", "mv .git .git.old; ln -s .evil/repo .git", &[".git"]),
        (
            "submodule-gets-directory",
            "super-sub",
            "sub",
            "rm -f sub/.git; cp -r .evil/repo sub/.git",
            &["sub/.git"],
        ),
        (
            "submodule-gets-link",
            "super-sub",
            "sub",
            "rm -f sub/.git; ln -s ../.evil/repo sub/.git",
            &["sub/.git"],
        ),
        (
            "submodule-renewed",
            "super-sub",
            "sub",
            "mv sub sub.old; mkdir sub; cp sub.old/file.txt sub; cp -r .evil/repo sub/.git",
            &["sub/.git"],
        ),
        (
            "submodule-linked",
            "super-sub",
            "sub",
            "mv sub .evil/sub; ln -s .evil/sub sub; rm -f sub/.git; cp -r .evil/repo sub/.git",
            &["sub", ".evil/sub"],
        ),
        (
            "module-linked",
            "super-sub",
            "sub",
            "mv .git/modules/sub .git/modules/old; ln -s ../../.evil/repo .git/modules/sub",
            &[".git/modules/sub"],
        ),
        (
            "modules-linked",
            "super-sub",
            "sub",
            "mv .git/modules .git/old; mkdir .evil/modules; cp -r .evil/repo .evil/modules/sub
             ln -s ../.evil/modules .git/modules",
            &[".git/modules"],
        ),
        (
            "uninitialised-submodule-gets-directory",
            "uninitialised",
            "sub",
            "cp -r .evil/repo sub/.git",
            &["sub/.git"],
        ),
    ];
    let mut vectors = Vec::new();
    for (name, template, directory, script, effective) in planted {
        for setting in &OF_POINTERS {
            let scope = GitScope { name, template, directory, file: effective[0], ..PLAIN };
            let trick = WriteTrick::scripted("plain", None, script);
            let mut vector = compose(&scope, setting, FilePayload::Whole(""), &trick);
            vector.effective.extend(effective.iter().map(|path| (*path).to_owned()));
            vectors.push(vector);
        }
    }
    vectors
}

/// Returns vectors with repositories behind new gitlinks, and with modules that wait for `git
/// submodule update`.
fn gitlinks() -> Vec<GitVector> {
    let fsmonitor = &OF_POINTERS[0];
    let add = |path: &str| {
        format!("\ngit update-index --add --cacheinfo \"160000,$(git rev-parse HEAD),{path}\"\n")
    };
    let status = "git status; git diff; git commit -a -m more";
    let cases = [
        ("new", "mkdir new; cp -r .evil/repo new/.git", "new", status),
        ("new-pointer", "mkdir new; echo 'gitdir: ../.evil/repo' > new/.git", "new", status),
        ("new-link", "mkdir new; ln -s ../.evil/repo new/.git", "new", status),
        ("deep", "mkdir -p one/two/new; cp -r .evil/repo one/two/new/.git", "one/two/new", status),
        (
            "existing-directory",
            "git rm -r -q --cached src; cp -r .evil/repo src/.git",
            "src",
            status,
        ),
        (
            "new-and-update",
            "mkdir new; cp -r .evil/repo new/.git",
            "new",
            "git submodule update; git status",
        ),
        ("hidden-name", "mkdir .new; cp -r .evil/repo .new/.git", ".new", status),
    ];
    let mut vectors = Vec::new();
    for (name, script, path, host) in cases {
        let scope = GitScope { name: "gitlink", file: "new/.git", ..PLAIN };
        let setting = GitSetting { host, ..*fsmonitor };
        let mut vector = compose(
            &scope,
            &setting,
            FilePayload::Whole(""),
            &WriteTrick::scripted(name, None, script),
        );
        vector.effective = vec![format!("{path}/.git")];
        if name.starts_with("of-a-commit") {
            vectors.push(vector);
            continue;
        }
        vector.add_to_last_run(&add(path));
        vectors.push(vector.clone());

        // The second run only adds the entry of the index; everything else exists when that run
        // starts.
        let (second, first) = (add(path), vector.runs.remove(0).replace(&add(path), "\n"));
        vector.id.push_str("-in-two-runs");
        vector.runs = vec![first, second];
        vectors.push(vector);
    }
    let new_module = GitScope {
        name: "module-of-new-submodule",
        file: ".git/modules/new/config",
        file_exists: false,
        leads: &[".git/modules"],
        ..PLAIN
    };
    let script = r#"
        git config --file .gitmodules submodule.new.path new
        git config --file .gitmodules submodule.new.url ./new
        git update-index --add --cacheinfo "160000,$(git rev-parse HEAD),new"
        mkdir -p .git/modules; cp -r .evil/repo .git/modules/new; mkdir -p .git/modules/new/hooks
        cp .evil/m .git/modules/new/hooks/post-checkout
        sed 's,bare = false,worktree = ../../../new,' .evil/repo/config > .git/modules/new/config"#;
    let setting =
        GitSetting { name: "hook", host: "git submodule update --init", ..OF_POINTERS[1] };
    vectors.push(compose(
        &new_module,
        &setting,
        FilePayload::Whole(""),
        &WriteTrick::scripted("plain", None, script),
    ));

    let scope = GitScope {
        name: "module-before-update",
        template: "uninitialised",
        file: ".git/modules/sub/config",
        leads: &[".git/modules"],
        ..PLAIN
    };
    let place = "mkdir -p .git/modules; cp -r .evil/repo .git/modules/sub
        sed 's,bare = false,worktree = ../../../sub,' .evil/repo/config > .git/modules/sub/config";
    let update = "git submodule update --init; git -C sub status; git status";
    for (name, more) in
        [("config", ""), ("hook", "cp .evil/m .git/modules/sub/hooks/post-checkout")]
    {
        let setting = GitSetting { name, host: update, ..OF_POINTERS[1] };
        let config = if more.is_empty() { fsmonitor.config } else { "" };
        let setting = GitSetting { config, ..setting };
        let script = format!("{place}\n{more}");
        let mut vector = compose(
            &scope,
            &setting,
            FilePayload::Whole(""),
            &WriteTrick::scripted("plain", None, ""),
        );
        vector.add_to_last_run(&script);
        vectors.push(vector);
    }
    vectors
}

/// Files with which a rebase continues.
pub(super) const REBASES: [(GitScope, GitSetting, FilePayload<'static>); 10] = [
    (
        GitScope {
            name: "cherry-pick-options",
            template: "picking",
            file: ".git/sequencer/opts",
            file_exists: false,
            extra: "mkdir git-merge-x; cp .evil/m git-merge-x/evil",
            ..PLAIN
        },
        GitSetting { name: "program", host: "git cherry-pick --skip", ..NONE },
        FilePayload::Whole("[options]\n\tstrategy = x/evil\n"),
    ),
    (
        GitScope {
            name: "planted-rebase-strategy",
            file: ".git/rebase-merge/strategy",
            file_exists: false,
            extra: concat!(
                plant_rebase!(),
                "\necho \"pick $(git rev-parse side) side\" > .git/rebase-merge/git-rebase-todo
                mkdir git-merge-x; cp .evil/m git-merge-x/evil"
            ),
            ..PLAIN
        },
        GitSetting { name: "program", host: CONTINUE, ..NONE },
        FilePayload::Whole("x/evil\n"),
    ),
    (
        GitScope {
            name: "planted-rebase-of-nested-repository",
            template: "several",
            directory: "one",
            file: "one/.git/rebase-merge/git-rebase-todo",
            file_exists: false,
            extra: plant_rebase!(),
            ..PLAIN
        },
        GitSetting { name: "exec", host: CONTINUE, ..NONE },
        FilePayload::Whole("exec @M@\n"),
    ),
    (
        GitScope {
            name: "rebase-todo",
            template: "rebasing",
            file: ".git/rebase-merge/git-rebase-todo",
            ..PLAIN
        },
        GitSetting { name: "exec", host: CONTINUE, ..NONE },
        FilePayload::Whole("exec @M@\n"),
    ),
    (
        GitScope {
            name: "rebase-todo-long",
            template: "rebasing",
            file: ".git/rebase-merge/git-rebase-todo",
            // The list is longer than a reader would accept.
            extra: concat!(
                r"{ printf '#'; head -c 17000000 /dev/zero | tr '\0' x; echo; cat .evil/payload; ",
                r"} > .evil/long
                     mv .evil/long .evil/payload"
            ),
            ..PLAIN
        },
        GitSetting { name: "exec", host: CONTINUE, ..NONE },
        FilePayload::Whole("exec @M@\n"),
    ),
    (
        GitScope {
            name: "rebase-strategy",
            template: "rebasing",
            file: ".git/rebase-merge/strategy",
            file_exists: false,
            // Git runs `git-merge-x/evil`, because a name with a slash is a path from the root of
            // the work tree.
            extra: "mkdir git-merge-x; cp .evil/m git-merge-x/evil",
            ..PLAIN
        },
        GitSetting { name: "program", host: CONTINUE, ..NONE },
        FilePayload::Whole("x/evil\n"),
    ),
    (
        GitScope {
            name: "planted-rebase",
            file: ".git/rebase-merge/git-rebase-todo",
            file_exists: false,
            extra: plant_rebase!(),
            ..PLAIN
        },
        GitSetting { name: "exec", host: CONTINUE, ..NONE },
        FilePayload::Whole("exec @M@\n"),
    ),
    (
        GitScope {
            name: "planted-rebase-of-submodule",
            template: "super-sub",
            directory: "sub",
            file: ".git/modules/sub/rebase-merge/git-rebase-todo",
            file_exists: false,
            extra: plant_rebase!(),
            ..PLAIN
        },
        GitSetting { name: "exec", host: CONTINUE, ..NONE },
        FilePayload::Whole("exec @M@\n"),
    ),
    (
        GitScope {
            name: "planted-rebase-of-worktree",
            workspace: "tree",
            prepare: "mv w main; git -C main worktree add -q ../tree",
            file: "../main/.git/worktrees/tree/rebase-merge/git-rebase-todo",
            file_exists: false,
            extra: plant_rebase!(),
            ..PLAIN
        },
        GitSetting { name: "exec", host: CONTINUE, ..NONE },
        FilePayload::Whole("exec @M@\n"),
    ),
    (
        GitScope {
            name: "planted-rebase-of-main-worktree",
            workspace: "tree",
            prepare: "mv w main; git -C main worktree add -q ../tree",
            directory: "../main",
            file: "../main/.git/rebase-merge/git-rebase-todo",
            file_exists: false,
            extra: "mkdir -p ../main/.git/rebase-merge; git rev-parse HEAD > \
                    ../main/.git/rebase-merge/onto
                    cp ../main/.git/rebase-merge/onto ../main/.git/rebase-merge/orig-head
                    echo refs/heads/main > ../main/.git/rebase-merge/head-name
                    : > ../main/.git/rebase-merge/interactive",
            ..PLAIN
        },
        GitSetting { name: "exec", host: CONTINUE, ..NONE },
        FilePayload::Whole("exec @M@\n"),
    ),
];

/// Returns all vectors of this module.
pub(super) fn vectors() -> Vec<GitVector> {
    let mut vectors = Vec::new();
    for (scope, text) in &POINTERS {
        let text = FilePayload::Whole(text);
        vectors
            .extend(OF_POINTERS.iter().map(|setting| compose(scope, setting, text, &PLAIN_TRICK)));
        let tricks = TRICKS.iter().filter(|trick| trick.fits(scope));
        vectors.extend(tricks.map(|trick| compose(scope, &OF_POINTERS[0], text, trick)));
    }
    for (scope, setting, text) in &REBASES {
        // Skip tricks on a long file, because they take long and show nothing more.
        let tricks =
            TRICKS.iter().filter(|trick| trick.fits(scope) && !scope.name.ends_with("-long"));
        let all = [PLAIN_TRICK].into_iter().chain(tricks.copied());
        vectors.extend(all.map(|trick| compose(scope, setting, *text, &trick)));
    }
    vectors.extend(bare_repositories());
    vectors.extend(planted_repositories());
    vectors.extend(gitlinks());
    vectors
}
