//! Certificates of `ringfence doctor --prove` for each setup. Each is computed once, because
//! several tests use it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use ringfence::prove::Certificate;

use crate::{BackendSetup, CallerDirectory};

/// The certificate of one setup, or the error of the run.
type ProofResult = Result<Certificate, String>;

/// Returns the certificate of a setup.
///
/// # Panics
///
/// Panics with the output of ringfence if it made no certificate.
pub fn certificate(setup: BackendSetup) -> Certificate {
    static KNOWN: Mutex<BTreeMap<BackendSetup, Arc<OnceLock<ProofResult>>>> =
        Mutex::new(BTreeMap::new());
    let slot = Arc::clone(KNOWN.lock().expect("no holder panics").entry(setup).or_default());
    slot.get_or_init(|| prove(setup))
        .clone()
        .unwrap_or_else(|why| panic!("no certificate on {setup:?}: {why}"))
}

fn prove(setup: BackendSetup) -> ProofResult {
    let place = CallerDirectory::for_caller(setup.caller);
    let mut command = setup.ringfence("doctor", &place);
    let output = command.args(["--prove", "--json"]).output().map_err(|error| error.to_string())?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let (said, asked) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        format!("{}: {error}\n{said}\n{asked}", output.status)
    })
}
