//! Certificates of `ringfence doctor --prove` for each stage. Each is computed once, because
//! several tests use it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use ringfence::prove::Certificate;

use crate::{CallerPlace, TestStage};

/// The certificate of one stage, or the error of the run.
type ProofResult = Result<Certificate, String>;

/// Returns the certificate of a stage.
///
/// # Panics
///
/// Panics with the output of ringfence if it made no certificate.
pub fn certificate(stage: TestStage) -> Certificate {
    static KNOWN: Mutex<BTreeMap<TestStage, Arc<OnceLock<ProofResult>>>> =
        Mutex::new(BTreeMap::new());
    let slot = Arc::clone(KNOWN.lock().expect("no holder panics").entry(stage).or_default());
    slot.get_or_init(|| prove(stage))
        .clone()
        .unwrap_or_else(|why| panic!("no certificate on {stage:?}: {why}"))
}

fn prove(stage: TestStage) -> ProofResult {
    let place = CallerPlace::for_caller(stage.caller);
    let mut command = stage.ringfence("doctor", &place);
    let output = command.args(["--prove", "--json"]).output().map_err(|error| error.to_string())?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let (said, asked) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        format!("{}: {error}\n{said}\n{asked}", output.status)
    })
}
