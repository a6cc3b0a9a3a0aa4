//! Symbolic links on the way to what `hide` and `protect` name.
//!
//! Nothing can be mounted over a link, so that a run can remove or turn one, and the rule then leads
//! elsewhere. A link that a run has removed or turned is reported, and remembered on the host with
//! the file that it led to: later runs guard that file until the link is back, or the user puts
//! something else in its place.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, statat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::deciders::PathText;
use crate::{Host, untrusted};

/// More than the links of a workspace come to.
const MAX_MEMORY: u64 = 1 << 24;

/// The effect of a rule on the files that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum RuleEffect {
    Hide,
    Protect,
}

/// A link on the way to a file that a rule names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "SerializedLink", into = "SerializedLink")]
pub(super) struct GuardedLink {
    pub(super) effect: RuleEffect,
    /// The path or the pattern of the rule.
    pub(super) rule: String,
    pub(super) link: PathBuf,
    /// The text of the link when the rule led to `target`.
    pub(super) text: PathBuf,
    /// The file or directory that the rule led to, free of links.
    pub(super) target: PathBuf,
    /// The file in the link's place where it is no longer the link, unless there is none.
    left: Option<FileMark>,
}

/// A file by its inode and its last change, which no process can set.
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

    /// Tells whether the link leads where it led.
    fn is_there(&self) -> bool {
        fs_err::read_link(&self.link).is_ok_and(|text| text == self.text)
    }

    /// Tells whether the file in the link's place is another one than it was.
    pub(super) fn is_changed(&self) -> bool {
        !self.is_there() && mark_of(&self.link) != self.left
    }
}

fn mark_of(path: &Path) -> Option<FileMark> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((found.st_dev, found.st_ino, found.st_ctime, i64::try_from(found.st_ctime_nsec).unwrap_or(0)))
}

/// The links of one workspace that runs have removed or turned, kept among the user's own files.
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

    /// The links that are still as a run left them.
    pub(super) fn load(&self) -> Vec<GuardedLink> {
        let Some(text) = self.file.as_ref().and_then(|file| untrusted::read(file, MAX_MEMORY).ok()) else {
            return Vec::new();
        };
        let links: Vec<GuardedLink> = serde_json::from_str(&text).unwrap_or_default();
        links.into_iter().filter(|link| !link.is_there() && !link.is_changed()).collect()
    }

    /// Remembers links that a run removed or turned.
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

/// [`GuardedLink`] as JSON holds it. Paths need not be text.
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
