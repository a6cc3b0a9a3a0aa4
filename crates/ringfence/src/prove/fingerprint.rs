//! Identifies the host and the binary of a proof.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Engine;

/// Properties of a host and a binary that affect the results of a proof.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFingerprint {
    /// Release and version of the kernel.
    pub kernel: String,
    /// Architecture of the machine.
    pub architecture: String,
    /// Hash of the machine's id. The id itself is confidential.
    pub machine: Option<String>,
    /// Hash of the id of the current boot.
    pub boot: Option<String>,
    /// Version of the kernel's Landlock ABI, or 0 without Landlock.
    pub landlock_abi: u32,
    /// User id of the caller.
    pub user: u32,
    /// Version of ringfence.
    pub version: String,
    /// SHA-256 hash of the binary that made the attempts.
    pub binary_sha256: Option<String>,
}

impl HostFingerprint {
    pub(super) fn take(engine: &Engine) -> HostFingerprint {
        let system = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        HostFingerprint {
            kernel: format!("{} {}", text(system.release()), text(system.version())),
            architecture: text(system.machine()),
            machine: hash_of(Path::new("/etc/machine-id")),
            boot: hash_of(Path::new("/proc/sys/kernel/random/boot_id")),
            landlock_abi: ringfence_linux::landlock::abi(),
            user: engine.settings().host.user_id,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            binary_sha256: super::trial::program(engine).ok().and_then(|program| hash_of(&program)),
        }
    }
}

fn hash_of(path: &Path) -> Option<String> {
    let mut file = fs_err::File::open(path).ok()?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(ringfence_core::to_hex(&hash.finalize())),
            length => hash.update(&buffer[..length]),
        }
    }
}
