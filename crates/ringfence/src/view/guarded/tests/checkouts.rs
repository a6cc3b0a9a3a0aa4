//! Tests of files that decide what git on the host checks out over the files that it executes.

use super::*;

/// Creates a superproject whose index has the submodule `sub`, at `commit`.
fn superproject(commit: u8) -> TestWorkspace {
    let place = repository();
    place.write("ws/.git/index", index_with_commit("sub", commit));
    place.write("ws/sub/.git", "gitdir: ../.git/modules/sub\n");
    place
}

/// Returns an index of version 2 with one submodule at a commit.
fn index_with_commit(path: &str, commit: u8) -> Vec<u8> {
    let mut index = index_with_submodule(path);
    index[52..72].fill(commit);
    index
}

#[track_caller]
fn check_changed_commit(place: &TestWorkspace, expected: &[&str], purpose: &str) {
    let guarded = place.guarded(&[]);
    assert_eq!(guarded.planted(), [] as [&str; 0], "{purpose}");
    place.write("ws/.git/index", index_with_commit("sub", 2));
    assert_eq!(guarded.planted(), expected, "{purpose}");
}

#[test]
fn another_commit_is_reported_where_any_deciding_file_lies_in_the_submodule() {
    let module = "ws/.git/modules/sub/config";
    let absolute = |place: &TestWorkspace, name: &str| place.path(name).display().to_string();
    let cases: [(&str, &str, &[&str], &str); 15] = [
        (module, "[core]\n\thooksPath = .hooks\n", &["sub"], ""),
        (module, "[core]\n\thooksPath = @/.hooks\n", &["sub"], ""),
        (module, "[core]\n\thooksPath = @/.hooks\n", &["sub"], "ws/sub/.hooks/x"),
        (module, "[include]\n\tpath = ../../../sub/conf\n", &["sub"], "ws/sub/conf"),
        (module, "[include]\n\tpath = ../../../sub/conf\n", &["sub"], ""),
        (module, "[filter \"x\"]\n\tclean = sh clean\n", &["sub"], "ws/sub/clean"),
        (module, "[filter \"x\"]\n\tclean = sh clean\n", &["sub"], ""),
        (module, "[filter \"x\"]\n\tclean = make -C tools\n", &["sub"], "ws/sub/tools/x"),
        (module, "[filter \"x\"]\n\tclean = python3 -c 'import json'\n", &["sub"], ""),
        ("home/.gitconfig", "[core]\n\thooksPath = @/.hooks\n", &["sub"], ""),
        ("ws/.git/config", "[core]\n\thooksPath = sub/hooks\n", &["sub"], ""),
        // None of these settings names a file of the submodule.
        (
            module,
            "[filter \"lfs\"]\n\tclean = git-lfs clean -- %f\n\tprocess = git-lfs filter-process\n",
            &[],
            "",
        ),
        (module, "[credential]\n\thelper = \"!f() { /usr/bin/helper \\\"$1\\\"; }; f\"\n", &[], ""),
        (
            module,
            "[credential]\n\thelper = /usr/bin/helper\n[core]\n\thooksPath = /etc/hooks\n",
            &[],
            "",
        ),
        ("ws/.git/config", "[core]\n\thooksPath = hooks\n", &[], "ws/hooks/x"),
    ];
    for (file, config, expected, existing) in cases {
        let place = superproject(1);
        place.write(file, config.replace('@', &absolute(&place, "ws/sub")));
        if !existing.is_empty() {
            place.write(existing, "");
        }
        check_changed_commit(&place, expected, &format!("{file} {config} {existing}"));
    }
}

#[test]
fn another_commit_is_reported_where_a_link_in_the_submodule_leads_to_hooks() {
    let place = superproject(1);
    place.write("ws/hooks/x", "");
    symlink("../hooks", place.path("ws/sub/linked")).unwrap();
    place.write("ws/.git/config", "[core]\n\thooksPath = sub/linked\n");
    check_changed_commit(&place, &["sub"], "a link of the submodule");

    let place = superproject(1);
    place.write("ws/sub/tools/clean", "");
    fs_err::create_dir(place.path("ws/.git/modules/sub/hooks")).unwrap();
    symlink("../../../../sub/tools/clean", place.path("ws/.git/modules/sub/hooks/post-checkout"))
        .unwrap();
    check_changed_commit(&place, &["sub"], "a link of the repository");
}

#[test]
fn another_commit_in_a_worktree_outside_is_reported_by_its_index() {
    let place = repository();
    let own = "ws/.git/worktrees/outer";
    place.write(&format!("{own}/commondir"), "../..\n");
    place.write(&format!("{own}/gitdir"), place.path("outer/.git").display().to_string());
    for file in ["HEAD", "objects/x", "refs/x"] {
        place.write(&format!("{own}/modules/sub/{file}"), "");
    }
    place.write(&format!("{own}/modules/sub/config"), "[core]\n\thooksPath = .hooks\n");
    let gitdir = place.path(&format!("{own}/modules/sub"));
    place.write("outer/sub/.git", format!("gitdir: {}\n", gitdir.display()));
    place.write("outer/.gitmodules", "[submodule \"sub\"]\n\tpath = sub\n");
    place.write(&format!("{own}/index"), index_with_commit("sub", 1));
    let guarded = place.guarded(&[]);
    assert_eq!(guarded.planted(), [] as [&str; 0]);
    place.write(&format!("{own}/index"), index_with_commit("sub", 2));
    assert_eq!(guarded.planted(), [".git/worktrees/outer/index"]);
}

#[test]
fn a_reference_that_the_list_of_a_sequence_names_is_part_of_the_sequence() {
    let rebase = (".git/rebase-merge", "git-rebase-todo");
    let picks = (".git/sequencer", "todo");
    let full = "12".repeat(20);
    let hash = "34".repeat(20);
    let packed = format!("{hash} refs/rewritten/one\n");
    let cases = [
        (rebase, "reset one\n", ".git/refs/rewritten/one", hash.as_str(), true),
        (rebase, "reset one\n", ".git/packed-refs", &packed, true),
        (rebase, "reset [new root]\n", ".git/rebase-merge/squash-onto", &hash, true),
        (rebase, "pick x\n", ".git/rebase-merge/strategy_opts", "subtree=.hooks", true),
        (rebase, "reset topic~2\n", ".git/refs/heads/topic", &hash, true),
        (
            rebase,
            "merge -C 1 origin # x\n",
            ".git/refs/remotes/origin/HEAD",
            "ref: refs/remotes/origin/main",
            true,
        ),
        (rebase, "merge topic # side\n", ".git/refs/heads/side", &hash, false),
        (rebase, "label topic\n", ".git/refs/heads/topic", &hash, false),
        (picks, "pick 12ab x\n", ".git/refs/heads/12ab", &hash, true),
        (picks, "pick 12ab x\n", ".git/12ab", &hash, true),
        (picks, "pick 12ab x\n", ".git/refs/heads/x", &hash, false),
        (picks, "pick @ x\n", ".git/refs/heads/@", &hash, false),
        (
            picks,
            "pick x\n",
            ".git/sequencer/opts",
            "[options]\n\tstrategy-option = subtree=x\n",
            true,
        ),
        (picks, "pick FULL x\n", ".git/refs/heads/FULL", &hash, false),
    ];
    for ((directory, file), list, changed, content, is_reported) in cases {
        let place = repository();
        let [list, changed] = [list, changed].map(|text| text.replace("FULL", &full));
        place.write(&format!("ws/{directory}/{file}"), &list);
        let guarded = place.guarded(&[]);
        assert_eq!(guarded.planted(), [] as [&str; 0], "{list}");
        place.write(&format!("ws/{changed}"), format!("{content}\n"));
        let expected: &[&str] = if is_reported { &[directory] } else { &[] };
        assert_eq!(guarded.planted(), expected, "{list} {changed}");
    }
    let place = repository();
    place.write("ws/.git/rebase-merge/git-rebase-todo", "reset topic@{1}\n");
    assert_eq!(place.guarded(&[]).planted(), [".git/rebase-merge"], "logs are not looked at");
}

#[test]
fn recorded_resolutions_are_reported_where_git_goes_on_or_where_they_are_new() {
    let new = "ws/.git/rr-cache/1/postimage";
    let place = repository();
    let guarded = place.guarded(&[]);
    place.write(new, "");
    assert_eq!(guarded.planted(), [".git/rr-cache"], "the directory turns resolutions on");
    place.wait_for_later_changes(new);
    let guarded = place.guarded(&[]);
    place.write(new, "x");
    place.write("ws/.git/rr-cache/2/postimage", "x");
    assert_eq!(guarded.planted(), [] as [&str; 0], "nothing is in progress");

    let place = repository();
    place.write("home/.gitconfig", "[rerere]\n\tenabled = true\n");
    let guarded = place.guarded(&[]);
    place.write(new, "");
    assert_eq!(guarded.planted(), [] as [&str; 0], "the user has turned resolutions on");

    let place = repository();
    place.write("ws/.git/rebase-merge/git-rebase-todo", "pick 1\n");
    place.write(new, "");
    place.wait_for_later_changes(new);
    std::thread::sleep(std::time::Duration::from_millis(50));
    let guarded = place.guarded(&[]);
    guarded.survey();
    assert_eq!(guarded.planted(), [] as [&str; 0]);
    place.write(new, "changed in place");
    assert_eq!(guarded.planted(), [".git/rr-cache"]);
}

#[test]
fn a_git_file_is_read_as_git_reads_it() {
    let place = repository();
    let own = place.path("ws/.git/worktrees/wt").display().to_string();
    let guarded = place.guarded(&[]);
    // For git, the path begins with a directory whose name is a blank.
    let planted = format!("ws/wt/ {own}");
    for file in ["HEAD", "config", "objects/x", "refs/x"] {
        place.write(&format!("{planted}/{file}"), "");
    }
    place.write("ws/wt/.git", format!("gitdir:  {own}\n"));
    assert_eq!(guarded.planted(), [format!("wt/ {own}/config")]);
    for text in
        [format!("gitdir:{own}\n"), format!("gitdir:\t{own}\n"), format!("x gitdir: {own}\n")]
    {
        place.write("ws/wt/.git", &text);
        assert_eq!(shared_worktree(&place), None, "{text}");
    }
}

/// Returns the repository of the worktree `wt`, as the sandbox of a workspace there would get it.
fn shared_worktree(place: &TestWorkspace) -> Option<PathBuf> {
    let host = Host::new([("HOME".into(), place.path("home").into())].into(), place.path("ws"));
    shared_repository(&place.path("ws/wt"), GitScope::for_host(&host).distrusted())
}

#[test]
fn remotes_of_old_count_unless_the_configuration_has_a_remote_of_that_name() {
    let place = repository();
    place.write(
        "ws/.git/config",
        "[remote \"known\"]\n\turl = /x\n[remote \"empty\"]\n\turl = /x\n\turl =\n",
    );
    let guarded = place.guarded(&[]);
    for name in ["remotes/known", "remotes/origin", "branches/empty", "branches/known"] {
        place.write(&format!("ws/.git/{name}"), "URL: /x\n");
    }
    assert_eq!(guarded.planted(), [".git/branches/empty", ".git/remotes/origin"]);
}

#[test]
fn a_directory_of_templates_in_the_environment_is_protected_with_its_hooks() {
    let place =
        TestWorkspace::new(&["ws/.git/HEAD", "ws/template/hooks/post-checkout", "ws/tools/x"]);
    symlink("../../tools/x", place.path("ws/template/hooks/pre-commit")).unwrap();
    let guarded = place.find_with(&Policy::default(), &[("GIT_TEMPLATE_DIR", "template")]).unwrap();
    let steps = place.steps(&guarded, &[]);
    for step in ["protect /work/template", "protect /work/tools/x"] {
        assert!(steps.contains(&step.to_owned()), "{step} is not in {steps:?}");
    }
}

#[test]
fn an_index_that_is_longer_than_any_is_reported_without_being_read() {
    let place = repository();
    let guarded = place.guarded(&[]);
    place.write("ws/.git/index", index_with_submodule("sub"));
    let file = fs_err::OpenOptions::new().write(true).open(place.path("ws/.git/index")).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(guarded.planted(), [".git/index"]);
}
