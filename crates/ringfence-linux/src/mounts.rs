//! Building a root from nothing: a file system in memory into which parts of the host are mounted.
//!
//! Every source is opened before the new root covers anything. Every destination is opened without
//! following a symbolic link. No mount point is ever created on the host's files.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat2, symlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_reconfigure, fsconfig_set_string,
    fsmount, fsopen, fspick, mount_change, move_mount, open_tree, unmount,
};

use crate::init::{SetupError, StepContext};
use crate::shares;
use crate::streams::{TERMINAL_NAMES, terminal_path};
use crate::sys::mount::{MountRestriction, restrict, restrict_tree};
use crate::view::{Access, Entry, SHARED_MEMORY_SIZE, View, inode_limit};

/// Devices that programs expect. Each is the host's own device file, mounted individually.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Symbolic links in `/dev` that programs expect, as names and targets.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Capacity of the root itself, in bytes: directories, links and small files.
const ROOT_SIZE: u64 = 16 << 20;
/// Inodes of the root itself. The policy determines how many are used before the command starts,
/// and the command can add none.
const ROOT_INODES: u64 = 1 << 16;
/// Existing directory that the new root covers while it is being built. Covering `/usr` is
/// harmless, because every source below it is opened before.
const BUILD_MOUNT_POINT: &str = "/usr";

/// A source of a bind, opened on the host.
struct BindSource {
    tree: OwnedFd,
    is_directory: bool,
}

/// Builds the root that `view` describes and makes it the root of this process.
pub(crate) fn build_root(view: &View) -> Result<(), SetupError> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .step("make mounts private")?;
    let mut sources = Vec::with_capacity(view.entries.len());
    for entry in &view.entries {
        sources.push(match entry {
            Entry::Bind { source, access, .. } => Some(open_source(source, *access)?),
            _ => None,
        });
    }
    let devices = DEVICES.map(|name| open_device(Path::new("/dev").join(name)));
    let terminals = open_terminals();

    let root = create_tmpfs(ROOT_SIZE, ROOT_INODES, 0o755).step("make a root in memory")?;
    move_mount(&root, "", CWD, BUILD_MOUNT_POINT, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step("mount the new root")?;
    let device = device_of(&root).step("look at the new root")?;
    let mut root = NewRoot { fd: root, memory: vec![device], parents: HashMap::new() };

    root.mount_devices(devices, terminals)?;
    for (entry, source) in view.entries.iter().zip(sources) {
        root.apply(entry, source)?;
    }
    root.mount_proc()?;

    rustix::process::fchdir(&root.fd).step("enter the new root")?;
    // pivot_root(2): with both arguments equal, the old root is stacked on the new root and can be
    // detached.
    rustix::process::pivot_root(".", ".").step("change the root")?;
    unmount(".", UnmountFlags::DETACH).step("detach the old root")?;
    restrict(root.fd.as_fd(), MountRestriction::Writing).step("make the root read-only")?;
    rustix::process::chdir("/").step("enter the root")
}

/// Mounts `entries` below the current root of this process, without following a symbolic link on
/// the way to any of them.
///
/// The mount points must exist, and so must the covers of hidden paths.
pub(crate) fn mount_entries(entries: &[Entry]) -> Result<(), SetupError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/", flags, Mode::empty()).step("open the root")?;
    let mut root = NewRoot { fd, memory: Vec::new(), parents: HashMap::new() };
    for entry in entries {
        match entry {
            Entry::Bind { source, destination, access } => {
                let BindSource { tree, .. } = open_source(source, *access)?;
                let target = root
                    .open(destination)
                    .step(format_args!("find `{}` inside", destination.display()))?;
                let step = format_args!("mount `{}`", destination.display());
                root.mount(&tree, &target, destination).step(step)?;
            }
            other => root.apply(other, None)?,
        }
    }
    Ok(())
}

/// The new root while it is being built.
struct NewRoot {
    fd: OwnedFd,
    /// Device numbers of our own file systems in memory. Mount points may be created only there.
    memory: Vec<u64>,
    /// Open directories in these file systems, by their paths inside. The directories are cached
    /// because most entries share a few parents.
    parents: HashMap<PathBuf, Rc<OwnedFd>>,
}

impl NewRoot {
    fn apply(&mut self, entry: &Entry, source: Option<BindSource>) -> Result<(), SetupError> {
        match entry {
            Entry::Directory { path } => drop(self.open_directory(path)?),
            Entry::Symlink { path, target } => {
                let (parent, name) = self.open_parent(path)?;
                symlinkat(target, &*parent, name)
                    .step(format_args!("link `{}`", path.display()))?;
            }
            Entry::File { path, contents } => {
                let file = self.open_file(path)?;
                write_all(&file, contents).step(format_args!("write `{}`", path.display()))?;
            }
            Entry::Scratch { path, size, mode } => {
                let target = self.open_directory(path)?;
                let scratch = create_tmpfs(*size, inode_limit(*size), *mode)
                    .step("make a file system in memory")?;
                self.memory.push(device_of(&scratch).step("look at a file system in memory")?);
                self.mount(&scratch, &target, path)
                    .step(format_args!("mount `{}`", path.display()))?;
            }
            Entry::Bind { source: path, destination, .. } => {
                let source = source.expect("every bind's source was opened");
                let target = if source.is_directory {
                    self.open_directory(destination)?
                } else {
                    self.open_file(destination)?
                };
                self.mount(&source.tree, &target, destination).step(format_args!(
                    "mount `{}` at `{}`",
                    path.display(),
                    destination.display()
                ))?;
            }
            Entry::Pin { path } => self.remount(path, None)?,
            Entry::Protect { path } => self.remount(path, Some(MountRestriction::Writing))?,
            Entry::Hide { path } => self.hide(path)?,
        }
        Ok(())
    }

    fn mount_devices(
        &mut self,
        devices: [Result<OwnedFd, SetupError>; DEVICES.len()],
        terminals: Vec<OwnedFd>,
    ) -> Result<(), SetupError> {
        let dev = Path::new("/dev");
        for (name, device) in DEVICES.iter().zip(devices) {
            let target = self.open_file(&dev.join(name))?;
            mount_on(&device?, &target).step(format_args!("mount the device `{name}`"))?;
        }
        for (name, terminal) in TERMINAL_NAMES.iter().zip(terminals) {
            // Programs that ask for the name of their terminal find it at this path, because the
            // host's devpts is absent.
            let target = self.open_file(&dev.join(name))?;
            mount_on(&terminal, &target).step("mount the terminal")?;
        }
        for (name, target) in DEVICE_LINKS {
            self.apply(&Entry::Symlink { path: dev.join(name), target: target.into() }, None)?;
        }
        let terminals = create_filesystem(
            "devpts",
            &[("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")],
        );
        let target = self.open_directory(&dev.join("pts"))?;
        mount_on(&terminals.step("make a devpts")?, &target).step("mount a devpts")?;
        self.apply(
            &Entry::Scratch { path: dev.join("shm"), size: SHARED_MEMORY_SIZE, mode: 0o1777 },
            None,
        )
    }

    fn mount_proc(&mut self) -> Result<(), SetupError> {
        let target = self.open_directory(Path::new("/proc"))?;
        let proc = detached_proc().step("make a proc")?;
        shares::limit_watchers(&proc).step("limit the watchers of files")?;
        mount_on(&proc, &target).step("mount a proc")?;
        for entry in View::proc_entries() {
            unless_missing(self.apply(&entry, None))?;
        }
        Ok(())
    }

    /// Mounts a path onto itself, with `restriction` if there is one.
    fn remount(
        &mut self,
        path: &Path,
        restriction: Option<MountRestriction>,
    ) -> Result<(), SetupError> {
        let target = self.open(path).step(format_args!("find `{}` inside", path.display()))?;
        let tree = clone_tree(&target, CloneDepth::Deep)
            .step(format_args!("open `{}` inside", path.display()))?;
        if let Some(restriction) = restriction {
            restrict_tree(tree.as_fd(), restriction)
                .step(format_args!("restrict `{}`", path.display()))?;
        }
        self.mount(&tree, &target, path)
            .step(format_args!("mount `{}` onto itself", path.display()))
    }

    /// Covers a file or directory with an empty one of the same kind that nobody may open.
    fn hide(&mut self, path: &Path) -> Result<(), SetupError> {
        let target = self.open(path).step(format_args!("find `{}` inside", path.display()))?;
        let is_directory =
            is_directory(&target).step(format_args!("look at `{}`", path.display()))?;
        let cover = if is_directory { View::COVER_DIRECTORY } else { View::COVER_FILE };
        let cover = match openat2(&self.fd, cover, OFlags::PATH, Mode::empty(), RESOLVE_FLAGS) {
            Err(Errno::NOENT) => {
                if is_directory {
                    mkdirat(&self.fd, cover, Mode::empty()).step("make a cover")?;
                } else {
                    let create = OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC;
                    drop(
                        rustix::fs::openat(&self.fd, cover, create, Mode::empty())
                            .step("make a cover")?,
                    );
                }
                openat2(&self.fd, cover, OFlags::PATH, Mode::empty(), RESOLVE_FLAGS)
            }
            opened => opened,
        };
        let tree =
            clone_tree(&cover.step("open a cover")?, CloneDepth::Shallow).step("open a cover")?;
        restrict(tree.as_fd(), MountRestriction::Writing).step("restrict a cover")?;
        mount_on(&tree, &target).step(format_args!("cover `{}`", path.display()))
    }

    /// Opens an existing path inside without following symbolic links.
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat2(&self.fd, relative(path), flags, Mode::empty(), RESOLVE_FLAGS)
    }

    /// Opens a directory below the new root. Creates the directory and its parents if they are
    /// missing.
    fn open_directory(&mut self, path: &Path) -> Result<OwnedFd, SetupError> {
        self.open_or_make(path, |parent, name| {
            match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {
                    let flags =
                        OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
                    rustix::fs::openat(parent, name, flags, Mode::empty())
                }
                Err(error) => Err(error),
            }
        })
    }

    /// Opens a file below the new root. Creates the file and its parents if they are missing.
    fn open_file(&mut self, path: &Path) -> Result<OwnedFd, SetupError> {
        self.open_or_make(path, |parent, name| {
            let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o644))
        })
    }

    /// Opens a path below the new root. If its parent is on our own file systems, `make` creates
    /// and opens the path.
    fn open_or_make(
        &mut self,
        path: &Path,
        make: impl FnOnce(&OwnedFd, &OsStr) -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, SetupError> {
        match self.open_parent(path) {
            Ok((parent, name)) => {
                make(&parent, name).step(format_args!("make `{}` inside", path.display()))
            }
            // The parent may be on the host's files: then the path must already exist.
            Err(why) => self.open(path).map_err(|_| why),
        }
    }

    /// Opens the parent of a path that is to be created. Returns the parent and the last component.
    ///
    /// Fails if the parent is on the host's files.
    fn open_parent<'p>(&mut self, path: &'p Path) -> Result<(Rc<OwnedFd>, &'p OsStr), SetupError> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::other("it has no parent"))
                .step(format_args!("make `{}`", path.display()));
        };
        if let Some(parent) = self.parents.get(above) {
            return Ok((Rc::clone(parent), name));
        }
        let parent = self.open_directory(above)?;
        let device =
            device_of(&parent).step(format_args!("look at the parent of `{}`", path.display()))?;
        if !self.memory.contains(&device) {
            return Err(io::Error::other(
                "its parent is a directory of the host, where nothing is ever made",
            ))
            .step(format_args!("make a mount point at `{}`", path.display()));
        }
        let parent = Rc::new(parent);
        self.parents.insert(above.to_path_buf(), Rc::clone(&parent));
        Ok((parent, name))
    }

    /// Mounts a tree on a path. Forgets the cached directories at or below the path, because the
    /// mount hides them.
    fn mount(&mut self, tree: &OwnedFd, target: &OwnedFd, path: &Path) -> Result<(), Errno> {
        self.parents.retain(|known, _| !known.starts_with(path));
        mount_on(tree, target)
    }
}

const RESOLVE_FLAGS: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_SYMLINKS);

/// Extent of the mounts that are cloned: one mount, or also every mount below it.
#[derive(Clone, Copy)]
enum CloneDepth {
    Shallow,
    Deep,
}

fn clone_tree(fd: impl AsFd, recursion: CloneDepth) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if let CloneDepth::Deep = recursion {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(fd, "", flags)
}

fn open_source(path: &Path, access: Access) -> Result<BindSource, SetupError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .step(format_args!("open `{}` on the host", path.display()))?;
    let is_directory = is_directory(&fd).step(format_args!("look at `{}`", path.display()))?;
    let tree = clone_tree(&fd, CloneDepth::Deep)
        .step(format_args!("clone the mount of `{}`", path.display()))?;
    let restriction = match access {
        Access::Read => MountRestriction::Writing,
        Access::Write => MountRestriction::DevicesAndPrivilege,
    };
    restrict_tree(tree.as_fd(), restriction).step(format_args!("restrict `{}`", path.display()))?;
    Ok(BindSource { tree, is_directory })
}

/// Opens a device file as a mount. Unlike other sources, the mount must stay usable as a device.
fn open_device(path: PathBuf) -> Result<OwnedFd, SetupError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let device =
        open_tree(CWD, &path, flags).step(format_args!("open the device `{}`", path.display()))?;
    restrict(device.as_fd(), MountRestriction::Changing)
        .step(format_args!("restrict the device `{}`", path.display()))?;
    Ok(device)
}

/// Restricts the devices that another program mounted in `/dev`, as [`open_device`] restricts ours.
///
/// The devices are the host's own files, and root could change their modes.
pub(crate) fn restrict_devices() -> Result<(), SetupError> {
    for (path, is_terminal) in device_paths() {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let step = || format!("restrict the device `{}`", path.display());
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Err(Errno::NOENT) if is_terminal => {}
            device => {
                restrict(device.step(step())?.as_fd(), MountRestriction::Changing).step(step())?
            }
        }
    }
    Ok(())
}

/// Returns the paths of the devices and terminals that a sandbox may have. The second value is true
/// for terminals, which may be absent.
fn device_paths() -> impl Iterator<Item = (PathBuf, bool)> {
    let named = |name: &&str, is_terminal| (Path::new("/dev").join(name), is_terminal);
    let devices = DEVICES.iter().map(move |name| named(name, false));
    devices.chain(TERMINAL_NAMES.iter().map(move |name| named(name, true)))
}

/// Opens each distinct terminal among the standard streams as a mount. Omits terminals that have no
/// name here.
///
/// A terminal is opened by its name, because a descriptor from another mount namespace cannot be
/// cloned.
fn open_terminals() -> Vec<OwnedFd> {
    let mut paths = Vec::new();
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
        paths.extend(terminal_path(stream).filter(|path| !paths.contains(path)));
    }
    paths.iter().filter_map(|path| open_terminal(path)).collect()
}

fn open_terminal(path: &Path) -> Option<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, path, flags).ok()?;
    restrict(tree.as_fd(), MountRestriction::Changing).is_ok().then_some(tree)
}

/// Limits the inodes of a file system in memory that another program created.
///
/// `root` is a descriptor of the root of its mount, so that no symbolic link can lead elsewhere.
pub fn limit_inodes(root: impl AsFd, inodes: u64) -> Result<(), Errno> {
    let context = fspick(root, "", FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH)?;
    fsconfig_set_string(&context, "nr_inodes", inodes.to_string())?;
    fsconfig_reconfigure(&context)
}

/// Creates a proc file system for the pid namespace of this process, without mounting it.
pub(crate) fn detached_proc() -> Result<OwnedFd, Errno> {
    create_filesystem("proc", &[])
}

fn create_filesystem(kind: &str, options: &[(&str, &str)]) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(&context, *key)?;
        } else {
            fsconfig_set_string(&context, *key, *value)?;
        }
    }
    fsconfig_create(&context)?;
    let attributes = match kind {
        "devpts" => MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
        "proc" => {
            MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NOEXEC
                | MountAttrFlags::MOUNT_ATTR_NODEV
        }
        _ => MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    };
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn create_tmpfs(size: u64, inodes: u64, mode: u32) -> Result<OwnedFd, Errno> {
    let (size, inodes, mode) = (size.to_string(), inodes.to_string(), format!("{mode:o}"));
    create_filesystem("tmpfs", &[("size", &size), ("nr_inodes", &inodes), ("mode", &mode)])
}

fn mount_on(tree: impl AsFd, target: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags)
}

fn is_directory(fd: impl AsFd) -> Result<bool, Errno> {
    Ok(FileType::from_raw_mode(fstat(fd)?.st_mode) == FileType::Directory)
}

fn device_of(fd: impl AsFd) -> Result<u64, Errno> {
    Ok(fstat(fd)?.st_dev)
}

fn relative(path: &Path) -> &Path {
    let mut components = path.components();
    if components.clone().next() == Some(Component::RootDir) {
        components.next();
    }
    let rest = components.as_path();
    if rest.as_os_str().is_empty() { Path::new(".") } else { rest }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::write(file, bytes)?;
        bytes = &bytes[written..];
    }
    Ok(())
}

fn unless_missing(result: Result<(), SetupError>) -> Result<(), SetupError> {
    match result {
        Err(error) if error.source.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}
