//! Explanation of settings: every effective value with its source.

use std::collections::BTreeMap;

use super::field::{Field, ItemList, SettingItem};
use super::keys::KEYS;
use super::{
    AuditConfig, AuditSettings, Config, ContainerConfig, PythonModule, Settings, ValueSource,
};
use crate::BackendChoice;

/// One effective value, with its key and its sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedValue {
    /// Key of the value, such as `limits.memory`.
    pub key: String,
    /// Value as text; `unset` if there is no value, and `***` for the value of a variable.
    pub value: String,
    /// Source of the value; for a list, each source that added to the list.
    pub sources: Vec<ValueSource>,
}

impl Settings {
    /// Returns every effective value with its source, defaults included, in the order of the
    /// documentation.
    pub fn explain(&self) -> Vec<ExplainedValue> {
        let explanation =
            Explanation { settings: self, config: self.to_config(), built_in: Config::built_in() };
        let values = KEYS.iter().flat_map(|setting| (setting.explain)(&explanation));
        let explained = values.map(|(key, value)| ExplainedValue {
            sources: self.sources.for_key(&key).to_vec(),
            key,
            value,
        });
        explained.collect()
    }

    /// Returns the settings as one layer.
    fn to_config(&self) -> Config {
        let AuditSettings { store, dir } = &self.audit;
        Config {
            workspace_root: self.workspace_root.clone(),
            allow_workspace: self.allow_workspace.clone(),
            container: ContainerConfig { image: self.image.clone() },
            kubernetes: self.kubernetes.clone(),
            credentials: self.credentials.clone(),
            audit: AuditConfig { store: Some(*store), dir: Some(dir.clone()) },
            code: self.code.to_config(),
            ..Config::from(self.policy.clone())
        }
    }
}

/// Values of a setting as text, each with its key.
pub(super) type ExplainedRows = Vec<(String, String)>;

/// Settings that are being explained.
pub(super) struct Explanation<'a> {
    settings: &'a Settings,
    /// The settings as one layer.
    config: Config,
    /// Defaults of the keys that the settings do not state.
    built_in: Config,
}

impl Explanation<'_> {
    fn effective<V: Default + PartialEq>(&self, field: &Field<V>) -> &V {
        field.stated_or(&self.config, &self.built_in)
    }

    /// Explains a single value.
    pub(super) fn value<T: SettingItem>(&self, field: &Field<Option<T>>) -> ExplainedRows {
        let value = self.effective(field).as_ref();
        row(field.key, value.map_or("unset".to_owned(), SettingItem::text))
    }

    /// Explains a list.
    pub(super) fn list<L: ItemList>(&self, field: &Field<L>) -> ExplainedRows {
        row(field.key, bracketed(self.effective(field).items().into_iter().map(SettingItem::text)))
    }

    /// Explains each value of a table.
    pub(super) fn table<T>(&self, field: &Field<BTreeMap<String, T>>) -> ExplainedRows
    where
        T: SettingItem,
    {
        let values = self.effective(field).iter();
        values.map(|(name, value)| (format!("{}.{name}", field.key), value.text())).collect()
    }

    /// Explains a table whose values may be secrets; their names are not.
    pub(super) fn secrets(&self, field: &Field<BTreeMap<String, String>>) -> ExplainedRows {
        let names = self.effective(field).keys();
        names.map(|name| (format!("{}.{name}", field.key), "***".to_owned())).collect()
    }

    /// Explains the selection of the backend, of which a file can state only a part.
    pub(super) fn selection(&self, field: &Field<Option<BackendChoice>>) -> ExplainedRows {
        row(field.key, self.settings.selection.to_string())
    }

    /// Explains the modules that interpreters import. By default, some need not be installed.
    pub(super) fn preload(&self, field: &Field<Option<Vec<PythonModule>>>) -> ExplainedRows {
        let line = self.settings.code.preload_line();
        row(field.key, bracketed(line.split_whitespace().map(str::to_owned)))
    }
}

fn row(key: &str, value: String) -> ExplainedRows {
    vec![(key.to_owned(), value)]
}

fn bracketed(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}
