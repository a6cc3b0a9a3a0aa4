//! Check of the project's file: it may narrow what the layers below it allow, and never widen it.

use std::fmt::{self, Display};
use std::path::{Component, Path, PathBuf};

use super::code::CodeSettings;
use super::keys::KEYS;
use super::layer::Layer;
use super::merge::MergedLayers;
use super::{AuditConfig, BackendSelection, CodeConfig, Config, ContainerConfig, ValueSource};
use crate::policy::{
    Egress, Environment, Filesystem, HostRule, Limits, Network, NetworkTable, Workspace,
};
use crate::{Backend, Policy};

/// Attempt of the project's file to widen the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Widening {
    /// Source of the value in the project's file.
    pub place: ValueSource,
    /// Key whose value would widen the policy.
    pub key: String,
    /// Value that the project's file sets, as shown in the message.
    pub value: String,
    /// Value of the layers below, as shown in the message.
    pub below: String,
    /// Source of the value of the layers below.
    pub set_at: ValueSource,
}

impl std::error::Error for Widening {}

impl Display for Widening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Widening { place, key, value, below, set_at } = self;
        write!(f, "{place}: {key} = {value} would widen `{below}`, ")?;
        match set_at {
            ValueSource::BuiltIn => f.write_str("the built-in default"),
            said => write!(f, "set at {said}"),
        }
    }
}

impl Widening {
    /// Returns a hint that tells the user how to allow the value or remove it.
    pub fn hint(&self) -> String {
        let flag = KEYS.iter().find(|key| self.key.starts_with(key.name)).and_then(|key| key.flag);
        let or_flag =
            flag.map(|flag| format!(", or say it yourself with {flag}")).unwrap_or_default();
        format!(
            "a project may only narrow the policy: remove the line, move it to your own \
             config.toml{or_flag}"
        )
    }
}

/// Checks the project's layer against the layers below it.
///
/// Returns the layer without the keys whose values could only repeat those of the layers below.
pub(super) fn narrow(
    below: &mut MergedLayers,
    mut project: Layer,
    directory: &Path,
) -> Result<Layer, Box<Widening>> {
    let check = NarrowingCheck { below, project: &project, directory };
    check.check_backend()?;
    check.check_network()?;
    check.check_limits()?;
    check.check_environment()?;
    check.check_lists()?;
    check.check_user_only()?;
    check.check_code()?;

    // The pattern has no `..`, so that a new key does not compile until its author decides what a
    // project may do with it.
    let Config {
        backend: _,
        filesystem: Filesystem { workspace, read, write, hide: _, protect },
        network: NetworkTable { mode: _, allow: _, deny: _, transparent: _, observe: _ },
        limits: Limits { time: _, memory: _, cpus: _, processes: _, output: _, tmp: _, disk: _ },
        env: Environment { pass, set },
        require: _,
        allow_weaker,
        workspace_root,
        allow_workspace,
        container: ContainerConfig { image },
        credentials,
        audit: AuditConfig { store, dir },
        code: CodeConfig { block_imports: _, imports, store_code, warm, preload, languages },
    } = &mut project.config;
    // The values that remain for these keys add nothing to the layers below. A merge of these
    // values would make the project their source. A path could also be a symbolic link that
    // sandboxed code has planted, and the host would follow the link.
    (*workspace, *read, *write, *pass) = (None, None, None, None);
    set.clear();
    allow_weaker.clear();
    (*workspace_root, *image) = (None, None);
    allow_workspace.clear();
    credentials.clear();
    (*store, *dir, *store_code, *warm, *preload) = (None, None, None, None, None);
    // A language that the layers below already have does not come from the project.
    let known = below.languages();
    languages.retain(|name, _| !known.contains_key(name));
    if protect.is_some() && below.config.filesystem.protect.is_none() {
        below.config.filesystem.protect = Some(below.protected());
    }
    if imports.is_some() && below.config.code.imports.is_none() {
        below.config.code.imports = Some(below.imports());
    }
    Ok(project)
}

struct NarrowingCheck<'a> {
    below: &'a MergedLayers,
    project: &'a Layer,
    directory: &'a Path,
}

impl NarrowingCheck<'_> {
    fn widens(
        &self,
        key: &str,
        value: impl Display,
        below: impl Display,
    ) -> Result<(), Box<Widening>> {
        self.widens_another(key, value, below, key)
    }

    /// Returns the error for a value of `key` that would widen the value of the key `other`.
    fn widens_another(
        &self,
        key: &str,
        value: impl Display,
        below: impl Display,
        other: &str,
    ) -> Result<(), Box<Widening>> {
        Err(Box::new(Widening {
            place: self.project.source(key),
            key: key.to_owned(),
            value: value.to_string(),
            below: below.to_string(),
            set_at: self.below.sources.last(other).clone(),
        }))
    }

    /// Checks the backend: a project may repeat the selection of the layers below, or choose
    /// `native`, the strongest backend, if that selection is `auto`.
    ///
    /// Hostile code would choose any other backend for its weakness. A bubblewrap or a container
    /// runtime with a known vulnerability is an escape for code that can choose it. `auto` itself
    /// never makes containers.
    fn check_backend(&self) -> Result<(), Box<Widening>> {
        let Some(asked) = self.project.selection else { return Ok(()) };
        let below = self.below.selection;
        let is_strongest =
            (below, asked) == (BackendSelection::Auto, BackendSelection::Only(Backend::Native));
        if below == asked || is_strongest {
            Ok(())
        } else {
            self.widens("backend", quoted(asked), below)
        }
    }

    fn check_network(&self) -> Result<(), Box<Widening>> {
        let (asked, below) = (&self.project.config.network, &self.below.config.network);
        // The switches are refused in every mode, because a layer above may change the mode to
        // `allow`. With `observe` from the project, unlisted hosts would then be recorded and not
        // refused. `transparent` lets the sandbox reach more of ringfence's code on the host.
        let switches = [
            ("network.transparent", asked.transparent, below.transparent),
            ("network.observe", asked.observe, below.observe),
        ];
        let is_on = |switch| switch == Some(true);
        if let Some((key, ..)) =
            switches.into_iter().find(|(_, asked, below)| is_on(*asked) && !is_on(*below))
        {
            return self.widens(key, true, false);
        }
        let Some(asked) = asked.network() else { return Ok(()) };
        match (self.below.network(), asked) {
            (_, Network::Closed) | (Network::Open, Network::Open) => Ok(()),
            // Only mode `allow` has a proxy that shows secrets to hosts. A project must not turn
            // the proxy on for a host that has a credential.
            (below @ Network::Open, Network::Allow(Egress { allow, .. })) => {
                let credentials = &self.below.config.credentials;
                let has_secret =
                    |rule: &&HostRule| credentials.iter().any(|own| rule.overlaps(&own.host));
                match allow.iter().find(has_secret) {
                    Some(rule) => self.widens("network.allow", quoted(rule), below),
                    None => Ok(()),
                }
            }
            (below, Network::Open) => self.widens("network.mode", quoted("open"), below),
            (below, Network::Allow(Egress { allow, .. })) => {
                let own = below.rules();
                let Some(wider) = allow.iter().find(|rule| !rule.is_covered_by(own)) else {
                    return Ok(());
                };
                let own: Vec<_> = own.iter().map(ToString::to_string).collect();
                let own = if own.is_empty() { below.mode().to_owned() } else { own.join(", ") };
                self.widens("network.allow", quoted(wider), own)
            }
        }
    }

    fn check_limits(&self) -> Result<(), Box<Widening>> {
        let (own, below) = (&self.project.config.limits, &self.below.config.limits);
        self.check_limit("limits.time", own.time, below.time, quoted)?;
        self.check_limit("limits.memory", own.memory, below.memory, quoted)?;
        self.check_limit("limits.cpus", own.cpus, below.cpus, |cpus| cpus.to_string())?;
        self.check_limit("limits.processes", own.processes, below.processes, |processes| {
            processes.to_string()
        })?;
        self.check_limit(
            "limits.output",
            own.output,
            below.output.or(Some(Policy::DEFAULT_OUTPUT)),
            quoted,
        )?;
        self.check_limit("limits.tmp", own.tmp, below.tmp.or(Some(Policy::DEFAULT_TMP)), quoted)?;
        self.check_limit("limits.disk", own.disk, below.disk, quoted)
    }

    fn check_limit<T: PartialOrd + Display>(
        &self,
        key: &str,
        own: Option<T>,
        below: Option<T>,
        shown: impl Fn(T) -> String,
    ) -> Result<(), Box<Widening>> {
        match (own, below) {
            (Some(own), Some(below)) if own > below => self.widens(key, shown(own), below),
            _ => Ok(()),
        }
    }

    fn check_environment(&self) -> Result<(), Box<Widening>> {
        let below = &self.below.config.env;
        let passed = below.pass.as_deref().unwrap_or_default();
        let own = &self.project.config.env;
        if let Some(name) = own.pass.iter().flatten().find(|name| !passed.contains(name)) {
            return self.widens("env.pass", quoted(name), listed(passed));
        }
        // A variable can steer programs (`LD_PRELOAD`, `PATH`). With the backends `local` and
        // `outer` those programs run on the host itself.
        for (name, value) in &own.set {
            let key = format!("env.set.{name}");
            match below.set.get(name) {
                Some(said) if said == value => {}
                Some(said) => return self.widens(&key, quoted(value), said),
                None => return self.widens_another(&key, quoted(value), "unset", "env.set"),
            }
        }
        Ok(())
    }

    /// Checks paths and `allow_weaker`.
    ///
    /// A project may name a path only if the path lies beneath one that the layers below allow. A
    /// writable path is readable too.
    fn check_lists(&self) -> Result<(), Box<Widening>> {
        let (own, below) = (&self.project.config.filesystem, &self.below.config.filesystem);
        let written = below.write.as_deref().unwrap_or_default();
        let read = below.read.as_deref().unwrap_or_default();
        let beneath = |path: &Path, allowed: &[PathBuf]| {
            let path = self.absolute(path);
            allowed.iter().filter_map(|allowed| self.absolute(allowed)).any(|allowed| {
                // `None` means that the path contains `..`, so that its target is unknown.
                path.as_ref().is_some_and(|path| path.starts_with(&allowed))
            })
        };
        for path in own.write.iter().flatten() {
            if !beneath(path, written) {
                return self.widens(
                    "filesystem.write",
                    quoted(path.display()),
                    listed_paths(written),
                );
            }
        }
        for path in own.read.iter().flatten() {
            if !beneath(path, read) && !beneath(path, written) {
                return self.widens("filesystem.read", quoted(path.display()), listed_paths(read));
            }
        }
        let allowed = &self.below.config.allow_weaker;
        match self.project.config.allow_weaker.iter().find(|clause| !allowed.contains(clause)) {
            Some(clause) => self.widens("allow_weaker", quoted(clause), listed(allowed)),
            None => Ok(()),
        }
    }

    /// Checks the keys that only the user and the system may set.
    fn check_user_only(&self) -> Result<(), Box<Widening>> {
        let (own, below) = (&self.project.config, &self.below.config);
        // Patterns of `hide` and `protect` are relative to the workspace, so that another workspace
        // would make them match other files. A destination covers what the sandbox has at that
        // path, which may be programs of the system.
        let workspace = below.filesystem.workspace.clone().unwrap_or_else(|| Workspace::at("."));
        if let Some(asked) = own.filesystem.workspace.as_ref().filter(|asked| **asked != workspace)
        {
            return self.widens("filesystem.workspace", quoted(asked), workspace);
        }
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map_or("unset".to_owned(), |path| path.display().to_string())
        };
        if own.workspace_root.is_some() {
            return self.widens(
                "workspace_root",
                quoted(path(&own.workspace_root)),
                path(&below.workspace_root),
            );
        }
        if let Some(asked) = own.allow_workspace.first() {
            return self.widens(
                "allow_workspace",
                quoted(asked.display()),
                listed_paths(&below.allow_workspace),
            );
        }
        // The user is responsible for the code in an image, and the image is everything that a
        // container has besides its workspace.
        if let Some(image) = &own.container.image {
            let below = below.container.image.as_deref().unwrap_or("unset");
            return self.widens("container.image", quoted(image), below);
        }
        if let Some(store) = own.audit.store {
            return self.widens(
                "audit.store",
                quoted(store),
                below.audit.store.unwrap_or_default(),
            );
        }
        if own.audit.dir.is_some() {
            return self.widens("audit.dir", quoted(path(&own.audit.dir)), path(&below.audit.dir));
        }
        Ok(())
    }

    /// Checks the settings for code: a project may make the lint stricter, and add languages.
    ///
    /// A new language widens nothing, because its command runs in the sandbox under the same policy
    /// as the code, and the code could start that program itself. A new meaning for a known name or
    /// suffix would widen: a caller who runs Python with a key in the environment would pass that
    /// key to a program of the project. Without isolation, a project's languages are not run at
    /// all; see [`CodeSettings::project_languages`].
    fn check_code(&self) -> Result<(), Box<Widening>> {
        let (own, below) = (&self.project.config.code, &self.below.config.code);
        let blocked = below.block_imports.unwrap_or_default();
        if let Some(asked) = own.block_imports.filter(|asked| *asked < blocked) {
            return self.widens("code.block_imports", quoted(asked), blocked);
        }
        if let Some(store) = own.store_code {
            return self.widens(
                "code.store_code",
                quoted(store),
                below.store_code.unwrap_or_default(),
            );
        }
        // A waiting interpreter takes the caller's memory, and a preloaded module runs even if no
        // code is run.
        if let Some(warm) = own.warm {
            return self.widens(
                "code.warm",
                warm,
                below.warm.unwrap_or(CodeSettings::DEFAULT_WARM),
            );
        }
        if let Some(preload) = &own.preload {
            return self.widens(
                "code.preload",
                listed(preload),
                listed(below.preload.iter().flatten()),
            );
        }
        let languages = self.below.languages();
        for (name, language) in &own.languages {
            let key = format!("code.languages.{name}");
            match languages.get(name) {
                Some(known) if known == language => continue,
                Some(known) => return self.widens(&key, quoted(language), known),
                None => {}
            }
            let same = languages.iter().find(|(_, known)| known.suffix() == language.suffix());
            if let Some((other, known)) = same {
                return self.widens_another(
                    &key,
                    quoted(language),
                    known,
                    &format!("code.languages.{other}"),
                );
            }
        }
        Ok(())
    }

    /// Returns the absolute path without looking at the file system, or `None` if it contains `..`.
    fn absolute(&self, path: &Path) -> Option<PathBuf> {
        let path = self.directory.join(path);
        let climbs = path.components().any(|component| component == Component::ParentDir);
        (!climbs).then(|| path.components().collect())
    }
}

fn quoted(value: impl Display) -> String {
    format!("{:?}", value.to_string())
}

fn listed<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(quoted).collect();
    format!("[{}]", items.join(", "))
}

fn listed_paths(paths: &[PathBuf]) -> String {
    listed(paths.iter().map(|path| path.display()))
}
