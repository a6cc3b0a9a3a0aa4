//! A Debian kernel in the form that qemu boots: the kernel, an initial RAM disk and a disk of
//! modules.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::apt::{KernelPackage, SuiteIndex};
use super::cells::KernelSeries;
use super::image_cache::{ImageCache, make_ext4};
use crate::cache::cache_key;
use crate::workspace::{files_below, find_program, output_of, run as run_command};

/// Modules that are needed to mount the root disk.
const BOOT_MODULES: &[&str] = &["virtio_pci", "virtio_blk", "ext4"];
/// Directories of modules for devices that the machine does not have.
const UNNEEDED_MODULES: &[&str] = &[
    "sound",
    "drivers/gpu",
    "drivers/media",
    "drivers/infiniband",
    "drivers/usb",
    "drivers/scsi",
    "drivers/hwmon",
    "drivers/iio",
    "drivers/input",
];

/// Files of a kernel that is ready to boot.
pub(super) struct KernelImage {
    directory: PathBuf,
}

impl KernelImage {
    pub(super) fn vmlinuz(&self) -> PathBuf {
        self.directory.join("vmlinuz")
    }

    pub(super) fn initrd(&self) -> PathBuf {
        self.directory.join("initrd")
    }

    pub(super) fn modules(&self) -> PathBuf {
        self.directory.join("modules.ext4")
    }

    /// Returns the newest kernel of a series from the cache, or makes it.
    pub(super) fn provide(cache: &ImageCache, series: &KernelSeries) -> Result<Self> {
        let index = SuiteIndex::open(cache.directory(), series.suite)?;
        let package = index.newest_kernel(series)?;
        let init = fs_err::read_to_string(cache.sources().join("initrd/init"))?;
        let key = cache_key(&(&package, &init, BOOT_MODULES, UNNEEDED_MODULES));
        let directory =
            cache.provide(&format!("kernel-{}-", series.version), &key, "", |unfinished| {
                make_kernel(&index, &package, &init, unfinished)
            })?;
        Ok(Self { directory })
    }
}

/// Makes the files of a kernel in the directory `made` inside `work`, and returns that directory.
fn make_kernel(
    index: &SuiteIndex,
    package: &KernelPackage,
    init: &str,
    work: &Path,
) -> Result<PathBuf> {
    let download = create(work, "download")?;
    let archive = index.download(package, &download)?;
    println!("making a bootable kernel of {}", package.name);
    let unpacked = work.join("unpacked");
    run_command(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(&unpacked))?;

    // On systems where /lib is a link to /usr/lib, packages contain usr/lib.
    let candidates = ["lib/modules", "usr/lib/modules"].map(|path| unpacked.join(path));
    let tree =
        candidates.into_iter().find(|tree| tree.is_dir()).context("the package has no modules")?;
    let release = single_entry(&tree)?;
    let base = create(work, "base")?;
    let modules = create(&base, "lib")?.join("modules");
    fs_err::rename(tree, &modules)?;
    for unneeded in UNNEEDED_MODULES {
        let directory = modules.join(&release).join("kernel").join(unneeded);
        if directory.exists() {
            fs_err::remove_dir_all(directory)?;
        }
    }
    decompress_modules(&modules)?;
    run_command(program("depmod")?.arg("--basedir").arg(&base).arg(&release))?;

    let made = create(work, "made")?;
    fs_err::copy(unpacked.join("boot").join(format!("vmlinuz-{release}")), made.join("vmlinuz"))?;
    make_initrd(&base, &release, init, &create(work, "initrd")?, &made.join("initrd"))?;
    make_ext4(&modules, &made.join("modules.ext4"), 16)?;
    Ok(made)
}

/// Makes an archive with busybox, `init` and the modules that the boot needs.
fn make_initrd(base: &Path, release: &str, init: &str, tree: &Path, initrd: &Path) -> Result<()> {
    for directory in ["bin", "dev", "modules", "proc", "root", "sys"] {
        create(tree, directory)?;
    }
    let busybox = find_program("busybox").context("there is no busybox")?;
    fs_err::copy(&busybox, tree.join("bin/busybox"))?;
    for applet in ["insmod", "mount", "sh", "sleep", "switch_root", "umount"] {
        fs_err::os::unix::fs::symlink("busybox", tree.join("bin").join(applet))?;
    }
    fs_err::write(tree.join("init"), init)?;
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs_err::set_permissions(tree.join("init"), executable)?;

    let mut order: Vec<String> = Vec::new();
    for module in BOOT_MODULES {
        let mut command = program("modprobe")?;
        command.arg("--dirname").arg(base).args([
            "--set-version",
            release,
            "--show-depends",
            module,
        ]);
        for file in module_files(&output_of(&mut command)?) {
            let name = Path::new(file)
                .file_name()
                .and_then(|name| name.to_str())
                .context("a module has no name")?;
            if !order.iter().any(|other| other == name) {
                fs_err::copy(file, tree.join("modules").join(name))?;
                order.push(name.to_owned());
            }
        }
    }
    fs_err::write(tree.join("modules/order"), order.join("\n") + "\n")?;

    let paths = output_of(Command::new("find").arg(".").current_dir(tree))?;
    let mut command = Command::new("cpio");
    command
        .args(["--create", "--format=newc", "--owner=0:0", "--quiet", "--file"])
        .arg(initrd)
        .current_dir(tree);
    let mut archiver = command.stdin(Stdio::piped()).spawn().context("cannot run cpio")?;
    archiver.stdin.take().context("the input of cpio is not piped")?.write_all(paths.as_bytes())?;
    let status = archiver.wait()?;
    ensure!(status.success(), "cpio ended with {status}");
    Ok(())
}

/// Lists the files that `modprobe --show-depends` would load. Built-in modules have no file.
fn module_files(dependencies: &str) -> impl Iterator<Item = &str> {
    dependencies.lines().filter_map(|line| line.strip_prefix("insmod ")).map(str::trim)
}

/// Decompresses all modules, because busybox cannot load compressed modules.
fn decompress_modules(tree: &Path) -> Result<()> {
    let files = files_below(tree)?;
    for (extension, program, arguments) in
        [("xz", "xz", &["--decompress"][..]), ("zst", "zstd", &["-qd", "--rm"][..])]
    {
        let compressed =
            files.iter().filter(|file| file.extension().is_some_and(|found| found == extension));
        let compressed: Vec<&PathBuf> = compressed.collect();
        for batch in compressed.chunks(500) {
            output_of(Command::new(program).args(arguments).args(batch))?;
        }
    }
    Ok(())
}

fn create(parent: &Path, name: &str) -> Result<PathBuf> {
    let directory = parent.join(name);
    fs_err::create_dir_all(&directory)?;
    Ok(directory)
}

fn single_entry(directory: &Path) -> Result<String> {
    let entry = fs_err::read_dir(directory)?.next().context("the package has no modules")??;
    entry.file_name().into_string().ok().context("the kernel's release is not text")
}

fn program(name: &str) -> Result<Command> {
    Ok(Command::new(find_program(name).with_context(|| format!("there is no {name}"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_are_built_in_have_no_file() {
        let dependencies = "insmod /lib/modules/6.1/virtio.ko \nbuiltin ext4\ninsmod \
                            /lib/modules/6.1/virtio_blk.ko\n";
        let files: Vec<&str> = module_files(dependencies).collect();
        assert_eq!(files, ["/lib/modules/6.1/virtio.ko", "/lib/modules/6.1/virtio_blk.ko"]);
    }
}
