use std::os::unix::fs::symlink;

use super::*;
use crate::host_paths::granted::{Grants, MountTable};
use crate::view::observed::FileTime;

mod checkouts;
mod far_repositories;
mod kept_searches;
mod scripts;

/// Workspace at `ws` in a temporary directory, shown at `/work`.
struct TestWorkspace {
    root: tempfile::TempDir,
}

impl TestWorkspace {
    fn new(files: &[&str]) -> TestWorkspace {
        let place = TestWorkspace { root: tempfile::tempdir().unwrap() };
        fs_err::create_dir(place.path("ws")).unwrap();
        files.iter().for_each(|file| place.write(file, ""));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        fs_err::canonicalize(self.root.path()).unwrap().join(name)
    }

    fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        let path = self.path(file);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        fs_err::write(path, text).unwrap();
    }

    /// Waits until a change would get a later time stamp than `file` has.
    fn wait_for_later_changes(&self, file: &str) {
        while FileTime::now() <= FileTime::from_change(&self.path(file)) {
            std::hint::spin_loop();
        }
    }

    fn workspace(&self) -> ResolvedWorkspace {
        let (source, destination) = (self.path("ws"), "/work".into());
        ResolvedWorkspace { given: source.clone(), source, destination, granted: Vec::new() }
    }

    fn guarded(&self, hide: &[&'static str]) -> Guarded {
        let policy = hide
            .iter()
            .fold(Policy::default(), |policy, path| policy.hide(PathGlob::literal(path)));
        self.find(&policy)
    }

    fn find(&self, policy: &Policy) -> Guarded {
        self.try_find(policy).unwrap()
    }

    fn try_find(&self, policy: &Policy) -> Result<Guarded, ViewError> {
        self.find_with(policy, &[])
    }

    /// Finds the guarded paths for a caller whose environment has more `variables`.
    fn find_with(&self, policy: &Policy, variables: &[(&str, &str)]) -> Result<Guarded, ViewError> {
        let given = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let variables = [("HOME".into(), self.path("home").into())].into_iter().chain(given);
        let host = Host::new(variables.collect(), self.path("ws"));
        let mut workspace = self.workspace();
        workspace.granted = Grants::on(&host).grant_paths(policy, &host, &workspace)?;
        Guarded::find(&policy.with_defaults(), &workspace, &host, &MountTable::default(), &[])
    }

    /// Returns the steps for `guarded` in a view of the workspace and `more`.
    fn steps(&self, guarded: &Guarded, more: &[(&str, Access)]) -> Vec<String> {
        let bind = |source: &str, destination: &Path, access| Entry::Bind {
            source: self.path(source),
            destination: destination.into(),
            access,
        };
        let mut view = vec![bind("ws", Path::new("/work"), Access::Write)];
        view.extend(more.iter().map(|(path, access)| bind(path, &self.path(path), *access)));
        let names = VisibleNames::in_view(&view);
        let root = self.path("");
        let text = |path: &Path| path.strip_prefix(&root).unwrap_or(path).display().to_string();
        let GuardEntries { pins, guards } = guarded.steps(&names);
        let pins = pins.into_iter().map(|path| format!("pin {}", text(&path)));
        let guards = guards.into_iter().map(|entry| match entry {
            Entry::Protect { path } => format!("protect {}", text(&path)),
            Entry::Hide { path } => format!("hide {}", text(&path)),
            other => panic!("{other:?}"),
        });
        pins.chain(guards).collect()
    }
}

#[test]
fn hooks_and_configuration_are_protected_unasked_and_their_directory_stays() {
    let place = TestWorkspace::new(&["ws/.git/config", "ws/.git/hooks/a"]);
    let steps = place.steps(&place.guarded(&[]), &[]);
    assert_eq!(steps, ["pin /work/.git", "protect /work/.git/config", "protect /work/.git/hooks"]);
}

#[test]
fn files_in_a_guarded_directory_need_no_guard_of_their_own() {
    let place = TestWorkspace::new(&["ws/.git/config", "ws/.git/worktrees/x/commondir"]);
    assert_eq!(place.steps(&place.guarded(&[".git", ".git/config"]), &[]), ["hide /work/.git"]);
    let policy = Policy::default()
        .protect(PathGlob::literal(".git"))
        .protect(PathGlob::literal(".git/config"));
    let guarded = place.find(&policy);
    assert_eq!(place.steps(&guarded, &[]), ["protect /work/.git"]);
}

#[test]
fn directories_above_a_hidden_path_stay() {
    let place = TestWorkspace::new(&["ws/conf/deep/.env"]);
    let steps = place.steps(&place.guarded(&["conf/deep/.env"]), &[]);
    assert_eq!(steps, ["pin /work/conf", "pin /work/conf/deep", "hide /work/conf/deep/.env"]);
}

#[test]
fn guarded_paths_are_guarded_wherever_else_they_are_shown() {
    let place = TestWorkspace::new(&["ws/.git/config", "ws/.env"]);
    let guarded = place.guarded(&[".env"]);
    let check = |more: &[(&str, Access)], expected: &[&str]| {
        let steps: BTreeSet<String> = place.steps(&guarded, more).into_iter().collect();
        let here = ["pin /work/.git", "protect /work/.git/config", "hide /work/.env"];
        assert_eq!(steps, here.iter().chain(expected).map(|step| (*step).to_owned()).collect());
    };
    check(&[], &[]);
    check(&[("", Access::Read)], &["hide ws/.env"]);
    check(
        &[("", Access::Write)],
        &["pin ws", "pin ws/.git", "protect ws/.git/config", "hide ws/.env"],
    );
    check(&[("ws/.git", Access::Write)], &["protect ws/.git/config"]);
    check(&[("ws/.env", Access::Read)], &["hide ws/.env"]);
}

#[test]
fn a_git_file_that_was_planted_is_reported() {
    let place = TestWorkspace::new(&[]);
    let guarded = place.guarded(&[]);
    place.write("ws/.git", "gitdir: fake");
    assert_eq!(guarded.planted(), [".git"]);
}

#[test]
fn a_workspace_that_became_a_bare_repository_is_reported() {
    let place = TestWorkspace::new(&[]);
    let guarded = place.guarded(&[]);
    for file in ["ws/HEAD", "ws/config", "ws/objects/x", "ws/refs/x"] {
        place.write(file, "");
    }
    assert_eq!(guarded.planted(), ["HEAD", "config"]);
}

#[test]
fn a_repository_that_was_made_is_reported_by_its_directory() {
    let place = TestWorkspace::new(&[]);
    let guarded = place.guarded(&[]);
    for file in ["ws/.git/hooks/a", "ws/.git/config", "ws/.git/HEAD"] {
        place.write(file, "");
    }
    assert_eq!(guarded.planted(), [".git"]);
}

#[test]
fn a_link_in_place_of_a_repository_is_followed_and_watched() {
    let place = TestWorkspace::new(&["ws/real/config"]);
    symlink("real", place.path("ws/.git")).unwrap();
    let guarded = place.guarded(&[]);
    assert_eq!(place.steps(&guarded, &[]), ["pin /work/real", "protect /work/real/config"]);
    fs_err::remove_file(place.path("ws/.git")).unwrap();
    place.write("ws/.git", "gitdir: fake");
    assert_eq!(guarded.planted(), [".git"]);
}

/// Creates a repository at `ws/.git`, with a module `sub` and a worktree at `ws/wt`.
fn repository() -> TestWorkspace {
    let place = TestWorkspace::new(&[
        "ws/.git/HEAD",
        "ws/.git/objects/x",
        "ws/.git/refs/heads/main",
        "ws/.git/logs/refs/heads/main",
        "ws/.git/modules/sub/HEAD",
        "ws/.git/modules/sub/config",
        "ws/.git/modules/sub/objects/x",
        "ws/.git/modules/sub/refs/x",
    ]);
    place.write("ws/.git/config", "[submodule \"sub\"]\n\turl = /x\n");
    place.write("ws/.gitmodules", "[submodule \"sub\"]\n\tpath = sub\n");
    place.write("ws/.git/worktrees/wt/HEAD", "");
    place.write("ws/.git/worktrees/wt/commondir", "../..\n");
    place.write("ws/.git/worktrees/wt/gitdir", place.path("ws/wt/.git").display().to_string());
    place.write("ws/wt/.git", "gitdir: ../.git/worktrees/wt\n");
    place
}

#[test]
fn a_link_through_which_git_writes_is_reported_wherever_it_is() {
    let place = repository();
    place.write("ws/.git/refs/tags/one", "");
    symlink("../../elsewhere", place.path("ws/.git/refs/tags/user")).unwrap();
    place.write("ws/.git/elsewhere/log", "");
    // Wait, because files as old as the run count as made by the run.
    place.wait_for_later_changes("ws/.git/elsewhere");
    let guarded = place.guarded(&[]);
    assert_eq!(guarded.planted(), [] as [&str; 0]);
    let links = [
        ".git/COMMIT_EDITMSG",
        ".git/elsewhere/link",
        ".git/info",
        ".git/logs/HEAD",
        ".git/logs/refs/remotes",
        ".git/modules/sub/FETCH_HEAD",
        ".git/modules/sub/logs/HEAD",
        ".git/packed-refs",
        ".git/rebase-merge/message",
        ".git/refs/heads/a/b/c/d",
        ".git/rr-cache/1/preimage",
        ".git/sequencer/x",
        ".git/worktrees/wt/ORIG_HEAD",
        ".git/worktrees/wt/logs",
    ];
    for link in links {
        let path = place.path("ws").join(link);
        fs_err::create_dir_all(path.parent().unwrap()).unwrap();
        symlink("/nowhere", path).unwrap();
    }
    // The directory is reported as well, because its existence makes git record resolutions there.
    let expected: BTreeSet<&str> = links.into_iter().chain([".git/rr-cache"]).collect();
    assert_eq!(guarded.planted(), expected.into_iter().collect::<Vec<_>>());
    // A directory that is moved brings links that are older than the run.
    fs_err::rename(place.path("ws/.git/refs/tags"), place.path("ws/.git/refs/moved")).unwrap();
    assert!(guarded.planted().contains(&".git/refs/moved/user".to_owned()));
}

#[test]
fn a_sequence_that_a_run_left_or_changed_is_reported() {
    for (file, reported) in [
        (".git/MERGE_AUTOSTASH", ".git/MERGE_AUTOSTASH"),
        (".git/rebase-merge/autostash", ".git/rebase-merge"),
        (".git/rebase-merge/git-rebase-todo", ".git/rebase-merge"),
        (".git/rebase-merge/onto", ".git/rebase-merge"),
        (".git/rebase-apply/autostash", ".git/rebase-apply"),
        (".git/rebase-apply/0001", ".git/rebase-apply"),
        (".git/sequencer/todo", ".git/sequencer"),
        (".git/worktrees/wt/rebase-merge/git-rebase-todo", ".git/worktrees/wt/rebase-merge"),
        (".git/modules/sub/MERGE_AUTOSTASH", ".git/modules/sub/MERGE_AUTOSTASH"),
    ] {
        let place = repository();
        let before = place.guarded(&[]);
        place.write(&format!("ws/{file}"), "pick 1\n");
        assert_eq!(before.planted(), [reported], "{file} is new");
        let guarded = place.guarded(&[]);
        assert_eq!(guarded.planted(), [] as [&str; 0], "{file} stays as it is");
        place.write(&format!("ws/{file}"), "pick 2\n");
        assert_eq!(guarded.planted(), [reported], "{file} changes");
        fs_err::remove_file(place.path("ws").join(file)).unwrap();
        assert_eq!(guarded.planted(), [] as [&str; 0], "{file} is gone");
    }
}

#[test]
fn a_change_of_the_meaning_of_a_commits_name_is_reported() {
    for file in [
        ".git/info/grafts",
        ".git/modules/sub/info/grafts",
        ".git/modules/sub/refs/replace/1",
        ".git/refs/replace/1",
        ".git/refs/replace/deep/1",
    ] {
        let place = repository();
        let path = format!("ws/{file}");
        let guarded = place.guarded(&[]);
        place.write(&path, "2\n");
        assert_eq!(guarded.planted(), [file], "{file} is new");
        place.wait_for_later_changes(&path);
        let guarded = place.guarded(&[]);
        assert_eq!(guarded.planted(), [] as [&str; 0], "{file} stays as it is");
        place.write(&path, "3\n");
        assert_eq!(guarded.planted(), [file], "{file} changes");
    }
}

#[test]
fn packed_references_are_reported_only_with_a_replacement_among_them() {
    for file in [".git/packed-refs", ".git/modules/sub/packed-refs"] {
        let place = repository();
        let guarded = place.guarded(&[]);
        place.write(&format!("ws/{file}"), "1 refs/heads/replace\n");
        assert_eq!(guarded.planted(), [] as [&str; 0], "{file}");
        place.write(&format!("ws/{file}"), "1 refs/heads/replace\n2 refs/replace/1\n");
        assert_eq!(guarded.planted(), [file]);
    }
}

/// Returns an index of version 2 with one submodule.
fn index_with_submodule(path: &str) -> Vec<u8> {
    let numbers = [0, 0, 0, 0, 0, 0, 0o160_000, 0, 0, 0].map(u32::to_be_bytes).concat();
    let length = u16::try_from(path.len()).unwrap().to_be_bytes();
    let entry = [&numbers[..], &[0x11; 20], &length, path.as_bytes()].concat();
    let padding = vec![0; 8 - entry.len() % 8];
    [&b"DIRC\0\0\0\x02\0\0\0\x01"[..], &entry, &padding, &[0; 20]].concat()
}

#[test]
fn a_new_submodule_is_reported_by_its_repository_alone() {
    let place = repository();
    place.write("ws/.git/index", index_with_submodule("sub"));
    let guarded = place.guarded(&[]);
    for file in ["HEAD", "hooks/x", "objects/x", "refs/x"] {
        place.write(&format!("ws/.git/modules/new/{file}"), "");
    }
    place.write("ws/.git/modules/new/config", "[core]\n\tworktree = ../../../new\n");
    place.write("ws/.git/index", index_with_submodule("new"));
    place.write("ws/.gitmodules", "[submodule \"new\"]\n\tpath = new\n");
    place.write("ws/new/.git", "gitdir: ../.git/modules/new\n");
    assert_eq!(guarded.planted(), [".git/modules/new"]);
    // Elsewhere than git puts it, the repository is reported with the link to it.
    fs_err::rename(place.path("ws/.git/modules/new"), place.path("ws/else")).unwrap();
    place.write("ws/else/config", "[core]\n\tworktree = ../new\n");
    place.write("ws/new/.git", "gitdir: ../else\n");
    assert_eq!(guarded.planted(), ["else", "new/.git"]);
}

#[test]
fn a_sequence_that_would_go_on_from_another_state_is_reported() {
    let sequences = [".git/rebase-merge", ".git/rebase-apply", ".git/sequencer"];
    for (sequence, file) in sequences.into_iter().zip(["git-rebase-todo", "0001", "todo"]) {
        let place = repository();
        place.write(&format!("ws/{sequence}/{file}"), "pick 1\n");
        place.write("ws/.git/HEAD", "ref: refs/heads/main\n");
        for (changed, text) in [
            ("HEAD", b"2\n".to_vec()),
            ("HEAD", b"ref: refs/heads/packed\n".to_vec()),
            ("refs/heads/main", b"2\n".to_vec()),
            ("shallow", b"2\n".to_vec()),
            ("index", index_with_submodule("other")),
        ] {
            let guarded = place.guarded(&[]);
            let path = format!("ws/.git/{changed}");
            let before = fs_err::read(place.path(&path)).ok();
            place.write(&path, text);
            assert_eq!(guarded.planted(), [sequence], "{changed}");
            match before {
                Some(before) => fs_err::write(place.path(&path), before).unwrap(),
                None => fs_err::remove_file(place.path(&path)).unwrap(),
            }
            assert_eq!(guarded.planted(), [] as [&str; 0], "{changed} is as it was");
        }
        place.write("ws/.git/HEAD", "ref: refs/heads/packed\n");
        let guarded = place.guarded(&[]);
        place.write("ws/.git/packed-refs", "2 refs/heads/packed\n");
        assert_eq!(guarded.planted(), [sequence]);
    }
    let place = repository();
    let guarded = place.guarded(&[]);
    place.write("ws/.git/HEAD", "2\n");
    assert_eq!(
        guarded.planted(),
        [] as [&str; 0],
        "without a sequence, a checkout is nothing to report"
    );
}

#[test]
fn a_link_to_a_guarded_file_that_a_run_removes_is_reported_and_the_file_stays_guarded() {
    let policies: [(&str, Policy, &str); 6] = [
        ("hide", Policy::default().hide(PathGlob::literal("way/key")), "way"),
        ("hide", Policy::default().hide(PathGlob::literal("link")), "link"),
        ("hide", Policy::default().hide("w*/key".parse().unwrap()), "way"),
        ("hide", Policy::default().hide("l?nk".parse().unwrap()), "link"),
        ("protect", Policy::default().protect(PathGlob::literal("way/key")), "way"),
        ("protect", Policy::default().protect("way/*".parse().unwrap()), "way"),
    ];
    for (effect, policy, link) in policies {
        let place = TestWorkspace::new(&["ws/vault/key"]);
        symlink("vault", place.path("ws/first")).unwrap();
        symlink("first", place.path("ws/way")).unwrap();
        symlink("vault/key", place.path("ws/link")).unwrap();
        let step = format!("{effect} /work/vault/key");
        let is_guarded = |policy: &Policy| place.steps(&place.find(policy), &[]).contains(&step);
        assert!(is_guarded(&policy), "{effect} {link}");

        let first = place.find(&policy);
        fs_err::remove_file(place.path("ws").join(link)).unwrap();
        assert_eq!(first.planted(), [link]);
        assert!(is_guarded(&policy), "{effect} {link} is gone");
        assert!(!is_guarded(&Policy::default()), "the rule is another one");

        let second = place.find(&policy);
        assert_eq!(second.planted(), [] as [&str; 0]);
        place.write(&format!("ws/{link}"), "");
        assert_eq!(second.planted(), [link]);
        assert!(is_guarded(&policy), "{effect} {link} is what a run put there");

        // The user puts another link in its place.
        fs_err::remove_file(place.path("ws").join(link)).unwrap();
        symlink("vault/other", place.path("ws").join(link)).unwrap();
        assert!(!is_guarded(&policy), "{effect} {link} is the user's");
    }
}

/// Returns the path of the list of removed links that a run in the workspace of `place` left.
fn list_of_removed_links(place: &TestWorkspace) -> PathBuf {
    let lists = fs_err::read_dir(place.path("home/.local/state/ringfence/removed-links")).unwrap();
    let lists: Vec<PathBuf> = lists.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(lists.len(), 1, "{lists:?}");
    lists[0].clone()
}

#[test]
fn a_run_is_refused_if_the_list_of_removed_links_cannot_be_read() {
    let place = TestWorkspace::new(&["ws/vault/key"]);
    symlink("vault/key", place.path("ws/link")).unwrap();
    let policy = Policy::default().hide(PathGlob::literal("link"));
    let guarded = place.find(&policy);
    fs_err::remove_file(place.path("ws/link")).unwrap();
    assert_eq!(guarded.planted(), ["link"]);
    let list = list_of_removed_links(&place);
    let kept = fs_err::read(&list).unwrap();
    let too_long = [kept.as_slice(), &b" ".repeat(1 << 20)].concat();
    for content in [b"".as_slice(), b"[", &kept[..kept.len() - 1], &too_long] {
        fs_err::write(&list, content).unwrap();
        let error = place.try_find(&policy).unwrap_err();
        assert!(matches!(&error, ViewError::RemovedLinks { path, .. } if *path == list), "{error}");
        assert!(error.hint().ends_with(&format!("rm '{}'", list.display())), "{}", error.hint());
        // A sandbox that stays reports another link, which must not make the list readable again.
        guarded.planted();
        assert_eq!(fs_err::read(&list).unwrap(), content);
    }
    fs_err::remove_file(&list).unwrap();
    fs_err::create_dir(&list).unwrap();
    assert!(matches!(place.try_find(&policy), Err(ViewError::RemovedLinks { .. })));
    fs_err::remove_dir(&list).unwrap();
    place.find(&policy);
}

#[test]
fn removed_links_that_would_fill_their_list_are_remembered_by_target() {
    let place = TestWorkspace::new(&["ws/store/abc", "ws/conf/x"]);
    symlink("../store/abc", place.path("ws/conf/prod.key")).unwrap();
    let policy = Policy::default().hide("conf/*.key".parse().unwrap());
    let is_guarded =
        || place.steps(&place.find(&policy), &[]).contains(&"hide /work/store/abc".to_owned());
    for _ in 0..2 {
        let text = "./".repeat(1950) + "../store/abc";
        (0..400).for_each(|number| {
            symlink(&text, place.path(&format!("ws/conf/{number}.key"))).unwrap()
        });
        let guarded = place.find(&policy);
        fs_err::remove_dir_all(place.path("ws/conf")).unwrap();
        fs_err::create_dir(place.path("ws/conf")).unwrap();
        assert!(guarded.planted().contains(&"conf/399.key".to_owned()));
        let length = fs_err::metadata(list_of_removed_links(&place)).unwrap().len();
        assert!(length < 4096, "the list has {length} bytes");
        assert!(is_guarded());
        // A new file in the place of the link that stands for all links changes nothing.
        place.write("ws/conf/0.key", "");
        assert!(is_guarded());
        fs_err::remove_file(place.path("ws/conf/0.key")).unwrap();
    }
}

#[test]
fn more_guarded_files_or_links_than_can_be_mounted_are_refused() {
    let place = TestWorkspace::new(&["ws/a/.env", "ws/b/x"]);
    for number in 0..=MAX_GUARDED_PATHS {
        fs_err::hard_link(place.path("ws/a/.env"), place.path(&format!("ws/b/{number}"))).unwrap();
    }
    let pattern = |pattern: &str| Policy::default().hide(pattern.parse().unwrap());
    place.find(&pattern("**/x"));
    let error = place.try_find(&pattern("**/.env")).unwrap_err();
    assert!(matches!(error, ViewError::TooManyPaths { .. }), "{error}");
    let both = pattern("**/.env").hide(PathGlob::literal("b"));
    assert_eq!(
        place.steps(&place.find(&both), &[]),
        ["pin /work/a", "hide /work/a/.env", "hide /work/b"]
    );

    let place = TestWorkspace::new(&["ws/real/x"]);
    (0..200).for_each(|number| place.write(&format!("ws/real/{number}.env"), ""));
    (0..100).for_each(|number| symlink("real", place.path(&format!("ws/l{number}"))).unwrap());
    let error = place.try_find(&pattern("l*/*.env")).unwrap_err();
    assert!(matches!(error, ViewError::TooManyLinks { .. }), "{error}");
}

#[test]
fn every_link_on_the_way_to_a_match_counts() {
    let place = TestWorkspace::new(&["ws/vault/key"]);
    symlink("vault", place.path("ws/first")).unwrap();
    symlink("first", place.path("ws/way")).unwrap();
    let policy = Policy::default().hide("way/*".parse().unwrap());
    let guarded = place.find(&policy);
    fs_err::remove_file(place.path("ws/first")).unwrap();
    assert_eq!(guarded.planted(), ["first"]);
    assert!(place.steps(&place.find(&policy), &[]).contains(&"hide /work/vault/key".to_owned()));
    fs_err::remove_file(place.path("ws/way")).unwrap();
    fs_err::create_dir(place.path("ws/way")).unwrap();
    assert_eq!(guarded.planted(), ["first", "way"]);
}

#[test]
fn a_link_to_a_script_and_a_submodule_are_reported_when_they_are_gone() {
    let place = repository();
    place.write("ws/scripts/clean.sh", "");
    symlink("scripts", place.path("ws/tools")).unwrap();
    place.write("ws/.git/config", "[filter \"x\"]\n\tclean = tools/clean.sh\n");
    place.write("ws/.git/index", index_with_submodule("sub"));
    place.write("ws/sub/.git", "gitdir: ../.git/modules/sub\n");
    let guarded = place.guarded(&[]);
    fs_err::remove_file(place.path("ws/tools")).unwrap();
    assert_eq!(guarded.planted(), ["tools"]);
    fs_err::remove_file(place.path("ws/.git/index")).unwrap();
    assert_eq!(guarded.planted(), ["sub/.git", "tools"]);
}

#[test]
fn a_module_inside_a_known_one_is_reported() {
    let files = |module: &str| {
        ["HEAD", "config", "objects/x", "refs/x"]
            .map(|file| format!("ws/.git/modules/{module}/{file}"))
    };
    for module in [
        "sub/foo",
        "sub/one/two/foo",
        "sub/logs/foo",
        "sub/refs/heads/foo",
        "sub/modules/foo",
        "other",
    ] {
        let place = repository();
        let guarded = place.guarded(&[]);
        files(module).iter().for_each(|file| place.write(file, ""));
        let planted = guarded.planted();
        assert!(
            planted.iter().any(|path| path.starts_with(&format!(".git/modules/{module}"))),
            "{module}: {planted:?}"
        );
    }
    // Only the name of the submodule leads there.
    let place = repository();
    let guarded = place.guarded(&[]);
    files("sub/objects/foo").iter().for_each(|file| place.write(file, ""));
    place.write("ws/.gitmodules", "[submodule \"sub/objects/foo\"]\n\tpath = new\n");
    assert_eq!(guarded.planted(), [".git/modules/sub/objects/foo/config"]);
}

#[test]
fn settings_count_for_every_work_tree_of_a_repository() {
    let place = repository();
    place.write("ws/.git/config", "[core]\n\tfsmonitor = ./x.sh\n");
    place.write("ws/x.sh", "");
    // Files that a run left: git ignores the `core.worktree` here, and uses `aaa/.git` if it is
    // started in `aaa`.
    place.write("ws/.git/config.worktree", "[core]\n\tworktree = ../other\n");
    place.write("ws/aaa/.git", "gitdir: ../.git");
    place.write("ws/aaa/x.sh", "");
    place.write("ws/other/x.sh", "");
    let steps = place.steps(&place.guarded(&[]), &[]);
    for step in ["protect /work/x.sh", "protect /work/aaa/x.sh"] {
        assert!(steps.contains(&step.to_owned()), "{step} is not in {steps:?}");
    }
    assert!(!steps.contains(&"protect /work/other/x.sh".to_owned()), "{steps:?}");
}

#[test]
fn an_index_that_cannot_be_judged_is_reported_after_every_run() {
    let place = repository();
    place.write("ws/.git/index", "no index");
    let guarded = place.guarded(&[]);
    assert_eq!(guarded.planted(), [".git/index"]);
}

#[test]
fn repositories_that_lead_to_each_other_in_a_long_chain_are_all_found() {
    let place = TestWorkspace::new(&["ws/.git/HEAD"]);
    for number in 0..1000 {
        let include = format!("[include]\n\tpath = inc{}\n", number + 1);
        place.write(&format!("ws/.git/inc{number}"), &include);
        let next = place.path(&format!("ws/many/r{}", number + 1));
        let config = format!("[remote \"origin\"]\n\turl = {}\n", next.display());
        place.write(&format!("ws/many/r{number}/.git/config"), &config);
    }
    let first = place.path("ws/many/r0");
    place.write("ws/.git/config", format!("[remote \"o\"]\n\turl = {}\n", first.display()));
    let guarded = place.guarded(&[]);
    place.write("ws/many/r1000/.git/config", "");
    assert_eq!(guarded.planted(), ["many/r1000/.git/config"]);
    let config = "[include]\n\tpath = inc0\n";
    place.write("ws/.git/config", config);
    assert!(
        place.try_find(&Policy::default()).is_err(),
        "git refuses such a chain, and a later one may not"
    );
}

#[test]
fn a_worktree_and_a_clone_that_a_run_makes_inside_are_not_reported() {
    let place = repository();
    let guarded = place.guarded(&[]);
    place.write("ws/.git/worktrees/new/HEAD", "");
    place.write("ws/.git/worktrees/new/commondir", "../..\n");
    place.write("ws/.git/worktrees/new/gitdir", place.path("ws/new/.git").display().to_string());
    place.write("ws/new/.git", "gitdir: ../.git/worktrees/new\n");
    assert_eq!(guarded.planted(), [] as [&str; 0]);
    let url = format!("[remote \"origin\"]\n\turl = {}\n", place.path("ws/.git").display());
    place.write("ws/vendor/.git/config", &url);
    assert_eq!(guarded.planted(), ["vendor/.git/config"]);
    // Another directory claims to be this worktree.
    place.write("ws/false/.git", "gitdir: ../.git/worktrees/new\n");
    assert_eq!(guarded.planted(), ["false/.git", "vendor/.git/config"]);
}

#[test]
fn a_repository_that_the_environment_names_is_guarded() {
    let place = TestWorkspace::new(&["ws/a/b/cfg/HEAD", "ws/a/b/common/hooks/x"]);
    (0..40).for_each(|number| place.write(&format!("ws/0{number}/x"), ""));
    place.write("ws/a/b/cfg/config", "[core]\n\tfsmonitor = ./x.sh\n");
    place.write("ws/work/x.sh", "");
    let variables =
        [("GIT_DIR", "a/b/cfg"), ("GIT_WORK_TREE", "work"), ("GIT_COMMON_DIR", "a/b/common")];
    let guarded = place.find_with(&Policy::default(), &variables).unwrap();
    let steps = place.steps(&guarded, &[]);
    for step in [
        "protect /work/a/b/cfg/config",
        "protect /work/work/x.sh",
        "protect /work/a/b/common/hooks",
    ] {
        assert!(steps.contains(&step.to_owned()), "{step} is not in {steps:?}");
    }
    let guarded = place.find_with(&Policy::default(), &[("GIT_INDEX_FILE", "a/b/index")]).unwrap();
    place.write("ws/a/b/index", "no index");
    assert_eq!(guarded.planted(), ["a/b/index"]);
}

#[test]
fn repositories_above_and_in_other_writable_trees_are_guarded() {
    let place = TestWorkspace::new(&["other/one/.git/config", "two/tree/hooks/x"]);
    // The workspace lies in a directory with a `.git` that is not a repository, below one that is.
    fs_err::create_dir_all(place.path("ws/inner/.git")).unwrap();
    place.write("ws/.git/config", "[include]\n\tpath = ../inner/deep/conf\n");
    place.write("ws/inner/deep/conf", "");
    place.write("two/.git/config", "[core]\n\thooksPath = tree/hooks\n");
    let source = place.path("ws/inner/deep");
    let (given, destination) = (source.clone(), "/work".into());
    let mut workspace = ResolvedWorkspace { given, source, destination, granted: Vec::new() };
    let policy = Policy::default().write(place.path("other")).write(place.path("two/tree"));
    let host = Host::new([("HOME".into(), place.path("home").into())].into(), place.path("ws"));
    workspace.granted = Grants::on(&host).grant_paths(&policy, &host, &workspace).unwrap();
    let guarded =
        Guarded::find(&policy.with_defaults(), &workspace, &host, &MountTable::default(), &[])
            .unwrap();
    for path in ["ws/inner/deep/conf", "other/one/.git/config", "two/tree/hooks"] {
        assert!(
            guarded.protected.contains(&place.path(path)),
            "{path} is not in {:?}",
            guarded.protected
        );
    }
}

#[test]
fn a_link_that_turns_is_reported() {
    let place = repository();
    let link = place.path("ws/.git/logs/HEAD");
    symlink("one", &link).unwrap();
    let guarded = place.guarded(&[]);
    fs_err::remove_file(&link).unwrap();
    symlink("two", &link).unwrap();
    assert_eq!(guarded.planted(), [".git/logs/HEAD"]);
}

#[test]
fn links_behind_many_directories_are_reported() {
    let place = repository();
    (0..1100).for_each(|number| place.write(&format!("ws/.git/refs/heads/{number}/x"), ""));
    let guarded = place.guarded(&[]);
    assert_eq!(guarded.planted(), [] as [&str; 0]);
    for number in 0..1100 {
        symlink("/nowhere", place.path(&format!("ws/.git/refs/heads/{number}/link"))).unwrap();
    }
    assert_eq!(guarded.planted().len(), 1100);
}

#[test]
fn a_shared_repository_is_guarded_with_its_worktrees() {
    let own = "repo/.git/worktrees/ws";
    let place = TestWorkspace::new(&["repo/.git/more", "repo/.git/objects/x", "repo/.git/refs/x"]);
    place.write("repo/.git/config", "[include]\n\tpath = more\n");
    place.write("ws/.git", format!("gitdir: {}\n", place.path(own).display()));
    place.write(&format!("{own}/gitdir"), place.path("ws/.git").display().to_string());
    place.write(&format!("{own}/commondir"), "../..\n");
    let guarded = place.guarded(&[]);
    assert_eq!(guarded.shared(), [place.path("repo/.git")]);
    let steps = place.steps(&guarded, &[("repo/.git", Access::Write)]);
    for step in [
        "pin repo/.git/worktrees",
        "pin repo/.git/worktrees/ws",
        "protect repo/.git/config",
        "protect repo/.git/more",
        "protect repo/.git/worktrees/ws/commondir",
        "protect repo/.git/worktrees/ws/gitdir",
        "protect /work/.git",
    ] {
        assert!(steps.contains(&step.to_owned()), "{step} is not in {steps:?}");
    }
    place.write("repo/.git/commondir", "../elsewhere");
    place.write("repo/.git/worktrees/ws/config.worktree", "");
    let planted = ["repo/.git/commondir", "repo/.git/worktrees/ws/config.worktree"];
    assert_eq!(guarded.planted(), planted.map(|path| place.path(path).display().to_string()));
}

#[test]
fn hooks_that_the_configuration_names_are_protected_or_watched() {
    let place = TestWorkspace::new(&["ws/.husky/_/pre-commit"]);
    place.write("ws/.git/config", "[core]\n\thooksPath = .husky/_\n[include]\n\tpath = ../more\n");
    let guarded = place.guarded(&[]);
    assert!(place.steps(&guarded, &[]).contains(&"protect /work/.husky".to_owned()));
    place.write("ws/more", "");
    assert_eq!(guarded.planted(), ["more"]);
}

#[test]
fn other_names_of_guarded_files_are_guarded() {
    let place = TestWorkspace::new(&[
        "ws/.git/config",
        "ws/.git/hooks/pre-commit",
        "ws/.env",
        "ws/a/plain",
    ]);
    for (file, name) in
        [(".git/config", "one"), (".git/hooks/pre-commit", "a/two"), (".env", "three")]
    {
        fs_err::hard_link(place.path("ws").join(file), place.path("ws").join(name)).unwrap();
    }
    let steps = place.steps(&place.guarded(&[".env"]), &[]);
    for step in ["protect /work/one", "protect /work/a/two", "pin /work/a", "hide /work/three"] {
        assert!(steps.contains(&step.to_owned()), "{step} is not in {steps:?}");
    }
    let without_hide = place.steps(&place.guarded(&[]), &[]);
    assert!(without_hide.contains(&"protect /work/one".to_owned()), "{without_hide:?}");
}

#[test]
fn other_names_outside_the_workspace_are_guarded_where_they_are_shown() {
    let place =
        TestWorkspace::new(&["ws/.git/config", "ws/.env", "read/deep/plain", "write/plain"]);
    fs_err::hard_link(place.path("ws/.env"), place.path("read/deep/x")).unwrap();
    fs_err::hard_link(place.path("ws/.git/config"), place.path("write/c")).unwrap();
    let mut policy = Policy::default().hide(PathGlob::literal(".env"));
    policy.filesystem.read = Some(vec![place.path("read")]);
    policy.filesystem.write = Some(vec![place.path("write")]);
    let shown = [("read", Access::Read), ("write", Access::Write)];
    let steps = place.steps(&place.find(&policy), &shown);
    for step in ["hide read/deep/x", "protect write/c"] {
        assert!(steps.contains(&step.to_owned()), "{step} is not in {steps:?}");
    }
}

#[test]
fn nothing_is_guarded_where_nothing_is_to_be_protected() {
    let place = TestWorkspace::new(&["ws/.git/config"]);
    let mut policy = Policy::default();
    policy.filesystem.protect = Some(Vec::new());
    let guarded = place.find(&policy);
    assert_eq!(place.steps(&guarded, &[]), [] as [&str; 0]);
    place.write("ws/.git/commondir", "");
    assert_eq!(guarded.planted(), [] as [&str; 0]);
}
