//! The images of the tests, made from the packages of this machine so that no image has to be
//! downloaded.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use ringfence_test_ledger::engine::{DEV_IMAGE, TINY_IMAGE};

use crate::cache::cache_key;
use crate::oci::{entry_header, write_program_layer};
use crate::workspace::{find_program, format_command, output_of};

/// An image in the form that every engine can import.
pub(crate) struct ImportableImage {
    pub(crate) name: &'static str,
    pub(crate) tarball: PathBuf,
    /// Configuration that a tarball cannot hold, as instructions of a Containerfile.
    pub(crate) instructions: &'static [&'static str],
}

/// Lock of the files in the cache, because the engines and the cluster ask for the same images.
static CACHE_LOCK: Mutex<()> = Mutex::new(());

/// Users of the tiny image, in the format of passwd(5).
const TINY_USERS: &str = "root:x:0:0::/root:/bin/sh\ndev:x:1000:1000::/home/dev:/bin/sh\n";
/// Directories of the tiny image, with their owners and modes.
const TINY_DIRECTORIES: &[(&str, u64, u32)] = &[
    ("bin", 0, 0o755),
    ("dev", 0, 0o755),
    ("etc", 0, 0o755),
    ("home/dev", 1000, 0o755),
    ("home/dev/workspace", 1000, 0o755),
    ("proc", 0, 0o555),
    ("root", 0, 0o700),
    ("run", 0, 0o755),
    ("sys", 0, 0o555),
    ("tmp", 0, 0o1777),
    ("usr/bin", 0, 0o755),
    ("workspace", 1000, 0o755),
];

/// Packages of the development image, which are those of the default image. The Containerfile of
/// the default image cannot be used because it needs a base image.
const DEV_PACKAGES: &str = "ca-certificates curl git less openssh-server procps python3 rsync zsh";
/// Script that customizes the development image after its packages are installed.
const DEV_CUSTOMIZATION: &str = concat!(
    r#"
    set -e
    rm -f "$1"/etc/ssh/ssh_host_*
    chroot "$1" useradd --create-home --uid 1000 --shell /usr/bin/zsh --password '*' dev
    chroot "$1" install --directory --owner=dev --group=dev /home/dev/workspace
    chroot "$1" sh -c 'cd /home/dev; echo "[[ \$TERM != dumb ]] || unsetopt zle" >.zshrc; "#,
    r#"chown dev:dev .zshrc'
    chroot "$1" find / -xdev -type f -perm /6000 -exec chmod a-s {} +
"#
);
const DEV_INSTRUCTIONS: &[&str] =
    &["ENV LANG=C.UTF-8", "USER dev", "WORKDIR /home/dev/workspace", "CMD [\"zsh\"]"];

/// Makes the image that contains only busybox.
pub(crate) fn tiny(cache: &Path) -> Result<ImportableImage> {
    let _lock = CACHE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let busybox = find_program("busybox").context("there is no busybox")?;
    let commands = output_of(Command::new(&busybox).arg("--list"))?;
    let tarball = cache.join("tiny.tar");
    let unfinished = cache.join("tiny.tar.unfinished");
    let mut archive = tar::Builder::new(fs_err::File::create(&unfinished)?);
    for &(path, owner, mode) in TINY_DIRECTORIES {
        let mut header = entry_header(tar::EntryType::Directory, mode);
        header.set_uid(owner);
        header.set_gid(owner);
        archive.append_data(&mut header, path, std::io::empty())?;
    }
    let busybox = fs_err::read(busybox)?;
    for (path, mode, content) in
        [("bin/busybox", 0o755, busybox.as_slice()), ("etc/passwd", 0o644, TINY_USERS.as_bytes())]
    {
        let mut header = entry_header(tar::EntryType::Regular, mode);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content)?;
    }
    for command in commands.lines().filter(|command| *command != "busybox") {
        archive.append_link(
            &mut entry_header(tar::EntryType::Symlink, 0o777),
            format!("bin/{command}"),
            "busybox",
        )?;
    }
    archive.into_inner()?;
    fs_err::rename(unfinished, &tarball)?;
    Ok(ImportableImage { name: TINY_IMAGE, tarball, instructions: &["CMD [\"/bin/sh\"]"] })
}

/// Makes an image without a shell, whose only files are the program `/name` and its users.
pub(crate) fn single_program(
    cache: &Path,
    name: &'static str,
    program_name: &str,
    program: &Path,
    instructions: &'static [&'static str],
) -> Result<ImportableImage> {
    let _lock = CACHE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let tarball = cache.join(format!("{program_name}.tar"));
    write_program_layer(fs_err::File::create(&tarball)?, program_name, program)?;
    Ok(ImportableImage { name, tarball, instructions })
}

/// Makes the development image from this machine's release, or returns the image that an earlier
/// run made.
pub(crate) fn dev(cache: &Path) -> Result<ImportableImage> {
    let _lock = CACHE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (distribution, release) = (os_release("ID")?, release_codename()?);
    let recipe = (&release, std::env::consts::ARCH, DEV_PACKAGES, DEV_CUSTOMIZATION);
    let tarball = cache.join(format!("dev-{}.tar", cache_key(&recipe)));
    let image = ImportableImage { name: DEV_IMAGE, tarball, instructions: DEV_INSTRUCTIONS };
    if image.tarball.exists() {
        return Ok(image);
    }

    println!("making the image {DEV_IMAGE} of {distribution} {release}, about a minute");
    let unfinished = cache.join("dev.tar.unfinished");
    let mut command = Command::new("mmdebstrap");
    command
        .args(["--quiet", "--variant=minbase", "--format=tar"])
        .arg(format!("--include={}", DEV_PACKAGES.replace(' ', ",")));
    // Do not sync files: syncing takes longer than everything else, and a crash only loses the
    // cache.
    command.arg("--dpkgopt=force-unsafe-io").arg(format!("--customize-hook={DEV_CUSTOMIZATION}"));
    for unread in ["man", "doc", "locale", "info"] {
        command.arg(format!("--dpkgopt=path-exclude=/usr/share/{unread}/*"));
    }
    command.arg(release).arg(&unfinished).args(mirrors(&distribution)?);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{}`", format_command(&command)))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!(
            "mmdebstrap ended with {}: {}",
            output.status,
            words.trim().lines().last().unwrap_or("it says nothing")
        );
    }
    fs_err::rename(unfinished, &image.tarball)?;
    Ok(image)
}

/// Returns the package mirrors of this machine that belong to its distribution, without third-party
/// ones.
fn mirrors(distribution: &str) -> Result<Vec<String>> {
    let format = "$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)";
    let targets = output_of(Command::new("apt-get").args([
        "indextargets",
        "--format",
        format,
        "Identifier: Packages",
    ]))?;
    let mirrors: Vec<String> = own_mirrors(&targets, distribution).map(str::to_owned).collect();
    ensure!(!mirrors.is_empty(), "apt-get knows no mirror of {distribution}");
    Ok(mirrors)
}

/// Returns the Debian mirror from which this machine gets its packages. The mirror has every suite.
pub(crate) fn debian_mirror() -> Result<String> {
    let mirrors = mirrors("debian")?;
    main_archive(&mirrors)
        .map(str::to_owned)
        .context("apt-get knows no mirror of a whole suite of debian")
}

/// Returns the URI of the mirror of a whole suite. Suites such as `bookworm-security` can be on
/// another mirror.
fn main_archive(mirrors: &[String]) -> Option<&str> {
    mirrors.iter().find_map(|mirror| {
        let [_deb, uri, suite, _component] = mirror.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        (!suite.contains('-')).then_some(uri)
    })
}

/// Returns the code name of this machine's release, such as `bookworm`.
pub(crate) fn release_codename() -> Result<String> {
    os_release("VERSION_CODENAME")
}

/// Reads a value of os-release(5).
fn os_release(key: &str) -> Result<String> {
    let system = fs_err::read_to_string("/etc/os-release")?;
    let value = system.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value
        .map(|value| value.trim_matches('"').to_owned())
        .with_context(|| format!("/etc/os-release has no {key}"))
}

fn own_mirrors<'a>(targets: &'a str, distribution: &str) -> impl Iterator<Item = &'a str> {
    let targets = targets.lines().filter_map(|line| line.split_once('|'));
    targets
        .filter(move |(origin, _)| origin.eq_ignore_ascii_case(distribution))
        .map(|(_, mirror)| mirror)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mirrors_of_the_distribution_are_used() {
        let targets = "Debian|deb http://mirror.test/debian/ bookworm main\nSomebody|deb \
                       http://other.test/ x main\n";
        let own: Vec<&str> = own_mirrors(targets, "debian").collect();
        assert_eq!(own, ["deb http://mirror.test/debian/ bookworm main"]);
    }

    #[test]
    fn the_mirror_of_a_whole_suite_is_chosen() {
        let mirrors = [
            "deb http://mirror.test/security/ bookworm-security main",
            "deb http://mirror.test/ bookworm main",
        ];
        assert_eq!(main_archive(&mirrors.map(str::to_owned)), Some("http://mirror.test/"));
        assert_eq!(main_archive(&[]), None);
    }

    #[test]
    fn the_development_image_has_the_packages_of_the_default_image() {
        let containerfile =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/dev/Containerfile");
        let containerfile = fs_err::read_to_string(containerfile).unwrap();
        assert!(containerfile.contains(&format!(" {DEV_PACKAGES} ")));
        for line in
            DEV_CUSTOMIZATION.lines().filter_map(|line| line.trim().strip_prefix("chroot \"$1\" "))
        {
            assert!(containerfile.contains(line), "not in the Containerfile: {line}");
        }
        for instruction in DEV_INSTRUCTIONS {
            assert!(
                containerfile.lines().any(|line| line == *instruction),
                "not in the Containerfile: {instruction}"
            );
        }
    }
}
