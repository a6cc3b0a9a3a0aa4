//! Merging of layers into settings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::layer::{Layer, LayerRank};
use super::{
    AuditSettings, BackendSelection, CodeSettings, Config, Language, PythonModule, Settings,
    ValueSources,
};
use crate::Policy;
use crate::policy::{Network, NetworkMode, PathGlob};

/// Result of merging the layers up to now, lowest first.
#[derive(Debug, Default)]
pub(super) struct MergedLayers {
    pub(super) config: Config,
    pub(super) selection: BackendSelection,
    pub(super) sources: ValueSources,
    /// Names of the languages that the project's file added.
    project_languages: BTreeSet<String>,
}

impl MergedLayers {
    /// Adds a layer on top of the merged layers.
    pub(super) fn add(&mut self, layer: Layer) {
        let own = &mut self.config;
        let mut onto = LayerMerge { layer: &layer, sources: &mut self.sources };
        let from = &layer.config;

        if let Some(selection) = layer.selection {
            self.selection = selection;
        }
        onto.replace("backend", &mut own.backend, &from.backend);

        onto.replace(
            "filesystem.workspace",
            &mut own.filesystem.workspace,
            &from.filesystem.workspace,
        );
        onto.unite("filesystem.read", &mut own.filesystem.read, &from.filesystem.read);
        onto.unite("filesystem.write", &mut own.filesystem.write, &from.filesystem.write);
        onto.unite("filesystem.hide", &mut own.filesystem.hide, &from.filesystem.hide);
        onto.unite("filesystem.protect", &mut own.filesystem.protect, &from.filesystem.protect);

        // `mode` and `allow` are one value with two keys, so a layer that sets one of them replaces
        // both.
        if from.network.mode.is_some() || from.network.allow.is_some() {
            own.network.mode = from.network.mode.or(Some(NetworkMode::Allow));
            own.network.allow.clone_from(&from.network.allow);
            onto.mark("network.mode");
            onto.mark("network.allow");
        }
        onto.unite("network.deny", &mut own.network.deny, &from.network.deny);
        onto.replace(
            "network.transparent",
            &mut own.network.transparent,
            &from.network.transparent,
        );
        onto.replace("network.observe", &mut own.network.observe, &from.network.observe);

        onto.replace("limits.time", &mut own.limits.time, &from.limits.time);
        onto.replace("limits.memory", &mut own.limits.memory, &from.limits.memory);
        onto.replace("limits.cpus", &mut own.limits.cpus, &from.limits.cpus);
        onto.replace("limits.processes", &mut own.limits.processes, &from.limits.processes);
        onto.replace("limits.output", &mut own.limits.output, &from.limits.output);
        onto.replace("limits.tmp", &mut own.limits.tmp, &from.limits.tmp);
        onto.replace("limits.disk", &mut own.limits.disk, &from.limits.disk);

        onto.unite("env.pass", &mut own.env.pass, &from.env.pass);
        for (name, value) in &from.env.set {
            own.env.set.insert(name.clone(), value.clone());
            let key = format!("env.set.{name}");
            onto.sources.replace(&key, layer.source(&key));
        }

        for (key, own, from) in [
            ("require", &mut own.require, &from.require),
            ("allow_weaker", &mut own.allow_weaker, &from.allow_weaker),
        ] {
            if !from.is_empty() {
                own.extend(from);
                onto.sources.add(key, layer.source(key));
            }
        }

        onto.replace("workspace_root", &mut own.workspace_root, &from.workspace_root);
        if !from.allow_workspace.is_empty() {
            own.allow_workspace.extend_from_slice(&from.allow_workspace);
            onto.sources.add("allow_workspace", layer.source("allow_workspace"));
        }
        onto.replace("container.image", &mut own.container.image, &from.container.image);
        if !from.credentials.is_empty() {
            own.credentials.extend_from_slice(&from.credentials);
            onto.sources.add("credentials", layer.source("credentials"));
        }
        onto.replace("audit.store", &mut own.audit.store, &from.audit.store);
        onto.replace("audit.dir", &mut own.audit.dir, &from.audit.dir);

        onto.replace("code.block_imports", &mut own.code.block_imports, &from.code.block_imports);
        onto.unite("code.imports", &mut own.code.imports, &from.code.imports);
        onto.replace("code.store_code", &mut own.code.store_code, &from.code.store_code);
        onto.replace("code.warm", &mut own.code.warm, &from.code.warm);
        onto.replace("code.preload", &mut own.code.preload, &from.code.preload);
        for (name, language) in &from.code.languages {
            own.code.languages.insert(name.clone(), language.clone());
            let key = format!("code.languages.{name}");
            onto.sources.replace(&key, layer.source(&key));
            if layer.rank == LayerRank::Project {
                self.project_languages.insert(name.clone());
            }
        }
    }

    /// Returns the protected paths of the merged layers, or the default if no layer sets them.
    pub(super) fn protected(&self) -> Vec<PathGlob> {
        let built_in = || Policy::DEFAULT_PROTECTED.map(PathGlob::literal).to_vec();
        self.config.filesystem.protect.clone().unwrap_or_else(built_in)
    }

    /// Returns the modules that the lint looks for in the merged layers, or the default if no layer
    /// sets them.
    pub(super) fn imports(&self) -> Vec<PythonModule> {
        self.config.code.imports.clone().unwrap_or_else(PythonModule::built_in)
    }

    /// Returns the languages of the merged layers and the built-in languages.
    pub(super) fn languages(&self) -> BTreeMap<String, Language> {
        let mut languages = Language::built_in();
        languages.extend(self.config.code.languages.clone());
        languages
    }

    /// Returns the network of the merged layers; `Closed` if no layer sets it.
    pub(super) fn network(&self) -> Network {
        self.config.network.network().unwrap_or(Network::Closed)
    }

    /// Turns the merged layers into settings and fills in the defaults outside the policy.
    pub(super) fn into_settings(self) -> Settings {
        let MergedLayers { config, selection, sources, project_languages } = self;
        Settings {
            selection,
            workspace_root: config.workspace_root.clone(),
            allow_workspace: config.allow_workspace.clone(),
            image: config.container.image.clone(),
            credentials: config.credentials.clone(),
            audit: AuditSettings {
                store: config.audit.store.unwrap_or_default(),
                dir: config.audit.dir.clone().unwrap_or_else(|| PathBuf::from(Settings::AUDIT_DIR)),
            },
            code: CodeSettings::from_config(&config.code, &project_languages),
            sources,
            policy: config.policy(),
        }
    }
}

/// A layer that is being merged, with the sources that the merge updates.
struct LayerMerge<'a> {
    layer: &'a Layer,
    sources: &'a mut ValueSources,
}

impl LayerMerge<'_> {
    fn mark(&mut self, key: &str) {
        self.sources.replace(key, self.layer.source(key));
    }

    /// Replaces a value if the layer sets one, and records the layer as its only source.
    fn replace<T: Clone>(&mut self, key: &str, own: &mut Option<T>, from: &Option<T>) {
        if from.is_some() {
            own.clone_from(from);
            self.mark(key);
        }
    }

    /// Adds the items that a list does not have yet, and records the layer as one of its sources.
    fn unite<T: Clone + PartialEq>(
        &mut self,
        key: &str,
        own: &mut Option<Vec<T>>,
        from: &Option<Vec<T>>,
    ) {
        let Some(from) = from else { return };
        let own = own.get_or_insert_default();
        for item in from {
            if !own.contains(item) {
                own.push(item.clone());
            }
        }
        self.sources.add(key, self.layer.source(key));
    }
}
