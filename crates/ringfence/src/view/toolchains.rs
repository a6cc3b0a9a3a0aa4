//! Toolchains in the home directory: what the caller's `PATH` reaches there is readable inside, and the
//! credentials that live beside it are not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::Host;

/// A toolchain: where `PATH` enters it, and what it is made of, relative to the home directory.
struct Toolchain {
    /// A directory of `PATH` at or below this one means that the toolchain is in use.
    enters: &'static str,
    /// What it needs; a path that does not exist is skipped.
    needs: &'static [&'static str],
}

/// The toolchains that are known. A directory of `PATH` that is in none of them is shown alone.
const KNOWN: [Toolchain; 26] = [
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

/// Variables that say where a toolchain is; each passes when what it names can be seen inside.
pub(super) const VARIABLES: [&str; 11] = [
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

/// Settings of cargo, shown unless a token is in them.
const CARGO_SETTINGS: [&str; 2] = [".cargo/config.toml", ".cargo/config"];

/// The paths in the home directory that are readable inside.
pub(super) fn readable(host: &Host, home: &Path) -> BTreeSet<PathBuf> {
    let mut readable = BTreeSet::new();
    for directory in host.path() {
        let Ok(inside) = directory.strip_prefix(home) else { continue };
        // The home itself in PATH would show everything.
        if inside.as_os_str().is_empty() {
            continue;
        }
        let known: Vec<_> = KNOWN.iter().filter(|toolchain| inside.starts_with(toolchain.enters)).collect();
        if known.is_empty() {
            readable.insert(directory.clone());
        }
        readable.extend(known.iter().flat_map(|toolchain| toolchain.needs).map(|need| home.join(need)));
        if inside.starts_with(".cargo") {
            readable.extend(CARGO_SETTINGS.map(|file| home.join(file)).into_iter().filter(|file| !has_token(file)));
        }
    }
    // Only what is really there, and not by way of a link to somewhere else.
    readable.retain(|path| super::is_resolved(path));
    without_nested(readable)
}

/// Whether a settings file may hold a token; one that cannot be read is taken to.
fn has_token(file: &Path) -> bool {
    fs_err::read_to_string(file).map_or(true, |text| text.contains("token") || text.contains("credential"))
}

/// Drops the paths that lie in another one of the set.
fn without_nested(paths: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let is_nested = |path: &PathBuf| path.ancestors().skip(1).any(|parent| paths.contains(parent));
    paths.iter().filter(|path| !is_nested(path)).cloned().collect()
}
