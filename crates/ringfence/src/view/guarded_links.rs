//! Symbolic links on the way to the files that `hide` and `protect` name.
//!
//! Nothing can be mounted over a link, so a run can remove or change a link, and the rule then
//! leads elsewhere. Such a link is reported, and remembered on the host with the file that it led
//! to. Later runs guard that file until the link is restored or the user puts another file in the
//! link's place.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, statat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::deciders::PathText;
use crate::{Host, untrusted};

/// Maximum size in bytes of the file with the remembered links of a workspace; real ones are
/// smaller.
const MAX_MEMORY: u64 = 1 << 24;

/// Effect of a rule on the files that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum RuleEffect {
    Hide,
    Protect,
}

/// Link on the way to a file that a rule names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "SerializedLink", into = "SerializedLink")]
pub(super) struct GuardedLink {
    pub(super) effect: RuleEffect,
    /// Path or pattern of the rule.
    pub(super) rule: String,
    pub(super) link: PathBuf,
    /// Target text of the link when the rule led to `target`.
    pub(super) text: PathBuf,
    /// File or directory that the rule led to, without links in its path.
    pub(super) target: PathBuf,
    /// Identity of the file at the link's path, or `None` if there was no file. After a run changed
    /// the link, this is the file that the run left there.
    left: Option<FileMark>,
}

/// Identity of a file: device, inode, and the time of the last change, which no process can set.
type FileMark = (u64, u64, i64, i64);

impl GuardedLink {
    pub(super) fn new(effect: RuleEffect, rule: &str, (link, text): &(PathBuf, PathBuf), target: &Path) -> GuardedLink {
        GuardedLink {
            effect,
            rule: rule.to_owned(),
            left: mark_of(link),
            link: link.clone(),
            text: text.clone(),
            target: target.to_path_buf(),
        }
    }

    /// Tells whether the link still has the same target text.
    fn is_there(&self) -> bool {
        fs_err::read_link(&self.link).is_ok_and(|text| text == self.text)
    }

    /// Tells whether the link lost its target text, and its path now holds another file than
    /// before, or none.
    pub(super) fn is_changed(&self) -> bool {
        !self.is_there() && mark_of(&self.link) != self.left
    }
}

fn mark_of(path: &Path) -> Option<FileMark> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((found.st_dev, found.st_ino, found.st_ctime, i64::try_from(found.st_ctime_nsec).unwrap_or(0)))
}

/// Links of one workspace that runs have removed or changed, kept among the user's own files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LinkMemory {
    file: Option<PathBuf>,
}

impl LinkMemory {
    pub(super) fn for_workspace(host: &Host, workspace: &Path) -> LinkMemory {
        let digest = Sha256::digest(workspace.as_os_str().as_encoded_bytes());
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = host.state_directory().map(|state| state.join("removed-links").join(name));
        LinkMemory { file: file.filter(|file| file.to_str().is_some()) }
    }

    /// Returns the links that are still as a run left them.
    pub(super) fn load(&self) -> Vec<GuardedLink> {
        let Some(text) = self.file.as_ref().and_then(|file| untrusted::read(file, MAX_MEMORY).ok()) else {
            return Vec::new();
        };
        let links: Vec<GuardedLink> = serde_json::from_str(&text).unwrap_or_default();
        links.into_iter().filter(|link| !link.is_there() && !link.is_changed()).collect()
    }

    /// Remembers links that a run removed or changed.
    pub(super) fn remember(&self, links: &[&GuardedLink]) {
        let Some(file) = &self.file else { return };
        let as_left = |link: &&GuardedLink| GuardedLink { left: mark_of(&link.link), ..(*link).clone() };
        let known: BTreeSet<GuardedLink> = self.load().into_iter().chain(links.iter().map(as_left)).collect();
        let written = serde_json::to_string(&known).map_err(std::io::Error::other);
        let made = file.parent().map_or(Ok(()), fs_err::create_dir_all);
        let written = made.and(written).and_then(|text| fs_err::write(file, text));
        if let Err(error) = written {
            for link in links {
                let path = link.link.display();
                tracing::warn!(%path, %error, "cannot remember the file that this link led to before the run");
            }
        }
    }
}

/// Form of [`GuardedLink`] in JSON. The paths need not be UTF-8.
#[derive(Serialize, Deserialize)]
struct SerializedLink {
    effect: RuleEffect,
    rule: String,
    link: PathText,
    text: PathText,
    target: PathText,
    left: Option<FileMark>,
}

impl From<GuardedLink> for SerializedLink {
    fn from(link: GuardedLink) -> SerializedLink {
        let GuardedLink { effect, rule, link, text, target, left } = link;
        SerializedLink { effect, rule, link: link.into(), text: text.into(), target: target.into(), left }
    }
}

impl From<SerializedLink> for GuardedLink {
    fn from(link: SerializedLink) -> GuardedLink {
        let SerializedLink { effect, rule, link, text, target, left } = link;
        GuardedLink { effect, rule, link: link.into(), text: text.into(), target: target.into(), left }
    }
}
