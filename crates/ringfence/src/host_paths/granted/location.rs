//! Real location of a path: the links on the way to it, and its location in its file system. A bind
//! mount shares that location with the directory that it shows.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;

use crate::view::is_resolved;

/// Limit of links to follow; a kernel follows no more than this (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Result of following a path that need not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FollowedPath {
    /// Symbolic links on the way, each under a path without links.
    pub(super) links: Vec<PathBuf>,
    /// Path that the last link leads to. Components that do not exist are taken as plain names.
    pub(super) end: PathBuf,
}

impl FollowedPath {
    /// Follows an absolute path.
    pub(super) fn follow(path: &Path) -> FollowedPath {
        // Fast path: in the usual case, one system call shows that there is no link to follow.
        if is_resolved(path) {
            return FollowedPath { links: Vec::new(), end: path.components().collect() };
        }
        let mut links = Vec::new();
        let mut end = PathBuf::from("/");
        let mut left: Vec<OsString> = names_in_reverse(path);
        while let Some(name) = left.pop() {
            if name == ".." {
                end.pop();
                continue;
            }
            let next = end.join(&name);
            match fs_err::read_link(&next) {
                Ok(target) if links.len() < MAX_LINKS => {
                    if target.is_absolute() {
                        end = PathBuf::from("/");
                    }
                    left.extend(names_in_reverse(&target));
                    links.push(next);
                }
                _ => end = next,
            }
        }
        FollowedPath { links, end }
    }

    /// Follows an absolute path to a file or directory that exists. The error does not name the
    /// path.
    pub(super) fn follow_existing(path: &Path) -> io::Result<FollowedPath> {
        let followed = FollowedPath::follow(path);
        if followed.links.len() >= MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        std::fs::symlink_metadata(&followed.end)?;
        Ok(followed)
    }
}

/// Returns the components of a path, the last one first.
fn names_in_reverse(path: &Path) -> Vec<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    let mut names: Vec<OsString> = path.components().filter_map(name).collect();
    names.reverse();
    names
}

/// Location in a file system, independent of mount points.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct FileSystemLocation {
    /// Device number of the file system, as "major:minor".
    device: String,
    path: PathBuf,
}

/// All names of a path: paths, and locations in file systems.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PathNames {
    paths: BTreeSet<PathBuf>,
    locations: BTreeSet<FileSystemLocation>,
}

impl PathNames {
    /// Tells whether one of these names equals or lies in one of `other`.
    pub(super) fn lies_in(&self, other: &PathNames) -> bool {
        let lies = |path: &PathBuf| other.paths.iter().any(|above| path.starts_with(above));
        let is_located = |own: &FileSystemLocation| {
            other
                .locations
                .iter()
                .any(|above| own.device == above.device && own.path.starts_with(&above.path))
        };
        self.paths.iter().any(lies) || self.locations.iter().any(is_located)
    }
}

/// One line of the mount table (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
struct MountEntry {
    id: u64,
    device: String,
    /// Directory of the file system that is mounted.
    root: PathBuf,
    /// Path of the mount point.
    point: PathBuf,
}

/// Mounts of this process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MountTable(Vec<MountEntry>);

impl MountTable {
    pub(crate) fn read() -> MountTable {
        // Use a large buffer to read the table at once, because the kernel makes the table anew for
        // each read.
        let mut table = Vec::with_capacity(1 << 16);
        let opened = fs_err::File::open("/proc/self/mountinfo");
        // Ignore errors: without the table, paths have no locations.
        let _ = opened.and_then(|mut file| file.read_to_end(&mut table));
        MountTable(table.split(|byte| *byte == b'\n').filter_map(MountEntry::parse).collect())
    }

    /// Returns all names of the given paths, and the locations of everything that is mounted below
    /// them.
    pub(super) fn names<'p>(&self, paths: impl IntoIterator<Item = &'p Path>) -> PathNames {
        let mut names = PathNames::default();
        for path in paths {
            names.paths.insert(path.to_path_buf());
            names.locations.extend(self.locate(path));
            let below = self.0.iter().filter(|mount| is_below(&mount.point, path));
            names.locations.extend(below.map(MountEntry::location));
        }
        names
    }

    /// Returns `true` if a mount may give a further path to a file in one of `trees`.
    ///
    /// Without bind mounts, this check costs one system call for each tree.
    pub(crate) fn has_other_names<'p>(&self, trees: impl IntoIterator<Item = &'p Path>) -> bool {
        trees.into_iter().any(|tree| {
            let below = self.0.iter().filter(|mount| is_below(&mount.point, tree));
            let below = below.map(|mount| (mount.point.as_path(), mount.location()));
            let own = self.locate(tree).map(|location| (tree, location));
            let mut shown = own.into_iter().chain(below);
            shown.any(|(path, location)| {
                self.0.iter().any(|mount| match mount.name_of(&location) {
                    Some(MountedName::Whole(name)) => name != path,
                    Some(MountedName::Part(rest)) => mount.point != path.join(rest),
                    None => false,
                })
            })
        })
    }

    /// Returns the other paths under which mounts show a file or directory, or a part of it.
    pub(crate) fn other_names(&self, path: &Path) -> Vec<PathBuf> {
        let below =
            self.0.iter().filter(|mount| is_below(&mount.point, path)).map(MountEntry::location);
        let locations: BTreeSet<FileSystemLocation> =
            self.locate(path).into_iter().chain(below).collect();
        let mut names = BTreeSet::new();
        for (location, mount) in
            locations.iter().flat_map(|location| self.0.iter().map(move |mount| (location, mount)))
        {
            let name = match mount.name_of(location) {
                Some(MountedName::Whole(name)) => name,
                Some(MountedName::Part(_)) => mount.point.clone(),
                None => continue,
            };
            if !name.starts_with(path) && !names.contains(&name) && mount.shows(&name) {
                names.insert(name);
            }
        }
        names.into_iter().collect()
    }

    /// Returns the location of a path in its file system. The path need not exist.
    fn locate(&self, path: &Path) -> Option<FileSystemLocation> {
        let mount = path.ancestors().find_map(|above| {
            let stat = statx(CWD, above, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID).ok()?;
            // Kernels before 5.8 do not report the mount ID, and leave its bit out of the mask.
            let is_reported = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
            is_reported.then(|| self.0.iter().find(|mount| mount.id == stat.stx_mnt_id)).flatten()
        });
        let deepest = || {
            let above = self.0.iter().filter(|mount| path.starts_with(&mount.point));
            above.max_by_key(|mount| mount.point.components().count())
        };
        let mount = mount.filter(|mount| path.starts_with(&mount.point)).or_else(deepest)?;
        let rest = path.strip_prefix(&mount.point).ok()?;
        Some(FileSystemLocation {
            device: mount.device.clone(),
            path: mount.root.join(rest).components().collect(),
        })
    }
}

impl MountEntry {
    fn parse(line: &[u8]) -> Option<MountEntry> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = String::from_utf8(fields.nth(1)?.to_vec()).ok()?;
        Some(MountEntry {
            id,
            device,
            root: decode_mount_path(fields.next()?),
            point: decode_mount_path(fields.next()?),
        })
    }

    fn location(&self) -> FileSystemLocation {
        FileSystemLocation { device: self.device.clone(), path: self.root.clone() }
    }

    /// Returns the name that the mount gives to a location, or `None` if the mount does not show
    /// the location.
    fn name_of(&self, location: &FileSystemLocation) -> Option<MountedName> {
        if self.device != location.device {
            return None;
        }
        if let Ok(rest) = location.path.strip_prefix(&self.root) {
            return Some(MountedName::Whole(self.point.join(rest).components().collect()));
        }
        self.root
            .strip_prefix(&location.path)
            .ok()
            .map(|rest| MountedName::Part(rest.to_path_buf()))
    }

    /// Returns `true` if a path leads into this mount, and no other mount covers the path. A
    /// missing path is not shown. A path that cannot be looked up counts as shown.
    fn shows(&self, path: &Path) -> bool {
        match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID) {
            Ok(stat) => {
                stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 || stat.stx_mnt_id == self.id
            }
            Err(error) => !matches!(error, Errno::NOENT | Errno::NOTDIR),
        }
    }
}

/// Name that a mount gives to a location in a file system.
enum MountedName {
    /// The mount shows the whole location, at this path.
    Whole(PathBuf),
    /// The mount shows only a part of the location, which has this path in the location.
    Part(PathBuf),
}

fn is_below(path: &Path, above: &Path) -> bool {
    path != above && path.starts_with(above)
}

/// Decodes a path of the mount table, in which white space and backslashes are octal.
fn decode_mount_path(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = fs_err::canonicalize(directory.path()).unwrap();
        (directory, path)
    }

    #[test]
    fn every_link_on_the_way_is_reported_and_so_is_a_missing_end() {
        let (_kept, root) = directory();
        fs_err::create_dir_all(root.join("real/sub")).unwrap();
        symlink("../real", root.join("real/up")).unwrap();
        symlink(root.join("real/up"), root.join("link")).unwrap();
        symlink("missing/x", root.join("dangling")).unwrap();
        let followed = |path: &str| FollowedPath::follow(&root.join(path));
        let links = |names: &[&str]| names.iter().map(|name| root.join(name)).collect::<Vec<_>>();
        assert_eq!(
            followed("real/sub"),
            FollowedPath { links: vec![], end: root.join("real/sub") }
        );
        assert_eq!(
            followed("real/new/x"),
            FollowedPath { links: vec![], end: root.join("real/new/x") }
        );
        assert_eq!(
            followed("link/sub"),
            FollowedPath { links: links(&["link", "real/up"]), end: root.join("real/sub") }
        );
        assert_eq!(
            followed("dangling/y"),
            FollowedPath { links: links(&["dangling"]), end: root.join("missing/x/y") }
        );
        symlink("loop", root.join("loop")).unwrap();
        assert!(followed("loop/x").links.len() >= MAX_LINKS, "a loop comes to an end");
    }

    #[test]
    fn a_bind_mount_is_where_its_directory_is() {
        let mount = |id: u64, device: &str, root: &str, point: &str| MountEntry {
            id,
            device: device.to_owned(),
            root: root.into(),
            point: point.into(),
        };
        let table = MountTable(vec![
            mount(u64::MAX, "8:1", "/", "/"),
            mount(u64::MAX - 1, "8:1", "/nowhere/ada/.config", "/nowhere/mnt/bind"),
            mount(u64::MAX - 2, "8:2", "/", "/nowhere/volume"),
        ]);
        let names = |path: &str| table.names([Path::new(path)]);
        let config = names("/nowhere/ada/.config/ringfence");
        for holder in
            ["/nowhere/mnt/bind", "/nowhere/mnt", "/nowhere", "/nowhere/mnt/bind/ringfence"]
        {
            assert!(config.lies_in(&names(holder)), "{holder}");
        }
        assert!(names("/nowhere/mnt/bind/ringfence/x").lies_in(&config));
        for other in ["/nowhere/mnt/bind/other", "/nowhere/volume", "/nowhere/ada/.configuration"] {
            assert!(!config.lies_in(&names(other)) && !names(other).lies_in(&config), "{other}");
        }
    }

    #[test]
    fn a_file_has_a_name_in_every_mount_that_shows_it() {
        let mount = |id: u64, device: &str, root: &str, point: &str| MountEntry {
            id,
            device: device.to_owned(),
            root: root.into(),
            point: point.into(),
        };
        let (_kept, root) = directory();
        let path = |name: &str| root.join(name);
        for directory in ["ws/a", "ws/b", "ws/volume", "ws/other", "m"] {
            fs_err::create_dir_all(path(directory)).unwrap();
        }
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let (ws, a) = (text(path("ws")), text(path("ws/a")));
        let plain = vec![mount(u64::MAX, "8:1", "/", "/")];
        let bound = |root: &str, point: &str| {
            let mut table = plain.clone();
            table.push(mount(u64::MAX - 1, "8:1", root, &text(path(point))));
            MountTable(table)
        };
        let has_names = |table: &MountTable| table.has_other_names([path("ws").as_path()]);
        assert!(!has_names(&MountTable(plain.clone())), "one mount gives one name");
        assert!(!has_names(&bound("/elsewhere", "m")), "another part of the filesystem is mounted");
        for (root, point) in [(ws.as_str(), "m"), (&a, "ws/b"), (&a, "m"), ("/elsewhere", "ws/b")] {
            assert!(has_names(&bound(root, point)), "{root} at {point}");
        }
        let volumes = [("/", "ws/volume"), ("/", "ws/other")]
            .map(|(root, at)| mount(7, "8:2", root, &text(path(at))));
        assert!(
            has_names(&MountTable(plain.iter().cloned().chain(volumes).collect())),
            "a volume is mounted twice"
        );

        for file in ["ws/a/key", "ws/b/key", "m/a/key"] {
            fs_err::create_dir_all(path(file).parent().unwrap()).unwrap();
            fs_err::write(path(file), "").unwrap();
        }
        // The kernel knows none of these mounts, so they have the ID of the mount that holds the
        // directory.
        let id = statx(CWD, &root, AtFlags::empty(), StatxFlags::MNT_ID).unwrap().stx_mnt_id;
        let table = MountTable(vec![
            mount(id, "8:1", "/", "/"),
            mount(id, "8:1", &a, &text(path("ws/b"))),
            mount(id, "8:1", &ws, &text(path("m"))),
            mount(id, "8:1", &a, &text(path("gone"))),
            mount(id + 1, "8:1", &a, &text(path("ws/volume"))),
        ]);
        assert_eq!(table.other_names(&path("ws/a/key")), [path("m/a/key"), path("ws/b/key")]);
        assert_eq!(table.other_names(&path("ws/a")), [path("m/a"), path("ws/b")]);
        assert_eq!(table.other_names(&path("ws")), [path("m"), path("m/a")]);
        assert_eq!(table.other_names(&path("ws/other")), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_line_of_the_mount_table_is_read_back() {
        let line = b"36 35 98:0 /m\\040nt /mnt\\134x rw,noatime master:1 - ext3 /dev/root rw";
        let expected = MountEntry {
            id: 36,
            device: "98:0".to_owned(),
            root: "/m nt".into(),
            point: "/mnt\\x".into(),
        };
        assert_eq!(MountEntry::parse(line), Some(expected));
        assert_eq!(MountEntry::parse(b""), None);
        assert!(MountTable::read().0.iter().any(|mount| mount.point == Path::new("/")));
    }
}
