//! Symbolic links on the way to the files that `hide` and `protect` name.
//!
//! Nothing can be mounted over a link, so a run can remove or change a link, and the rule then
//! leads elsewhere. A link that a run has removed or changed is reported, and remembered on the
//! host with the file that the link led to. Later runs guard that file until the link is back, or
//! until the user puts something else in its place. A run is refused if a list of remembered links
//! exists and cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, statat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::ViewError;
use super::deciders::PathText;
use super::patterns::is_absent;
use crate::Host;
use crate::host_paths::untrusted;

/// Maximum length of a list of links in bytes, because every run reads the list. Code in a sandbox
/// can make thousands of links. Before a list gets longer than this limit, the list keeps only one
/// entry for each rule and target.
const MAX_LIST_BYTES: u64 = 1 << 20;

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
    /// `true` if the target stays guarded regardless of the link, because the entry stands for many
    /// links.
    is_lasting: bool,
}

/// Identity of a file: device, inode, and the time of the last change, which no process can set.
type FileMark = (u64, u64, i64, i64);

impl GuardedLink {
    pub(super) fn new(
        effect: RuleEffect,
        rule: &str,
        (link, text): &(PathBuf, PathBuf),
        target: &Path,
    ) -> GuardedLink {
        GuardedLink {
            effect,
            rule: rule.to_owned(),
            left: find_mark(link),
            link: link.clone(),
            text: text.clone(),
            target: target.to_path_buf(),
            is_lasting: false,
        }
    }

    /// Tells whether the link still has the same target text.
    fn is_unchanged_link(&self) -> bool {
        fs_err::read_link(&self.link).is_ok_and(|text| text == self.text)
    }

    /// Tells whether the file in the link's place is another one than before. A lasting entry does
    /// not depend on that file.
    pub(super) fn is_changed(&self) -> bool {
        !self.is_lasting && !self.is_unchanged_link() && find_mark(&self.link) != self.left
    }
}

fn find_mark(path: &Path) -> Option<FileMark> {
    let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((
        found.st_dev,
        found.st_ino,
        found.st_ctime,
        i64::try_from(found.st_ctime_nsec).unwrap_or(0),
    ))
}

/// Links of one workspace that runs have removed or changed, kept among the user's own files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RemovedLinks {
    file: Option<PathBuf>,
}

impl RemovedLinks {
    pub(super) fn for_workspace(host: &Host, workspace: &Path) -> RemovedLinks {
        let digest = Sha256::digest(workspace.as_os_str().as_encoded_bytes());
        let name = ringfence_core::to_hex(&digest);
        let file = host.state_directory().map(|state| state.join("removed-links").join(name));
        RemovedLinks { file: file.filter(|file| file.to_str().is_some()) }
    }

    /// Returns the links that are still as a run left them. An error means that any number of such
    /// links may exist.
    pub(super) fn load(&self) -> Result<Vec<GuardedLink>, ViewError> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let links = match fs_err::symlink_metadata(file) {
            // A user who cannot reach the state directory has no list, because no run could write
            // one.
            Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(Vec::new());
            }
            Err(error) => Err(error),
            Ok(_) => read_links(file),
        };
        let links =
            links.map_err(|source| ViewError::RemovedLinks { path: file.clone(), source })?;
        let is_current =
            |link: &GuardedLink| link.is_lasting || !link.is_unchanged_link() && !link.is_changed();
        Ok(links.into_iter().filter(is_current).collect())
    }

    /// Remembers links that a run removed or changed.
    pub(super) fn remember(&self, links: &[&GuardedLink]) {
        let Some(file) = &self.file else { return };
        if let Err(error) = self.try_remember(file, links) {
            // An empty list cannot be read, so the next run is refused.
            let refuses = fs_err::write(file, "").is_ok();
            for link in links {
                let path = link.link.display();
                tracing::warn!(%path, %error, refuses, "cannot remember the file that this link \
                    led to before the run");
            }
        }
    }

    fn try_remember(&self, file: &Path, links: &[&GuardedLink]) -> io::Result<()> {
        // Keep a list that cannot be read as it is, so that the next run is refused.
        let Ok(known) = self.load() else { return Ok(()) };
        let as_left =
            |link: &&GuardedLink| GuardedLink { left: find_mark(&link.link), ..(*link).clone() };
        let known: BTreeSet<GuardedLink> =
            known.into_iter().chain(links.iter().map(as_left)).collect();
        let mut text = serialize_list(known.iter())?;
        if text.len() as u64 > MAX_LIST_BYTES {
            text = serialize_list(deduplicate_targets(known).iter())?;
        }
        fs_err::create_dir_all(file.parent().ok_or(io::ErrorKind::NotFound)?)?;
        // Replace the list by renaming, because another run may read it at the same time.
        let unfinished = file.with_extension(std::process::id().to_string());
        let written =
            fs_err::write(&unfinished, text).and_then(|()| fs_err::rename(&unfinished, file));
        written.inspect_err(|_| {
            let _ = fs_err::remove_file(&unfinished); // the file may not exist
        })
    }
}

fn read_links(file: &Path) -> io::Result<Vec<GuardedLink>> {
    let text = untrusted::read(file, MAX_LIST_BYTES)?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns the text of a list. The list ends after the first entry that makes it too long to be
/// read again.
fn serialize_list<'l>(links: impl Iterator<Item = &'l GuardedLink>) -> io::Result<String> {
    let mut text = String::from("[");
    for link in links {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&serde_json::to_string(link)?);
        if text.len() as u64 > MAX_LIST_BYTES {
            break;
        }
    }
    text.push(']');
    Ok(text)
}

/// Returns one lasting entry for each rule and target.
fn deduplicate_targets(links: BTreeSet<GuardedLink>) -> Vec<GuardedLink> {
    let mut entries: BTreeMap<(RuleEffect, String, PathBuf), GuardedLink> = BTreeMap::new();
    for link in links {
        let key = (link.effect, link.rule.clone(), link.target.clone());
        let entry = GuardedLink { is_lasting: true, text: PathBuf::new(), ..link };
        entries.entry(key).or_insert(entry);
    }
    entries.into_values().collect()
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
    #[serde(default)]
    is_lasting: bool,
}

impl From<GuardedLink> for SerializedLink {
    fn from(link: GuardedLink) -> SerializedLink {
        let GuardedLink { effect, rule, link, text, target, left, is_lasting } = link;
        SerializedLink {
            effect,
            rule,
            link: link.into(),
            text: text.into(),
            target: target.into(),
            left,
            is_lasting,
        }
    }
}

impl From<SerializedLink> for GuardedLink {
    fn from(link: SerializedLink) -> GuardedLink {
        let SerializedLink { effect, rule, link, text, target, left, is_lasting } = link;
        GuardedLink {
            effect,
            rule,
            link: link.into(),
            text: text.into(),
            target: target.into(),
            left,
            is_lasting,
        }
    }
}
