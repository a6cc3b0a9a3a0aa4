//! Programs of ringfence that measure on request, one line at a time.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

/// A running program that answers each line with a line of figures. The program ends when the
/// conversation is dropped.
pub(super) struct LineProtocol {
    process: RefCell<ProgramProcess>,
}

struct ProgramProcess {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl LineProtocol {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))?;
        let answers = BufReader::new(child.stdout.take().context("it has no output")?);
        Ok(Self { process: RefCell::new(ProgramProcess { child, answers }) })
    }

    /// Sends a line to the program and returns the figures of the answer.
    pub(super) fn ask<F: FromStr>(&self, line: &str) -> Result<Vec<F>> {
        if let Some(input) = &mut self.process.borrow_mut().child.stdin {
            let _ = writeln!(input, "{line}"); // if the program has ended, `read_line` reports why
        }
        let figure = |figure: &str| figure.parse().map_err(|_| anyhow!("`{figure}` is no figure"));
        self.read_line()?.split_whitespace().map(figure).collect()
    }

    /// Returns the next line of the program's output.
    pub(super) fn read_line(&self) -> Result<String> {
        let ProgramProcess { child, answers } = &mut *self.process.borrow_mut();
        let mut line = String::new();
        match answers.read_line(&mut line) {
            Ok(1..) => Ok(line),
            // A program that has ended gave the reason on its standard error.
            _ => Err(anyhow!(read_last_output(child))),
        }
    }
}

fn read_last_output(child: &mut Child) -> String {
    drop(child.stdin.take());
    let mut words = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut words); // without readable output, the error has no text
    }
    words.trim().to_owned()
}

impl Drop for LineProtocol {
    fn drop(&mut self) {
        let ProgramProcess { child, .. } = self.process.get_mut();
        drop(child.stdin.take());
        let _ = child.wait(); // the end of its input ends the program and its sandboxes
    }
}

/// A running `bench_session`, which keeps a sandbox and times the work in the sandbox.
pub(super) struct BenchDriver(LineProtocol);

impl BenchDriver {
    /// Starts `program` on a backend and waits until its sandbox has run a command.
    pub(super) fn start(
        program: &Path,
        backend: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut command = Command::new(program);
        let driver =
            Self(LineProtocol::start(command.args(backend).envs(variables.iter().copied()))?);
        driver.ask("exec 1 true")?;
        Ok(driver)
    }

    /// Starts a `bench_code` instead and waits until code has run in one of its interpreters.
    pub(super) fn start_for_code(program: &Path, python: &Path) -> Result<Self> {
        let driver = Self(LineProtocol::start(Command::new(program).arg(python))?);
        driver.ask("warm 1 print(1)")?;
        Ok(driver)
    }

    /// Sends a line to the program and returns the times of the answer.
    pub(super) fn ask(&self, line: &str) -> Result<Vec<Duration>> {
        Ok(self.0.ask(line)?.into_iter().map(Duration::from_nanos).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scripted(script: &str) -> Result<BenchDriver> {
        BenchDriver::start(Path::new("/bin/sh"), &["-c", script], &[])
    }

    #[test]
    fn every_figure_of_an_answer_is_a_time() {
        let driver = scripted("while read line; do echo 1000 2000; done").unwrap();
        assert_eq!(driver.ask("exec 2 true").unwrap(), [1000, 2000].map(Duration::from_nanos));
    }

    #[test]
    fn a_program_that_ends_early_is_reported_with_its_message() {
        let error = scripted("read line; echo 'no engine' >&2").err().unwrap();
        assert_eq!(error.to_string(), "no engine");
    }
}
