//! Names of cached files, derived from the inputs of the files.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Hashes a recipe, so that a changed recipe names another cached file.
///
/// The digest may change with the Rust version, which costs one rebuild.
pub(crate) fn cache_key(recipe: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_recipe_has_another_key() {
        let key = cache_key(&("bookworm", ["git", "podman"]));
        assert_eq!(key, cache_key(&("bookworm", ["git", "podman"])));
        assert_ne!(key, cache_key(&("bookworm", ["git", "crun"])));
        assert_eq!(key.len(), 16);
    }
}
