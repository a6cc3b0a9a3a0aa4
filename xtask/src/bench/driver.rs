//! A program of ours that keeps a sandbox and times what is done with it, when asked.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

/// A running `bench_session`. It ends, and its sandbox with it, when this is dropped.
pub(super) struct Driver {
    process: RefCell<Process>,
}

struct Process {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Driver {
    /// Starts one on a backend, and waits until its sandbox has run something.
    pub(super) fn start(program: &Path, backend: &[&str], variables: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(backend).envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run `{}`", program.display()))?;
        let answers = BufReader::new(child.stdout.take().context("it has no output")?);
        let driver = Self { process: RefCell::new(Process { child, answers }) };
        driver.ask("exec 1 true")?;
        Ok(driver)
    }

    /// Has it do what a line says, and returns the times that it names.
    pub(super) fn ask(&self, line: &str) -> Result<Vec<Duration>> {
        let Process { child, answers } = &mut *self.process.borrow_mut();
        let mut answer = String::new();
        let input = child.stdin.as_mut().context("it has no input")?;
        // One that has ended says why on its standard error.
        let asked = writeln!(input, "{line}").and_then(|()| answers.read_line(&mut answer));
        if asked.is_err() || answer.is_empty() {
            return Err(anyhow!(last_words(child)));
        }
        let time = |figure: &str| Ok(Duration::from_nanos(figure.parse().context("not a figure")?));
        answer.split_whitespace().map(time).collect()
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

impl Drop for Driver {
    fn drop(&mut self) {
        let Process { child, .. } = self.process.get_mut();
        drop(child.stdin.take());
        let _ = child.wait(); // it stops its sandbox at the end of its input
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
