//! Check of the project's file: it may narrow what the layers below it allow, and never widen it.
//!
//! Each setting names one of the rules, which are methods of [`NarrowingCheck`]. A rule refuses a
//! value that widens. A rule that accepts only repetitions also removes the value, because a merge
//! would make the project its source. A path could also be a symbolic link that sandboxed code has
//! planted, and the host would follow the link.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::{Component, Path, PathBuf};

use super::field::{Field, ItemList, SettingItem};
use super::keys::{KEYS, SettingKey};
use super::layer::Layer;
use super::merge::MergedLayers;
use super::{BackendSelection, Config, Language, ValueSource};
use crate::policy::{Egress, HostRule, Network, NetworkMode};
use crate::{Backend, BackendChoice};

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
        let flag = SettingKey::containing(&self.key).and_then(|setting| setting.flag);
        let or_flag =
            flag.map(|flag| format!(", or say it yourself with {flag}")).unwrap_or_default();
        format!(
            "a project may only narrow the policy: remove the line, move it to your own \
             config.toml{or_flag}"
        )
    }
}

/// Answer of a rule: an error for a value that widens.
pub(super) type NarrowingResult = Result<(), Box<Widening>>;

/// Checks the project's layer against the layers below it, and removes from the project's layer the
/// values that can only repeat those of the layers below.
///
/// The error names the first key that widens, in the order of the documentation.
pub(super) fn narrow(
    below: &mut MergedLayers,
    project: &mut Layer,
    directory: &Path,
) -> NarrowingResult {
    let mut check = NarrowingCheck { below, project, directory, built_in: Config::built_in() };
    KEYS.iter().try_for_each(|setting| (setting.narrow)(&mut check))
}

/// The project's layer, and the layers below it that it may only narrow.
pub(super) struct NarrowingCheck<'a> {
    below: &'a mut MergedLayers,
    project: &'a mut Layer,
    directory: &'a Path,
    built_in: Config,
}

impl NarrowingCheck<'_> {
    /// Returns the value that the project sets, if it does.
    fn asked<V: Default + PartialEq>(&self, field: &Field<V>) -> Option<&V> {
        field.stated(&self.project.config)
    }

    /// Returns the value of the layers below, or the default.
    fn below<V: Default + PartialEq>(&self, field: &Field<V>) -> &V {
        field.stated_or(&self.below.config, &self.built_in)
    }

    /// Removes a value that adds nothing to the layers below.
    fn remove<V: Default>(&mut self, field: &Field<V>) -> NarrowingResult {
        *(field.get_mut)(&mut self.project.config) = V::default();
        Ok(())
    }

    fn widens(&self, key: &str, value: impl Display, below: impl Display) -> NarrowingResult {
        self.widens_another(key, value, below, key)
    }

    /// Returns the error for a value of `key` that would widen the value of the key `other`.
    fn widens_another(
        &self,
        key: &str,
        value: impl Display,
        below: impl Display,
        other: &str,
    ) -> NarrowingResult {
        Err(Box::new(Widening {
            place: self.project.source(key),
            key: key.to_owned(),
            value: value.to_string(),
            below: below.to_string(),
            set_at: self.below.sources.last(other).clone(),
        }))
    }

    /// The project may not set the value.
    pub(super) fn may_not_set<T: SettingItem>(
        &mut self,
        field: &Field<Option<T>>,
    ) -> NarrowingResult {
        let Some(Some(asked)) = self.asked(field) else { return Ok(()) };
        let below = self.below(field).as_ref().map_or("unset".to_owned(), SettingItem::text);
        self.widens(field.key, asked.literal(), below)
    }

    /// The project may not set the list.
    pub(super) fn may_not_list<L: ItemList>(&mut self, field: &Field<L>) -> NarrowingResult {
        let Some(asked) = self.asked(field) else { return Ok(()) };
        self.widens(field.key, asked.literal(), self.below(field).literal())
    }

    /// The project may not add an item to the list.
    pub(super) fn may_not_add<L: ItemList>(&mut self, field: &Field<L>) -> NarrowingResult {
        match (field.get)(&self.project.config).items().first() {
            Some(item) => self.widens(field.key, item.literal(), self.below(field).literal()),
            None => Ok(()),
        }
    }

    /// The project may repeat the value, and set no other.
    pub(super) fn may_repeat<T: SettingItem>(
        &mut self,
        field: &Field<Option<T>>,
    ) -> NarrowingResult {
        if self.asked(field).is_some_and(|asked| asked != self.below(field)) {
            return self.may_not_set(field);
        }
        self.remove(field)
    }

    /// The project may repeat items of the list, and add none.
    pub(super) fn may_repeat_items<L: ItemList>(&mut self, field: &Field<L>) -> NarrowingResult {
        let (asked, below) = ((field.get)(&self.project.config).items(), self.below(field));
        match asked.into_iter().find(|item| !below.items().contains(item)) {
            Some(item) => self.widens(field.key, item.literal(), below.literal()),
            None => self.remove(field),
        }
    }

    /// The project may repeat values of the table, and neither change nor add one.
    pub(super) fn may_repeat_named<T: SettingItem>(
        &mut self,
        field: &Field<BTreeMap<String, T>>,
    ) -> NarrowingResult {
        for (name, asked) in (field.get)(&self.project.config) {
            let key = format!("{}.{name}", field.key);
            match self.below(field).get(name) {
                Some(below) if below == asked => {}
                Some(below) => return self.widens(&key, asked.literal(), below.text()),
                None => return self.widens_another(&key, asked.literal(), "unset", field.key),
            }
        }
        self.remove(field)
    }

    /// The project may set a value that is not set, and lower a value that is.
    pub(super) fn may_lower<T>(&mut self, field: &Field<Option<T>>) -> NarrowingResult
    where
        T: SettingItem + PartialOrd,
    {
        match (self.asked(field), self.below(field)) {
            (Some(asked), below) if below.is_some() && asked > below => self.may_not_set(field),
            _ => Ok(()),
        }
    }

    /// The project may raise the value.
    pub(super) fn may_raise<T>(&mut self, field: &Field<Option<T>>) -> NarrowingResult
    where
        T: SettingItem + PartialOrd,
    {
        match self.asked(field) {
            Some(asked) if asked < self.below(field) => self.may_not_set(field),
            _ => Ok(()),
        }
    }

    /// The project may turn the switch off, and not on.
    ///
    /// The switches of the network are refused in every mode, because a layer above may change the
    /// mode to `allow`.
    pub(super) fn may_turn_off(&mut self, field: &Field<Option<bool>>) -> NarrowingResult {
        self.may_lower(field)
    }

    /// The project may add items.
    pub(super) fn may_add<L: ItemList + Clone>(&mut self, field: &Field<L>) -> NarrowingResult {
        // A list that is set takes the place of the default, so that the default must be set below
        // the project's items.
        if self.asked(field).is_some() {
            *(field.get_mut)(&mut self.below.config) = self.below(field).clone();
        }
        Ok(())
    }

    /// The project may repeat the selection of the layers below, or choose `native`, the strongest
    /// backend, if that selection is `auto`.
    ///
    /// Hostile code would choose any other backend for its weakness. A bubblewrap or a container
    /// runtime with a known vulnerability is an escape for code that can choose it. `auto` itself
    /// never makes containers.
    pub(super) fn may_choose_native(
        &mut self,
        field: &Field<Option<BackendChoice>>,
    ) -> NarrowingResult {
        let Some(asked) = self.project.selection else { return Ok(()) };
        let below = self.below.selection;
        let is_strongest =
            (below, asked) == (BackendSelection::Auto, BackendSelection::Only(Backend::Native));
        if below == asked || is_strongest {
            Ok(())
        } else {
            self.widens(field.key, asked.to_string().literal(), below)
        }
    }

    /// The project may close the network, or allow hosts that the layers below allow.
    ///
    /// The mode and the hosts are one value with two keys, and both keys have this rule.
    pub(super) fn may_narrow_network<V>(&mut self, _: &Field<V>) -> NarrowingResult {
        let Some(asked) = self.project.config.network.network() else { return Ok(()) };
        match (self.below.network(), asked) {
            (_, Network::Closed) | (Network::Open, Network::Open) => Ok(()),
            // Only mode `allow` has a proxy that shows secrets to hosts. A project must not turn
            // the proxy on for a host that has a credential.
            (below @ Network::Open, Network::Allow(Egress { allow, .. })) => {
                let credentials = &self.below.config.credentials;
                let has_secret =
                    |rule: &&HostRule| credentials.iter().any(|own| rule.overlaps(&own.host));
                match allow.iter().find(has_secret) {
                    Some(rule) => self.widens("network.allow", rule.literal(), below),
                    None => Ok(()),
                }
            }
            (below, Network::Open) => {
                self.widens("network.mode", NetworkMode::Open.literal(), below)
            }
            (below, Network::Allow(Egress { allow, .. })) => {
                let own = below.rules();
                let Some(wider) = allow.iter().find(|rule| !rule.is_covered_by(own)) else {
                    return Ok(());
                };
                let own: Vec<_> = own.iter().map(ToString::to_string).collect();
                let own = if own.is_empty() { below.mode().to_owned() } else { own.join(", ") };
                self.widens("network.allow", wider.literal(), own)
            }
        }
    }

    /// The project may name paths beneath those that the layers below name. A writable path is
    /// readable too.
    pub(super) fn may_name_beneath(
        &mut self,
        field: &Field<Option<Vec<PathBuf>>>,
    ) -> NarrowingResult {
        let asked = (field.get)(&self.project.config).items();
        let below = self.below(field);
        let written = &self.below.config.filesystem.write;
        let is_wider =
            |path: &&PathBuf| !self.lies_beneath(path, below) && !self.lies_beneath(path, written);
        match asked.into_iter().find(is_wider) {
            Some(path) => self.widens(field.key, path.literal(), below.literal()),
            None => self.remove(field),
        }
    }

    /// Returns `true` if `path` lies beneath one of the `allowed` paths.
    fn lies_beneath(&self, path: &Path, allowed: &Option<Vec<PathBuf>>) -> bool {
        // `None` means that the path contains `..`, so that its target is unknown.
        let Some(path) = self.absolute(path) else { return false };
        let mut allowed = allowed.iter().flatten().filter_map(|allowed| self.absolute(allowed));
        allowed.any(|allowed| path.starts_with(allowed))
    }

    /// Returns the absolute path without looking at the file system, or `None` if it contains `..`.
    fn absolute(&self, path: &Path) -> Option<PathBuf> {
        let path = self.directory.join(path);
        let climbs = path.components().any(|component| component == Component::ParentDir);
        (!climbs).then(|| path.components().collect())
    }

    /// The project may add languages, and change none.
    ///
    /// A new language widens nothing, because its command runs in the sandbox under the same policy
    /// as the code, and the code could start that program itself. A new meaning for a known name or
    /// suffix would widen: a caller who runs Python with a key in the environment would pass that
    /// key to a program of the project. Without isolation, a project's languages are not run at
    /// all; see [`CodeSettings::project_languages`](super::CodeSettings::project_languages).
    pub(super) fn may_add_languages(
        &mut self,
        field: &Field<BTreeMap<String, Language>>,
    ) -> NarrowingResult {
        let known = self.below.languages();
        for (name, asked) in (field.get)(&self.project.config) {
            let key = format!("{}.{name}", field.key);
            match known.get(name) {
                Some(below) if below == asked => continue,
                Some(below) => return self.widens(&key, asked.literal(), below),
                None => {}
            }
            let same = known.iter().find(|(_, below)| below.suffix() == asked.suffix());
            if let Some((other, below)) = same {
                let other = format!("{}.{other}", field.key);
                return self.widens_another(&key, asked.literal(), below, &other);
            }
        }
        // A language that the layers below already have does not come from the project.
        (field.get_mut)(&mut self.project.config).retain(|name, _| !known.contains_key(name));
        Ok(())
    }
}
