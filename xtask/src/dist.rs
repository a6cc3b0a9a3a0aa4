//! `cargo xtask dist`: builds one fully static binary.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::arguments::ChoreArguments;
use crate::elf;
use crate::workspace::{Workspace, output_of, run as run_command};

/// Limit in bytes of the binary, which contains the guest, the proxy with its TLS, a parser of
/// Python, and two servers.
const MAX_BINARY_BYTES: u64 = 26_000_000;

pub(crate) fn run(workspace: &Workspace, arguments: ChoreArguments) -> Result<()> {
    arguments.end(&[])?;
    build(workspace).map(drop)
}

/// Builds `dist/ringfence`, and checks that the binary is static, small enough and runs.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let host = host_triple()?;
    run_command(&mut static_dist(workspace, &host, &["-p", "ringfence-cli"]))?;

    let directory = workspace.root.join("dist");
    fs_err::create_dir_all(&directory)?;
    let binary = directory.join("ringfence");
    // A rename replaces a running binary; a copy onto it would fail with ETXTBSY.
    let copy = directory.join("ringfence.new");
    fs_err::copy(workspace.target.join(&host).join("dist/ringfence"), &copy)?;
    fs_err::rename(&copy, &binary)?;

    let image = fs_err::read(&binary)?;
    elf::ensure_static(&image)
        .with_context(|| format!("`{}` is not fully static", binary.display()))?;
    let size = image.len() as u64;
    ensure!(
        size < MAX_BINARY_BYTES,
        "`{}` has {size} bytes, more than the {MAX_BINARY_BYTES} it may have",
        binary.display()
    );
    let version = output_of(Command::new(&binary).arg("--version"))?;
    println!("{}: {}, static, {:.2} MB", binary.display(), version.trim(), size as f64 / 1e6);
    Ok(binary)
}

/// Returns the guest that the last build of `dist/ringfence` embedded, and checks that the guest is
/// static.
pub(crate) fn embedded_guest(workspace: &Workspace) -> Result<PathBuf> {
    let guest = match std::env::var_os("BUILT_RINGFENCE_GUEST") {
        Some(guest) => guest.into(),
        None => small_guest(&workspace.target, &host_triple()?),
    };
    elf::ensure_static(&fs_err::read(&guest)?)
        .with_context(|| format!("`{}` is not fully static", guest.display()))?;
    Ok(guest)
}

/// Returns the path to which the build script of the library builds the guest, if the library is
/// built for size and for an explicit target.
fn small_guest(target: &Path, host: &str) -> PathBuf {
    target.join(host).join("guest-small").join(host).join("release/ringfence-guest")
}

/// Flags of the compiler for a static binary.
///
/// A panic aborts, so that no code reads the tables for unwinding. A position-independent program
/// of this size has a megabyte of relocations, which the linker packs.
const STATIC_FLAGS: &str = "-C target-feature=+crt-static -C force-unwind-tables=no -C \
                            link-arg=-Wl,-z,pack-relative-relocs";

/// Returns the cargo command that builds static binaries.
///
/// The command names the target although it is the host. Without `--target`, the flag would also
/// reach procedural macros, which are dynamic libraries and cannot be built statically.
pub(crate) fn static_dist(workspace: &Workspace, host: &str, what: &[&str]) -> Command {
    let mut command = workspace.cargo(["build", "--profile", "dist", "--target", host]);
    command.args(what).env("RUSTFLAGS", STATIC_FLAGS);
    command
}

/// Asks the compiler for the target triple of this host.
pub(crate) fn host_triple() -> Result<String> {
    let version = output_of(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_guest_is_where_the_build_script_of_the_library_builds_it() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/ringfence/build.rs");
        let script = fs_err::read_to_string(script).unwrap();
        assert!(script.contains("own.ancestors().nth(4)"));
        assert!(script.contains(r#"directory: "guest-small","#));
        // The output of the script, from which it counts directories upwards.
        let output = Path::new("target/host/dist/build/ringfence-0/out");
        let above = output.ancestors().nth(4).unwrap();
        assert_eq!(
            small_guest(Path::new("target"), "host"),
            above.join("guest-small/host/release/ringfence-guest")
        );
    }
}
