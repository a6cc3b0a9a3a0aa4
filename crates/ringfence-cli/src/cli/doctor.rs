//! The `ringfence doctor` command, which shows what each backend can enforce.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence::doctor::{BackendExamination, BackendFinding, HostSummary, examine, survey_host};
use ringfence::{Backend, BackendChoice, Clause, Engine, Host, Plan, RunError, Support, chain};

use super::flags::{ContainerFlags, PolicyFlags};
use crate::answer::{Form, print, print_json};
use crate::report::Failure;

/// Tests what each backend can enforce on this host, and prints hints about the rest.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Tries to break every promise in real sandboxes; exits with 1 if a claimed promise breaks.
    #[arg(long)]
    prove: bool,
    /// Writes the results of --prove to FILE, as JSON.
    #[arg(long, value_name = "FILE", requires = "prove")]
    certificate: Option<PathBuf>,
    /// Prints the findings as JSON, or with --prove the certificate.
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    policy: PolicyFlags,
    #[command(flatten)]
    container: ContainerFlags,
}

impl Doctor {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let engine = Engine::in_this_process(self.container.settings(&self.policy, host)?);
        if self.prove {
            return super::prove::run(
                &engine,
                Form::from_flag(self.json),
                self.certificate.as_deref(),
            );
        }
        let surroundings = survey_host(&engine);
        let examined = examine(&engine, self.only());
        let preflight = engine.preflight();
        if self.json {
            let chosen = match &preflight {
                Ok(plan) => serde_json::json!({ "backend": plan.backend, "summary": plan.summary }),
                Err(error) => serde_json::json!({ "error": chain(error), "hints": error.hints() }),
            };
            let value = serde_json::json!({
                "host": surroundings, "backends": examined, "effective": chosen,
            });
            print_json(&value)?;
        } else {
            print(&format_report(&surroundings, &examined, &preflight))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn only(&self) -> Option<Backend> {
        match self.policy.chosen()? {
            BackendChoice::Only(backend) => Some(backend),
            BackendChoice::Auto => None,
        }
    }
}

fn format_report(
    surroundings: &HostSummary,
    examined: &[BackendExamination],
    preflight: &Result<Plan, RunError>,
) -> String {
    let landlock = match surroundings.landlock_abi {
        0 => "none".to_owned(),
        abi => format!("ABI {abi}"),
    };
    let container = match &surroundings.container {
        Some(found) => format!("{} ({})", found.name, found.evidence),
        None => "none detected".to_owned(),
    };
    let mut text = format!(
        "kernel     {}\nlandlock   {landlock}\ncontainer  {container}\n",
        surroundings.kernel
    );
    for examination in examined {
        text.push('\n');
        text.push_str(&format_examination(examination));
    }
    text.push('\n');
    match preflight {
        Ok(plan) => {
            text.push_str(&format!("your settings run on {} ({})\n", plan.backend, plan.summary))
        }
        Err(error) => {
            text.push_str(&format!("no backend can run your settings: {}\n", chain(error)));
            text.extend(error.hints().iter().map(|hint| format!("hint: {hint}\n")));
        }
    }
    text
}

fn format_examination(examination: &BackendExamination) -> String {
    let backend = examination.backend;
    let (summary, clauses) = match &examination.finding {
        BackendFinding::Unavailable { why, fix } => {
            return format!("{backend}: does not work here: {why}\nhint: {fix}\n");
        }
        BackendFinding::Works { summary, clauses } => (summary, clauses),
    };
    let mut text = format!("{backend}: {summary}\n");
    // A reason that several clauses share is printed once.
    let mut missing: Vec<(&str, &str, Vec<Clause>)> = Vec::new();
    for (clause, support) in clauses {
        match support {
            Support::Enforced { by } => {
                text.push_str(&format!("  held    {:<14} {by}\n", clause.name()))
            }
            Support::Weaker { how } => {
                text.push_str(&format!("  weaker  {:<14} {how}\n", clause.name()))
            }
            Support::Absent { why, fix } => {
                match missing.iter_mut().find(|(other, ..)| other == why) {
                    Some((_, _, clauses)) => clauses.push(*clause),
                    None => missing.push((why, fix, vec![*clause])),
                }
            }
        }
    }
    for (why, fix, clauses) in missing {
        let names: Vec<_> = clauses.into_iter().map(Clause::name).collect();
        text.push_str(&format!("  absent  {}: {why}\n          hint: {fix}\n", names.join(", ")));
    }
    text.extend(examination.warnings.iter().map(|warning| format!("  warning {warning}\n")));
    text
}
