//! Comparison of the ways to run Python code: in a warm interpreter, in an interpreter started for
//! the code, and in bubblewrap as most people run it.

use std::ffi::OsString;
use std::path::Path;
use std::rc::Rc;

use super::contenders::{Contender, PLAIN, RunMethod, bwrap_as_usual};
use super::driver::BenchDriver;

pub(super) const WARM: &str = "ringfence, warm interpreter";
pub(super) const COLD: &str = "ringfence, library cold";
pub(super) const BWRAP: &str = "bwrap + python3";

/// Code to run, each with the least factor by which a warm interpreter must be faster than a cold
/// start in bubblewrap.
pub(super) const CODE: [(&str, Option<f64>); 3] =
    [("print(1)", Some(40.0)), ("import numpy", None), ("import pandas", Some(80.0))];

/// Warm interpreters, and the Python program that they run.
pub(super) struct WarmInterpreters {
    python: OsString,
    driver: Result<Rc<BenchDriver>, String>,
}

impl WarmInterpreters {
    /// Starts `program`, which keeps interpreters of `python` warm.
    pub(super) fn start(program: &Path, python: &Path) -> Self {
        let driver = BenchDriver::start_for_code(program, python)
            .map(Rc::new)
            .map_err(|error| format!("{error:#}"));
        Self { python: python.into(), driver }
    }

    /// Returns the contenders that run `code`.
    pub(super) fn line_up(&self, code: &str) -> Vec<Contender> {
        let asked = |how: &str| {
            let line = format!("{how} 1 {code}");
            self.driver.clone().map(|driver| RunMethod::Asked { driver, line, runs: 1 })
        };
        let words = [self.python.clone(), "-c".into(), code.into()];
        vec![
            Contender { name: PLAIN, start: Ok(RunMethod::Spawn(words.to_vec())) },
            Contender { name: WARM, start: asked("warm") },
            Contender { name: COLD, start: asked("cold") },
            Contender { name: BWRAP, start: bwrap_as_usual(&words) },
        ]
    }
}
