//! Builds the guest, statically linked and small, so that the library can carry it compressed.
//!
//! If `BUILT_RINGFENCE_GUEST` is set, it names a guest that was built already, and nothing is
//! built.

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
    let bytes =
        fs_err::read(&guest).unwrap_or_else(|error| panic!("cannot read the guest: {error}"));
    let hash: String =
        Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let compressed = PathBuf::from(variable("OUT_DIR")).join("ringfence-guest.deflate");
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    let written =
        encoder.write_all(&bytes).and_then(|()| fs_err::write(&compressed, encoder.finish()?));
    written.unwrap_or_else(|error| panic!("cannot compress the guest: {error}"));
    println!("cargo::rustc-env=RINGFENCE_GUEST={}", compressed.display());
    println!("cargo::rustc-env=RINGFENCE_GUEST_LENGTH={}", bytes.len());
    println!("cargo::rustc-env=RINGFENCE_GUEST_VERSION={hash}");
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Settings of the guest's build, as arguments of cargo. They are here, and not in a profile of a
/// manifest, because the manifest of a published crate has no profiles.
///
/// The guest is copied into every sandbox. If this crate is built for size, as in the profile
/// `dist`, the guest is built slowly and is small, except for the crates that are hot. Otherwise
/// the guest is built quickly.
struct GuestSettings {
    arguments: &'static [&'static str],
    /// Name of the target directory. Guests of different settings do not replace each other.
    directory: &'static str,
}

const QUICK: GuestSettings = GuestSettings {
    arguments: &[
        "profile.release.opt-level=1",
        "profile.release.lto='off'",
        "profile.release.panic='abort'",
        "profile.release.strip='symbols'",
        "profile.release.package.base64.opt-level=3",
        "profile.release.package.bytes.opt-level=3",
        "profile.release.package.httparse.opt-level=3",
        "profile.release.package.memchr.opt-level=3",
        "profile.release.package.sha2.opt-level=3",
    ],
    directory: "guest",
};

const SMALL: GuestSettings = GuestSettings {
    arguments: &[
        "profile.release.opt-level='s'",
        "profile.release.lto='fat'",
        "profile.release.codegen-units=1",
        "profile.release.panic='abort'",
        "profile.release.strip='symbols'",
        "profile.release.package.base64.opt-level=3",
        "profile.release.package.bytes.opt-level=3",
        "profile.release.package.httparse.opt-level=3",
        "profile.release.package.hyper.opt-level=3",
        "profile.release.package.memchr.opt-level=3",
        "profile.release.package.mio.opt-level=3",
        "profile.release.package.ringfence-linux.opt-level=3",
        "profile.release.package.tokio.opt-level=3",
        // In our workspace, its profile `release` sets other levels for these packages.
        "profile.release.package.jiff.opt-level='s'",
        "profile.release.package.sha2.opt-level=3",
    ],
    directory: "guest-small",
};

/// Finds the sources of the guest: beside this crate in a workspace, and otherwise where cargo
/// unpacked the published crate.
///
/// A workspace that was moved keeps what it compiled, so the directory in the crate of the guest
/// may be a former one.
fn sources() -> PathBuf {
    let crates = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    let beside = crates.join("ringfence-guest");
    if !beside.join("Cargo.toml").exists() {
        return ringfence_guest::DIRECTORY.into();
    }
    // The sources in a workspace change. Those of a published crate do not.
    for package in ["ringfence-guest", "ringfence-linux", "ringfence-link", "ringfence-proto"] {
        for part in ["src", "Cargo.toml"] {
            let part = crates.join(package).join(part);
            println!("cargo::rerun-if-changed={}", part.display());
        }
    }
    beside
}

/// Builds the guest with a separate cargo process, because the guest needs settings that differ
/// from those of this build.
fn build() -> PathBuf {
    let guest = sources();
    let target = variable("TARGET");
    let is_small = ["s", "z"].contains(&variable("OPT_LEVEL").as_str());
    let settings = if is_small { SMALL } else { QUICK };
    // `OUT_DIR` is `TARGET/PROFILE/build/PACKAGE/out`. Profiles share one directory, so that lints,
    // documentation and tests carry the same guest, which is built once.
    let own = PathBuf::from(variable("OUT_DIR"));
    let output = own.ancestors().nth(4).unwrap_or(&own).join(settings.directory);
    let mut cargo = Command::new(variable("CARGO"));
    // With an explicit target the flags apply to the guest alone. Otherwise they would apply to
    // procedural macros, too, which cannot be linked statically.
    cargo.args(["build", "--bin", "ringfence-guest", "--release", "--target", &target]);
    cargo.args(settings.arguments.iter().flat_map(|setting| ["--config", setting]));
    cargo.arg("--manifest-path").arg(guest.join("Cargo.toml")).arg("--target-dir").arg(&output);
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
    // The wrapper of a caller that only checks, such as clippy, would build nothing.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("RUSTC_WRAPPER");
    let status =
        cargo.status().unwrap_or_else(|error| panic!("cannot run cargo for the guest: {error}"));
    assert!(status.success(), "cannot build the guest: cargo ended with {status}");
    output.join(target).join("release/ringfence-guest")
}
