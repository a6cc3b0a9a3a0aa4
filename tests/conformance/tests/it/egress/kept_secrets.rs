//! Secrets of a sandbox that stays. Its commands get a placeholder, and no file, log or output of
//! the sandbox contains a secret.

use std::path::{Path, PathBuf};
use std::process::Output;

use conformance::{BackendSetup, BackendVariant, Caller, CallerDirectory, SimulatedNetwork};
use ringfence_test_ledger::require;

use super::secrets::{CredentialCounts, SEARCH, SecretCase, SecretOrigin, backwards, setups};
use crate::engines::{EngineSandbox, said, with_workspace};

/// Text that is put inside and that a search must find.
const PLANTED: &str = "planted-where-it-can-be-seen";

/// Runs `ringfence up` with a credential, in a workspace that contains neither the settings nor the
/// secret.
fn ask(case: &SecretCase, kept: &EngineSandbox<'_>, flags: &[&str]) -> Output {
    case.configure(kept.place, &kept.home);
    let mut command = kept.prepare_up(flags);
    case.prepare(&mut command, kept.place);
    command.arg("--workspace").arg(kept.place.path().join("workspace"));
    let output = command.output().expect("ringfence can be started");
    assert!(!said(&output).contains(&case.secret), "{case:?}: {}", said(&output));
    output
}

/// Starts a sandbox with a credential.
#[track_caller]
fn up<'a>(case: &SecretCase, place: &'a CallerDirectory, flags: &[&str]) -> EngineSandbox<'a> {
    let kept = EngineSandbox::new(case.setup, place);
    let output = ask(case, &kept, flags);
    assert!(output.status.success(), "{case:?}: {}", said(&output));
    kept
}

/// Creates a place on the host of the world.
fn place(setup: BackendSetup) -> CallerDirectory {
    with_workspace(CallerDirectory::for_host_of(SimulatedNetwork::shared(), setup.caller))
}

/// Returns the files below a directory that contain a text, and the files with these names in
/// `/proc/PID` that contain it.
fn found(text: &str, directory: &Path, names: &[&str]) -> Vec<PathBuf> {
    let (mut files, mut left) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = left.pop() {
        for entry in fs_err::read_dir(&directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => left.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    let processes = fs_err::read_dir("/proc").into_iter().flatten().flatten();
    files.extend(
        processes.flat_map(|process| names.iter().map(move |name| process.path().join(name))),
    );
    let has_it = |path: &PathBuf| {
        let content = fs_err::read(path).unwrap_or_default(); // the process may have ended
        content.windows(text.len()).any(|part| part == text.as_bytes())
    };
    files.into_iter().filter(has_it).collect()
}

/// Checks that the search finds planted text in a file, in an environment, in arguments and in
/// memory.
#[track_caller]
fn check_search(kept: &EngineSandbox<'_>) {
    fs_err::write(kept.place.path().join("workspace/planted"), PLANTED).expect("the place is ours");
    let script = r#"KEY=$2 python3 -c "$0" "$1"; true"#;
    let words =
        ["exec", &kept.name, "--", "sh", "-c", script, SEARCH, &backwards(PLANTED), PLANTED];
    let seen = said(&kept.ringfence(&words));
    for place in ["/planted\n", "/environ\n", "/cmdline\n", "/mem\n"] {
        let found = seen
            .split_inclusive('\n')
            .any(|line| line.starts_with("found in ") && line.ends_with(place));
        assert!(found, "{:?}: {place}: {seen}", kept.setup);
    }
}

/// Checks that no output and no file of a sandbox contains its secret.
#[track_caller]
fn check_outside(case: &SecretCase, kept: &EngineSandbox<'_>) {
    let SecretCase { setup, host, secret, .. } = case;
    for words in [
        &["inspect", &kept.name][..],
        &["inspect", &kept.name, "--json"],
        &["ps", "--json"],
        &["logs", &kept.name],
        &["audit", "list", "--json"],
        &["egress", "log", "--json"],
        &["config", "explain"],
    ] {
        let output = kept.ringfence(words);
        assert!(output.status.success(), "{case:?}: {words:?}: {}", said(&output));
        assert!(!said(&output).contains(secret), "{case:?}: {words:?}: {}", said(&output));
    }
    if setup.variant.engine().is_some() {
        let inspected = kept.inspect().to_string();
        assert!(inspected.contains(&kept.name), "{case:?}: it tells of this container");
        assert!(!inspected.contains(secret), "{case:?}: {inspected}");
    }
    // A secret from a variable is in the environment of the caller and of the processes that the
    // caller started.
    let names: &[&str] =
        if case.origin == SecretOrigin::File { &["cmdline", "environ"] } else { &["cmdline"] };
    assert_eq!(found(secret, &kept.home, names), [] as [PathBuf; 0], "{case:?}");
    assert_eq!(
        found("PRIVATE KEY", &kept.home, &[]),
        [] as [PathBuf; 0],
        "{case:?}: its authority's is in memory"
    );
    for left in ["config.toml", "egress.jsonl", ".json"] {
        let told = found(host, &kept.home, &[]);
        let is_told = told.iter().any(|path| path.to_string_lossy().ends_with(left));
        assert!(is_told, "{case:?}: no {left} has even the host in it: {told:?}");
    }
}

#[track_caller]
fn check(variant: BackendVariant) {
    for setup in setups(variant) {
        for origin in [SecretOrigin::Variable, SecretOrigin::File] {
            let case = SecretCase::new(setup, origin, "kept");
            let place = place(setup);
            let kept = up(&case, &place, &[]);
            check_search(&kept);
            // The caller's environment may contain the secret, because variables enter the sandbox
            // only on request.
            let mut command = kept.command(&["exec", &kept.name, "--json", "--"]);
            let output = command.args(case.words()).env("API_KEY", &case.secret).output();
            case.check(&output.expect("ringfence can be started"));
            check_outside(&case, &kept);

            let stopped = kept.ringfence(&["stop", &kept.name]);
            assert!(stopped.status.success(), "{case:?}: {}", said(&stopped));
            assert_eq!(
                found(&case.secret, &kept.home, &["cmdline", "environ"]),
                [] as [PathBuf; 0],
                "{case:?}"
            );
        }
    }
}

#[test]
fn a_secret_of_a_kept_sandbox_reaches_only_its_host_native() {
    require!(root, ordinary_user, binary, python3, curl, own_network, user_namespaces);
    check(BackendVariant::Native);
}

#[test]
fn a_secret_of_a_kept_sandbox_reaches_only_its_host_bwrap() {
    require!(root, ordinary_user, binary, python3, curl, own_network, user_namespaces, bwrap);
    check(BackendVariant::Bwrap);
}

#[test]
fn a_secret_of_a_kept_sandbox_reaches_only_its_host_docker() {
    require!(root, ordinary_user, binary, python3, own_network, docker, test_image_dev);
    check(BackendVariant::Docker);
}

#[test]
fn a_secret_of_a_kept_sandbox_reaches_only_its_host_podman() {
    require!(root, ordinary_user, binary, python3, own_network, podman, test_image_dev);
    check(BackendVariant::Podman);
}

#[test]
fn a_secret_of_a_kept_sandbox_reaches_only_its_host_rootless_podman() {
    require!(root, ordinary_user, binary, python3, own_network, rootless_podman, test_image_dev);
    check(BackendVariant::RootlessPodman);
}

#[test]
fn a_secret_reaches_only_its_host_through_a_tunnel() {
    require!(root, ordinary_user, binary, python3, curl, own_network, user_namespaces, bwrap);
    let script = concat!(
        r#"for host in "$HOST" "$OTHER"; do
        curl --silent --show-error --noproxy '*' --header "Authorization: Bearer $API_KEY" "#,
        r#""https://$host/direct"
    done"#
    );
    for setup in [BackendVariant::Native, BackendVariant::Bwrap].into_iter().flat_map(setups) {
        let place = place(setup);
        for (flags, seen) in [(&["--transparent"][..], 1), (&[], 0)] {
            let case = SecretCase::new(setup, SecretOrigin::File, &format!("direct{seen}"));
            let kept = up(&case, &place, flags);
            let output = kept.ringfence(&["exec", &kept.name, "--", "sh", "-c", script]);
            assert_eq!(output.stdout, b"ok".repeat(2 * seen), "{case:?}: {}", said(&output));
            assert_eq!(
                case.shown(),
                CredentialCounts { secret: seen, placeholder: seen },
                "{case:?}"
            );
        }
    }
}

#[test]
fn a_proxy_in_a_container_gets_no_secret() {
    require!(root, ordinary_user, binary, python3, own_network, docker, test_image_dev);
    let setup = BackendSetup { variant: BackendVariant::Docker, caller: Caller::Ordinary };
    let case = SecretCase::new(setup, SecretOrigin::File, "beside");
    let place = place(setup);
    let kept = EngineSandbox::new(setup, &place);
    let output = ask(&case, &kept, &["--proxy"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("is not given credentials") && told.contains("leave `--proxy` out"),
        "{told}"
    );
    let engine = setup.variant.engine().expect("the test requires it");
    assert_eq!(engine.labelled(&format!("dev.ringfence.name={}", kept.name)), Ok(Vec::new()));

    let mut command = kept.prepare_up(&["--proxy", "--allow", &case.other, "--workspace"]);
    let output =
        command.arg(place.path().join("workspace")).output().expect("ringfence can be started");
    assert!(output.status.success(), "for other hosts there is one: {}", said(&output));
}
