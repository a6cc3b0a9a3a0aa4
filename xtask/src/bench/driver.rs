//! Programs of ours that measure when asked, a line at a time.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

/// A running program that answers each line with one of figures. It ends when this is dropped.
pub(super) struct Conversation {
    process: RefCell<Process>,
}

struct Process {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Conversation {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))?;
        let answers = BufReader::new(child.stdout.take().context("it has no output")?);
        Ok(Self { process: RefCell::new(Process { child, answers }) })
    }

    /// Has it do what a line says, and returns the figures that it names.
    pub(super) fn ask<F: FromStr>(&self, line: &str) -> Result<Vec<F>> {
        if let Some(input) = &mut self.process.borrow_mut().child.stdin {
            let _ = writeln!(input, "{line}"); // one that has ended says why when it is heard
        }
        let figure = |figure: &str| figure.parse().map_err(|_| anyhow!("`{figure}` is no figure"));
        self.hear()?.split_whitespace().map(figure).collect()
    }

    /// The next line that it says.
    pub(super) fn hear(&self) -> Result<String> {
        let Process { child, answers } = &mut *self.process.borrow_mut();
        let mut line = String::new();
        match answers.read_line(&mut line) {
            Ok(1..) => Ok(line),
            // One that has ended says why on its standard error.
            _ => Err(anyhow!(last_words(child))),
        }
    }
}

fn last_words(child: &mut Child) -> String {
    drop(child.stdin.take());
    let mut words = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut words); // what cannot be read is not told
    }
    words.trim().to_owned()
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let Process { child, .. } = self.process.get_mut();
        drop(child.stdin.take());
        let _ = child.wait(); // it ends, and what it keeps with it, at the end of its input
    }
}

/// A running `bench_session`, which keeps a sandbox and times what is done with it.
pub(super) struct Driver(Conversation);

impl Driver {
    /// Starts one on a backend, and waits until its sandbox has run something.
    pub(super) fn start(program: &Path, backend: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new(program);
        let driver = Self(Conversation::start(command.args(backend).envs(variables.iter().copied()))?);
        driver.ask("exec 1 true")?;
        Ok(driver)
    }

    /// Starts a `bench_code` instead, and waits until code has run in one of the interpreters that it keeps.
    pub(super) fn of_code(program: &Path, python: &Path) -> Result<Self> {
        let driver = Self(Conversation::start(Command::new(program).arg(python))?);
        driver.ask("warm 1 print(1)")?;
        Ok(driver)
    }

    /// Has it do what a line says, and returns the times that it names.
    pub(super) fn ask(&self, line: &str) -> Result<Vec<Duration>> {
        Ok(self.0.ask(line)?.into_iter().map(Duration::from_nanos).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scripted(script: &str) -> Result<Driver> {
        Driver::start(Path::new("/bin/sh"), &["-c", script], &[])
    }

    #[test]
    fn every_figure_of_an_answer_is_a_time() {
        let driver = scripted("while read line; do echo 1000 2000; done").unwrap();
        assert_eq!(driver.ask("exec 2 true").unwrap(), [1000, 2000].map(Duration::from_nanos));
    }

    #[test]
    fn one_that_ends_has_said_why() {
        let error = scripted("read line; echo 'no engine' >&2").err().unwrap();
        assert_eq!(error.to_string(), "no engine");
    }
}
