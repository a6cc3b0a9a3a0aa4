//! `ringfence attempt`: one attempt to break a promise, which `ringfence doctor --prove` runs in a
//! sandbox.

use std::process::ExitCode;

use clap::Args;
use ringfence::prove;

use crate::answer::print_json;
use crate::report::Failure;

/// Makes one attempt to break a promise; `doctor --prove` runs the command in a sandbox.
#[derive(Debug, Args)]
pub(crate) struct Attempt {
    /// Name of the attempt.
    name: String,
    /// Context of the attempt, which describes the host, in JSON.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    context: String,
    /// Text that marks this process in a list of processes.
    #[arg(long, value_name = "MARK")]
    mark: Option<String>,
}

impl Attempt {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let observation = prove::attempt(&self.name, &self.context).map_err(|error| {
            Failure::usage(ringfence::chain(&error), "`ringfence doctor --prove` runs all of them")
        })?;
        print_json(&observation)?;
        Ok(ExitCode::SUCCESS)
    }
}
