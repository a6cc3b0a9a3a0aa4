//! What a project may say: less than the layers below it, never more.

use std::fmt::{self, Display};
use std::path::{Component, Path, PathBuf};

use super::code::Code;
use super::keys::KEYS;
use super::layer::Layer;
use super::merge::Merged;
use super::{AuditConfig, CodeConfig, Config, ContainerConfig, Selection, Source};
use crate::policy::{Egress, Environment, Filesystem, HostRule, Limits, Network, NetworkTable, Workspace};
use crate::{Backend, Policy};

/// A project's attempt to widen the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Widening {
    /// Where the project says it.
    pub place: Source,
    /// What it speaks of.
    pub key: String,
    /// What it says.
    pub value: String,
    /// What holds below it.
    pub below: String,
    /// Where that was said.
    pub set_at: Source,
}

impl std::error::Error for Widening {}

impl Display for Widening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Widening { place, key, value, below, set_at } = self;
        write!(f, "{place}: {key} = {value} would widen `{below}`, ")?;
        match set_at {
            Source::BuiltIn => f.write_str("the built-in default"),
            said => write!(f, "set at {said}"),
        }
    }
}

impl Widening {
    /// The next thing to do.
    pub fn hint(&self) -> String {
        let flag = KEYS.iter().find(|key| self.key.starts_with(key.name)).and_then(|key| key.flag);
        let or_flag = flag.map(|flag| format!(", or say it yourself with {flag}")).unwrap_or_default();
        format!("a project may only narrow the policy: remove the line, move it to your own config.toml{or_flag}")
    }
}

/// Checks a project's layer against what is below, and leaves in it only what narrows.
pub(super) fn narrow(below: &mut Merged, mut project: Layer, directory: &Path) -> Result<Layer, Box<Widening>> {
    let check = Check { below, project: &project, directory };
    check.backend()?;
    check.network()?;
    check.limits()?;
    check.environment()?;
    check.lists()?;
    check.user_only()?;
    check.code()?;

    // Without `..`, so that a new key does not compile before somebody has decided what a project may say of it.
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
    // These repeat what is below, or were refused. To list them again would make the project their source, and would
    // follow a symbolic link that was planted since.
    (*workspace, *read, *write, *pass) = (None, None, None, None);
    set.clear();
    allow_weaker.clear();
    (*workspace_root, *image) = (None, None);
    allow_workspace.clear();
    credentials.clear();
    (*store, *dir, *store_code, *warm, *preload) = (None, None, None, None, None);
    // What is the same below is not the project's.
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

struct Check<'a> {
    below: &'a Merged,
    project: &'a Layer,
    directory: &'a Path,
}

impl Check<'_> {
    fn widens(&self, key: &str, value: impl Display, below: impl Display) -> Result<(), Box<Widening>> {
        self.widens_another(key, value, below, key)
    }

    /// A value of `key` that would widen what `other` says.
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

    /// A project may name the backend that holds the most, where the caller left the choice open.
    ///
    /// Any other would be chosen for what it lacks: a bubblewrap or an engine's runtime with a known hole is as good as
    /// an escape to code that may ask for it, and `auto` never makes containers.
    fn backend(&self) -> Result<(), Box<Widening>> {
        let Some(asked) = self.project.selection else { return Ok(()) };
        let below = self.below.selection;
        let is_strongest = (below, asked) == (Selection::Auto, Selection::Only(Backend::Native));
        if below == asked || is_strongest { Ok(()) } else { self.widens("backend", quoted(asked), below) }
    }

    fn network(&self) -> Result<(), Box<Widening>> {
        let (asked, below) = (&self.project.config.network, &self.below.config.network);
        // Whatever the mode is now: a layer above may change it, and would be observed where it asked to be held.
        // What is transparent puts more of our code, on the host, within the sandbox's reach.
        let switches = [
            ("network.transparent", asked.transparent, below.transparent),
            ("network.observe", asked.observe, below.observe),
        ];
        let is_on = |switch| switch == Some(true);
        if let Some((key, ..)) = switches.into_iter().find(|(_, asked, below)| is_on(*asked) && !is_on(*below)) {
            return self.widens(key, true, false);
        }
        let Some(asked) = asked.network() else { return Ok(()) };
        match (self.below.network(), asked) {
            (_, Network::Closed) | (Network::Open, Network::Open) => Ok(()),
            // Only a network that lets some hosts be reached has a proxy that shows them secrets.
            (below @ Network::Open, Network::Allow(Egress { allow, .. })) => {
                let credentials = &self.below.config.credentials;
                let has_secret = |rule: &&HostRule| credentials.iter().any(|own| rule.overlaps(&own.host));
                match allow.iter().find(has_secret) {
                    Some(rule) => self.widens("network.allow", quoted(rule), below),
                    None => Ok(()),
                }
            }
            (below, Network::Open) => self.widens("network.mode", quoted("open"), below),
            (below, Network::Allow(Egress { allow, .. })) => {
                let own = below.rules();
                let Some(wider) = allow.iter().find(|rule| !rule.is_covered_by(own)) else { return Ok(()) };
                let own: Vec<_> = own.iter().map(ToString::to_string).collect();
                let own = if own.is_empty() { below.mode().to_owned() } else { own.join(", ") };
                self.widens("network.allow", quoted(wider), own)
            }
        }
    }

    fn limits(&self) -> Result<(), Box<Widening>> {
        let (own, below) = (&self.project.config.limits, &self.below.config.limits);
        self.limit("limits.time", own.time, below.time, quoted)?;
        self.limit("limits.memory", own.memory, below.memory, quoted)?;
        self.limit("limits.cpus", own.cpus, below.cpus, |cpus| cpus.to_string())?;
        self.limit("limits.processes", own.processes, below.processes, |processes| processes.to_string())?;
        self.limit("limits.output", own.output, below.output.or(Some(Policy::OUTPUT)), quoted)?;
        self.limit("limits.tmp", own.tmp, below.tmp.or(Some(Policy::TMP)), quoted)?;
        self.limit("limits.disk", own.disk, below.disk, quoted)
    }

    fn limit<T: PartialOrd + Display>(
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

    fn environment(&self) -> Result<(), Box<Widening>> {
        let below = &self.below.config.env;
        let passed = below.pass.as_deref().unwrap_or_default();
        let own = &self.project.config.env;
        if let Some(name) = own.pass.iter().flatten().find(|name| !passed.contains(name)) {
            return self.widens("env.pass", quoted(name), listed(passed));
        }
        // A variable steers programs (`LD_PRELOAD`, `PATH`), on `local` and `outer` on the host itself.
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

    /// What can be read is what can be written and more.
    fn lists(&self) -> Result<(), Box<Widening>> {
        let (own, below) = (&self.project.config.filesystem, &self.below.config.filesystem);
        let written = below.write.as_deref().unwrap_or_default();
        let read = below.read.as_deref().unwrap_or_default();
        let beneath = |path: &Path, allowed: &[PathBuf]| {
            let path = self.absolute(path);
            allowed.iter().filter_map(|allowed| self.absolute(allowed)).any(|allowed| {
                // `None` climbs with `..`, and nobody knows where to.
                path.as_ref().is_some_and(|path| path.starts_with(&allowed))
            })
        };
        for path in own.write.iter().flatten() {
            if !beneath(path, written) {
                return self.widens("filesystem.write", quoted(path.display()), paths(written));
            }
        }
        for path in own.read.iter().flatten() {
            if !beneath(path, read) && !beneath(path, written) {
                return self.widens("filesystem.read", quoted(path.display()), paths(read));
            }
        }
        let allowed = &self.below.config.allow_weaker;
        match self.project.config.allow_weaker.iter().find(|clause| !allowed.contains(clause)) {
            Some(clause) => self.widens("allow_weaker", quoted(clause), listed(allowed)),
            None => Ok(()),
        }
    }

    /// Keys that are the user's and the system's alone.
    fn user_only(&self) -> Result<(), Box<Widening>> {
        let (own, below) = (&self.project.config, &self.below.config);
        // Patterns of `hide` and `protect` are relative to the workspace, so that another directory would take away what
        // they say; a destination covers what is there inside, programs of the system among it.
        let workspace = below.filesystem.workspace.clone().unwrap_or_else(|| Workspace::at("."));
        if let Some(asked) = own.filesystem.workspace.as_ref().filter(|asked| **asked != workspace) {
            return self.widens("filesystem.workspace", quoted(asked), workspace);
        }
        let path = |path: &Option<PathBuf>| path.as_ref().map_or("unset".to_owned(), |path| path.display().to_string());
        if own.workspace_root.is_some() {
            return self.widens("workspace_root", quoted(path(&own.workspace_root)), path(&below.workspace_root));
        }
        if let Some(asked) = own.allow_workspace.first() {
            return self.widens("allow_workspace", quoted(asked.display()), paths(&below.allow_workspace));
        }
        // An image is code that the caller vouches for, and what a container has beside its workspace.
        if let Some(image) = &own.container.image {
            let below = below.container.image.as_deref().unwrap_or("unset");
            return self.widens("container.image", quoted(image), below);
        }
        if let Some(store) = own.audit.store {
            return self.widens("audit.store", quoted(store), below.audit.store.unwrap_or_default());
        }
        if own.audit.dir.is_some() {
            return self.widens("audit.dir", quoted(path(&own.audit.dir)), path(&below.audit.dir));
        }
        Ok(())
    }

    /// A project may have the lint look harder, and add languages.
    ///
    /// A language's command runs in the sandbox, behind the very policy that the code is run behind, and the code could
    /// start that program itself: a new language widens nothing. To change what a known name or suffix means would: a
    /// caller who has Python run with a key in its environment would hand that key to a program of the project's.
    /// (Where a sandbox isolates nothing a project's languages are not run at all; see [`super::Language`].)
    fn code(&self) -> Result<(), Box<Widening>> {
        let (own, below) = (&self.project.config.code, &self.below.config.code);
        let blocked = below.block_imports.unwrap_or_default();
        if let Some(asked) = own.block_imports.filter(|asked| *asked < blocked) {
            return self.widens("code.block_imports", quoted(asked), blocked);
        }
        if let Some(store) = own.store_code {
            return self.widens("code.store_code", quoted(store), below.store_code.unwrap_or_default());
        }
        // What waits takes the caller's memory, and what is imported runs without anybody's code.
        if let Some(warm) = own.warm {
            return self.widens("code.warm", warm, below.warm.unwrap_or(Code::WARM));
        }
        if let Some(preload) = &own.preload {
            return self.widens("code.preload", listed(preload), listed(below.preload.iter().flatten()));
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
                return self.widens_another(&key, quoted(language), known, &format!("code.languages.{other}"));
            }
        }
        Ok(())
    }

    /// The path from the root, by name alone; none when it climbs with `..`.
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

fn paths(paths: &[PathBuf]) -> String {
    listed(paths.iter().map(|path| path.display()))
}
