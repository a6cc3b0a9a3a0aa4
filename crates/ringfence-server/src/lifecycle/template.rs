//! Templates that the sandboxes of a server are created from.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ringfence::policy::{Network, Size};
use ringfence::{BackendChoice, Fault, Host, PolicyFile, Settings, chain};
use serde::Deserialize;

use crate::error::ServerError;

/// Templates that clients use by default.
const DEFAULT: [&str; 2] = ["base", FOR_CODE];
/// Default template in which clients run cells of code.
const FOR_CODE: &str = "code-interpreter-v1";

/// Default for the maximum size of a snapshot.
const SNAPSHOT_SIZE: Size = Size::mebibytes(10 << 10);

/// Maximum number of waiting sandboxes of all templates together.
const MOST_WARM: usize = 64;

/// Settings file of a server.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address at which the server listens.
    pub listen: Option<SocketAddr>,
    /// Maximum size of the files of a snapshot.
    snapshot_size: Option<Size>,
    templates: BTreeMap<String, TemplateConfig>,
}

/// Settings of one template.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TemplateConfig {
    /// Choice of the backend that enforces the policy.
    backend: Option<BackendChoice>,
    /// Image for containers of this template.
    pub image: Option<String>,
    /// Policy file; a relative path starts at the directory of the settings file.
    policy: Option<PathBuf>,
    /// Number of sandboxes of this template that wait for clients.
    warm: usize,
    /// Set if waiting sandboxes have a running Python interpreter. By default only the template for
    /// code has one.
    interpreter: Option<bool>,
}

impl ServerConfig {
    /// Reads the settings file at `path`.
    pub fn read(path: &Path) -> Result<ServerConfig, ServerError> {
        let hint = "see the example in docs/guides/serving.md";
        let text = fs_err::read_to_string(path).map_err(|error| {
            ServerError::usage(format!("cannot read the server's settings: {error}"), hint)
        })?;
        let mut config: ServerConfig = toml::from_str(&text).map_err(|error| {
            ServerError::usage(
                format!("the server's settings in `{}` are not valid: {error}", path.display()),
                hint,
            )
        })?;
        let warm = config
            .templates
            .values()
            .fold(0_usize, |sum, template| sum.saturating_add(template.warm));
        if warm > MOST_WARM {
            let message = format!(
                "the templates ask for {warm} waiting sandboxes, and the maximum is {MOST_WARM}"
            );
            return Err(ServerError::usage(
                message,
                "reduce the numbers of `warm` in the settings",
            ));
        }
        let directory = path.parent().unwrap_or(Path::new("."));
        for policy in config.templates.values_mut().filter_map(|template| template.policy.as_mut())
        {
            *policy = std::path::absolute(directory.join(&policy))
                .unwrap_or_else(|_| directory.join(&policy));
        }
        Ok(config)
    }

    /// Returns the maximum size of the files of a snapshot, in bytes.
    pub fn largest_snapshot(&self) -> u64 {
        self.snapshot_size.unwrap_or(SNAPSHOT_SIZE).bytes()
    }

    /// Returns all templates by name, with the default templates.
    pub fn templates(&self) -> BTreeMap<String, TemplateConfig> {
        let mut templates: BTreeMap<_, _> =
            DEFAULT.map(|name| (name.to_owned(), TemplateConfig::default())).into_iter().collect();
        templates.extend(self.templates.clone());
        for (name, template) in &mut templates {
            template.interpreter.get_or_insert(name == FOR_CODE);
        }
        templates
    }
}

impl TemplateConfig {
    /// Loads the settings of the template: those of the host, with the template's on top. No
    /// `ringfence.toml` is read, because the workspaces contain files of clients.
    pub fn settings(&self, host: Host) -> Result<Settings, ServerError> {
        let read = self.policy.as_deref().map(PolicyFile::read).transpose();
        let file = read.map_err(|error| ServerError::usage(error.to_string(), error.hint()))?;
        let PolicyFile { given, mut config } = file.unwrap_or_default();
        config.backend = self.backend.or(config.backend);
        config.container.image.clone_from(&self.image);
        let settings = Settings::load_without_project(host, given, config);
        settings.map_err(|error| ServerError::new(chain(&error), error.hint(), Fault::User))
    }
}

/// Template that is checked and ready to use.
#[derive(Debug)]
pub struct Template {
    /// Settings of the sandboxes of this template.
    pub(crate) settings: Settings,
    /// Number of sandboxes that wait for clients.
    pub(crate) warm: usize,
    /// Import line for the running Python interpreter of waiting sandboxes; `None` if they have no
    /// interpreter.
    pub(crate) preload: Option<String>,
    /// Network of the sandboxes.
    pub(crate) network: Network,
    /// Number of processors of a sandbox, as shown to clients.
    pub(crate) processors: u64,
    /// Memory limit of a sandbox in bytes, or the memory of the machine if there is no limit.
    pub(crate) memory: u64,
    /// Disk limit of a sandbox in bytes, or zero if there is no limit.
    pub(crate) disk: u64,
}

impl Template {
    /// Creates the template of `config`. `settings` are its settings.
    pub fn new(config: &TemplateConfig, settings: &Settings) -> Template {
        let limits = &settings.policy.limits;
        let machine = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        Template {
            settings: settings.clone(),
            warm: config.warm,
            preload: (config.interpreter == Some(true)).then(|| settings.code.preload_line()),
            network: settings.policy.network.clone().unwrap_or(Network::Closed),
            processors: limits.cpus.map_or(machine, |cpus| cpus.ceil() as u64),
            memory: limits
                .memory
                .map_or_else(|| rustix::system::sysinfo().totalram as u64, |memory| memory.bytes()),
            disk: limits.disk.map_or(0, |disk| disk.bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence::{Backend, Policy};

    use super::*;

    #[test]
    fn a_template_has_its_own_settings_and_the_two_that_clients_expect_are_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("server.toml");
        let text = "[templates.base]\nbackend = 'podman'\nimage = 'debian:stable'\n\
                    [templates.mine]\npolicy = 'mine.toml'";
        fs_err::write(&path, text).unwrap();
        fs_err::write(place.path().join("mine.toml"), "[limits]\nmemory = '64M'").unwrap();
        let templates = ServerConfig::read(&path).unwrap().templates();
        let host = Host::new(Default::default(), place.path().into());
        let settings = |name: &str| templates[name].settings(host.clone()).unwrap();
        assert_eq!(settings("base").policy.backend, Some(BackendChoice::Only(Backend::Podman)));
        assert_eq!(settings("base").container.image.as_deref(), Some("debian:stable"));
        assert_eq!(settings("mine").policy.limits.memory, Some(Size::mebibytes(64)));
        assert_eq!(settings("code-interpreter-v1").policy, Policy::default());
        fs_err::write(&path, "[templates.base]\nbakend = 'podman'").unwrap();
        assert!(ServerConfig::read(&path).is_err());
    }

    #[test]
    fn a_snapshot_has_ten_gibibytes_unless_somebody_says_otherwise() {
        let largest = |text: &str| toml::from_str::<ServerConfig>(text).unwrap().largest_snapshot();
        assert_eq!((largest(""), largest("snapshot_size = '4M'")), (10 << 30, 4 << 20));
    }
}
