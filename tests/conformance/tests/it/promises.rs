//! The documented table of promises.

use std::path::Path;

use conformance::document::{Certificates, completed, contradictions, split_kernels, write};
use conformance::{BackendSetup, BackendVariant, certificate};
use ringfence_test_ledger::require;

use crate::egress::documented;

#[test]
fn the_documented_promises_match_the_results_of_this_host() {
    require!(
        root,
        binary,
        user_namespaces,
        ordinary_user,
        ordinary_user_namespaces,
        landlock,
        bwrap,
        cgroup_limits
    );
    require!(python3, own_network);
    // A variant that is not available is not tested and contradicts nothing.
    let given: Vec<BackendVariant> =
        BackendVariant::DOCUMENTED.into_iter().filter(|variant| variant.is_given()).collect();
    let setups = given.iter().copied().flat_map(BackendSetup::all_on);
    let certificates: Certificates = setups.map(|setup| (setup, certificate(setup))).collect();
    let found = write(&certificates, &documented(&given));

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/promises.md");
    let document = fs_err::read_to_string(&path).unwrap();
    let (written, kernels) = split_kernels(&document);
    let found = format!("{found}\n");
    if std::env::var_os("RINGFENCE_BLESS").is_some() {
        fs_err::write(&path, completed(&found, written) + kernels).unwrap();
        return;
    }
    let contradictions = contradictions(written, &found);
    let shown: Vec<String> = contradictions
        .iter()
        .take(10)
        .map(|(written, found)| format!("-{written}\n+{found}"))
        .collect();
    assert!(
        contradictions.is_empty(),
        "RINGFENCE_BLESS=1 rewrites docs/promises.md\n{}",
        shown.join("\n")
    );
}
