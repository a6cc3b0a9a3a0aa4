//! Merging of layers into settings, and the rules by which values are merged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::field::Field;
use super::keys::KEYS;
use super::layer::{Layer, LayerRank};
use super::{
    AuditSettings, BackendSelection, CodeSettings, Config, Language, Settings, ValueSources,
};
use crate::policy::{Network, NetworkMode};

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
    pub(super) fn add(&mut self, layer: &Layer) {
        if let Some(selection) = layer.selection {
            self.selection = selection;
        }
        let mut merge = LayerMerge { own: &mut self.config, layer, sources: &mut self.sources };
        for setting in KEYS {
            (setting.merge)(&mut merge);
        }
        if layer.rank == LayerRank::Project {
            self.project_languages.extend(layer.config.code.languages.keys().cloned());
        }
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
            kubernetes: config.kubernetes.clone(),
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

/// A layer that is being merged onto the layers below, and the sources that the merge updates.
pub(super) struct LayerMerge<'a> {
    own: &'a mut Config,
    layer: &'a Layer,
    sources: &'a mut ValueSources,
}

impl LayerMerge<'_> {
    /// Returns the merged value, to be changed, and the value that the layer states, if it does.
    fn values<V: Default + PartialEq>(&mut self, field: &Field<V>) -> Option<(&mut V, &V)> {
        let from = field.stated(&self.layer.config)?;
        Some(((field.get_mut)(self.own), from))
    }

    /// Records the layer as the only source of `key`.
    fn mark(&mut self, key: &str) {
        self.sources.replace(key, self.layer.source(key));
    }

    /// Records the layer as one of the sources of `key`.
    fn mark_too(&mut self, key: &str) {
        self.sources.add(key, self.layer.source(key));
    }

    /// Replaces the value.
    pub(super) fn replace<V: Clone + Default + PartialEq>(&mut self, field: &Field<V>) {
        if let Some((own, from)) = self.values(field) {
            own.clone_from(from);
            self.mark(field.key);
        }
    }

    /// Replaces the mode and the hosts of the network. They are one value with two keys, so a layer
    /// that sets one of them replaces both.
    pub(super) fn replace_network<V>(&mut self, field: &Field<V>) {
        let (own, from) = (&mut self.own.network, &self.layer.config.network);
        if from.mode.is_some() || from.allow.is_some() {
            own.mode = from.mode.or(Some(NetworkMode::Allow));
            own.allow.clone_from(&from.allow);
            self.mark(field.key);
        }
    }

    /// Adds the items that a list does not have yet.
    pub(super) fn unite<T: Clone + PartialEq>(&mut self, field: &Field<Option<Vec<T>>>) {
        if let Some((own, from)) = self.values(field) {
            let own = own.get_or_insert_default();
            for item in from.iter().flatten() {
                if !own.contains(item) {
                    own.push(item.clone());
                }
            }
            self.mark_too(field.key);
        }
    }

    /// Adds all items to a list or a set.
    pub(super) fn extend<L>(&mut self, field: &Field<L>)
    where
        L: Clone + Default + PartialEq + IntoIterator + Extend<L::Item>,
    {
        if let Some((own, from)) = self.values(field) {
            own.extend(from.clone());
            self.mark_too(field.key);
        }
    }

    /// Adds the values of a table, and replaces those that have the same name.
    pub(super) fn insert<T: Clone>(&mut self, field: &Field<BTreeMap<String, T>>) {
        for (name, value) in (field.get)(&self.layer.config) {
            (field.get_mut)(self.own).insert(name.clone(), value.clone());
            self.mark(&format!("{}.{name}", field.key));
        }
    }
}
