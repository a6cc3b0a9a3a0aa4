//! Decision of a sync for one path, from what the last sync left there, what the host has, and what
//! the sandbox has. The decision is pure: it reads no file.

use std::path::Path;

use super::entry::{EntryContent, PresentEntry, RecordedEntry, SideState, depth};
use super::rules::PathRule;
use crate::session::stays_below;

pub(super) const HIDDEN: &str = "the policy hides this path";
pub(super) const PROTECTED: &str = "the policy protects this path";
pub(super) const LEADS_OUT: &str = "it is a link that leads out of the workspace";
pub(super) const CHANGED_ON_BOTH_SIDES: &str = "it was changed on the host and in the sandbox";
pub(super) const MADE_ON_BOTH_SIDES: &str =
    "it was made on the host and in the sandbox, and the two differ";
pub(super) const CHANGED_INSIDE_REMOVED_HERE: &str =
    "it was changed in the sandbox and removed on the host";
pub(super) const REMOVED_INSIDE_CHANGED_HERE: &str =
    "it was removed in the sandbox and changed on the host";

/// Action of a sync for one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncAction {
    /// The entry is the same on both sides.
    Keep,
    /// Neither side has the path any more.
    Forget,
    /// Both sides have the same, although the record says otherwise.
    Adopt,
    /// The host's entry goes into the sandbox.
    SendIn,
    /// The entry in the sandbox is removed.
    RemoveInside,
    /// The sandbox's entry comes back to the host.
    BringBack,
    /// The entry on the host is removed.
    RemoveHere,
    /// Both sides changed. Neither wins.
    Conflict(&'static str),
    /// The policy does not let the sandbox change the path.
    Refuse(&'static str),
    /// The entry cannot be carried.
    LeaveOut(&'static str),
}

/// Decides what a sync does with a path.
pub(super) fn decide(
    path: &Path,
    rule: PathRule,
    recorded: Option<&RecordedEntry>,
    host: &SideState,
    inside: &SideState,
) -> SyncAction {
    if rule == PathRule::Hidden {
        return match inside {
            SideState::Absent if recorded.is_some() => SyncAction::Forget,
            SideState::Absent => SyncAction::Keep,
            SideState::Present(_) | SideState::Uncarriable(_) => SyncAction::Refuse(HIDDEN),
        };
    }
    let host_changed = is_changed(host, recorded.map(|entry| (&entry.content, entry.host_mode)));
    let inside_changed =
        is_changed(inside, recorded.map(|entry| (&entry.content, entry.inside_mode)));
    match (host, inside) {
        (SideState::Absent, SideState::Absent) => match recorded {
            Some(_) => return SyncAction::Forget,
            None => return SyncAction::Keep,
        },
        (SideState::Present(host), SideState::Present(inside))
            if (host_changed || inside_changed) && host.is_equivalent(inside) =>
        {
            return SyncAction::Adopt;
        }
        _ => {}
    }
    match (host_changed, inside_changed) {
        (false, false) => SyncAction::Keep,
        (_, true) if rule == PathRule::Protected => SyncAction::Refuse(PROTECTED),
        (true, false) => match host {
            SideState::Absent => SyncAction::RemoveInside,
            SideState::Present(_) => SyncAction::SendIn,
            SideState::Uncarriable(why) => SyncAction::LeaveOut(why),
        },
        (false, true) => {
            match inside {
                SideState::Absent => SyncAction::RemoveHere,
                SideState::Present(PresentEntry {
                    content: EntryContent::Link { target }, ..
                }) if !stays_below(&target.0, depth(path)) => SyncAction::LeaveOut(LEADS_OUT),
                SideState::Present(_) => SyncAction::BringBack,
                SideState::Uncarriable(why) => SyncAction::LeaveOut(why),
            }
        }
        (true, true) => match (host, inside, recorded) {
            (SideState::Uncarriable(why), SideState::Uncarriable(_), _) => {
                SyncAction::LeaveOut(why)
            }
            (SideState::Absent, ..) => SyncAction::Conflict(CHANGED_INSIDE_REMOVED_HERE),
            (_, SideState::Absent, _) => SyncAction::Conflict(REMOVED_INSIDE_CHANGED_HERE),
            (_, _, None) => SyncAction::Conflict(MADE_ON_BOTH_SIDES),
            (_, _, Some(_)) => SyncAction::Conflict(CHANGED_ON_BOTH_SIDES),
        },
    }
}

fn is_changed(state: &SideState, recorded: Option<(&EntryContent, u32)>) -> bool {
    match (state, recorded) {
        (SideState::Absent, None) => false,
        (SideState::Present(entry), Some((content, mode))) => entry.differs(content, mode),
        (SideState::Absent, Some(_)) | (SideState::Present(_), None) => true,
        (SideState::Uncarriable(_), _) => true,
    }
}

#[cfg(test)]
mod tests {
    use ringfence_proto::bytes::Base64Bytes;

    use super::*;

    const SPECIAL: &str = "it is special";

    /// Makes a state from text: `-` absent, `d` directory, `>x` a link to x, `!` special, and any
    /// other text a file with that content, executable if it ends with `*`.
    fn state(text: &str) -> SideState {
        let present = |content, mode| SideState::Present(PresentEntry { content, mode });
        match text {
            "-" => SideState::Absent,
            "!" => SideState::Uncarriable(SPECIAL),
            "d" => present(EntryContent::Directory, 0o755),
            _ => match text.strip_prefix('>') {
                Some(target) => {
                    let target = Base64Bytes(target.as_bytes().to_vec());
                    present(EntryContent::Link { target }, 0o777)
                }
                None => {
                    let (content, mode) = match text.strip_suffix('*') {
                        Some(content) => (content, 0o755),
                        None => (text, 0o644),
                    };
                    let mut digest = [0; 32];
                    digest[..content.len()].copy_from_slice(content.as_bytes());
                    let size = content.len() as u64;
                    present(EntryContent::File { size, digest }, mode)
                }
            },
        }
    }

    fn recorded(text: &str) -> Option<RecordedEntry> {
        match state(text) {
            SideState::Present(PresentEntry { content, mode }) => {
                Some(RecordedEntry { content, host_mode: mode, inside_mode: mode, stamp: None })
            }
            SideState::Absent | SideState::Uncarriable(_) => None,
        }
    }

    #[track_caller]
    fn check(rule: PathRule, before: &str, host: &str, inside: &str, expected: SyncAction) {
        let found =
            decide(Path::new("a/b"), rule, recorded(before).as_ref(), &state(host), &state(inside));
        assert_eq!(found, expected, "{before} on the host {host}, inside {inside}");
    }

    #[test]
    fn a_path_goes_where_only_the_other_side_changed_it() {
        use SyncAction::*;
        for (before, host, inside, expected) in [
            // Nothing changed, or both sides made the same change.
            ("-", "-", "-", Keep),
            ("one", "one", "one", Keep),
            ("d", "d", "d", Keep),
            ("one", "-", "-", Forget),
            ("-", "one", "one", Adopt),
            ("one", "two", "two", Adopt),
            ("-", "d", "d", Adopt),
            // Only the host changed.
            ("-", "one", "-", SendIn),
            ("one", "two", "one", SendIn),
            ("one", "one*", "one", SendIn),
            ("one", "d", "one", SendIn),
            ("d", ">x", "d", SendIn),
            ("one", "-", "one", RemoveInside),
            ("d", "-", "d", RemoveInside),
            ("-", "!", "-", LeaveOut(SPECIAL)),
            ("one", "!", "one", LeaveOut(SPECIAL)),
            // Links on the host travel as they are, wherever they lead.
            ("-", ">/etc/passwd", "-", SendIn),
            // Only the sandbox changed.
            ("-", "-", "one", BringBack),
            ("-", "-", "d", BringBack),
            ("one", "one", "two", BringBack),
            ("one", "one", "one*", BringBack),
            ("one", "one", "d", BringBack),
            ("d", "d", ">x", BringBack),
            (">x", ">x", "one", BringBack),
            ("one", "one", "-", RemoveHere),
            ("d", "d", "-", RemoveHere),
            ("-", "-", "!", LeaveOut(SPECIAL)),
            ("one", "one", "!", LeaveOut(SPECIAL)),
            ("-", "-", ">../x", BringBack),
            ("-", "-", ">../../x", LeaveOut(LEADS_OUT)),
            ("-", "-", ">/etc/passwd", LeaveOut(LEADS_OUT)),
            ("one", "one", ">/etc/passwd", LeaveOut(LEADS_OUT)),
            // Both changed, and neither wins.
            ("-", "one", "two", Conflict(MADE_ON_BOTH_SIDES)),
            ("-", "one", "one*", Conflict(MADE_ON_BOTH_SIDES)),
            ("-", "!", "one", Conflict(MADE_ON_BOTH_SIDES)),
            ("one", "two", "three", Conflict(CHANGED_ON_BOTH_SIDES)),
            ("one", "d", ">x", Conflict(CHANGED_ON_BOTH_SIDES)),
            ("one", "!", "two", Conflict(CHANGED_ON_BOTH_SIDES)),
            ("one", "-", "two", Conflict(CHANGED_INSIDE_REMOVED_HERE)),
            ("one", "two", "-", Conflict(REMOVED_INSIDE_CHANGED_HERE)),
            ("-", "!", "!", LeaveOut(SPECIAL)),
        ] {
            check(PathRule::Free, before, host, inside, expected);
        }
    }

    #[test]
    fn a_protected_path_goes_in_and_never_comes_back() {
        use SyncAction::*;
        for (before, host, inside, expected) in [
            ("-", "one", "-", SendIn),
            ("one", "two", "one", SendIn),
            ("one", "-", "one", RemoveInside),
            ("one", "one", "two", Refuse(PROTECTED)),
            ("one", "one", "one*", Refuse(PROTECTED)),
            ("one", "one", "-", Refuse(PROTECTED)),
            ("one", "one", ">x", Refuse(PROTECTED)),
            ("one", "two", "three", Refuse(PROTECTED)),
            ("-", "-", "one", Refuse(PROTECTED)),
            ("-", "-", "d", Refuse(PROTECTED)),
        ] {
            check(PathRule::Protected, before, host, inside, expected);
        }
    }

    #[test]
    fn a_hidden_path_goes_neither_in_nor_back() {
        use SyncAction::*;
        for (before, host, inside, expected) in [
            ("-", "one", "-", Keep),
            ("-", "-", "one", Refuse(HIDDEN)),
            ("-", "one", "one", Refuse(HIDDEN)),
            ("-", "-", "d", Refuse(HIDDEN)),
            ("-", "-", "!", Refuse(HIDDEN)),
        ] {
            check(PathRule::Hidden, before, host, inside, expected);
        }
    }

    #[test]
    fn the_umask_of_the_host_is_no_change() {
        let mut before = recorded("one").unwrap();
        before.host_mode = 0o600;
        let host = match state("one") {
            SideState::Present(entry) => SideState::Present(PresentEntry { mode: 0o600, ..entry }),
            other => other,
        };
        let free = PathRule::Free;
        let path = Path::new("a");
        assert_eq!(decide(path, free, Some(&before), &host, &state("one")), SyncAction::Keep);
        assert_eq!(decide(path, free, None, &host, &state("one")), SyncAction::Adopt);
        assert_eq!(
            decide(path, free, Some(&before), &state("one"), &state("one")),
            SyncAction::Adopt
        );
    }
}
