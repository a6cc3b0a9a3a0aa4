//! View of a sandbox, built on the host from a plan.
//!
//! The default view consists of system directories, an `/etc` with the files that programs need,
//! the toolchains that the caller's `PATH` reaches, a private home, a private `/tmp` and the
//! workspace. Everything else is absent.

mod deciders;
mod etc;
mod git;
mod guarded;
mod guarded_links;
mod observed;
mod patterns;
mod search_cache;
mod toolchains;
mod visible_names;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use ringfence_linux::gate::{GateKind, RESOLVER_ADDRESS};
use ringfence_linux::{Access, Entry, View};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::Host;
use crate::backends::LaunchInputs;
use crate::egress::{self, LoadedCredentials};
use crate::host_paths::granted::{GrantError, GrantedPath};

pub(crate) use deciders::WatchedPaths;
use guarded::GuardEntries;
pub(crate) use guarded::Guarded;
use visible_names::VisibleNames;

/// Home directory inside for callers without a usable home.
const FALLBACK_HOME: &str = "/home/sandbox";
/// Path of the workspace in a container. A workspace whose path inside differs from that on the
/// host is also shown at this path.
const WORKSPACE_PATH: &str = "/workspace";
/// System directories that are readable inside. The first-level links of a merged `/usr` are links
/// inside, too.
const SYSTEM_DIRECTORIES: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix"];
/// Variables of the caller that are passed without being named in the policy.
const PASSED_VARIABLES: [&str; 5] = ["USER", "LOGNAME", "LANG", "TERM", "COLORTERM"];

/// View of a sandbox, with its environment.
#[derive(Debug)]
pub(crate) struct SandboxView {
    /// Files and directories that are visible inside.
    pub(crate) view: View,
    /// Environment variables inside.
    pub(crate) variables: BTreeMap<OsString, OsString>,
}

/// Reason why a path of a policy cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The path does not exist or cannot be followed.
    #[error("cannot find `{path}`, which the policy's `{key}` names")]
    Missing {
        /// Absolute path that the policy names.
        path: PathBuf,
        /// Key of the policy that names the path, `read` or `write`.
        key: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The path is reserved, because the sandbox has its own.
    #[error("cannot show `{path}` of the host inside: the sandbox has its own")]
    Reserved {
        /// Path that cannot be shown.
        path: PathBuf,
    },
    /// A file that decides what git on the host executes cannot be read.
    #[error("cannot read `{path}`, which decides what programs git executes on the host")]
    Undecided {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system, or the limit that the file exceeds.
        source: io::Error,
    },
    /// The path must not be given to any sandbox.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The workspace could not be searched for the paths that `hide` or `protect` match.
    #[error("cannot search `{path}` for what `hide` and `protect` match")]
    Search {
        /// Path at which the search failed.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The rules cover more paths than can be guarded one by one.
    #[error("`hide` and `protect` cover more than {limit} paths one by one, `{path}` among them")]
    TooManyPaths {
        /// One of the paths that the rules cover.
        path: PathBuf,
        /// Maximum number of paths that can be guarded.
        limit: usize,
    },
    /// More links lead to guarded files than can be watched.
    #[error("more than {limit} links lead to what `hide` and `protect` match, `{path}` among them")]
    TooManyLinks {
        /// One of the links to guarded files.
        path: PathBuf,
        /// Maximum number of links that can be watched.
        limit: usize,
    },
    /// The list of links to guarded files that earlier runs removed cannot be read.
    #[error(
        "cannot read `{path}`, the list of links to hidden or protected files that runs in this \
         workspace removed"
    )]
    RemovedLinks {
        /// Path of the file that holds the list.
        path: PathBuf,
        /// Error of reading or parsing the list.
        source: io::Error,
    },
}

impl ViewError {
    /// Returns the next thing for the user to do.
    pub fn hint(&self) -> String {
        match self {
            ViewError::Missing { path, key, .. } => {
                format!("create `{}`, or take it out of `{key}`", path.display())
            }
            ViewError::Grant(error) => error.hint(),
            ViewError::Reserved { .. } => {
                "name the paths below it that the command needs".to_owned()
            }
            ViewError::Undecided { path, .. } => {
                format!("examine it, then make it readable: chmod u+rw '{}'", path.display())
            }
            ViewError::Search { .. } => {
                "make it readable, or narrow the patterns to literal paths".to_owned()
            }
            ViewError::TooManyPaths { path, .. } => format!(
                "name their directory as a whole, or remove files and hard links that a run made: \
                 ls -l '{}'",
                path.display()
            ),
            ViewError::TooManyLinks { path, .. } => {
                format!("remove links that a run made: ls -l '{}'", path.display())
            }
            ViewError::RemovedLinks { path, .. } => format!(
                "put back the links that your `hide` and `protect` rules lead through, then remove \
                 the list: rm '{}'",
                path.display()
            ),
        }
    }
}

/// Returns the entries that guard paths in a view that shows the host as `shown` says. Pins come
/// first, which keep the directories above a guarded path in place, and then the guards.
pub(crate) fn guards(guarded: &Guarded, shown: &[Entry]) -> Vec<Entry> {
    let GuardEntries { pins, guards } = guarded.steps(&VisibleNames::in_view(shown));
    pins.into_iter().map(|path| Entry::Pin { path }).chain(guards).collect()
}

/// Builds the view and the environment of a command.
pub(crate) fn build(inputs: &LaunchInputs<'_>) -> Result<SandboxView, ViewError> {
    let LaunchInputs { plan, host, workspace, guarded, .. } = *inputs;
    let policy = &plan.policy;
    // At least one page, because a size of 0 means no limit at all (tmpfs(5)).
    let scratch =
        policy.limits.tmp.map_or(0, |size| size.bytes()).max(rustix::param::page_size() as u64);
    let home = home_inside(host);
    let mut entries = system();
    entries.extend(etc::entries(host, &home));
    if egress::gate(policy) == Some(GateKind::Transparent) {
        let asked = etc::resolver(RESOLVER_ADDRESS);
        entries.retain(|entry| asked.iter().all(|asked| asked.path() != entry.path()));
        entries.extend(asked);
    }
    if let Some(credentials) = inputs.credentials {
        etc::trust(&mut entries, &credentials.bundle());
        let files = credentials.files().into_iter();
        entries.extend(files.map(|(path, contents)| Entry::File { path: path.into(), contents }));
    }
    entries.push(Entry::Scratch { path: "/tmp".into(), size: scratch, mode: 0o1777 });
    entries.push(Entry::Scratch { path: home.clone(), size: scratch, mode: 0o700 });

    let mut binds = binds(inputs, &home)?;
    for (source, destination) in inputs.streams.shown() {
        binds.insert(destination.to_path_buf(), (source.to_path_buf(), Access::Read));
    }

    let mut taken = entries.iter().map(Entry::path).chain(binds.keys().map(PathBuf::as_path));
    if workspace.destination != workspace.source
        && taken.all(|path| !path.starts_with(WORKSPACE_PATH))
    {
        binds.insert(WORKSPACE_PATH.into(), (workspace.source.clone(), Access::Write));
    }

    // Shallow paths come before deep ones, because each mount point is made by, or lies in, the
    // mount above it.
    let mut mounts: BTreeMap<PathBuf, Entry> = bind_entries(binds).collect();
    let names = VisibleNames::in_view(entries.iter().chain(mounts.values()));
    let GuardEntries { pins, guards } = guarded.steps(&names);
    mounts.extend(pins.into_iter().map(|path| (path.clone(), Entry::Pin { path })));
    entries.extend(mounts.into_values());
    entries.extend(guards);
    entries.extend(own_in_system(host, inputs.shown).into_iter().map(|path| Entry::Hide { path }));
    let view = View { entries };
    let variables = environment(inputs, &view, &home);
    Ok(SandboxView { view, variables })
}

/// Tells whether a command may write to a host path under any name inside. The path has no links in
/// it.
pub(crate) fn may_write(inputs: &LaunchInputs<'_>, path: &Path) -> bool {
    let workspace = inputs.workspace;
    // Make this check first, because the check decides about nearly all paths and a view takes
    // longer.
    if !workspace.is_in_writable_tree(path) {
        return false;
    }
    let Ok(binds) = binds(inputs, &home_inside(inputs.host)) else { return false };
    let entries: Vec<Entry> = bind_entries(binds).map(|(_, entry)| entry).collect();
    VisibleNames::in_view(&entries).writable(path).next().is_some()
}

/// Mounts by path in the sandbox, each with its path on the host and its access.
type Binds = BTreeMap<PathBuf, (PathBuf, Access)>;

/// Returns the parts of the host that a command sees besides the system: toolchains, granted paths
/// and the workspace.
fn binds(inputs: &LaunchInputs<'_>, home: &Path) -> Result<Binds, ViewError> {
    let LaunchInputs { host, workspace, guarded, .. } = *inputs;
    let mut binds = Binds::new();
    for path in toolchains::readable(host, home, inputs.grants)
        .into_iter()
        .chain(inputs.shown.iter().cloned())
    {
        binds.insert(path.clone(), (path, Access::Read));
    }
    for GrantedPath { given, source, access } in &workspace.granted {
        for path in [given, source] {
            if is_reserved(path) {
                return Err(ViewError::Reserved { path: path.to_path_buf() });
            }
        }
        binds.insert(given.clone(), (source.clone(), *access));
    }
    if is_reserved(&workspace.destination) {
        return Err(ViewError::Reserved { path: workspace.destination.clone() });
    }
    for directory in guarded.shared() {
        // Check the directory, because files of the workspace name it.
        inputs.grants.check_path(directory, directory, Access::Write)?;
        binds.insert(directory.clone(), (directory.clone(), Access::Write));
    }
    binds.insert(workspace.destination.clone(), (workspace.source.clone(), Access::Write));
    Ok(binds)
}

fn bind_entries(binds: Binds) -> impl Iterator<Item = (PathBuf, Entry)> {
    binds.into_iter().map(|(destination, (source, access))| {
        (destination.clone(), Entry::Bind { source, destination, access })
    })
}

/// Returns the path of the home directory in the sandbox.
fn home_inside(host: &Host) -> PathBuf {
    host.home.clone().filter(|home| !under_system(home)).unwrap_or_else(|| FALLBACK_HOME.into())
}

fn system() -> Vec<Entry> {
    let mut entries = Vec::new();
    for path in SYSTEM_DIRECTORIES.map(PathBuf::from) {
        match fs_err::read_link(&path) {
            Ok(target) => entries.push(Entry::Symlink { path, target }),
            Err(_) if path.is_dir() => {
                entries.push(Entry::Bind {
                    source: path.clone(),
                    destination: path,
                    access: Access::Read,
                });
            }
            Err(_) => {}
        }
    }
    entries
}

/// Returns those of ringfence's own files that lie in system directories, as for a user whose home
/// is there. Every sandbox could read these files. Programs of ringfence's that are in `shown` are
/// left out.
fn own_in_system(host: &Host, shown: &[PathBuf]) -> Vec<PathBuf> {
    let own = [("XDG_CONFIG_HOME", ".config"), ("XDG_STATE_HOME", ".local/state")];
    let own =
        own.into_iter().filter_map(|(variable, fallback)| host.own_directory(variable, fallback));
    let own = own.filter_map(|directory| Host::resolve(&directory).ok());
    let mut hidden = Vec::new();
    for directory in own
        .filter(|directory| SYSTEM_DIRECTORIES.iter().any(|system| directory.starts_with(system)))
    {
        let is_needed = |path: &Path| shown.iter().any(|program| program.starts_with(path));
        if is_needed(&directory) {
            let parts = fs_err::read_dir(&directory)
                .into_iter()
                .flatten()
                .flatten()
                .map(|part| part.path());
            hidden.extend(parts.filter(|part| !part.is_symlink() && !is_needed(part)));
        } else {
            hidden.push(directory);
        }
    }
    hidden
}

/// Tells whether the sandbox makes a path itself.
fn is_reserved(path: &Path) -> bool {
    path == Path::new("/") || ["/proc", "/dev"].iter().any(|own| path.starts_with(own))
}

fn under_system(path: &Path) -> bool {
    is_reserved(path)
        || SYSTEM_DIRECTORIES.iter().chain(&["/etc"]).any(|system| path.starts_with(system))
}

/// Tells whether a path exists and no component of it is a symbolic link, with one system call.
pub(crate) fn is_resolved(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).is_ok()
}

/// Tells whether a host path is visible at the same path in the sandbox.
fn is_visible(view: &View, path: &Path) -> bool {
    let resolved =
        if is_resolved(path) { Ok(path.to_path_buf()) } else { fs_err::canonicalize(path) };
    let Ok(resolved) = resolved else { return false };
    let shown = |path: &Path| {
        view.entries.iter().any(|entry| match entry {
            Entry::Bind { source, destination, .. } => {
                source == destination && path.starts_with(destination)
            }
            _ => false,
        })
    };
    shown(&resolved)
        && (shown(path) || SYSTEM_DIRECTORIES.iter().any(|system| path.starts_with(system)))
}

/// Returns the environment inside: the variables that programs need, and those that the policy
/// names.
fn environment(
    inputs: &LaunchInputs<'_>,
    view: &View,
    home: &Path,
) -> BTreeMap<OsString, OsString> {
    let LaunchInputs { plan, host, .. } = *inputs;
    let mut variables = BTreeMap::new();
    let mut pass = |name: &str| {
        if let Some(value) = host.variables.get(OsStr::new(name)) {
            variables.insert(OsString::from(name), value.clone());
        }
    };
    PASSED_VARIABLES.into_iter().for_each(&mut pass);
    for name in toolchains::TOOLCHAIN_VARIABLES {
        if host.text(name).is_some_and(|value| is_visible(view, Path::new(value))) {
            pass(name);
        }
    }
    plan.policy.env.pass.iter().flatten().for_each(|name| pass(name));
    if egress::gate(&plan.policy).is_some() {
        variables.extend(
            egress::variables().into_iter().map(|(name, value)| (name.into(), value.into())),
        );
    }
    // A placeholder for a secret replaces the caller's variable of that name, even if the policy
    // passes it.
    let of_secrets = inputs.credentials.into_iter().flat_map(LoadedCredentials::variables);
    variables.extend(of_secrets.map(|(name, value)| (name.into(), value.into())));

    let reachable = host.path().filter(|directory| is_visible(view, directory));
    if let Ok(path) = std::env::join_paths(reachable) {
        let path =
            if path.is_empty() { OsString::from("/usr/local/bin:/usr/bin:/bin") } else { path };
        variables.insert("PATH".into(), path);
    }
    variables.insert("HOME".into(), home.into());
    for (name, value) in &plan.policy.env.set {
        variables.insert(name.into(), value.into());
    }
    variables
}
