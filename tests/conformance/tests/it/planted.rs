//! What a run makes that programs on the host would act on, and that nothing can keep it from making.

use conformance::{Caller, Place, Ring, Stage};
use ringfence_test_ledger::require;

/// Has git take its configuration, and so a program to run, from a directory of the attacker's.
const REDIRECT: &str = "\
mkdir elsewhere && cp -r .git/objects .git/refs elsewhere &&
printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = \"touch stolen; false\"\\n' > elsewhere/config &&
echo ../elsewhere > .git/commondir";

#[test]
fn a_redirection_of_git_to_other_hooks_and_settings_is_reported() {
    require!(root, binary, user_namespaces, git);
    let place = Place::of(Caller::Root);
    let git = |arguments: &[&str]| {
        let mut git = std::process::Command::new("git");
        git.arg("-C").arg(place.path()).args(arguments).output().expect("git can be started")
    };
    assert!(git(&["init", "-q"]).status.success());
    let mut command = Stage { ring: Ring::Native, caller: Caller::Root }.ringfence("run", &place);
    let output = command.args(["--json", "--", "sh", "-c", REDIRECT]).output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&result["ok"], &result["meta"]["planted"]), (&true.into(), &serde_json::json!([".git/commondir"])));

    git(&["status"]);
    assert!(place.path().join("stolen").exists(), "git follows it: if it did not, there would be nothing to report");
}
