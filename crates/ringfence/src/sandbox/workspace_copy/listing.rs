//! Listing of a copied workspace that the guest sends. The guest is not trusted: every name is
//! checked, and the number of entries and the lengths are bounded.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_proto::bytes::Base64Bytes;
use ringfence_proto::tree::TreeEntry;

use super::entry::{EntryContent, PERMISSIONS, PresentEntry, SideState, TEMPORARY_PREFIX};
use super::{MAX_COPIED_BYTES, MAX_COPIED_ENTRIES};

/// Longest path and longest text of a link, in bytes (PATH_MAX).
const MAX_PATH_BYTES: usize = 4096;
/// Longest name of one file, in bytes (NAME_MAX).
const MAX_NAME_BYTES: usize = 255;
/// Deepest level of a path. Deeper directories could not be read on the host again.
const MAX_LEVELS: usize = 128;
/// Highest number of bytes in the names and links of a listing together.
const MAX_TEXT_BYTES: usize = 256 << 20;

const SPECIAL: &str = "it is a socket, a pipe or a device in the sandbox";
const UNREADABLE: &str = "it cannot be read in the sandbox";
const RESERVED: &str = "its name is reserved for a sync on the host";

/// Entries of a copied workspace in a sandbox.
#[derive(Debug, Default)]
pub(super) struct InsideListing {
    pub(super) states: BTreeMap<PathBuf, SideState>,
    text_bytes: usize,
    file_bytes: u64,
    busy: u64,
}

impl InsideListing {
    /// Adds one line of a listing. An error says why the listing is invalid.
    pub(super) fn add(&mut self, entry: TreeEntry) -> Result<(), String> {
        let (path, state) = match entry {
            TreeEntry::Busy => {
                // The guest sends one such line for each of many bytes, which are limited, too.
                self.busy += 1;
                return match self.busy > MAX_COPIED_ENTRIES {
                    true => Err("it does not end".to_owned()),
                    false => Ok(()),
                };
            }
            TreeEntry::End => return Err("something follows its end".to_owned()),
            TreeEntry::File { path, mode, size, digest } => {
                self.file_bytes = self.file_bytes.saturating_add(size);
                if self.file_bytes > MAX_COPIED_BYTES {
                    return Err(format!("its files have more than {MAX_COPIED_BYTES} bytes"));
                }
                let digest =
                    digest.0.try_into().map_err(|_| "it has a digest of a wrong length")?;
                let content = EntryContent::File { size, digest };
                (path, SideState::Present(PresentEntry { content, mode: mode & PERMISSIONS }))
            }
            TreeEntry::Directory { path, mode } => {
                let content = EntryContent::Directory;
                (path, SideState::Present(PresentEntry { content, mode: mode & PERMISSIONS }))
            }
            TreeEntry::Link { path, target } => {
                if target.0.is_empty() || target.0.len() > MAX_PATH_BYTES || target.0.contains(&0) {
                    return Err("it has a link with an impossible target".to_owned());
                }
                self.text_bytes += target.0.len();
                let content = EntryContent::Link { target };
                (path, SideState::Present(PresentEntry { content, mode: PERMISSIONS }))
            }
            TreeEntry::Special { path } => (path, SideState::Uncarriable(SPECIAL)),
            TreeEntry::Unreadable { path } => (path, SideState::Uncarriable(UNREADABLE)),
        };
        let path = self.check_path(&path)?;
        let name = path.file_name().unwrap_or_default().as_bytes();
        let is_reserved = name.starts_with(TEMPORARY_PREFIX.as_bytes());
        let is_directory = is_directory(&state);
        let state = match is_reserved && !is_directory {
            true => SideState::Uncarriable(RESERVED),
            false => state,
        };
        self.states.insert(path, state);
        Ok(())
    }

    /// Checks that a path can be an entry of the tree after those that were listed.
    fn check_path(&mut self, path: &Base64Bytes) -> Result<PathBuf, String> {
        let Base64Bytes(bytes) = path;
        self.text_bytes += bytes.len();
        if self.states.len() as u64 >= MAX_COPIED_ENTRIES || self.text_bytes > MAX_TEXT_BYTES {
            return Err(format!(
                "it has more than {MAX_COPIED_ENTRIES} entries, or too long names"
            ));
        }
        let is_name = |name: &[u8]| {
            !matches!(name, b"" | b"." | b"..")
                && name.len() <= MAX_NAME_BYTES
                && !name.contains(&0)
        };
        let mut names = bytes.split(|byte| *byte == b'/');
        if bytes.len() > MAX_PATH_BYTES
            || !names.clone().all(is_name)
            || names.by_ref().count() > MAX_LEVELS
        {
            return Err("it has an impossible name".to_owned());
        }
        let path = Path::new(OsStr::from_bytes(bytes));
        let parent = path.parent().unwrap_or(Path::new(""));
        if !parent.as_os_str().is_empty() && !self.states.get(parent).is_some_and(is_directory) {
            return Err("it has an entry in a directory that it does not list".to_owned());
        }
        match self.states.contains_key(path) {
            true => Err("it has an entry twice".to_owned()),
            false => Ok(path.to_owned()),
        }
    }
}

fn is_directory(state: &SideState) -> bool {
    matches!(state, SideState::Present(PresentEntry { content: EntryContent::Directory, .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &[u8]) -> TreeEntry {
        let digest = Base64Bytes(vec![1; 32]);
        TreeEntry::File { path: Base64Bytes(path.to_vec()), mode: 0o106_755, size: 1, digest }
    }

    fn directory(path: &str) -> TreeEntry {
        TreeEntry::Directory { path: Base64Bytes(path.into()), mode: 0o755 }
    }

    #[test]
    fn an_honest_listing_is_taken_without_special_bits() {
        let mut listing = InsideListing::default();
        for entry in [directory("a"), TreeEntry::Busy, file(b"a/\xff"), file(b"b\n")] {
            listing.add(entry).unwrap();
        }
        assert_eq!(listing.states.len(), 3);
        let SideState::Present(entry) = &listing.states[Path::new("b\n")] else { panic!() };
        assert_eq!(entry.mode, 0o755);
    }

    #[track_caller]
    fn check_refused(entries: &[TreeEntry], expected: &str) {
        let mut listing = InsideListing::default();
        let refused = entries.iter().find_map(|entry| listing.add(entry.clone()).err());
        let refused = refused.expect("the listing is refused");
        assert!(refused.contains(expected), "{refused}");
    }

    #[test]
    fn names_that_lead_out_or_make_no_sense_are_refused() {
        let long = "n".repeat(256);
        let deep = format!("{}x", "d/".repeat(128));
        for name in [
            "", "/", "/etc/x", "../x", "a/../x", "a/..", ".", "./a", "a//b", "a/", "a\0b", &long,
            &deep,
        ] {
            check_refused(&[directory("a"), file(name.as_bytes())], "an impossible name");
        }
    }

    #[test]
    fn listings_that_contradict_themselves_are_refused() {
        let absent = "in a directory that it does not list";
        check_refused(&[file(b"a/b")], absent);
        check_refused(&[file(b"a"), file(b"a/b")], absent);
        let link = |target: &[u8]| TreeEntry::Link {
            path: Base64Bytes(b"a".into()),
            target: Base64Bytes(target.into()),
        };
        check_refused(&[link(b"/etc"), file(b"a/b")], absent);
        check_refused(&[file(b"a"), file(b"a")], "twice");
        check_refused(&[file(b"a"), directory("a")], "twice");
        check_refused(&[link(b"")], "impossible target");
        check_refused(&[link(b"a\0b")], "impossible target");
        let digest = Base64Bytes(vec![1; 31]);
        let path = || Base64Bytes(b"a".into());
        check_refused(&[TreeEntry::File { path: path(), mode: 0, size: 0, digest }], "a digest");
        let digest = Base64Bytes(vec![1; 32]);
        let giant = TreeEntry::File { path: path(), mode: 0, size: u64::MAX, digest };
        check_refused(&[giant], "more than");
        check_refused(&[TreeEntry::End], "follows its end");
        let busy = vec![TreeEntry::Busy; usize::try_from(MAX_COPIED_ENTRIES).unwrap() + 1];
        check_refused(&busy, "does not end");
    }

    #[test]
    fn a_name_of_a_sync_on_the_host_is_not_carried() {
        let mut listing = InsideListing::default();
        listing.add(file(b".ringfence-sync-1")).unwrap();
        let state = &listing.states[Path::new(".ringfence-sync-1")];
        assert_eq!(*state, SideState::Uncarriable(RESERVED));
    }
}
