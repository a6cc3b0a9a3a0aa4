//! Builds the guest, statically linked and small, for the library to carry compressed.
//!
//! `BUILT_RINGFENCE_GUEST` names one that was built already.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use sha2::{Digest, Sha256};

fn main() {
    println!("cargo::rerun-if-env-changed=BUILT_RINGFENCE_GUEST");
    let guest = std::env::var_os("BUILT_RINGFENCE_GUEST").map_or_else(build, PathBuf::from);
    println!("cargo::rerun-if-changed={}", guest.display());
    let bytes = fs_err::read(&guest).unwrap_or_else(|error| panic!("cannot read the guest: {error}"));
    let hash: String = Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let compressed = PathBuf::from(variable("OUT_DIR")).join("ringfence-guest.deflate");
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(&bytes).and_then(|()| fs_err::write(&compressed, encoder.finish()?));
    written.unwrap_or_else(|error| panic!("cannot compress the guest: {error}"));
    println!("cargo::rustc-env=RINGFENCE_GUEST={}", compressed.display());
    println!("cargo::rustc-env=RINGFENCE_GUEST_LENGTH={}", bytes.len());
    println!("cargo::rustc-env=RINGFENCE_GUEST_VERSION={hash}");
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Builds it with a cargo of its own, as another profile and other flags than ours are needed.
fn build() -> PathBuf {
    let crates = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    for package in ["ringfence-guest", "ringfence-linux", "ringfence-proto", "ringfence-core"] {
        println!("cargo::rerun-if-changed={}", crates.join(package).join("src").display());
        println!("cargo::rerun-if-changed={}", crates.join(package).join("Cargo.toml").display());
    }
    let target = variable("TARGET");
    // `OUT_DIR` is `TARGET/PROFILE/build/PACKAGE/out`. One directory for all profiles: lints, documents and tests carry the
    // same guest, which is built once.
    let own = PathBuf::from(variable("OUT_DIR"));
    let output = own.ancestors().nth(4).unwrap_or(&own).join("guest");
    let mut cargo = Command::new(variable("CARGO"));
    // With an explicit target the flags reach the guest alone: procedural macros cannot be linked statically.
    cargo.args(["build", "--package", "ringfence-guest", "--profile", "guest", "--target", &target]);
    cargo.arg("--manifest-path").arg(crates.join("ringfence-guest/Cargo.toml")).arg("--target-dir").arg(&output);
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
    // The wrappers of a caller that only checks (clippy) would build nothing.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("RUSTC_WRAPPER");
    let status = cargo.status().unwrap_or_else(|error| panic!("cannot run cargo for the guest: {error}"));
    assert!(status.success(), "cannot build the guest: cargo ended with {status}");
    output.join(target).join("guest/ringfence-guest")
}
