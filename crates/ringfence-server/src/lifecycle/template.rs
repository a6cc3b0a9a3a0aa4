//! Templates that the sandboxes of a server are created from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ringfence::policy::{Network, Size};
use ringfence::{Choice, Settings};
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
    backend: Option<Choice>,
    /// Image for containers of this template.
    image: Option<String>,
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
        let hint = "docs/guides/serving.md shows one";
        let text = fs_err::read_to_string(path).map_err(|error| {
            ServerError::usage(format!("cannot read the server's settings: {error}"), hint)
        })?;
        let mut config: ServerConfig = toml::from_str(&text).map_err(|error| {
            ServerError::usage(
                format!("the server's settings in `{}` are wrong: {error}", path.display()),
                hint,
            )
        })?;
        let warm = config
            .templates
            .values()
            .fold(0_usize, |sum, template| sum.saturating_add(template.warm));
        if warm > MOST_WARM {
            let message = format!("{warm} sandboxes are to wait for clients, and {MOST_WARM} can");
            return Err(ServerError::usage(message, "make the numbers of `warm` smaller"));
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
    /// Returns the flags of `ringfence up` that select these settings.
    pub fn words(&self) -> Vec<OsString> {
        let backend = self.backend.map(|choice| ["--backend".into(), choice.to_string().into()]);
        let image = self.image.as_ref().map(|image| ["--image".into(), image.into()]);
        let policy = self.policy.as_ref().map(|policy| ["--policy".into(), policy.into()]);
        [backend, image, policy].into_iter().flatten().flatten().collect()
    }
}

/// Template that is checked and ready to use.
#[derive(Debug)]
pub struct Template {
    /// Flags of `ringfence up` that create a sandbox of this template.
    pub(crate) words: Vec<OsString>,
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
    /// Creates the template of `config`. `settings` are the settings that result from its flags.
    pub fn new(config: &TemplateConfig, settings: &Settings) -> Template {
        let limits = &settings.policy.limits;
        let machine = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        Template {
            words: config.words(),
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
    use super::*;

    #[test]
    fn a_template_is_flags_of_up_and_the_two_that_clients_expect_are_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("server.toml");
        let text = "[templates.base]\nbackend = 'podman'\nimage = 'debian:stable'\n[templates.mine]\npolicy = 'mine.toml'";
        fs_err::write(&path, text).unwrap();
        let templates = ServerConfig::read(&path).unwrap().templates();
        let words = |name: &str| {
            templates[name]
                .words()
                .into_iter()
                .map(|word| word.into_string().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(words("base"), ["--backend", "podman", "--image", "debian:stable"]);
        assert_eq!(words("mine"), ["--policy", place.path().join("mine.toml").to_str().unwrap()]);
        assert_eq!(words("code-interpreter-v1"), [""; 0]);
        fs_err::write(&path, "[templates.base]\nbakend = 'podman'").unwrap();
        assert!(ServerConfig::read(&path).is_err());
    }

    #[test]
    fn a_snapshot_has_ten_gibibytes_unless_somebody_says_otherwise() {
        let largest = |text: &str| toml::from_str::<ServerConfig>(text).unwrap().largest_snapshot();
        assert_eq!((largest(""), largest("snapshot_size = '4M'")), (10 << 30, 4 << 20));
    }
}
