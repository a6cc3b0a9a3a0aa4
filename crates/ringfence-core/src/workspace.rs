//! Rules for the directories that may be a workspace.
//!
//! A workspace is writable inside the sandbox. A careless choice would therefore give away the
//! files that a sandbox must protect: a home directory, the system's files, or every file on the
//! host. The rules apply both to the path as given and to the path that it resolves to, so that
//! neither a spelling of the path nor a symbolic link gets around a rule.

use std::path::{Component, Path, PathBuf};

use crate::Fault;

/// Inputs for the judgement of a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkspaceRules {
    /// Home directory of the caller, with symbolic links resolved.
    pub home: Option<PathBuf>,
    /// Directory in which all workspaces must lie, with symbolic links resolved. `None` sets no
    /// limit.
    pub workspace_root: Option<PathBuf>,
    /// Directories that may be workspaces, or contain workspaces, although a rule forbids it.
    pub allow_workspace: Vec<PathBuf>,
}

/// Reason why a directory cannot be a workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceRefusal {
    /// The directory is the root of the file system.
    #[error("`{path}` cannot be a workspace: it is the root of the filesystem")]
    Root {
        /// Path that is refused.
        path: PathBuf,
    },
    /// The directory is a home directory, or contains home directories.
    #[error("`{path}` cannot be a workspace: it is a home directory, or holds one")]
    Home {
        /// Path that is refused.
        path: PathBuf,
    },
    /// The directory is a system directory, or lies in one.
    #[error("`{path}` cannot be a workspace: it is in the system directory `{system}`")]
    System {
        /// Path that is refused.
        path: PathBuf,
        /// System directory that is or contains the path, such as `/etc`.
        system: PathBuf,
    },
    /// Every user and program can create files in the directory.
    #[error("`{path}` cannot be a workspace: files and sockets of other programs lie in it")]
    Shared {
        /// Path that is refused.
        path: PathBuf,
    },
    /// The directory lies outside [`WorkspaceRules::workspace_root`].
    #[error("`{path}` cannot be a workspace: `workspace_root` limits workspaces to `{root}`")]
    OutsideRoot {
        /// Path that is refused.
        path: PathBuf,
        /// Directory in which all workspaces must lie.
        root: PathBuf,
    },
    /// The path is relative or contains `..`, because the caller did not resolve it.
    #[error("`{path}` was not resolved: it is relative or contains `..`")]
    Unresolved {
        /// Path that is refused.
        path: PathBuf,
    },
}

impl WorkspaceRefusal {
    /// Returns the party that can correct the error.
    pub const fn fault(&self) -> Fault {
        match self {
            WorkspaceRefusal::Unresolved { .. } => Fault::Bug,
            _ => Fault::User,
        }
    }

    /// Returns a hint that tells the user what to do instead.
    pub fn hint(&self) -> String {
        let allow = |path: &Path| {
            format!(
                "choose a directory of its own, or allow this one in your own config.toml: \
                 allow_workspace = [\"{}\"]",
                path.display()
            )
        };
        match self {
            WorkspaceRefusal::Root { .. } => {
                "name the directory to work in: --workspace DIR".to_owned()
            }
            WorkspaceRefusal::Home { .. } => "choose a directory in it: --workspace DIR".to_owned(),
            WorkspaceRefusal::System { path, .. } => allow(path),
            WorkspaceRefusal::Shared { path } => {
                format!(
                    "make a directory in it: --workspace \"$(mktemp -d -p '{}')\"",
                    path.display()
                )
            }
            WorkspaceRefusal::OutsideRoot { root, .. } => {
                format!(
                    "choose a directory beneath `{}`, or change `workspace_root` where it is set",
                    root.display()
                )
            }
            WorkspaceRefusal::Unresolved { .. } => {
                "this is a bug in ringfence; please report it".to_owned()
            }
        }
    }
}

/// System directories. A workspace can neither be one of them nor lie in one.
///
/// A directory in `/var/tmp` or `/var/folders` is an exception, because `SHARED_DIRECTORIES` lists
/// both.
const SYSTEM_DIRECTORIES: [&str; 15] = [
    "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot", "/dev",
    "/proc", "/sys", "/root", "/run", "/var",
];
/// Directories in which everybody may create files. None of them can be a workspace itself, but
/// each may contain workspaces.
const SHARED_DIRECTORIES: [&str; 3] = ["/tmp", "/var/tmp", "/var/folders"];

/// Judges a workspace by the path as given and the path that it resolves to.
///
/// # Errors
///
/// Returns the reason of the first rule that refuses the workspace. The rules judge the given path
/// first, then the resolved path.
pub fn validate(
    given: &Path,
    resolved: &Path,
    rules: &WorkspaceRules,
) -> Result<(), WorkspaceRefusal> {
    if !resolved.is_absolute()
        || resolved.components().any(|component| component == Component::ParentDir)
    {
        return Err(WorkspaceRefusal::Unresolved { path: resolved.to_owned() });
    }
    // A relative path does not tell where it leads; only its resolved form does.
    if given.is_absolute() {
        judge_path(&remove_dots(given), rules)?;
    }
    judge_path(&remove_dots(resolved), rules)?;
    if let Some(root) = rules.workspace_root.as_ref().filter(|root| !resolved.starts_with(root)) {
        return Err(WorkspaceRefusal::OutsideRoot {
            path: resolved.to_owned(),
            root: root.clone(),
        });
    }
    Ok(())
}

fn judge_path(path: &Path, rules: &WorkspaceRules) -> Result<(), WorkspaceRefusal> {
    let owned = || path.to_owned();
    if path == Path::new("/") {
        return Err(WorkspaceRefusal::Root { path: owned() });
    }
    // After the check for `/`, so that no exception opens the whole file system.
    if rules.allow_workspace.iter().any(|allowed| path.starts_with(allowed)) {
        return Ok(());
    }
    if SHARED_DIRECTORIES.iter().any(|shared| path == Path::new(shared)) {
        return Err(WorkspaceRefusal::Shared { path: owned() });
    }
    let homes = Path::new("/home");
    let holds_home = rules.home.as_ref().is_some_and(|home| home.starts_with(path));
    if holds_home || path == homes || path.parent() == Some(homes) || path == Path::new("/root") {
        return Err(WorkspaceRefusal::Home { path: owned() });
    }
    // Before the check of `SYSTEM_DIRECTORIES`, because `/var/tmp` and `/var/folders` lie in
    // `/var`.
    if SHARED_DIRECTORIES.iter().any(|shared| path.starts_with(shared)) {
        return Ok(());
    }
    match SYSTEM_DIRECTORIES.iter().find(|system| path.starts_with(system)) {
        Some(system) => Err(WorkspaceRefusal::System { path: owned(), system: system.into() }),
        None => Ok(()),
    }
}

/// Removes `.` and `..` from a path without looking at the file system.
///
/// The result can lead to another directory than `path` if a `..` follows a symbolic link.
pub fn remove_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> WorkspaceRules {
        WorkspaceRules { home: Some("/home/ada".into()), ..WorkspaceRules::default() }
    }

    #[track_caller]
    fn allow(path: &str, rules: &WorkspaceRules) {
        assert_eq!(validate(Path::new(path), Path::new(path), rules), Ok(()), "{path}");
    }

    #[track_caller]
    fn refuse(given: &str, resolved: &str, rules: &WorkspaceRules, message: &str) {
        let refusal = validate(Path::new(given), Path::new(resolved), rules).unwrap_err();
        assert_eq!(refusal.to_string(), message);
        assert!(!refusal.hint().is_empty());
    }

    #[test]
    fn ordinary_directories_are_allowed() {
        for path in [
            "/home/ada/src",
            "/srv/app",
            "/tmp/x",
            "/opt/x",
            "/work",
            "/var/tmp/x",
            "/var/folders/a/b",
            "/libraries/x",
            "/usrlocal",
            "/mnt/data",
        ] {
            allow(path, &rules());
        }
    }

    #[test]
    fn the_root_is_refused_however_it_is_written_and_cannot_be_allowed() {
        let message = "`/` cannot be a workspace: it is the root of the filesystem";
        refuse("/", "/", &rules(), message);
        refuse("/tmp/..", "/tmp", &rules(), message);
        refuse(
            "link",
            "/",
            &WorkspaceRules { allow_workspace: vec!["/".into()], ..rules() },
            message,
        );
    }

    #[test]
    fn home_directories_themselves_are_refused() {
        for path in ["/home/ada", "/home/bob", "/home", "/root"] {
            let message =
                format!("`{path}` cannot be a workspace: it is a home directory, or holds one");
            refuse(path, path, &rules(), &message);
        }
        let elsewhere =
            WorkspaceRules { home: Some("/users/ada".into()), ..WorkspaceRules::default() };
        refuse(
            "x",
            "/users/ada",
            &elsewhere,
            "`/users/ada` cannot be a workspace: it is a home directory, or holds one",
        );
        refuse(
            "x",
            "/users",
            &elsewhere,
            "`/users` cannot be a workspace: it is a home directory, or holds one",
        );
        allow("/users/ada/src", &elsewhere);
    }

    #[test]
    fn system_directories_and_all_beneath_are_refused() {
        for system in SYSTEM_DIRECTORIES {
            for path in [system.to_owned(), format!("{system}/a/b")] {
                if path == "/root" {
                    continue;
                }
                let message = format!(
                    "`{path}` cannot be a workspace: it is in the system directory `{system}`"
                );
                refuse(&path, &path, &rules(), &message);
            }
        }
        refuse(
            "/x",
            "/var/tmpfoo",
            &rules(),
            "`/var/tmpfoo` cannot be a workspace: it is in the system directory `/var`",
        );
    }

    #[test]
    fn a_directory_that_everybody_writes_to_is_refused_and_those_in_it_are_not() {
        for path in ["/tmp", "/var/tmp", "/var/folders", "/tmp/", "/tmp/.", "/tmp/x/.."] {
            let plain = path.trim_end_matches("/x/..").trim_end_matches(['/', '.']);
            let message = format!(
                "`{plain}` cannot be a workspace: files and sockets of other programs lie in it"
            );
            refuse(path, "/srv", &rules(), &message);
            refuse("link", plain, &rules(), &message);
            allow(&format!("{plain}/x"), &rules());
        }
        allow("/var/tmp", &WorkspaceRules { allow_workspace: vec!["/var/tmp".into()], ..rules() });
    }

    #[test]
    fn a_symbolic_link_bypasses_no_workspace_rule() {
        let message = "`/etc/x` cannot be a workspace: it is in the system directory `/etc`";
        refuse("/tmp/link", "/etc/x", &rules(), message);
        refuse("/etc/x", "/tmp/target", &rules(), message);
        refuse("/tmp/../etc/x", "/tmp/target", &rules(), message);
        refuse("link", "/etc/x", &rules(), message);
    }

    #[test]
    fn an_exception_opens_the_named_directory_and_what_is_beneath() {
        let root = WorkspaceRules {
            home: Some("/root".into()),
            allow_workspace: vec!["/root/src".into()],
            ..WorkspaceRules::default()
        };
        allow("/root/src", &root);
        allow("/root/src/app", &root);
        refuse(
            "x",
            "/root/srcs",
            &root,
            "`/root/srcs` cannot be a workspace: it is in the system directory `/root`",
        );
        refuse(
            "x",
            "/root",
            &root,
            "`/root` cannot be a workspace: it is a home directory, or holds one",
        );
        allow(
            "/home/ada",
            &WorkspaceRules { allow_workspace: vec!["/home/ada".into()], ..rules() },
        );
        let refusal = validate(Path::new("x"), Path::new("/root/a"), &root).unwrap_err();
        assert!(refusal.hint().ends_with("allow_workspace = [\"/root/a\"]"), "{}", refusal.hint());
    }

    #[test]
    fn a_workspace_root_limits_even_what_is_allowed() {
        let limited = WorkspaceRules {
            workspace_root: Some("/srv".into()),
            allow_workspace: vec!["/etc/app".into()],
            ..WorkspaceRules::default()
        };
        allow("/srv/app", &limited);
        let outside = "cannot be a workspace: `workspace_root` limits workspaces to `/srv`";
        refuse("/srv/link", "/tmp/app", &limited, &format!("`/tmp/app` {outside}"));
        refuse("x", "/etc/app", &limited, &format!("`/etc/app` {outside}"));
        refuse("x", "/srvs", &limited, &format!("`/srvs` {outside}"));
    }

    #[test]
    fn a_path_that_was_not_resolved_is_a_bug() {
        for path in ["src", "/tmp/../etc"] {
            let message = format!("`{path}` was not resolved: it is relative or contains `..`");
            refuse("x", path, &rules(), &message);
        }
    }
}
