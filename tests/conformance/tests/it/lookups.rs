//! Ways to prevent the host from finding the files that `hide` and `protect` name: directories that
//! cannot be searched, and links on the way. Each case is a pair: the same steps reach the file
//! where no rule names it.

use std::process::Output;

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory};
use ringfence_test_ledger::{binary, require};

/// The backends that enforce `hide` and `protect` and start in milliseconds. Every case is tried on
/// them.
const FAST_VARIANTS: [BackendVariant; 2] = [BackendVariant::Native, BackendVariant::Bwrap];

/// A way to prevent the search, and the rule that must hold nevertheless.
struct BlockedSearch {
    /// Script of the caller on the host.
    files: &'static str,
    /// Script of an earlier run, which has no rule.
    earlier: &'static str,
    /// Rule of the next run.
    rule: [&'static str; 2],
    /// Script of the next run, which tries to access the file.
    attack: &'static str,
}

fn setups(variants: &[BackendVariant]) -> impl Iterator<Item = BackendSetup> {
    variants.iter().copied().flat_map(BackendSetup::all_on)
}

fn run(setup: BackendSetup, place: &CallerDirectory, rule: &[&str], script: &str) -> Output {
    let mut command = setup.ringfence("run", place);
    command.args(rule).args(["--", "sh", "-c", script]).output().expect("ringfence can be started")
}

fn prepare(setup: BackendSetup, place: &CallerDirectory, files: &str) {
    let made = setup.command("sh", place).args(["-ec", files]).output().expect("sh can be started");
    assert!(made.status.success(), "{made:?}");
}

/// Returns the content of a file as the caller finds it at the end, whatever modes the runs left.
fn content(setup: BackendSetup, place: &CallerDirectory, file: &str) -> String {
    let script = format!("find . -type d -exec chmod u+rwx {{}} + ; cat {file}");
    let read =
        setup.command("sh", place).args(["-c", &script]).output().expect("sh can be started");
    String::from_utf8_lossy(&read.stdout).into_owned()
}

#[track_caller]
fn check_hidden(variants: &[BackendVariant], blinding: &BlockedSearch) {
    for setup in setups(variants) {
        for (rule, is_hidden) in [(&[][..], false), (&blinding.rule[..], true)] {
            let place = CallerDirectory::for_caller(setup.caller);
            prepare(setup, &place, blinding.files);
            run(setup, &place, &[], blinding.earlier);
            let output = run(setup, &place, rule, blinding.attack);
            let was_read = String::from_utf8_lossy(&output.stdout).contains("SECRET");
            assert_eq!(
                was_read, !is_hidden,
                "{setup:?} {rule:?} after `{}`: {output:?}",
                blinding.earlier
            );
            // Opens the directories, so that the place can be removed.
            content(setup, &place, "/dev/null");
        }
    }
}

#[track_caller]
fn check_protected(variants: &[BackendVariant], blinding: &BlockedSearch, file: &str) {
    for setup in setups(variants) {
        for (rule, is_protected) in [(&[][..], false), (&blinding.rule[..], true)] {
            let place = CallerDirectory::for_caller(setup.caller);
            prepare(setup, &place, blinding.files);
            run(setup, &place, &[], blinding.earlier);
            let output = run(setup, &place, rule, blinding.attack);
            let was_changed = content(setup, &place, file).contains("EVIL");
            assert_eq!(
                was_changed, !is_protected,
                "{setup:?} {rule:?} after `{}`: {output:?}",
                blinding.earlier
            );
        }
    }
}

const OPEN_AND_READ: &str = "chmod -R u+rwx conf; cat conf/deep/.env; true";
const OPEN_AND_WRITE: &str =
    "chmod -R u+rwx conf; echo EVIL > conf/deep/file; mv conf away; mkdir -p conf/deep &&
    echo EVIL > conf/deep/file; true";

#[test]
fn a_directory_that_cannot_be_searched_stays_hidden_as_a_whole() {
    require!(root, ordinary_user, binary, user_namespaces, bwrap);
    let files = "mkdir -p conf/deep; echo SECRET > conf/deep/.env";
    for earlier in
        ["chmod 000 conf", "chmod 000 conf/deep", "chmod 444 conf/deep", "chmod 111 conf/deep"]
    {
        for pattern in ["conf/deep/.env", "**/.env", "conf/*/.env"] {
            check_hidden(
                &FAST_VARIANTS,
                &BlockedSearch { files, earlier, rule: ["--hide", pattern], attack: OPEN_AND_READ },
            );
        }
    }
}

#[test]
fn a_directory_that_cannot_be_searched_stays_protected() {
    require!(root, ordinary_user, binary, user_namespaces, bwrap);
    let files = "mkdir -p conf/deep; echo good > conf/deep/file";
    for earlier in ["chmod 000 conf", "chmod 444 conf/deep", "chmod 111 conf/deep"] {
        for pattern in ["conf/deep/file", "**/file"] {
            let blinding = BlockedSearch {
                files,
                earlier,
                rule: ["--protect", pattern],
                attack: OPEN_AND_WRITE,
            };
            check_protected(&FAST_VARIANTS, &blinding, "conf/deep/file");
        }
    }
}

#[test]
fn rules_apply_to_the_targets_of_symbolic_links() {
    require!(root, ordinary_user, binary, user_namespaces, bwrap);
    let linked = "mkdir -p real/deep; echo SECRET > real/deep/x.env; echo good > real/deep/file";
    for (earlier, pattern) in [
        ("ln -s real conf", "conf/deep/*.env"),
        ("ln -s real conf", "conf/**/x.env"),
        ("ln -s real conf", "conf/deep/x.env"),
        ("ln -s real/deep inner", "**/inner/*.env"),
        ("ln -s $PWD/real one; ln -s one two", "two/d*/x.env"),
        ("ln -s ../real real/again", "real/again/deep/*.env"),
        ("ln -s real/deep/x.env other.env", "*.env"),
    ] {
        let attack = "cat real/deep/x.env; true";
        check_hidden(
            &FAST_VARIANTS,
            &BlockedSearch { files: linked, earlier, rule: ["--hide", pattern], attack },
        );
    }
    for (earlier, pattern) in
        [("ln -s real conf", "conf/deep/f*"), ("ln -s real/deep inner", "**/inner/file")]
    {
        let attack = "echo EVIL > real/deep/file; true";
        let blinding =
            BlockedSearch { files: linked, earlier, rule: ["--protect", pattern], attack };
        check_protected(&FAST_VARIANTS, &blinding, "real/deep/file");
    }
}

#[test]
fn patterns_cover_names_by_their_characters() {
    require!(root, ordinary_user, binary, user_namespaces, bwrap);
    for pattern in ["key?", "key[é]", "key[!a]"] {
        let rule = ["--hide", pattern];
        let files = "echo SECRET > keyé";
        check_hidden(
            &FAST_VARIANTS,
            &BlockedSearch { files, earlier: ":", rule, attack: "cat key*; true" },
        );
    }
}

#[test]
fn patterns_cover_every_name_that_they_list() {
    require!(root, ordinary_user, binary, user_namespaces, bwrap);
    let files = "mkdir 'a{b' sec; for f in .env 'a{b/key' sec/key; do echo SECRET > \"$f\"; done";
    for (pattern, file) in [
        (".env{,.local}", ".env"),
        ("sec/key{,.bak}", "sec/key"),
        ("sec{,/**}", "sec/key"),
        ("a\\{b/key", "a{b/key"),
        ("a[{]b/key", "a{b/key"),
        ("sec\\/key", "sec/key"),
    ] {
        let [read, write] = [format!("cat '{file}'; true"), format!("echo EVIL > '{file}'; true")];
        let [read, write]: [&'static str; 2] = [read.leak(), write.leak()];
        check_hidden(
            &FAST_VARIANTS,
            &BlockedSearch { files, earlier: ":", rule: ["--hide", pattern], attack: read },
        );
        let blinding =
            BlockedSearch { files, earlier: ":", rule: ["--protect", pattern], attack: write };
        check_protected(&FAST_VARIANTS, &blinding, &format!("'{file}'"));
    }
}

#[test]
fn a_pattern_that_cannot_cover_all_its_names_is_refused() {
    require!(root, binary, user_namespaces);
    let setup = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root };
    for pattern in ["sec[/]key", "{a,**}/key", "sec/{key,}"] {
        for rule in ["--hide", "--protect"] {
            let output = run(
                setup,
                &CallerDirectory::for_caller(setup.caller),
                &[rule, pattern],
                "echo ran",
            );
            assert!(!output.status.success() && output.stdout.is_empty(), "{pattern}: {output:?}");
            assert!(
                String::from_utf8_lossy(&output.stderr).contains(&format!("`{pattern}`")),
                "{output:?}"
            );
        }
    }
}

#[test]
fn rules_apply_to_bind_mounts_of_guarded_files() {
    require!(root, binary, user_namespaces, bwrap);
    for setup in setups(&FAST_VARIANTS).filter(|setup| setup.caller == Caller::Root) {
        for (mount, shown, other) in [
            ("mount --bind w/a w/b", None, "b/key"),
            ("mount --bind w/a/key w/file", None, "file"),
            ("mount --bind w r", Some("../r"), "../r/a/key"),
            ("mount --bind w/a w/b; mount --bind w/b r", Some("../r"), "../r/key"),
            ("mount -t tmpfs none w/a; echo SECRET > w/a/key; mount --bind w/a w/b", None, "b/key"),
            ("mount --bind w/a w/b; ln w/a/key r/link", Some("../r"), "../r/link"),
        ] {
            for rule in ["--hide", "--protect"] {
                for (pattern, is_guarded) in
                    [("none", false), ("a/key", true), ("a/k*", true), ("a", true)]
                {
                    let place = CallerDirectory::for_caller(setup.caller);
                    prepare(
                        setup,
                        &place,
                        "mkdir -p w/a w/b r; echo SECRET > w/a/key; echo x > w/file",
                    );
                    let mut command = setup.ringfence("run", &place);
                    command
                        .args([rule, pattern])
                        .args(shown.iter().flat_map(|shown| ["--write", shown]));
                    command.args([
                        "--",
                        "sh",
                        "-c",
                        &format!("cat {other}; echo EVIL > {other}; true"),
                    ]);
                    let script = format!("{mount}; cd w; \"$@\"; cat a/key >&2");
                    let mut mounted = setup.command("unshare", &place);
                    mounted
                        .args(["-m", "sh", "-c", &script, "sh"])
                        .arg(command.get_program())
                        .args(command.get_args());
                    let output = mounted.output().expect("unshare can be started");
                    let was_read = String::from_utf8_lossy(&output.stdout).contains("SECRET");
                    let was_changed = String::from_utf8_lossy(&output.stderr).contains("EVIL");
                    let context = format!("{setup:?} {mount} {rule} {pattern}: {output:?}");
                    assert_eq!(was_read, !is_guarded || rule == "--protect", "{context}");
                    assert_eq!(was_changed, !is_guarded, "{context}");
                }
            }
        }
    }
}

#[test]
fn circular_links_end_a_search() {
    require!(root, binary, user_namespaces);
    let setup = BackendSetup { variant: BackendVariant::Native, caller: Caller::Root };
    let place = CallerDirectory::for_caller(setup.caller);
    let files =
        "for n in $(seq 12); do mkdir d$n; for m in $(seq 12); do ln -s ../d$m d$n/l$m; done; done
        ln -s / all; ln -s . here; ln -s .. up; mkdir s; echo SECRET > s/.env; echo free > s/free";
    prepare(setup, &place, files);
    for pattern in
        ["**/l1/**/l2/**/.env", "all/**/.env", "here/**/.env", "up/*/s/.env", "{d1/l2,s}/.env"]
    {
        let output = run(setup, &place, &["--hide", pattern], "cat s/free; cat s/.env");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("free"), "{pattern}: {output:?}");
        let is_hidden = matches!(pattern, "here/**/.env" | "{d1/l2,s}/.env");
        assert_eq!(said.contains("SECRET"), !is_hidden, "{pattern}: {output:?}");
    }
}

#[test]
fn directories_that_a_run_makes_unreadable_are_reported() {
    require!(root, ordinary_user, binary, user_namespaces, bwrap, git);
    for setup in setups(&FAST_VARIANTS).filter(|setup| setup.caller == Caller::Ordinary) {
        for (files, script, expected) in [
            (":", "mkdir .git; echo x > .git/config; chmod 000 .git", "\".git\""),
            (":", "mkdir -p .git/hooks; chmod 444 .git", "\".git\""),
            (
                "git init -q .",
                "mkdir .git/rebase-merge; chmod 000 .git/rebase-merge",
                "\".git/rebase-merge\"",
            ),
            (
                "git init -q .",
                "echo x > .git/config.worktree; chmod 000 .git/config.worktree",
                "\".git/config.worktree\"",
            ),
        ] {
            let place = CallerDirectory::for_caller(setup.caller);
            prepare(setup, &place, files);
            let output = run(setup, &place, &["--json"], script);
            let said = String::from_utf8_lossy(&output.stdout);
            let planted = said.split("\"planted\":").nth(1).unwrap_or_default();
            assert!(planted.contains(expected), "{setup:?} {script}: {output:?}");
            assert!(
                String::from_utf8_lossy(&output.stderr).contains("warning: the run made"),
                "{output:?}"
            );
            // Opens the directories, so that the place can be removed.
            content(setup, &place, "/dev/null");
        }
    }
}

#[test]
fn records_cannot_be_removed_behind_a_closed_directory() {
    require!(root, ordinary_user, binary, user_namespaces, bwrap);
    let attack =
        "chmod -R u+rwx artifacts; rm -r artifacts/executions; ls artifacts/executions; true";
    for setup in setups(&FAST_VARIANTS) {
        let place = CallerDirectory::for_caller(setup.caller);
        let mut kept = setup.ringfence("run", &place);
        kept.args(["--", "false"]).output().expect("ringfence can be started");
        run(setup, &place, &[], "chmod 000 artifacts");
        run(setup, &place, &[], attack);
        let count =
            content(setup, &place, "artifacts/executions/*.json").matches("policy_sha256").count();
        assert!(count > 0, "{setup:?}: the record is gone");
    }
}

#[test]
fn rules_hold_for_hard_links_outside_the_workspace() {
    require!(root, ordinary_user, binary, user_namespaces, bwrap);
    for setup in setups(&FAST_VARIANTS) {
        for (flag, is_hidden) in [("--protect", false), ("--hide", true)] {
            for shown in ["--read", "--write"] {
                let place = CallerDirectory::for_caller(setup.caller);
                prepare(setup, &place, "mkdir w r; echo SECRET > w/.env; ln w/.env r/x");
                let words = ["run", flag, ".env", shown, "../r", "--", "cat", "../r/x"];
                let said = ringfence_in(setup, &place, "w", &words);
                assert_eq!(said.contains("SECRET"), !is_hidden, "{setup:?} {words:?}: {said}");
            }
        }
        for (rule, is_protected) in [("other", false), ("file", true)] {
            let place = CallerDirectory::for_caller(setup.caller);
            prepare(setup, &place, "mkdir w r; echo good > w/file; ln w/file r/x");
            let words = [
                "run",
                "--protect",
                rule,
                "--write",
                "../r",
                "--",
                "sh",
                "-c",
                "echo EVIL > ../r/x",
            ];
            let said = ringfence_in(setup, &place, "w", &words);
            let was_changed = content(setup, &place, "w/file").contains("EVIL");
            assert_eq!(was_changed, !is_protected, "{setup:?} {words:?}: {said}");
        }
    }
}

/// Runs `ringfence` in a directory of a place, and returns its output.
fn ringfence_in(
    setup: BackendSetup,
    place: &CallerDirectory,
    directory: &str,
    words: &[&str],
) -> String {
    let mut command = setup.ringfence(words[0], place);
    command.args(&words[1..]).current_dir(place.path().join(directory));
    let output = command.output().expect("ringfence can be started");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn records_cannot_be_removed_by_runs_in_other_directories() {
    require!(root, ordinary_user, binary, user_namespaces, bwrap);
    let remove = "rm -rf proj/artifacts artifacts executions ../artifacts ./*.json newest";
    for setup in setups(&FAST_VARIANTS) {
        let attacks: [(&str, &[&str]); 4] = [
            (".", &[]),
            ("proj/artifacts", &[]),
            ("proj/artifacts/executions", &[]),
            ("proj/src", &["--write", ".."]),
        ];
        for (directory, flags) in attacks {
            let place = CallerDirectory::for_caller(setup.caller);
            prepare(setup, &place, "mkdir -p proj/src");
            for _ in 0..2 {
                ringfence_in(setup, &place, "proj", &["run", "--", "false"]);
            }
            let words = [&["run"], flags, &["--", "sh", "-c", remove]].concat();
            let said = ringfence_in(setup, &place, directory, &words);
            let mut verify = setup.command(binary(), &place);
            verify.args(["audit", "verify", "--dir", "proj/artifacts/executions"]);
            let output = verify.output().expect("ringfence can be started");
            let verdict = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                verdict.starts_with("2 records"),
                "{setup:?} in {directory}: {verdict} {output:?} {said}"
            );
        }
    }
}

#[test]
fn rules_hold_in_containers_behind_closed_directories_and_links() {
    require!(root, ordinary_user, binary, docker);
    let closed = BlockedSearch {
        files: "mkdir -p conf/deep; echo SECRET > conf/deep/.env; echo good > conf/deep/file",
        earlier: "chmod 000 conf",
        rule: ["--hide", "**/.env"],
        attack: OPEN_AND_READ,
    };
    check_hidden(&[BackendVariant::Docker], &closed);
    let closed =
        BlockedSearch { rule: ["--protect", "conf/deep/file"], attack: OPEN_AND_WRITE, ..closed };
    check_protected(&[BackendVariant::Docker], &closed, "conf/deep/file");
    let linked = BlockedSearch {
        files: "mkdir -p real/deep; echo SECRET > real/deep/x.env",
        earlier: "ln -s real conf",
        rule: ["--hide", "conf/deep/*.env"],
        attack: "cat real/deep/x.env; true",
    };
    check_hidden(&[BackendVariant::Docker], &linked);
}
