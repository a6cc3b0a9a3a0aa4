//! The `ringfence doctor --prove` command, which tries to break every promise.

use std::path::Path;
use std::process::ExitCode;

use ringfence::prove::{Certificate, PromiseProof, Verdict, prove};
use ringfence::{Clause, Engine, ExitStatus};

use crate::answer::{Form, print, print_json};
use crate::report::Failure;

/// Tries to break every promise of the engine's policy, and prints which promises held.
pub(super) fn run(engine: &Engine, form: Form, file: Option<&Path>) -> Result<ExitCode, Failure> {
    let certificate = prove(engine, &engine.settings().policy)?;
    if let Some(path) = file {
        let value = serde_json::to_value(&certificate).expect("a certificate has only string keys");
        fs_err::write(path, super::config::pretty(&value)).map_err(|error| {
            Failure::failed(
                format!("cannot write the certificate: {error}"),
                "name a file that can be written",
            )
        })?;
    }
    match form {
        Form::Json => print_json(&certificate)?,
        Form::Text => print(&format_report(&certificate, file))?,
    }
    let status = if certificate.is_broken() { ExitStatus::Broken } else { ExitStatus::Code(0) };
    Ok(status.code().into())
}

fn format_report(certificate: &Certificate, file: Option<&Path>) -> String {
    let mut text = format!("{}: {}\n", certificate.backend, certificate.summary);
    for (clause, promise) in &certificate.promises {
        text.push_str(&line(*clause, promise));
    }
    for proof in certificate.broken() {
        text.push_str(&format!(
            "broken: {} ({}): {}\n",
            proof.clause, proof.attempt, proof.observed
        ));
    }
    let (all, held) = certificate
        .promises
        .values()
        .map(count)
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    text.push_str(&format!(
        "{held} of {all} attempts were denied here and get through without a sandbox\n"
    ));
    if let Some(path) = file {
        text.push_str(&format!("certificate: {}\n", path.display()));
    }
    text
}

fn line(clause: Clause, promise: &PromiseProof) -> String {
    let (all, held) = count(promise);
    // A promise can be broken only if it is claimed.
    let (verdict, why) = match (&promise.verdict, promise.claimed.is_enforced()) {
        (Verdict::Held, _) => ("held", promise.claimed.to_string()),
        (Verdict::Broken, true) => ("BROKEN", promise.claimed.to_string()),
        (Verdict::Broken, false) => ("not claimed", promise.claimed.to_string()),
        (Verdict::NotTested { why }, _) => ("not tested", why.clone()),
    };
    let attempts = format!("{held}/{all}");
    format!("  {verdict:<11}  {:<13}  {attempts:>7}  {why}\n", clause.name())
}

/// Returns the number of attempts, and the number of attempts that the promise held against.
fn count(promise: &PromiseProof) -> (usize, usize) {
    let held = promise.proofs.iter().filter(|proof| proof.verdict == Verdict::Held).count();
    (promise.proofs.len(), held)
}
