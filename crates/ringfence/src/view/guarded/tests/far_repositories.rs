//! Tests of repositories and submodules that a run makes or moves anywhere in the workspace.

use super::*;

/// Adds more directories than are searched before a run, and a repository behind them.
fn add_far_repository(place: &TestWorkspace, path: &str) {
    (0..40).for_each(|number| place.write(&format!("ws/0{number}/x"), ""));
    for file in ["HEAD", "config", "objects/x", "refs/x"] {
        place.write(&format!("ws/{path}/.git/{file}"), "");
    }
}

#[test]
fn a_repository_that_a_run_makes_is_reported_wherever_it_is() {
    for directory in ["zz", "zz/deep/er", "sub/lib", "00/x1"] {
        let place = repository();
        fs_err::create_dir_all(place.path(&format!("ws/{directory}"))).unwrap();
        place.write("ws/.git/index", index_with_submodule("sub"));
        place.write("ws/sub/.git", "gitdir: ../.git/modules/sub\n");
        let guarded = place.guarded(&[]);
        add_far_repository(&place, directory);
        assert_eq!(guarded.planted(), [format!("{directory}/.git")], "{directory}");
    }
}

#[test]
fn a_submodule_in_the_index_does_not_hide_what_lies_below_it() {
    let place = repository();
    place.write("ws/packages/app/file", "");
    let guarded = place.guarded(&[]);
    place.write("ws/.git/index", index_with_submodule("packages"));
    place.write("ws/packages/app/.git/config", "");
    assert_eq!(guarded.planted(), ["packages", "packages/app/.git/config"]);
}

#[test]
fn a_far_repository_is_reported_only_where_a_run_changed_it() {
    let place = repository();
    add_far_repository(&place, "zz");
    add_far_repository(&place, "yy");
    place.wait_for_later_changes("ws/yy/.git/refs/x");
    let guarded = place.guarded(&[]);
    guarded.survey();
    place.write("ws/zz/.git/index.lock", "");
    place.write("ws/zz/file", "");
    assert_eq!(guarded.planted(), [] as [&str; 0]);
    place.write("ws/zz/.git/config", "[core]\n");
    assert_eq!(guarded.planted(), ["zz/.git/config"]);
    // Renaming `HEAD` away and back counts as making a repository, which is then moved.
    fs_err::rename(place.path("ws/yy/.git/HEAD"), place.path("ws/yy/.git/other")).unwrap();
    fs_err::rename(place.path("ws/yy/.git/other"), place.path("ws/yy/.git/HEAD")).unwrap();
    fs_err::rename(place.path("ws/yy"), place.path("ws/y2")).unwrap();
    assert_eq!(guarded.planted(), ["y2/.git", "zz/.git/config"]);
}

#[test]
fn a_repository_that_a_run_completes_is_reported_with_its_older_files() {
    // Path from which a run moves the last part of the repository, and path to which the run moves
    // it.
    for (from, to) in [
        ("zz/.other", "zz/.git"),
        ("aa/far", "zz"),
        ("zz/.git/o", "zz/.git/objects"),
        ("zz/.git/r", "zz/.git/refs"),
        ("zz/.git/h", "zz/.git/HEAD"),
    ] {
        let place = repository();
        add_far_repository(&place, "zz");
        fs_err::create_dir(place.path("ws/aa")).unwrap();
        let [from, to] = [from, to].map(|name| place.path("ws").join(name));
        fs_err::rename(&to, &from).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let guarded = place.guarded(&[]);
        guarded.survey();
        assert_eq!(guarded.planted(), [] as [&str; 0], "{from:?}");
        fs_err::rename(&from, &to).unwrap();
        assert_eq!(guarded.planted(), ["zz/.git"], "{from:?}");
    }
}

#[test]
fn a_change_in_any_directory_counts_where_commits_may_name_submodules() {
    let place = repository();
    add_far_repository(&place, "zz");
    place.write("ws/yy/.git", "gitdir: ../zz/.git\n");
    place.wait_for_later_changes("ws/yy/.git");
    let guarded = place.guarded(&[]);
    let began = FileTime::now();
    assert!(!guarded.watched().survey().is_changed_since(began));
    place.write("ws/zz/.git/config", "[core]\n");
    assert!(guarded.watched().survey().is_changed_since(began));
    for change in ["ws/yy/.git", "ws/00/deep/.git/HEAD"] {
        place.wait_for_later_changes("ws/zz/.git/config");
        let guarded = place.guarded(&[]);
        let began = FileTime::now();
        assert!(!guarded.watched().survey().is_changed_since(began), "{change}");
        place.write(change, "");
        assert!(guarded.watched().survey().is_changed_since(began), "{change}");
        place.wait_for_later_changes(change);
    }
}

#[test]
fn submodules_of_a_worktree_outside_are_found_from_there() {
    let place = repository();
    add_far_repository(&place, "zz/evil");
    fs_err::create_dir(place.path("outer")).unwrap();
    place.write("ws/.git/worktrees/outer/commondir", "../..\n");
    place.write("ws/.git/worktrees/outer/gitdir", place.path("outer/.git").display().to_string());
    place.wait_for_later_changes("ws/.git/worktrees/outer/gitdir");
    let guarded = place.guarded(&[]);
    place.write("ws/.git/worktrees/outer/index", index_with_submodule("../ws/zz/evil"));
    assert_eq!(guarded.planted(), [".git/worktrees/outer/index", "zz/evil/.git/config"]);
    // Without the directory of the worktree the result is the same, because git on the host may
    // create it again.
    fs_err::remove_dir(place.path("outer")).unwrap();
    assert_eq!(guarded.planted(), [".git/worktrees/outer/index", "zz/evil/.git/config"]);
}

#[test]
fn hooks_in_a_directory_that_a_submodule_moves_to_are_reported() {
    let place = repository();
    place.write("ws/.git/modules/sub/config", "[core]\n\thooksPath = .hooks\n");
    place.write("ws/.git/index", index_with_submodule("sub"));
    place.write("ws/.gitmodules", "[submodule \"sub\"]\n\tpath = sub\n");
    let guarded = place.guarded(&[]);
    place.write("ws/.git/index", index_with_submodule("new"));
    place.write("ws/.gitmodules", "[submodule \"sub\"]\n\tpath = new\n");
    place.write("ws/new/.hooks/post-checkout", "");
    assert_eq!(guarded.planted(), ["new", "new/.hooks"]);
    // The hooks of the user's configuration also apply to a submodule without a repository.
    place.write("home/.gitconfig", "[core]\n\thooksPath = .own\n");
    let guarded = place.guarded(&[]);
    place.write("ws/new/.own/post-checkout", "");
    assert_eq!(guarded.planted(), ["new/.own"]);
}

#[test]
fn a_submodule_into_which_git_merges_is_reported_when_its_head_moves() {
    for (strategy, expected) in [("merge", &["sub"][..]), ("rebase", &["sub"]), ("checkout", &[])] {
        let place = repository();
        place.write("ws/.git/modules/sub/config", "[core]\n\thooksPath = .hooks\n");
        place.write("ws/.git/index", index_with_submodule("sub"));
        place.write("ws/sub/.git", "gitdir: ../.git/modules/sub\n");
        place.write(
            "ws/.gitmodules",
            format!("[submodule \"sub\"]\n\tpath = sub\n\tupdate = {strategy}\n"),
        );
        let guarded = place.guarded(&[]);
        place.write("ws/.git/modules/sub/HEAD", "2\n");
        assert_eq!(guarded.planted(), expected, "{strategy}");
    }
}
