//! Toolchains in the home directory. Toolchains that the caller's `PATH` reaches are readable
//! inside. The credentials beside a toolchain are not.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use ringfence_core::workspace::remove_dots;
use ringfence_linux::Access;

use crate::Host;
use crate::host_paths::granted::Grants;

/// Toolchain, described by paths relative to the home directory.
struct Toolchain {
    /// Directory that tells whether the toolchain is in use: `PATH` contains this directory or one
    /// below it.
    enters: &'static str,
    /// Paths that the toolchain needs. A path that does not exist is skipped.
    needs: &'static [&'static str],
}

/// Known toolchains. A directory of `PATH` that is in none of them is shown alone.
const KNOWN_TOOLCHAINS: [Toolchain; 26] = [
    Toolchain {
        enters: ".cargo/bin",
        needs: &[".cargo/bin", ".cargo/env", ".cargo/registry", ".cargo/git", ".rustup"],
    },
    Toolchain { enters: ".rustup", needs: &[".rustup"] },
    Toolchain { enters: ".pyenv", needs: &[".pyenv"] },
    Toolchain {
        enters: ".local/bin",
        needs: &[".local/bin", ".local/share/uv", ".local/share/pipx", ".local/pipx", ".local/lib"],
    },
    Toolchain { enters: ".local/share/uv", needs: &[".local/share/uv"] },
    Toolchain { enters: ".nvm", needs: &[".nvm"] },
    Toolchain { enters: ".local/share/fnm", needs: &[".local/share/fnm"] },
    Toolchain { enters: ".volta", needs: &[".volta"] },
    Toolchain { enters: ".npm-global", needs: &[".npm-global"] },
    Toolchain { enters: ".local/share/pnpm", needs: &[".local/share/pnpm"] },
    Toolchain { enters: ".yarn", needs: &[".yarn"] },
    Toolchain { enters: "go", needs: &["go/bin", "go/pkg", "sdk"] },
    Toolchain { enters: "sdk", needs: &["sdk"] },
    Toolchain { enters: ".go", needs: &[".go"] },
    Toolchain { enters: ".local/go", needs: &[".local/go"] },
    Toolchain { enters: ".bun", needs: &[".bun"] },
    Toolchain { enters: ".deno", needs: &[".deno/bin"] },
    Toolchain { enters: ".local/share/mise", needs: &[".local/share/mise"] },
    Toolchain { enters: ".asdf", needs: &[".asdf"] },
    Toolchain { enters: ".sdkman", needs: &[".sdkman"] },
    Toolchain { enters: ".rbenv", needs: &[".rbenv"] },
    Toolchain { enters: ".ghcup", needs: &[".ghcup"] },
    Toolchain { enters: ".juliaup", needs: &[".juliaup", ".julia/juliaup"] },
    Toolchain { enters: ".nix-profile", needs: &[".nix-profile"] },
    Toolchain { enters: "miniconda3", needs: &["miniconda3"] },
    Toolchain { enters: "anaconda3", needs: &["anaconda3"] },
];

/// Variables that name the location of a toolchain. Each is passed if the named path is visible
/// inside.
pub(super) const TOOLCHAIN_VARIABLES: [&str; 11] = [
    "CARGO_HOME",
    "RUSTUP_HOME",
    "PYENV_ROOT",
    "NVM_DIR",
    "GOROOT",
    "GOPATH",
    "JAVA_HOME",
    "BUN_INSTALL",
    "VOLTA_HOME",
    "PNPM_HOME",
    "SDKMAN_DIR",
];

/// Settings of cargo, shown unless they contain a token.
const CARGO_SETTINGS: [&str; 2] = [".cargo/config.toml", ".cargo/config"];

/// Returns the paths in the home directory that are readable inside.
pub(super) fn readable(host: &Host, home: &Path, grants: &Grants) -> BTreeSet<PathBuf> {
    let mut readable = BTreeSet::new();
    for directory in host.path().filter_map(|entry| without_parents(&entry)) {
        let Ok(inside) = directory.strip_prefix(home) else { continue };
        // Skip the home itself, because showing it would show everything.
        if inside.as_os_str().is_empty() {
            continue;
        }
        let known: Vec<_> = KNOWN_TOOLCHAINS
            .iter()
            .filter(|toolchain| inside.starts_with(toolchain.enters))
            .collect();
        if known.is_empty() {
            readable.insert(directory.clone());
        }
        readable
            .extend(known.iter().flat_map(|toolchain| toolchain.needs).map(|need| home.join(need)));
        if inside.starts_with(".cargo") {
            readable.extend(
                CARGO_SETTINGS
                    .map(|file| home.join(file))
                    .into_iter()
                    .filter(|file| !has_token(file)),
            );
        }
    }
    // Keep only paths that exist and are not reached through a link to elsewhere.
    readable.retain(|path| super::is_resolved(path));
    readable.retain(|path| grants.check_path(path, path, Access::Read).is_ok());
    without_nested(readable)
}

/// Returns an entry of `PATH` without `.` and `..`, because a path that ends in `..` would show the
/// whole directory above it.
///
/// An empty or relative entry means the directory in which a command is called. Nothing of the home
/// is shown because of such an entry. Through a link, `..` leads elsewhere than by name, so such an
/// entry is left out, as are all links.
fn without_parents(entry: &Path) -> Option<PathBuf> {
    if !entry.is_absolute() {
        return None;
    }
    let plain = remove_dots(entry);
    let climbs = entry.components().any(|component| component == Component::ParentDir);
    (!climbs || Host::resolve(entry).is_ok_and(|resolved| resolved == plain)).then_some(plain)
}

/// Tells whether a settings file may contain a token. A file that cannot be read counts as one with
/// a token.
fn has_token(file: &Path) -> bool {
    fs_err::read_to_string(file)
        .map_or(true, |text| text.contains("token") || text.contains("credential"))
}

/// Removes the paths that lie in another path of the set.
fn without_nested(paths: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let is_nested = |path: &PathBuf| path.ancestors().skip(1).any(|parent| paths.contains(parent));
    paths.iter().filter(|path| !is_nested(path)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns the readable paths, relative to the home, for a `PATH` in which `~` is the home.
    fn shown(home: &Path, path: &str) -> Vec<String> {
        let path = path.replace('~', home.to_str().unwrap());
        let variables =
            BTreeMap::from([("HOME".into(), home.into()), ("PATH".into(), path.into())]);
        let host = Host::new(variables, home.join("project"));
        let relative = |path: &PathBuf| path.strip_prefix(home).unwrap().display().to_string();
        readable(&host, home, &Grants::on(&host)).iter().map(relative).collect()
    }

    #[test]
    fn no_entry_of_path_shows_more_than_its_own_directory() {
        let root = tempfile::tempdir().unwrap();
        let home = fs_err::canonicalize(root.path()).unwrap().join("home");
        for directory in [
            "bin",
            ".ssh",
            ".cargo/bin",
            "project/deep",
            ".local/state/ringfence",
            ".config/ringfence",
        ] {
            fs_err::create_dir_all(home.join(directory)).unwrap();
        }
        symlink(&home, home.join("me")).unwrap();
        symlink("../.ssh", home.join("bin/keys")).unwrap();
        symlink("project/deep", home.join("deep")).unwrap();
        for path in [
            "",
            ":",
            ".",
            "..",
            "bin",
            "project/..",
            "~",
            "~/",
            "~/.",
            "~/bin/..",
            "~/bin/../",
            "~/bin/../.",
            "~/.cargo/bin/../..",
            "~/project/deep/../../.",
            "~/missing/..",
            "~/me",
            "~/me/bin",
            "~/me/.",
            "~/..",
            "~/../home",
            "~/bin/../../home",
            "/",
            "/..",
            "~/bin/keys",
            "~/bin/keys/..",
            "~/deep/..",
            "~/deep/../..",
            "~/.config",
            "~/.local",
            "~/.local/state",
            "~/.local/state/ringfence",
            "~/.config/ringfence",
            "~/.local/state/ringfence/..",
        ] {
            assert_eq!(shown(&home, path), [] as [&str; 0], "{path}");
        }
        for path in [
            "~/bin",
            "~/bin/",
            "~/./bin",
            "~/bin/../bin",
            "~/.cargo/../bin",
            "~/bin:~",
            "~/../home/bin",
        ] {
            assert_eq!(shown(&home, path), ["bin"], "{path}");
        }
        assert_eq!(shown(&home, "~/bin/../.cargo/bin"), [".cargo/bin"]);
        assert_eq!(shown(&home, "~/.cargo/bin/../../project"), ["project"]);
    }
}
