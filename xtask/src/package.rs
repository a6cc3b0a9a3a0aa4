//! `cargo xtask package`: packages every crate that can be published, and builds the binary from
//! the packages alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::arguments::ChoreArguments;
use crate::workspace::{Workspace, cargo, output_of, run as run_command};

/// Crate with the binary.
const BINARY_CRATE: &str = "ringfence-cli";

pub(crate) fn run(workspace: &Workspace, arguments: ChoreArguments) -> Result<()> {
    arguments.end(&[])?;
    let packed = pack(workspace)?;
    // The packages are unpacked outside the workspace, which cargo would take them for members of.
    let place = tempfile::Builder::new().prefix("ringfence-packages-").tempdir()?;
    let mut unpacked = Vec::new();
    for (name, file) in &packed {
        run_command(Command::new("tar").arg("-xzf").arg(file).arg("-C").arg(place.path()))?;
        let directory = file.file_stem().context("a package has no name")?;
        unpacked.push((name.as_str(), place.path().join(directory)));
    }
    // Until the crates are published, cargo finds them here. The build script of the library builds
    // the guest in a cargo process of its own, which reads the same file.
    fs_err::create_dir(place.path().join(".cargo"))?;
    fs_err::write(place.path().join(".cargo/config.toml"), patches(&unpacked))?;

    let (_, sources) = unpacked
        .iter()
        .find(|(name, _)| *name == BINARY_CRATE)
        .with_context(|| format!("`{BINARY_CRATE}` was not packaged"))?;
    let target = workspace.target.join("packages");
    run_command(cargo(sources, ["build"]).env("CARGO_TARGET_DIR", &target))?;
    let binary = target.join("debug/ringfence");
    let greeting = output_of(Command::new(&binary).args(["run", "--", "/bin/echo", "inside"]))?;
    ensure!(greeting.trim() == "inside", "`{}` ran a command: {greeting}", binary.display());
    println!("{} packages, and a binary of them that runs: {}", packed.len(), binary.display());
    Ok(())
}

/// Packages every crate that may be published, and returns their names and files.
fn pack(workspace: &Workspace) -> Result<Vec<(String, PathBuf)>> {
    let published: Vec<&Value> =
        workspace.packages.iter().filter(|package| package["publish"].is_null()).collect();
    let text = |package: &Value, key: &str| {
        package[key].as_str().map(str::to_owned).with_context(|| format!("a package has no {key}"))
    };
    let names: Vec<String> =
        published.iter().map(|package| text(package, "name")).collect::<Result<_>>()?;
    // The verification of cargo would build each crate once more, and could not build the library:
    // its build script needs the guest's dependencies, which only a registry or the patches have.
    let mut command = workspace.cargo(["package", "--no-verify", "--allow-dirty"]);
    run_command(command.args(names.iter().flat_map(|name| ["--package", name])))?;
    let directory = workspace.target.join("package");
    let file = |package: &&Value| {
        let (name, version) = (text(package, "name")?, text(package, "version")?);
        let file = directory.join(format!("{name}-{version}.crate"));
        Ok((name, file))
    };
    published.iter().map(file).collect()
}

/// Writes the configuration with which cargo takes our crates from their directories.
fn patches(unpacked: &[(&str, PathBuf)]) -> String {
    let line = |(name, path): &(&str, PathBuf)| format!("{name} = {{ path = {:?} }}\n", text(path));
    std::iter::once("[patch.crates-io]\n".to_owned()).chain(unpacked.iter().map(line)).collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_is_patched_by_its_directory() {
        let unpacked = [("one", PathBuf::from("/a/one-0.1.0")), ("two", PathBuf::from("/a/b \"c"))];
        assert_eq!(
            patches(&unpacked),
            "[patch.crates-io]\n\
             one = { path = \"/a/one-0.1.0\" }\n\
             two = { path = \"/a/b \\\"c\" }\n"
        );
    }
}
