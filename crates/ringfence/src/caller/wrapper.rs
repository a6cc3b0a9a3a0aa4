//! Wrappers: executables that run a program in a sandbox, with their caller's arguments.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fs_err::os::unix::fs::OpenOptionsExt;
use ringfence_core::Policy;
use ringfence_core::policy::Workspace;
use rustix::fs::{Access, access};

use crate::host_paths::granted::Grants;
use crate::host_paths::workspace;
use crate::{Settings, WorkspaceError};

/// The second line of every wrapper and the first line of its policy, which identify them.
const WRAPPER_MARK: &str = "# Made by `ringfence wrap`; removed by `ringfence unwrap`.";
/// Name of the file with the policy of a wrapper, in the same directory.
const POLICY_FILE: &str = ".policy.toml";

/// A wrapper on disk. Dropping this value removes the wrapper, unless it is [kept](Wrapper::keep).
#[derive(Debug)]
pub struct Wrapper {
    path: PathBuf,
    is_kept: bool,
}

/// Reason why a wrapper could not be made or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WrapperError {
    /// The host has no state directory for wrappers.
    #[error("cannot find a directory for wrappers: neither XDG_STATE_HOME nor HOME is set")]
    NoStateDirectory,
    /// The directory in which the wrapper is to work cannot be a workspace.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The program that the wrapper is to run does not exist, or cannot be executed.
    #[error("cannot find the program `{program}` on the host")]
    NoProgram {
        /// The program as it was given.
        program: PathBuf,
    },
    /// A path is not UTF-8, so that a policy and a script cannot contain it.
    #[error("cannot write `{path}` into a wrapper: the path is not UTF-8")]
    NotText {
        /// The path that is not UTF-8.
        path: PathBuf,
    },
    /// A file could not be written or removed.
    #[error("cannot {action} the wrapper `{path}`")]
    File {
        /// The operation that failed, as a verb.
        action: &'static str,
        /// The file or directory on which the operation failed.
        path: PathBuf,
        /// Error of the operation.
        source: io::Error,
    },
    /// The file is not a wrapper that ringfence made.
    #[error("`{path}` is not a wrapper that ringfence made")]
    NotAWrapper {
        /// Path of the file.
        path: PathBuf,
    },
}

const WRAPPER_HINT: &str = "`ringfence wrap` prints the path of what it makes";

impl WrapperError {
    /// Returns the next step for the user.
    pub fn hint(&self) -> String {
        match self {
            WrapperError::NoStateDirectory => "set HOME".to_owned(),
            WrapperError::Workspace(error) => error.hint(),
            WrapperError::NoProgram { .. } => {
                "give the path of a program that can be executed".to_owned()
            }
            WrapperError::NotText { .. } => "rename the file to a name in UTF-8".to_owned(),
            WrapperError::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                WRAPPER_HINT.to_owned()
            }
            WrapperError::File { .. } => {
                "check the owner and the permissions of its directory".to_owned()
            }
            WrapperError::NotAWrapper { .. } => WRAPPER_HINT.to_owned(),
        }
    }
}

impl Wrapper {
    /// Returns the path of the wrapper.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the wrapper on disk, where [`remove`] can remove it later, and returns its path.
    pub fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        self.path.clone()
    }

    /// Removes the wrapper with its policy.
    pub fn cleanup(mut self) -> Result<(), WrapperError> {
        self.is_kept = true;
        remove(&self.path)
    }
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = remove(&self.path); // `ringfence unwrap` can still remove the wrapper later
        }
    }
}

/// Makes a wrapper that runs `program` under the settings' policy in `repository`, from whatever
/// directory the wrapper is called.
///
/// The policy is a file beside the wrapper and not part of its arguments, so that the values that
/// the policy sets are in no process list.
pub(crate) fn create(
    settings: &Settings,
    repository: &Path,
    program: &Path,
) -> Result<Wrapper, WrapperError> {
    let policy = absolute_policy(settings, repository)?;
    workspace::resolve(
        &policy,
        &settings.host,
        &settings.workspace_rules(),
        &Grants::on(&settings.host),
    )?;
    let ringfence = match &settings.launcher {
        Some(launcher) => launcher.clone(),
        None => find_program(settings, Path::new("ringfence"))?,
    };
    let program = find_program(settings, program)?;
    let name = program.file_name().unwrap_or(program.as_os_str());
    let (ringfence, inner) = (quote(&ringfence)?, quote(&program)?);

    let directory = create_own_directory(settings)?;
    let wrapper = Wrapper { path: directory.join(name), is_kept: false };

    let policy_path = directory.join(POLICY_FILE);
    let policy = toml::to_string(&policy).expect("a policy is made of tables and plain values");
    write_file(&policy_path, &format!("{WRAPPER_MARK}\n{policy}"), 0o600)?;
    let policy = quote(&policy_path)?;
    let script = format!(
        "#!/bin/sh\n{WRAPPER_MARK}\nexec {ringfence} run --policy {policy} -- {inner} \"$@\"\n"
    );
    write_file(&wrapper.path, &script, 0o700)?;
    tracing::debug!(
        path = %wrapper.path.display(),
        sandbox.select = %settings.selection,
        "made a wrapper"
    );
    Ok(wrapper)
}

/// Removes a wrapper with its policy. Fails if the file is not a wrapper.
pub fn remove(path: &Path) -> Result<(), WrapperError> {
    let failed = |action| {
        let path = path.to_path_buf();
        move |source| WrapperError::File { action, path, source }
    };
    let is_marked = |path: &Path, line| -> io::Result<bool> {
        Ok(String::from_utf8_lossy(&fs_err::read(path)?).lines().nth(line) == Some(WRAPPER_MARK))
    };
    if !is_marked(path, 1).map_err(failed("read"))? {
        return Err(WrapperError::NotAWrapper { path: path.into() });
    }
    fs_err::remove_file(path).map_err(failed("remove"))?;
    let policy = path.with_file_name(POLICY_FILE);
    if is_marked(&policy, 0).is_ok_and(|marked| marked) {
        fs_err::remove_file(&policy).map_err(failed("remove the policy of"))?;
        let _ = policy.parent().map(fs_err::remove_dir); // the directory may contain other files
    }
    Ok(())
}

/// Returns the settings' policy with every path made absolute, because a wrapper can be called from
/// any directory.
fn absolute_policy(settings: &Settings, repository: &Path) -> Result<Policy, WrapperError> {
    let absolute = |path: &Path| {
        let path = settings.host.absolute(path);
        if path.to_str().is_some() { Ok(path) } else { Err(WrapperError::NotText { path }) }
    };
    let source = absolute(repository)?;
    let mut policy = settings.policy.clone();
    let files = &mut policy.filesystem;
    let named =
        files.workspace.take().filter(|named| settings.host.absolute(&named.source) == source);
    files.workspace =
        Some(Workspace { source, destination: named.and_then(|named| named.destination) });
    for path in files.read.iter_mut().chain(&mut files.write).flatten() {
        *path = absolute(path)?;
    }
    Ok(policy)
}

/// Makes a directory that contains no other wrapper, so that it can be put at the front of a
/// `PATH`.
fn create_own_directory(settings: &Settings) -> Result<PathBuf, WrapperError> {
    let all = settings.host.state_directory().ok_or(WrapperError::NoStateDirectory)?;
    let all = all.join("wrappers");
    let failed =
        |source| WrapperError::File { action: "make a directory for", path: all.clone(), source };
    fs_err::create_dir_all(&all).map_err(failed)?;
    (1u64..)
        .map(|number| all.join(number.to_string()))
        .find_map(|directory| match fs_err::create_dir(&directory) {
            Ok(()) => Some(Ok(directory)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            Err(error) => Some(Err(failed(error))),
        })
        .expect("some number is free")
}

fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), WrapperError> {
    let opened = fs_err::OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    opened
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| WrapperError::File { action: "write", path: path.into(), source })
}

/// Finds a program as the caller's shell would.
fn find_program(settings: &Settings, program: &Path) -> Result<PathBuf, WrapperError> {
    let is_executable =
        |path: &PathBuf| path.is_file() && access(path.as_path(), Access::EXEC_OK).is_ok();
    let mut candidates = if program.components().count() > 1 {
        vec![settings.host.absolute(program)]
    } else {
        settings
            .host
            .path()
            .map(|directory| settings.host.absolute(&directory).join(program))
            .collect()
    };
    candidates.retain(is_executable);
    candidates.into_iter().next().ok_or_else(|| WrapperError::NoProgram { program: program.into() })
}

/// Quotes a path so that a shell reads it as one word, unchanged.
fn quote(path: &Path) -> Result<String, WrapperError> {
    let text = path.to_str().ok_or_else(|| WrapperError::NotText { path: path.into() })?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::Host;

    /// Returns settings in a directory of their own, whose `ringfence` prints its arguments.
    fn settings(directory: &Path) -> Settings {
        let variables = [("PATH", "/usr/bin:/bin".into()), ("HOME", directory.join("home"))];
        let variables = variables.map(|(name, value): (&str, PathBuf)| (name.into(), value.into()));
        let printer = directory.join("it's a ringfence");
        write_file(&printer, "#!/bin/sh\nprintf '<%s>' \"$@\"\n", 0o700).unwrap();
        fs_err::create_dir(directory.join("repo")).unwrap();
        Settings::new(Host::new(variables.into(), directory.into())).with_launcher(printer)
    }

    #[test]
    fn a_wrapper_passes_its_callers_arguments_and_names_its_policy() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        let wrapper = create(&settings, Path::new("repo"), Path::new("env")).unwrap();
        let output = Command::new(wrapper.path())
            .args(["a b", "", "'$HOME"])
            .current_dir("/")
            .output()
            .unwrap();
        let policy_path = wrapper.path().with_file_name(POLICY_FILE);
        let expected =
            format!("<run><--policy><{}><--></usr/bin/env><a b><><'$HOME>", policy_path.display());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        let policy = Policy::from_toml(&fs_err::read_to_string(policy_path).unwrap()).unwrap();
        assert_eq!(policy.filesystem.workspace, Some(Workspace::at(directory.path().join("repo"))));
    }

    #[test]
    fn a_wrapper_goes_with_its_policy_and_directory_when_dropped_or_cleaned_up_but_not_when_kept() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        let make = || create(&settings, Path::new("repo"), Path::new("env")).unwrap();
        let parent = |wrapper: &Wrapper| wrapper.path().parent().unwrap().to_owned();
        let (dropped, cleaned, kept) = (make(), make(), make());
        let directories = [&dropped, &cleaned, &kept].map(parent);
        drop(dropped);
        cleaned.cleanup().unwrap();
        let kept = kept.keep();
        assert_eq!(directories.each_ref().map(|parent| parent.exists()), [false, false, true]);
        remove(&kept).unwrap();
        assert!(!directories[2].exists());
    }

    #[test]
    fn a_program_that_cannot_be_wrapped_is_named_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        let check = |repository: &str, program: &str, message: &str| {
            let error = create(&settings, Path::new(repository), Path::new(program)).unwrap_err();
            assert_eq!(error.to_string(), message);
        };
        check("repo", "no-such-program", "cannot find the program `no-such-program` on the host");
        check("repo", "/etc/passwd", "cannot find the program `/etc/passwd` on the host");
        let missing =
            format!("cannot find the workspace `{}`", directory.path().join("nowhere").display());
        check("nowhere", "env", &missing);
        check("/", "env", "`/` cannot be a workspace: it is the root of the filesystem");
        assert!(!directory.path().join("home").exists());
    }

    #[test]
    fn a_file_that_is_no_wrapper_is_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs_err::write(&file, "#!/bin/sh\nexec true\n").unwrap();
        let error = remove(&file).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("`{}` is not a wrapper that ringfence made", file.display())
        );
        assert!(file.exists());
    }
}
