//! Files that decide what git on the host checks out, over files that decide what it executes.

use super::*;

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
    for text in [format!("gitdir:{own}\n"), format!("gitdir:\t{own}\n"), format!("x gitdir: {own}\n")] {
        place.write("ws/wt/.git", &text);
        assert_eq!(shared_worktree(&place), None, "{text}");
    }
}

/// The repository of the worktree `wt`, as the sandbox of a workspace there would get it.
fn shared_worktree(place: &Place) -> Option<PathBuf> {
    let host = Host::new([("HOME".into(), place.path("home").into())].into(), place.path("ws"));
    shared_repository(&place.path("ws/wt"), GitScope::for_host(&host).distrusted())
}

#[test]
fn remotes_of_old_count_unless_the_configuration_has_a_remote_of_that_name() {
    let place = repository();
    place.write("ws/.git/config", "[remote \"known\"]\n\turl = /x\n[remote \"empty\"]\n\turl = /x\n\turl =\n");
    let guarded = place.guarded(&[]);
    for name in ["remotes/known", "remotes/origin", "branches/empty", "branches/known"] {
        place.write(&format!("ws/.git/{name}"), "URL: /x\n");
    }
    assert_eq!(guarded.planted(), [".git/branches/empty", ".git/remotes/origin"]);
}

#[test]
fn a_directory_of_templates_in_the_environment_is_protected_with_its_hooks() {
    let place = Place::new(&["ws/.git/HEAD", "ws/template/hooks/post-checkout", "ws/tools/x"]);
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
