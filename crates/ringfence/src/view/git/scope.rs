//! Environment of the caller as far as git uses it: configuration files outside repositories, and
//! variables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::config::parse_config;
use super::programs::{COMMAND_VARIABLES, SettingEffect, replace_variables, setting_effect};
use super::worktree::DistrustedLinks;
use crate::Host;
use crate::view::deciders::path_from;

/// System configuration files of the usual builds of git.
const SYSTEM_CONFIG_FILES: [&str; 2] = ["/etc/gitconfig", "/usr/local/etc/gitconfig"];
/// Maximum number of settings that are read from the environment; real environments have fewer.
const MAX_ENVIRONMENT_SETTINGS: usize = 1000;

/// Environment of the caller as far as git uses it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::view) struct GitScope {
    home: Option<PathBuf>,
    /// Configuration files of the system and of the user.
    pub(super) config_files: Vec<PathBuf>,
    /// Settings from the environment, in the format of a configuration file.
    pub(super) environment_config: String,
    /// Directory of a repository that the environment names; the following fields are its other
    /// parts (git(1), "The Git Repository").
    pub(super) git_dir: Option<PathBuf>,
    pub(super) work_tree: Option<PathBuf>,
    pub(super) common_dir: Option<PathBuf>,
    pub(super) index_file: Option<PathBuf>,
    /// Directory whose files, including hooks, git copies into each new repository.
    #[serde(default)]
    pub(super) template_dir: Option<PathBuf>,
    /// Commands that come from the environment.
    pub(super) commands: Vec<String>,
    /// Variables that hold paths, for the commands that use them.
    #[serde(default)]
    path_variables: Vec<(String, String)>,
    /// Git links that sandboxes made.
    distrusted: DistrustedLinks,
}

impl GitScope {
    /// Reads the environment of git on `host`. Values that are not UTF-8 are ignored, because they
    /// cannot name a file of a workspace that is saved.
    pub(in crate::view) fn for_host(host: &Host) -> GitScope {
        let home = host.home.clone().filter(|home| home.to_str().is_some());
        let mut config_files: Vec<PathBuf> = match host.text("GIT_CONFIG_SYSTEM") {
            Some(file) => vec![file.into()],
            None => SYSTEM_CONFIG_FILES.map(PathBuf::from).into(),
        };
        match host.text("GIT_CONFIG_GLOBAL") {
            Some(file) => config_files.push(file.into()),
            None => {
                config_files.extend(home.iter().map(|home| home.join(".gitconfig")));
                let base = host.text("XDG_CONFIG_HOME").map(PathBuf::from);
                let base = base.or_else(|| home.as_ref().map(|home| home.join(".config")));
                config_files.extend(base.map(|base| base.join("git/config")));
            }
        }
        let config_files = config_files.iter().map(|file| host.directory.join(file)).collect();
        let commands =
            COMMAND_VARIABLES.iter().filter_map(|name| host.text(name)).map(str::to_owned);
        let path = |name: &str| {
            host.text(name).filter(|path| !path.is_empty()).map(|path| host.directory.join(path))
        };
        GitScope {
            config_files,
            git_dir: path("GIT_DIR"),
            work_tree: path("GIT_WORK_TREE"),
            common_dir: path("GIT_COMMON_DIR"),
            index_file: path("GIT_INDEX_FILE"),
            template_dir: path("GIT_TEMPLATE_DIR"),
            environment_config: environment_config(host),
            commands: commands.collect(),
            path_variables: path_variables(host),
            distrusted: DistrustedLinks::for_host(host),
            home,
        }
    }

    /// Returns the git links that sandboxes made.
    pub(in crate::view) fn distrusted(&self) -> &DistrustedLinks {
        &self.distrusted
    }

    /// Replaces the variables in a command that hold paths by their values. Returns `None` if the
    /// command has no `$`.
    pub(super) fn replace_variables(&self, command: &[u8]) -> Option<Vec<u8>> {
        command.contains(&b'$').then(|| {
            let value = |name: &[u8]| {
                self.path_variables.iter().find(|(known, _)| known.as_bytes() == name)
            };
            replace_variables(command, |name| value(name).map(|(_, value)| value.as_bytes()))
        })
    }

    /// Expands a path of a setting. A relative path is relative to `base`.
    pub(super) fn expand(&self, path: &[u8], base: &Path) -> Option<PathBuf> {
        if path.is_empty() || path.contains(&0) {
            return None;
        }
        let Some(rest) = path.strip_prefix(b"~") else { return Some(base.join(path_from(path))) };
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (user, rest) = (&rest[..end], path_from(rest.get(end + 1..).unwrap_or_default()));
        let home = if user.is_empty() { self.home.clone() } else { home_directory_of(user) };
        Some(home?.join(rest))
    }
}

/// Variables that change from command to command. The working directory in these variables is tried
/// for every word anyway.
const SHELL_VARIABLES: [&str; 3] = ["PWD", "OLDPWD", "_"];

/// Returns the caller's variables that hold an absolute path. Others are left out, because they may
/// hold a secret. A secret that begins with a slash does not begin with a directory of the root.
fn path_variables(host: &Host) -> Vec<(String, String)> {
    let mut known: BTreeMap<String, bool> = BTreeMap::new();
    let mut is_path = |value: &str| {
        let top = value
            .strip_prefix('/')
            .and_then(|rest| rest.split('/').next())
            .filter(|top| !top.is_empty());
        top.is_some_and(|top| {
            *known.entry(top.to_owned()).or_insert_with(|| Path::new("/").join(top).is_dir())
        })
    };
    let variables =
        host.variables.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
    let paths = variables.filter(|(name, value)| !SHELL_VARIABLES.contains(name) && is_path(value));
    paths.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the home directory of a user by name (passwd(5)).
fn home_directory_of(user: &[u8]) -> Option<PathBuf> {
    let users = fs_err::read("/etc/passwd").ok()?;
    let mut lines = users.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':'));
    let home = lines
        .find_map(|mut fields| (fields.next() == Some(user)).then(|| fields.nth(4)).flatten())?;
    Some(path_from(home).to_path_buf())
}

/// Returns the settings of `GIT_CONFIG_COUNT` and related variables (git-config(1), "Environment")
/// that execute something, as a configuration file. Others are left out, because a header with a
/// token may be among them.
fn environment_config(host: &Host) -> String {
    let count: usize =
        host.text("GIT_CONFIG_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0);
    let mut config = String::new();
    for number in 0..count.min(MAX_ENVIRONMENT_SETTINGS) {
        let key = host.text(&format!("GIT_CONFIG_KEY_{number}"));
        let value = host.text(&format!("GIT_CONFIG_VALUE_{number}"));
        let (Some(key), Some(value)) = (key, value) else { continue };
        let Some((section, rest)) = key.split_once('.') else { continue };
        let escape =
            |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let (header, name) = match rest.rsplit_once('.') {
            Some((subsection, name)) => (format!("{section} \"{}\"", escape(subsection)), name),
            None => (section.to_owned(), rest),
        };
        let setting = format!("[{header}]\n{name} = \"{}\"\n", escape(value));
        if parse_config(setting.as_bytes())
            .iter()
            .any(|variable| setting_effect(variable) != SettingEffect::None)
        {
            config.push_str(&setting);
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_environment_are_kept_only_where_they_execute_something() {
        let variables = [
            ("GIT_CONFIG_COUNT", "3"),
            ("GIT_CONFIG_KEY_0", "http.https://host/.extraheader"),
            ("GIT_CONFIG_VALUE_0", "a token"),
            ("GIT_CONFIG_KEY_1", "filter.a.b.clean"),
            ("GIT_CONFIG_VALUE_1", "tools/\"x\"\n"),
            ("GIT_CONFIG_KEY_2", "include.path"),
            ("GIT_CONFIG_VALUE_2", "/conf"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let config = environment_config(&Host::new(variables.into(), "/".into()));
        let found: Vec<_> = parse_config(config.as_bytes());
        let found: Vec<_> =
            found.iter().map(|found| (found.key.as_str(), found.value.as_slice())).collect();
        assert_eq!(found, [("clean", &b"tools/\"x\"\n"[..]), ("path", b"/conf")]);
    }
}
