//! The chores of ringfence: `cargo xtask check`, `test`, `cluster`, `kernels`, `fuzz`, `dist`,
//! `oci`, `package`, `bench`, `docs`, `survey`, `coverage` and `seccomp-profile`.
//!
//! The chores need only cargo on a fresh machine, and CI calls nothing else.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line speaks to its user")]

mod arguments;
mod bench;
mod cache;
mod check;
mod cluster;
mod coverage;
mod dist;
mod docs;
mod elf;
mod fuzz;
mod kernels;
mod oci;
mod package;
mod seccomp_profile;
mod survey;
mod table;
mod test;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;

use crate::arguments::ChoreArguments;
use crate::workspace::Workspace;

/// One chore: its name, its help text and its function.
struct Chore {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    run: fn(&Workspace, ChoreArguments) -> Result<()>,
}

const CHORES: &[Chore] = &[
    Chore {
        name: "check",
        usage: "check",
        about: "formatting, lints, documentation, licences, and the rules of the code base",
        run: check::run,
    },
    Chore {
        name: "test",
        usage: "test [--no-install] [--no-engines] [--no-cluster] [--no-kernels] [FILTER…]",
        about: "every test; as root, installs and starts what they need unless told not to",
        run: test::run,
    },
    Chore {
        name: "cluster",
        usage: "cluster up|down [--with PART,…] [--no-install]",
        about: "starts or stops a Kubernetes for the tests, as root; PART is agent-sandbox, \
                containerd, runc or gvisor",
        run: cluster::run,
    },
    Chore {
        name: "coverage",
        usage: "coverage [--no-install] [--no-engines] [--no-cluster] [--keep] [--conformance] \
                [FILTER…]",
        about: "runs the tests of the crates, and with --conformance the conformance tests, too; \
                prints the share of the lines that ran, by crate; --keep adds to earlier runs",
        run: coverage::run,
    },
    Chore {
        name: "kernels",
        usage: "kernels [--list] [--no-install] [--binary PATH] [--checks A,B] [--write-promises] \
                [CELL…]",
        about: "boots Debian's kernels in virtual machines and checks ringfence there; as root, \
                makes their disks first",
        run: kernels::run,
    },
    Chore {
        name: "fuzz",
        usage: "fuzz [--seconds N] [TARGET…]",
        about: "runs each fuzz target for N seconds, 30 unless told; installs cargo-fuzz in \
                target/ if it is missing",
        run: fuzz::run,
    },
    Chore {
        name: "dist",
        usage: "dist",
        about: "makes dist/ringfence, one fully static file",
        run: dist::run,
    },
    Chore {
        name: "oci",
        usage: "oci",
        about: "makes dist/oci, archives of the images of ringfence and of its guest, for \
                containerd, Docker, Podman and skopeo",
        run: oci::run,
    },
    Chore {
        name: "package",
        usage: "package",
        about: "packages every crate for a registry, and builds a binary from the packages alone",
        run: package::run,
    },
    Chore {
        name: "bench",
        usage: "bench [--runs N] [--quick] [--against REVISION] [--egress] [--no-install] \
                [--no-engines]",
        about: "measures ringfence beside its peers, as root with engines; writes docs/bench",
        run: bench::run,
    },
    Chore {
        name: "docs",
        usage: "docs [--check]",
        about: "writes the generated documents, or checks that they are up to date",
        run: docs::run,
    },
    Chore {
        name: "survey",
        usage: "survey [REVISION] [--against REVISION]",
        about: "counts names, comments, long lines and files of the code, as a table in Markdown",
        run: survey::run,
    },
    Chore {
        name: "seccomp-profile",
        usage: "seccomp-profile",
        about: "writes .devcontainer/seccomp.json from the table of our own filter",
        run: seccomp_profile::run,
    },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        eprint!("{}", help());
        return ExitCode::from(2);
    };
    if matches!(name.as_str(), "--help" | "-h" | "help") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    let Some(chore) = CHORES.iter().find(|chore| chore.name == name) else {
        let nearest = arguments::nearest(&name, CHORES.iter().map(|chore| chore.name));
        eprintln!(
            "error: there is no chore `{name}`\nhint: did you mean `cargo xtask {nearest}`?\n\n{}",
            help()
        );
        return ExitCode::from(2);
    };
    let arguments = ChoreArguments::new(arguments);
    if arguments.ask_for_help() {
        println!("{}\n\nUsage: cargo xtask {}", chore.about, chore.usage);
        return ExitCode::SUCCESS;
    }
    match Workspace::load().and_then(|workspace| (chore.run)(&workspace, arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<arguments::UsageError>() { 2 } else { 1 })
        }
    }
}

fn help() -> String {
    let width = CHORES.iter().map(|chore| chore.usage.chars().count()).max().unwrap_or_default();
    let chores = CHORES.iter().map(|chore| format!("  {:width$}  {}\n", chore.usage, chore.about));
    format!("Usage: cargo xtask CHORE\n\n{}", chores.collect::<String>())
}
