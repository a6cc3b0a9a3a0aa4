//! Every attempt of the corpus on every setup.

use conformance::{BackendSetup, BackendVariant, Caller, certificate};
use ringfence::Clause;
use ringfence::prove::{Verdict, corpus};
use ringfence_test_ledger::require;

/// Clause whose proof depends on the load of the host: without a limit, a whole processor may not
/// be available.
const LOAD_DEPENDENT_CLAUSE: Clause = Clause::Cpus;

#[track_caller]
fn holds(setup: BackendSetup, works_by: &str) {
    let certificate = certificate(setup);
    assert!(certificate.summary.starts_with(works_by), "{}", certificate.summary);
    let made: usize = certificate.promises.values().map(|promise| promise.proofs.len()).sum();
    assert_eq!(made, corpus().len());

    // An attempt that proves nothing on this host was nevertheless made, once with a sandbox and
    // once without.
    let proofs = certificate.promises.values().flat_map(|promise| &promise.proofs);
    let is_unmade = |verdict: &Verdict| matches!(verdict, Verdict::NotTested { .. });
    let unmade: Vec<_> =
        proofs.filter(|proof| is_unmade(&proof.verdict) && proof.control.is_none()).collect();
    assert!(unmade.is_empty(), "on {setup:?}\n{unmade:#?}");

    let broken: Vec<String> = certificate
        .broken()
        .map(|proof| format!("{} ({}): {}", proof.attempt, proof.clause, proof.observed))
        .collect();
    assert!(broken.is_empty(), "on {setup:?}\n{}", broken.join("\n"));
    for (clause, promise) in &certificate.promises {
        let is_proved = promise.verdict == Verdict::Held || *clause == LOAD_DEPENDENT_CLAUSE;
        assert!(
            !promise.claimed.is_enforced() || is_proved,
            "{clause} is claimed on {setup:?}, and: {promise:#?}"
        );
    }
}

#[test]
fn native_holds_against_every_attempt_made_as_root() {
    require!(root, binary, user_namespaces);
    holds(BackendSetup { variant: BackendVariant::Native, caller: Caller::Root }, "namespaces");
}

#[test]
fn native_holds_against_every_attempt_made_as_an_ordinary_user() {
    require!(binary, ordinary_user, ordinary_user_namespaces);
    holds(BackendSetup { variant: BackendVariant::Native, caller: Caller::Ordinary }, "namespaces");
}

#[test]
fn native_without_user_namespaces_holds_what_it_claims_against_root() {
    require!(root, binary, user_namespaces, landlock);
    holds(
        BackendSetup { variant: BackendVariant::NativeInPlace, caller: Caller::Root },
        "Landlock",
    );
}

#[test]
fn native_without_user_namespaces_holds_what_it_claims_against_an_ordinary_user() {
    require!(binary, ordinary_user, ordinary_user_namespaces, landlock);
    holds(
        BackendSetup { variant: BackendVariant::NativeInPlace, caller: Caller::Ordinary },
        "Landlock",
    );
}

#[test]
fn bubblewrap_holds_against_every_attempt_made_as_root() {
    require!(root, binary, user_namespaces, bwrap);
    holds(BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Root }, "bubblewrap");
}

#[test]
fn bubblewrap_holds_against_every_attempt_made_as_an_ordinary_user() {
    require!(binary, ordinary_user, ordinary_user_namespaces, bwrap);
    holds(BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Ordinary }, "bubblewrap");
}

#[test]
fn docker_holds_against_every_attempt_made_as_root() {
    require!(root, binary, docker, test_image_dev);
    holds(BackendSetup { variant: BackendVariant::Docker, caller: Caller::Root }, "Docker");
}

#[test]
fn docker_holds_against_every_attempt_made_as_an_ordinary_user() {
    require!(root, binary, ordinary_user, docker, test_image_dev);
    holds(BackendSetup { variant: BackendVariant::Docker, caller: Caller::Ordinary }, "Docker");
}

#[test]
fn podman_holds_against_every_attempt_made_as_root() {
    require!(root, binary, podman, test_image_dev);
    holds(BackendSetup { variant: BackendVariant::Podman, caller: Caller::Root }, "Podman");
}

#[test]
fn rootless_podman_holds_what_it_claims_against_an_ordinary_user() {
    require!(binary, ordinary_user, rootless_podman, test_image_dev);
    holds(
        BackendSetup { variant: BackendVariant::RootlessPodman, caller: Caller::Ordinary },
        "Podman",
    );
}
