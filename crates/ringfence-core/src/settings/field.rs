//! Access to the value of one setting in a layer, and the forms that values have.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{BlockImports, Config, Credential, Language, PythonModule, Toleration};
use crate::Clause;
use crate::audit::RecordedRuns;
use crate::policy::{HostRule, NetworkMode, PathGlob, Size, Span, Workspace};

/// The field of a layer that holds the value of one setting.
pub(super) struct Field<V> {
    pub(super) key: &'static str,
    pub(super) get: fn(&Config) -> &V,
    pub(super) get_mut: fn(&mut Config) -> &mut V,
}

impl<V: Default + PartialEq> Field<V> {
    /// Returns the value in a layer, or `None` if the layer does not set the key.
    pub(super) fn stated<'a>(&self, config: &'a Config) -> Option<&'a V> {
        Some((self.get)(config)).filter(|value| **value != V::default())
    }

    /// Returns the value in a layer, or else the value in the layer of defaults.
    pub(super) fn stated_or<'a>(&self, config: &'a Config, defaults: &'a Config) -> &'a V {
        self.stated(config).unwrap_or((self.get)(defaults))
    }
}

/// A single value, or an item of a list.
pub(super) trait SettingItem: PartialEq {
    /// `false` for items that files have without quotes: numbers and switches.
    const IS_QUOTED: bool;

    /// Returns the item as text.
    fn text(&self) -> String;

    /// Returns the item as it is written in a file.
    fn literal(&self) -> String {
        if Self::IS_QUOTED { format!("{:?}", self.text()) } else { self.text() }
    }
}

macro_rules! setting_items {
    ($is_quoted:literal: $($item:ty),*) => { $(
        impl SettingItem for $item {
            const IS_QUOTED: bool = $is_quoted;

            fn text(&self) -> String {
                self.to_string()
            }
        }
    )* };
}

setting_items!(true: String, Size, Span, Workspace, PathGlob, NetworkMode, HostRule, Clause);
setting_items!(true: Credential, RecordedRuns, BlockImports, PythonModule, Language, Toleration);
setting_items!(false: bool, f64, u32, usize);

impl SettingItem for PathBuf {
    const IS_QUOTED: bool = true;

    fn text(&self) -> String {
        self.display().to_string()
    }
}

/// Value that consists of items.
pub(super) trait ItemList: Default + PartialEq {
    /// Type of the items.
    type Item: SettingItem;

    /// Returns the items in order.
    fn items(&self) -> Vec<&Self::Item>;

    /// Returns the list as it is written in a file.
    fn literal(&self) -> String {
        let items: Vec<_> = self.items().into_iter().map(SettingItem::literal).collect();
        format!("[{}]", items.join(", "))
    }
}

impl<T: SettingItem> ItemList for Option<Vec<T>> {
    type Item = T;

    fn items(&self) -> Vec<&T> {
        self.iter().flatten().collect()
    }
}

impl<T: SettingItem> ItemList for Vec<T> {
    type Item = T;

    fn items(&self) -> Vec<&T> {
        self.iter().collect()
    }
}

impl<T: SettingItem + Ord> ItemList for BTreeSet<T> {
    type Item = T;

    fn items(&self) -> Vec<&T> {
        self.iter().collect()
    }
}
