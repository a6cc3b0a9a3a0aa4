//! Explanation of settings: every effective value with its source.

use std::fmt::Display;

use super::{Settings, ValueSource};
use crate::policy::Network;

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
        let policy = self.policy.with_defaults();
        let files = &policy.filesystem;
        let limits = &policy.limits;
        let network = policy.network.as_ref();
        let egress = network.and_then(Network::egress).cloned().unwrap_or_default();
        let paths = |paths: &[std::path::PathBuf]| list(paths.iter().map(|path| path.display()));
        let mut values = vec![
            ("backend".to_owned(), self.selection.to_string()),
            ("filesystem.workspace".to_owned(), or_unset(files.workspace.as_ref())),
            ("filesystem.read".to_owned(), paths(files.read.as_deref().unwrap_or_default())),
            ("filesystem.write".to_owned(), paths(files.write.as_deref().unwrap_or_default())),
            ("filesystem.hide".to_owned(), list(files.hide.iter().flatten())),
            ("filesystem.protect".to_owned(), list(files.protect.iter().flatten())),
            ("network.mode".to_owned(), or_unset(network)),
            ("network.allow".to_owned(), list(&egress.allow)),
            ("network.deny".to_owned(), list(&egress.deny)),
            ("network.transparent".to_owned(), egress.transparent.to_string()),
            ("network.observe".to_owned(), egress.observe.to_string()),
            ("limits.time".to_owned(), or_unset(limits.time)),
            ("limits.memory".to_owned(), or_unset(limits.memory)),
            ("limits.cpus".to_owned(), or_unset(limits.cpus)),
            ("limits.processes".to_owned(), or_unset(limits.processes)),
            ("limits.output".to_owned(), or_unset(limits.output)),
            ("limits.tmp".to_owned(), or_unset(limits.tmp)),
            ("limits.disk".to_owned(), or_unset(limits.disk)),
            ("env.pass".to_owned(), list(policy.env.pass.iter().flatten())),
        ];
        // The value of a variable may be a secret; its name is not.
        values.extend(
            policy.env.set.keys().map(|name| (format!("env.set.{name}"), "***".to_owned())),
        );
        values.extend([
            ("require".to_owned(), list(&policy.require)),
            ("allow_weaker".to_owned(), list(&policy.allow_weaker)),
            (
                "workspace_root".to_owned(),
                or_unset(self.workspace_root.as_ref().map(|path| path.display())),
            ),
            ("allow_workspace".to_owned(), paths(&self.allow_workspace)),
            ("container.image".to_owned(), or_unset(self.image.as_ref())),
            ("credentials".to_owned(), list(&self.credentials)),
            ("audit.store".to_owned(), self.audit.store.to_string()),
            ("audit.dir".to_owned(), self.audit.dir.display().to_string()),
            ("code.block_imports".to_owned(), self.code.block_imports.to_string()),
            ("code.imports".to_owned(), list(&self.code.imports)),
            ("code.store_code".to_owned(), self.code.store_code.to_string()),
            ("code.warm".to_owned(), self.code.warm.to_string()),
            (
                "code.preload".to_owned(),
                list(self.code.preload_line().split(' ').filter(|word| !word.is_empty())),
            ),
        ]);
        let languages = self.code.languages.iter();
        values.extend(
            languages
                .map(|(name, language)| (format!("code.languages.{name}"), language.to_string())),
        );
        let explained = values.into_iter().map(|(key, value)| ExplainedValue {
            sources: self.sources.for_key(&key).to_vec(),
            key,
            value,
        });
        explained.collect()
    }
}

fn or_unset(value: Option<impl Display>) -> String {
    value.map_or("unset".to_owned(), |value| value.to_string())
}

fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(", "))
}
