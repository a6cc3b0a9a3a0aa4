//! Runner for the console transcripts in `tests/cli`.
//!
//! ````text
//! ```console
//! $ ringfence run -- sh -c 'exit 3'
//! ? 3
//! ```
//! ````
//!
//! `$ ` starts a command for `sh`, and `> ` continues the command. The expected output of both
//! streams follows, then `? n` if the exit code is not 0. `[..]` stands for any part of a line, and
//! a line `...` for any number of lines. The commands of one file share a workspace and a home
//! directory, and nothing else.

mod transcript;

use ringfence_test_ledger::require;
use transcript::check;

/// Creates one test for each transcript.
macro_rules! transcripts {
    ($($name:ident $(needs $($need:ident),+)?;)+) => {
        $(#[test]
        fn $name() {
            $(require!($($need),+);)?
            check(stringify!($name));
        })+

        #[test]
        fn every_transcript_is_run() {
            let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli");
            for entry in fs_err::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_str().unwrap();
                assert!(
                    [$(stringify!($name)),+].contains(&name),
                    "no test runs {}",
                    path.display()
                );
            }
        }
    };
}

transcripts! {
    run needs user_namespaces;
    exit_codes needs user_namespaces;
    files needs user_namespaces;
    git needs user_namespaces, git;
    limits needs user_namespaces;
    memory needs user_namespaces, cgroup_limits;
    json needs user_namespaces;
    refusals needs user_namespaces;
    settings needs user_namespaces;
    deployments needs user_namespaces;
    wrap needs user_namespaces;
    audit;
    code needs user_namespaces, python3;
    doctor needs user_namespaces;
    egress needs user_namespaces, python3;
    sandboxes needs user_namespaces;
    copying needs user_namespaces, python3;
    mcp needs user_namespaces;
    serving needs user_namespaces;
}
