//! Settings read from the host: the files, the environment and the flags, merged by
//! `ringfence-core`.

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use ringfence_core::settings::{
    BlockImports, CodeSettings, Config, FileOrigin, LayerText, Settings as Layered, SettingsError,
    SettingsInputs,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::host_paths::untrusted;
use crate::{ContainerSpec, Host, SyncListener};
use ringfence_core::policy::{DocumentError, Policy, Workspace};

/// Directory of the system's settings.
pub(crate) const SYSTEM_DIRECTORY: &str = "/etc/ringfence";
/// Name of the file of the system's and of the user's settings in their directories.
const CONFIG: &str = "config.toml";
/// Name of the file of a project's settings, in the working directory.
const PROJECT: &str = "ringfence.toml";
/// Longest file of settings that is read, in bytes: more than a person writes by hand.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Merged settings of all layers, and the host to which they apply.
#[derive(Debug, Clone)]
pub struct Settings {
    layered: Layered,
    /// The host to which the settings apply.
    pub host: Host,
    /// Program that serves as the launcher; by default the program of this process.
    pub launcher: Option<PathBuf>,
    /// Options that only apply to container engines.
    pub container: ContainerSpec,
    /// True if this process does nothing but keep one sandbox, so that ending the process stops the
    /// sandbox.
    pub is_monitor: bool,
    /// True if a server started this process for one of its clients.
    pub is_for_server: bool,
    /// Listener for the progress of syncs at the start and the end of sandboxes whose workspace is
    /// copied.
    pub on_sync: Option<SyncListener>,
}

/// Treatment of the `ringfence.toml` of the working directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProjectFile {
    /// The file is read, and may narrow what the other layers allow.
    Read,
    /// The file is not read, because its author must not influence how the sandbox is started.
    Ignore,
}

/// Reason why settings could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read the settings in `{path}`")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of reading the file.
        source: io::Error,
    },
    /// The working directory of the process no longer exists.
    #[error("cannot find the working directory")]
    Directory {
        /// Error of the system call.
        source: io::Error,
    },
    /// The content of the settings is not valid.
    #[error(transparent)]
    Wrong(#[from] SettingsError),
}

impl LoadError {
    /// Returns the next step for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            LoadError::Read { path, .. } => {
                Some(format!("make `{}` a file that can be read, or remove it", path.display()))
            }
            LoadError::Directory { .. } => Some("cd to a directory that exists".to_owned()),
            LoadError::Wrong(error) => error.hint(),
        }
    }
}

impl Settings {
    /// Returns the default settings for a host, without reading any file or variable.
    pub fn new(host: Host) -> Settings {
        let inputs = SettingsInputs {
            files: &[],
            variables: [],
            flags: Config::default(),
            home: host.home.as_deref(),
            directory: &host.directory,
        };
        let layered = Layered::load(inputs).expect("nothing was said that could be wrong");
        Settings::from_merged(layered, host)
    }

    /// Loads settings from the files and the environment of this process.
    pub fn from_environment() -> Result<Settings, LoadError> {
        let host = Host::for_this_process().map_err(|source| LoadError::Directory { source })?;
        Settings::load(host, Vec::new(), Config::default())
    }

    /// Loads settings from the files and the environment of a host, from the `given` files, and
    /// from `flags`, which have the highest priority.
    pub fn load(host: Host, given: Vec<LayerText>, flags: Config) -> Result<Settings, LoadError> {
        Settings::load_layers(host, ProjectFile::Read, given, flags)
    }

    /// Loads settings like [`Settings::load`], without the `ringfence.toml` of the working
    /// directory. Use this function for a directory whose files another party wrote.
    pub fn load_without_project(
        host: Host,
        given: Vec<LayerText>,
        flags: Config,
    ) -> Result<Settings, LoadError> {
        Settings::load_layers(host, ProjectFile::Ignore, given, flags)
    }

    fn load_layers(
        host: Host,
        project: ProjectFile,
        given: Vec<LayerText>,
        flags: Config,
    ) -> Result<Settings, LoadError> {
        let mut files = given;
        files.extend(read(FileOrigin::System, Path::new(SYSTEM_DIRECTORY).join(CONFIG))?);
        if let Some(directory) = host.own_directory("XDG_CONFIG_HOME", ".config") {
            files.extend(read(FileOrigin::User, directory.join(CONFIG))?);
        }
        if project == ProjectFile::Read {
            files.extend(read(FileOrigin::Project, host.directory.join(PROJECT))?);
        }
        let variables = host.variables.iter().map(|(name, value)| (name.clone(), value.clone()));
        let inputs = SettingsInputs {
            files: &files,
            variables,
            flags,
            home: host.home.as_deref(),
            directory: &host.directory,
        };
        let layered = Layered::load(inputs)?;
        Ok(Settings::from_merged(layered, host))
    }

    /// Returns the settings that another process has merged, for a host.
    pub(crate) fn from_merged(layered: Layered, host: Host) -> Settings {
        let container = ContainerSpec { image: layered.image.clone(), ..ContainerSpec::default() };
        let (is_monitor, is_for_server) = (false, false);
        Settings {
            layered,
            host,
            launcher: None,
            container,
            is_monitor,
            is_for_server,
            on_sync: None,
        }
    }

    /// Returns the settings of a sandbox that a server starts in the directory `workspace`, which
    /// the sandbox sees at `inside`. The rules for workspaces do not apply to that directory.
    #[must_use]
    pub fn for_client(mut self, workspace: &Path, inside: &Path) -> Settings {
        self.host.directory = workspace.into();
        self.layered.allow_workspace.push(workspace.into());
        // The path is relative, so that the sandboxes of a template have the same policy.
        let (source, destination) = (".".into(), Some(inside.to_owned()));
        self.layered.policy.filesystem.workspace = Some(Workspace { source, destination });
        self.is_for_server = true;
        self
    }

    /// Sets the launcher to `program`, a `ringfence` binary. With bubblewrap this program is also
    /// started inside the sandbox, so its shared libraries must be in the system directories.
    #[must_use]
    pub fn with_launcher(mut self, program: impl Into<PathBuf>) -> Settings {
        self.launcher = Some(program.into());
        self
    }

    /// Records `flag` as the source of the backend, for a flag other than `--backend` that selects
    /// one.
    #[must_use]
    pub fn selected_by_flag(mut self, flag: &'static str) -> Settings {
        self.layered = self.layered.selected_by_flag(flag);
        self
    }

    /// Replaces the settings for code, whatever the layers say.
    #[must_use]
    pub fn with_code(mut self, code: CodeSettings) -> Settings {
        self.layered.code = code;
        self
    }

    /// Sets the mode of the lint of imports, whatever the layers say.
    #[must_use]
    pub fn with_block_imports(mut self, degree: BlockImports) -> Settings {
        self.layered.code.block_imports = degree;
        self
    }

    /// Returns the rules for workspaces, with resolved paths.
    pub(crate) fn workspace_rules(&self) -> ringfence_core::workspace::WorkspaceRules {
        let resolve = |path: &Path| {
            let absolute = self.host.absolute(path);
            fs_err::canonicalize(&absolute).unwrap_or(absolute)
        };
        let mut rules = self.layered.workspace_rules(self.host.home.as_deref().map(resolve));
        rules.workspace_root = rules.workspace_root.as_deref().map(resolve);
        rules.allow_workspace = rules.allow_workspace.iter().map(|path| resolve(path)).collect();
        rules
    }
}

impl Deref for Settings {
    type Target = Layered;

    fn deref(&self) -> &Layered {
        &self.layered
    }
}

/// A file that holds a policy, in the form that [`Settings::load`] takes.
#[derive(Debug, Default)]
pub struct PolicyFile {
    /// Layer of a file in TOML. Messages can name its lines.
    pub given: Vec<LayerText>,
    /// Configuration of a file in JSON.
    pub config: Config,
}

/// Reason why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyFileError {
    /// The file cannot be read.
    #[error("cannot read the policy: {source}")]
    Read {
        /// Error of reading the file, which names its path.
        source: io::Error,
    },
    /// The content of the file is not a policy.
    #[error("cannot use the policy in `{}`: {}", path.display(), crate::chain(source))]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// Error in the content.
        source: DocumentError,
    },
}

impl PolicyFileError {
    /// Returns the next step for the user.
    pub fn hint(&self) -> String {
        let schema = || "`ringfence config schema` prints what can be set".to_owned();
        match self {
            PolicyFileError::Read { .. } => "--policy FILE, in TOML or JSON".to_owned(),
            PolicyFileError::Wrong { source, .. } => source.hint().unwrap_or_else(schema),
        }
    }
}

impl PolicyFile {
    /// Reads a policy file, whose extension tells its format.
    pub fn read(path: &Path) -> Result<PolicyFile, PolicyFileError> {
        let read = fs_err::read_to_string(path);
        let text = read.map_err(|source| PolicyFileError::Read { source })?;
        if path.extension().is_none_or(|extension| extension != "json") {
            let layer = LayerText { origin: FileOrigin::Given, path: path.to_owned(), text };
            return Ok(PolicyFile { given: vec![layer], config: Config::default() });
        }
        let policy = Policy::from_json(&text);
        policy
            .map(|policy| PolicyFile { given: Vec::new(), config: policy.into() })
            .map_err(|source| PolicyFileError::Wrong { path: path.to_owned(), source })
    }
}

/// Reads a file of settings, if it exists.
///
/// Sandboxed code may have written a project's file. So no link to it is followed, a pipe is not
/// waited for, and no more is read than settings can be long.
fn read(origin: FileOrigin, path: PathBuf) -> Result<Option<LayerText>, LoadError> {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if origin == FileOrigin::Project {
        flags |= OFlags::NOFOLLOW;
    }
    let file = match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(LoadError::Read { path, source: error.into() }),
    };
    match untrusted::read_text(file, MAX_FILE_BYTES) {
        Ok(text) => Ok(Some(LayerText { origin, path, text })),
        Err(source) => Err(LoadError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FileType;

    use super::*;

    fn load_in(directory: &Path, project: ProjectFile) -> Result<Settings, LoadError> {
        let host = Host::new(Default::default(), directory.into());
        Settings::load_layers(host, project, Vec::new(), Config::default())
    }

    /// Loads settings in a directory where `plant` made a `ringfence.toml`.
    fn load(plant: impl FnOnce(&Path)) -> Result<Settings, LoadError> {
        let directory = tempfile::tempdir().unwrap();
        plant(&directory.path().join(PROJECT));
        load_in(directory.path(), ProjectFile::Read)
    }

    #[track_caller]
    fn refuse(plant: impl FnOnce(&Path), why: &str) {
        let error = load(plant).unwrap_err();
        let LoadError::Read { source, .. } = &error else { panic!("{error:?}") };
        assert!(source.to_string().contains(why), "{source}");
        assert!(error.hint().is_some());
    }

    #[test]
    fn clients_of_one_template_have_the_same_policy_in_different_workspaces() {
        let settings = Settings::new(Host::new(Default::default(), "/".into()));
        let client = |path: &str| settings.clone().for_client(path.as_ref(), "/home/user".as_ref());
        let (one, other) = (client("/srv/one"), client("/srv/other"));
        assert_eq!(one.policy.sha256(), other.policy.sha256());
        assert_ne!(one.host.directory, other.host.directory);
        assert_ne!(one.policy.sha256(), settings.policy.sha256());
    }

    #[test]
    fn a_projects_file_is_read() {
        let settings = load(|path| fs_err::write(path, "[limits]\ntime = '30s'").unwrap()).unwrap();
        assert_eq!(settings.policy.limits.time, Some("30s".parse().unwrap()));
        assert_eq!(load(|_| {}).unwrap().policy, Default::default());
    }

    #[test]
    fn a_projects_file_that_is_ignored_is_neither_obeyed_nor_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(PROJECT);
        for text in ["[limits]\ntime = '30s'", "no settings at all"] {
            fs_err::write(&path, text).unwrap();
            assert_eq!(
                load_in(directory.path(), ProjectFile::Ignore).unwrap().policy,
                Default::default()
            );
        }
        fs_err::remove_file(&path).unwrap();
        fs_err::create_dir(&path).unwrap();
        assert!(load_in(directory.path(), ProjectFile::Read).is_err());
        assert!(load_in(directory.path(), ProjectFile::Ignore).is_ok());
    }

    #[test]
    fn a_link_or_pipe_in_place_of_a_projects_file_is_refused() {
        refuse(
            |path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(),
            "Too many levels of symbolic links",
        );
        refuse(|path| fs_err::create_dir(path).unwrap(), "it is not a regular file");
        let pipe = |path: &Path| {
            rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        };
        refuse(pipe, "it is not a regular file");
        refuse(
            |path| fs_err::File::create(path).unwrap().set_len(1 << 40).unwrap(),
            "it is longer than",
        );
    }
}
