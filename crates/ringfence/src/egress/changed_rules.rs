//! The file with the egress rules of a running sandbox, if they were changed after its start.

use std::io;
use std::path::Path;

use ringfence_core::policy::Network;
use serde::{Deserialize, Serialize};

use crate::host_paths::untrusted;
use crate::sandbox::directory::Manifest;

/// File with the rules that replaced those of the start.
const RULES_FILE: &str = "egress.json";
/// Temporary file in which the rules are written before they are complete.
#[cfg(feature = "egress")]
pub(super) const TEMPORARY_RULES_FILE: &str = ".egress.json";
/// Longest order, in bytes. The file with the rules is read up to twice this length.
pub(super) const MAX_ORDER_BYTES: usize = 512 << 10;

/// Rules that replaced those that a sandbox was started with.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChangedRules {
    pub(super) network: Network,
    /// Hash of the sandbox's policy with these rules.
    pub(super) policy_sha256: String,
    /// True if the rules differ from those of the start.
    pub(super) differs: bool,
}

impl ChangedRules {
    /// Updates a manifest with these rules.
    pub(crate) fn apply_to_manifest(self, manifest: &mut Manifest) {
        manifest.policy.network = Some(self.network);
        manifest.policy_sha256 = self.policy_sha256;
        manifest.is_changed = self.differs;
    }

    #[cfg(feature = "egress")]
    pub(super) fn write(&self, sandbox_dir: &Path) -> io::Result<()> {
        fs_err::write(sandbox_dir.join(TEMPORARY_RULES_FILE), serde_json::to_vec(self)?)?;
        fs_err::rename(sandbox_dir.join(TEMPORARY_RULES_FILE), sandbox_dir.join(RULES_FILE))
    }
}

/// Reads the rules that replaced those of the start, for the sandbox whose directory is
/// `sandbox_dir`. Returns `None` if nobody changed them.
pub(crate) fn changed(sandbox_dir: &Path) -> io::Result<Option<ChangedRules>> {
    let file = match fs_err::File::open(sandbox_dir.join(RULES_FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let text = untrusted::read_text(file.into(), 2 * MAX_ORDER_BYTES as u64)?;
    Ok(Some(serde_json::from_str(&text)?))
}
