//! Files that a run makes and that programs on the host would act on, where nothing can prevent the
//! run from making them.

use std::path::Path;
use std::process::Output;

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory};
use ringfence_test_ledger::{binary, require};
use serde_json::{Value, json};

/// Script that makes a repository of the attacker at `elsewhere`, whose configuration makes git run
/// a program.
const ELSEWHERE: &str = "\
mkdir -p elsewhere/objects elsewhere/refs && echo ref: refs/heads/main > elsewhere/HEAD &&
printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = \"touch stolen; false\"\\n' > \
elsewhere/config";

fn git(directory: &Path, arguments: &[&str]) -> Output {
    let mut git = std::process::Command::new("git");
    let author = ["-c", "user.name=demo", "-c", "user.email=demo@example.org"];
    git.arg("-C").arg(directory).args(author).args(arguments).output().expect("git can be started")
}

#[track_caller]
fn must_git(directory: &Path, arguments: &[&str]) {
    let output = git(directory, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// Runs a script in `workspace` and returns the result.
fn run(variant: BackendVariant, place: &CallerDirectory, workspace: &Path, script: &str) -> Value {
    let mut command = BackendSetup { variant, caller: Caller::Root }.ringfence("run", place);
    command
        .args(["--json", "--workspace"])
        .arg(workspace)
        .args(["--", "sh", "-c", script])
        .current_dir(workspace);
    let output = command.output().expect("ringfence can be started");
    serde_json::from_slice(&output.stdout).expect("it answers in JSON")
}

/// Runs a script that plants something, and checks that git on the host follows it.
#[track_caller]
fn check(prepare: impl Fn(&Path), script: &str, expected: &[&str]) {
    let place = CallerDirectory::for_caller(Caller::Root);
    prepare(place.path());
    let result =
        run(BackendVariant::Native, &place, place.path(), &format!("{ELSEWHERE} && {script}"));
    assert_eq!(
        (&result["ok"], &result["meta"]["planted"]),
        (&true.into(), &json!(expected)),
        "{result}"
    );

    git(place.path(), &["status"]);
    assert!(
        place.path().join("stolen").exists(),
        "git follows it: if it did not, there would be nothing to report"
    );
}

#[test]
fn a_redirection_of_git_to_other_hooks_and_settings_is_reported() {
    require!(root, binary, user_namespaces, git);
    check(
        |path| must_git(path, &["init", "-q"]),
        "echo ../elsewhere > .git/commondir",
        &[".git/commondir", "elsewhere"],
    );
}

#[test]
fn a_git_file_that_names_the_attackers_repository_is_reported() {
    require!(root, binary, user_namespaces, git);
    let reported = [".git", "elsewhere"];
    check(|_| {}, "echo 'gitdir: elsewhere' > .git", &reported);
    let linked = |path: &Path| {
        must_git(path, &["init", "-q"]);
        fs_err::rename(path.join(".git"), path.join("real")).unwrap();
        std::os::unix::fs::symlink("real", path.join(".git")).unwrap();
    };
    check(linked, "rm .git && echo 'gitdir: elsewhere' > .git", &reported);
}

#[test]
fn a_workspace_that_becomes_a_bare_repository_is_reported() {
    require!(root, binary, user_namespaces, git);
    let script = "mv elsewhere/* . && printf '\\tbare = false\\n\\tworktree = .\\n' >> config";
    check(|_| {}, script, &["HEAD", "config"]);
}

#[test]
fn git_works_in_a_worktree_without_running_planted_programs_on_the_host() {
    require!(root, binary, user_namespaces, git, bwrap);
    for variant in [BackendVariant::Native, BackendVariant::Bwrap] {
        let place = CallerDirectory::for_caller(Caller::Root);
        let [main, tree] = ["main", "tree"].map(|name| place.path().join(name));
        fs_err::create_dir(&main).unwrap();
        must_git(&main, &["init", "-q"]);
        must_git(&main, &["commit", "-q", "--allow-empty", "-m", "one"]);
        must_git(&main, &["worktree", "add", "-q", "../tree"]);

        let work = "echo 1 > file && git add file && git status --short && git log --format=%s &&
            git -c user.name=demo -c user.email=demo@example.org commit -q -m two && git checkout \
            -q -b other";
        let result = run(variant, &place, &tree, work);
        assert_eq!(
            (&result["ok"], &result["stdout"]),
            (&true.into(), &"A  file\none\n".into()),
            "{result}"
        );
        assert_eq!(result["meta"]["planted"], json!([]));
        assert_eq!(git(&main, &["log", "--format=%s", "other"]).stdout, b"two\none\n");

        let repository = main.join(".git");
        let attack = format!(
            "cd {} || exit; for file in commondir gitdir; do
                echo x > worktrees/tree/$file; rm -f worktrees/tree/$file; mv x worktrees/tree/$file
            done
            mv worktrees away; mv worktrees/tree worktrees/away; echo x > config; echo x > \
            hooks/pre-commit",
            repository.display()
        );
        run(variant, &place, &tree, &attack);
        assert_eq!(
            fs_err::read_to_string(repository.join("worktrees/tree/commondir")).unwrap(),
            "../..\n"
        );
        must_git(&tree, &["status"]);
        assert!(!repository.join("hooks/pre-commit").exists());

        let plant = format!(
            "cd {} && echo ../elsewhere > commondir && : > worktrees/tree/config.worktree",
            repository.display()
        );
        let planted =
            ["commondir", "worktrees/tree/config.worktree"].map(|name| repository.join(name));
        assert_eq!(
            run(variant, &place, &tree, &plant)["meta"]["planted"],
            json!(planted),
            "{variant:?}"
        );
    }
}

/// Plants a path that is reported, and then does `more`.
fn planting(more: &str) -> String {
    format!("{ELSEWHERE} && echo ../elsewhere > .git/commondir && {more}")
}

/// Waits until the command has made this file.
fn await_file(path: &Path) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !path.exists() {
        assert!(std::time::Instant::now() < deadline, "{} is not made", path.display());
        std::thread::yield_now();
    }
}

#[test]
fn a_run_killed_from_outside_reports_its_planted_files() {
    require!(root, binary, user_namespaces, git);
    let place = CallerDirectory::for_caller(Caller::Root);
    must_git(place.path(), &["init", "-q"]);
    let mut command = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root }
        .ringfence("run", &place);
    let script = planting("touch planted && exec sleep 600");
    command.args(["--", "sh", "-c", &script]).stderr(std::process::Stdio::piped());
    let run = command.spawn().expect("ringfence can be started");
    await_file(&place.path().join("planted"));
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let children = fs_err::read_to_string(children).unwrap();
    let first = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
    let first = first
        .and_then(rustix::process::Pid::from_raw)
        .expect("its first process is a child of ringfence");
    rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
    let output = run.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{words}");
    let expected = "error: the run made, changed or removed `.git/commondir`, `elsewhere`, and \
                    failed: \
                    the sandbox was killed from outside";
    assert!(words.contains(expected), "{words}");
}

#[test]
fn stopping_a_sandbox_reports_files_planted_in_the_background() {
    require!(root, binary, user_namespaces, git);
    let place = CallerDirectory::for_caller(Caller::Root);
    must_git(place.path(), &["init", "-q"]);
    let setup = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root };
    let ringfence = |words: &[&str]| {
        let output =
            setup.command(binary(), &place).args(words).output().expect("ringfence can be started");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    ringfence(&["up", "planter", "--backend", "native"]);
    let script = planting("touch planted");
    let waiting = format!("(until test -e go; do sleep 0.01; done; {script}) > /dev/null 2>&1 &");
    let words = ringfence(&["exec", "planter", "--", "sh", "-c", &waiting]);
    assert!(!words.contains("commondir"), "nothing is planted yet: {words}");
    fs_err::write(place.path().join("go"), "").unwrap();
    await_file(&place.path().join("planted"));
    let words = ringfence(&["stop", "planter"]);
    assert!(
        words.contains("the sandbox `planter` made, changed or removed `.git/commondir`"),
        "{words}"
    );
}
