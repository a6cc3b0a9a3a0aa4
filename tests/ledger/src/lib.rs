//! Needs of the tests of ringfence, and the ledger of skipped tests.
//!
//! A test that cannot run on a machine reports a skip instead of passing silently:
//!
//! ```no_run
//! use ringfence_test_ledger::require;
//!
//! fn files_outside_the_policy_are_invisible() {
//!     require!(user_namespaces, ordinary_user);
//!     // the test itself
//! }
//! ```
//!
//! A missing need writes `SKIP place need: reason` to the real standard error, adds a line to the
//! ledger that `cargo xtask test` prints as a table, and returns from the test. A need named in
//! `RINGFENCE_TEST_REQUIRE` fails the test instead. Each need in [`needs`] is probed by an attempt
//! to use it, never by looking for a file.

mod cgroup;
pub mod client;
pub mod cluster;
pub mod engine;
mod entry;
pub mod needs;
mod subject;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

pub use entry::{Skip, read};
pub use subject::{
    User, binary, e2b_javascript, e2b_python, frameworks_python, mcp_python, openai_agents_python,
    playwright_python, plotting_python,
};

/// Environment variable that holds the path of the ledger.
pub const LEDGER_VARIABLE: &str = "RINGFENCE_TEST_LEDGER";
/// Environment variable that lists, with commas, the needs whose absence is a failure.
pub const REQUIRE_VARIABLE: &str = "RINGFENCE_TEST_REQUIRE";
/// Environment variable that holds the ordinary user made for the tests.
pub const USER_VARIABLE: &str = "RINGFENCE_TEST_USER";
/// Environment variable that holds the path of the `ringfence` binary under test.
pub const BINARY_VARIABLE: &str = "RINGFENCE_TEST_BINARY";
/// Environment variable that holds the path of a Python interpreter with the `e2b` package.
pub const E2B_PYTHON_VARIABLE: &str = "RINGFENCE_TEST_E2B_PYTHON";
/// Environment variable that holds the path of a Python interpreter with `langchain-e2b` and
/// `smolagents`.
pub const FRAMEWORKS_PYTHON_VARIABLE: &str = "RINGFENCE_TEST_FRAMEWORKS_PYTHON";
/// Environment variable that holds the path of a Python interpreter with `openai-agents`.
pub const OPENAI_AGENTS_PYTHON_VARIABLE: &str = "RINGFENCE_TEST_OPENAI_AGENTS_PYTHON";
/// Environment variable that holds the directory in which E2B's packages for JavaScript are
/// installed.
pub const E2B_JAVASCRIPT_VARIABLE: &str = "RINGFENCE_TEST_E2B_JAVASCRIPT";
/// Environment variable that holds the path of a Python interpreter with the `mcp` package.
pub const MCP_PYTHON_VARIABLE: &str = "RINGFENCE_TEST_MCP_PYTHON";
/// Environment variable that holds the path of a Python interpreter with `pandas` and `matplotlib`.
pub const PLOTTING_PYTHON_VARIABLE: &str = "RINGFENCE_TEST_PLOTTING_PYTHON";

/// Environment variable that holds the path of a Python interpreter with the `playwright` package.
pub const PLAYWRIGHT_PYTHON_VARIABLE: &str = "RINGFENCE_TEST_PLAYWRIGHT_PYTHON";

/// Returns from the calling test and records a skip, unless the machine meets every named need.
#[macro_export]
macro_rules! require {
    ($($need:ident),+ $(,)?) => {{
        fn here() {}
        $(
            if !$crate::met(
                stringify!($need),
                $crate::needs::$need,
                ::std::any::type_name_of_val(&here),
            ) {
                return;
            }
        )+
    }};
}

/// Tells whether a `sleep` process with the argument `marker` is alive.
pub fn is_running(marker: &str) -> bool {
    let processes = fs_err::read_dir("/proc").expect("there is a proc").flatten();
    processes.into_iter().any(|entry| {
        let line = fs_err::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        words.first().is_some_and(|name| name.ends_with(b"sleep"))
            && words.contains(&marker.as_bytes())
    })
}

/// Waits until `condition` holds, for a minute at most.
pub fn eventually(condition: impl Fn() -> bool) -> bool {
    for _ in 0..6000 {
        if condition() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    false
}

/// Returns true if a need is met. Otherwise records a skip of the test around `here`.
///
/// # Panics
///
/// Panics if the need is not met and `RINGFENCE_TEST_REQUIRE` names it.
#[doc(hidden)]
pub fn met(need: &'static str, probe: fn() -> Result<(), String>, here: &str) -> bool {
    let Err(reason) = probed_once(need, probe) else { return true };
    let required = std::env::var(REQUIRE_VARIABLE).unwrap_or_default();
    assert!(
        !is_listed(&required, need),
        "{REQUIRE_VARIABLE} names `{need}`, which is missing: {reason}"
    );

    let skip = Skip { place: enclosing_function(here).to_owned(), need: need.to_owned(), reason };
    // Write directly, because the test harness would capture the print macros. A closed stderr
    // loses only this message.
    let _ = std::io::stderr().write_all(format!("{skip}\n").as_bytes());
    if let Some(ledger) = std::env::var_os(LEDGER_VARIABLE) {
        skip.append_to(Path::new(&ledger))
            .expect("a skip must reach the ledger, or it would count as a pass");
    }
    false
}

/// Probes each need once per process, because some probes start several programs and a test binary
/// asks hundreds of times.
fn probed_once(need: &'static str, probe: fn() -> Result<(), String>) -> Result<(), String> {
    static PROBED: Mutex<BTreeMap<&str, Result<(), String>>> = Mutex::new(BTreeMap::new());
    let mut probed = PROBED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    probed.entry(need).or_insert_with(probe).clone()
}

fn is_listed(list: &str, need: &str) -> bool {
    list.split(',').map(str::trim).any(|listed| listed == need)
}

/// Shortens `crate::tests::a_name::{{closure}}::here` to `crate::tests::a_name`.
fn enclosing_function(here: &str) -> &str {
    let mut place = here.strip_suffix("::here").unwrap_or(here);
    while let Some(outer) = place.strip_suffix("::{{closure}}") {
        place = outer;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent() -> Result<(), String> {
        Err("not on this machine".to_owned())
    }

    #[test]
    fn a_place_is_the_function_around_the_macro() {
        fn here() {}
        let place = enclosing_function(std::any::type_name_of_val(&here));
        assert_eq!(place, "ringfence_test_ledger::tests::a_place_is_the_function_around_the_macro");
        assert_eq!(enclosing_function("a::b::{{closure}}::{{closure}}::here"), "a::b");
    }

    #[test]
    fn a_need_is_listed_only_by_its_whole_name() {
        assert!(is_listed("user_namespaces, bwrap", "bwrap"));
        assert!(!is_listed("user_namespaces,bwrap_as_root", "bwrap"));
        assert!(!is_listed("", "bwrap"));
    }

    #[test]
    fn a_need_is_probed_once_per_process() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static PROBES: AtomicU32 = AtomicU32::new(0);
        fn counted() -> Result<(), String> {
            PROBES.fetch_add(1, Ordering::Relaxed);
            absent()
        }
        assert_eq!(probed_once("counted", counted), absent());
        assert_eq!(probed_once("counted", counted), absent());
        assert_eq!(PROBES.load(Ordering::Relaxed), 1);
    }
}
