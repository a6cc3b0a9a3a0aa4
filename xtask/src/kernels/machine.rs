//! A virtual machine: its parts, its output and its end.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::kernel_image::KernelImage;
use crate::workspace::output_of;

/// Size in bytes of the empty disk on which checks make file systems.
const SCRATCH_BYTES: u64 = 4 << 30;
/// Time limit until a machine prints its first line.
const BOOT_TIME_LIMIT: Duration = Duration::from_mins(5);
/// Interval at which the interruption flag and the time limit are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The parts that a machine is started with.
pub(super) struct MachineParts<'a> {
    pub(super) kernel: &'a KernelImage,
    /// Image of the root disk, which the machine does not change.
    pub(super) root: &'a Path,
    /// Archive that contains the checks.
    pub(super) payload: &'a Path,
    pub(super) kernel_words: Vec<String>,
    /// File that receives the console output of the machine.
    pub(super) console: PathBuf,
    /// Directory for temporary files.
    pub(super) work: &'a Path,
}

/// A running virtual machine, which ends when the value is dropped.
pub(super) struct Machine {
    process: Child,
    lines: Receiver<String>,
    /// Time by which the next line must arrive. The deadline of the first line is earlier.
    deadline: Instant,
    end_deadline: Instant,
}

impl Machine {
    /// Starts a machine, which ends at the latest with the calling thread.
    pub(super) fn start(parts: &MachineParts<'_>, time_limit: Duration) -> Result<Self> {
        let scratch = parts.work.join("scratch");
        fs_err::File::create(&scratch)?.set_len(SCRATCH_BYTES)?;
        let log = fs_err::File::create(parts.console.with_extension("qemu"))?.into_parts().0;
        let mut command = Command::new("nice");
        command.args(["-n", "15", "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"]);
        // Emulation works everywhere. KVM inside a virtual machine may stop at an instruction that
        // its host does not know.
        command.args(["-accel", "tcg,thread=multi,tb-size=512"]);
        // The emulator of qemu 7.2 loses flags after CMPXCHG16B, which crashes Linux 6.12. Without
        // CX16, Linux does not use that instruction.
        command.args(["-cpu", "max,cx16=off", "-smp", "2", "-m", "2048"]);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot"]);
        command.args(["-display", "none", "-nic", "none", "-device", "virtio-rng-pci"]);
        command
            .arg("-kernel")
            .arg(parts.kernel.vmlinuz())
            .arg("-initrd")
            .arg(parts.kernel.initrd());
        command.arg("-append").arg(kernel_command_line(&parts.kernel_words));
        command.args(drive(parts.root, "snapshot=on"));
        command.args(drive(&parts.kernel.modules(), "readonly=on"));
        command.args(drive(parts.payload, "readonly=on"));
        command.args(drive(&scratch, "cache=unsafe"));
        command.arg("-serial").arg(format!("file:{}", parts.console.display()));
        command.args(["-chardev", "stdio,id=results,signal=off", "-serial", "chardev:results"]);
        // The machine has its own process group, so that only this process gets Ctrl-C and then
        // ends the machine.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .env("TMPDIR", parts.work)
            .process_group(0);
        let mut process = command.spawn().context("cannot run qemu")?;
        let output = process.stdout.take().context("the output of qemu is not piped")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return; // the machine is being ended, and no receiver is left
                }
            }
        });
        let start = Instant::now();
        Ok(Self {
            process,
            lines,
            deadline: start + BOOT_TIME_LIMIT.min(time_limit),
            end_deadline: start + time_limit,
        })
    }

    /// Waits for the next line of the results. Returns `None` once the machine is off.
    pub(super) fn next_line(&mut self, interrupted: &AtomicBool) -> Result<Option<String>> {
        loop {
            ensure!(!interrupted.load(Ordering::Relaxed), "interrupted");
            ensure!(Instant::now() < self.deadline, "the machine took longer than it may");
            match self.lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) => {
                    self.deadline = self.end_deadline;
                    return Ok(Some(line));
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("warning: a virtual machine is left behind: {error}");
        }
    }
}

fn kernel_command_line(words: &[String]) -> String {
    let own = "console=ttyS0 root=/dev/vda rw panic=-1 quiet mitigations=off systemd.show_status=0";
    std::iter::once(own).chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
}

fn drive(file: &Path, options: &str) -> [String; 2] {
    // qemu takes a comma as the end of the path unless the comma is doubled.
    let file = file.display().to_string().replace(',', ",,");
    ["-drive".to_owned(), format!("file={file},format=raw,if=virtio,{options}")]
}

/// Packs the checks and the binary into the archive that the machine unpacks.
pub(super) fn pack_payload(checks: &Path, binary: &Path, payload: &Path) -> Result<()> {
    // Strip the binary, because debug symbols are more than half of a debug build and an emulated
    // machine copies slowly.
    let stripped = payload.with_extension("stripped");
    let strip = output_of(Command::new("strip").arg("-o").arg(&stripped).arg(binary));
    let binary = if strip.is_ok() { &stripped } else { binary };
    let mut archive = tar::Builder::new(fs_err::File::create(payload)?);
    // Files belong to root inside the machine, whoever owns the checkout.
    archive.mode(tar::HeaderMode::Deterministic);
    archive.append_dir_all(".", checks)?;
    archive
        .append_path_with_name(binary, "ringfence")
        .with_context(|| format!("cannot pack {}", binary.display()))?;
    archive.into_inner()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_path_does_not_end_it() {
        let [_, value] = drive(Path::new("/tmp/a,b"), "readonly=on");
        assert_eq!(value, "file=/tmp/a,,b,format=raw,if=virtio,readonly=on");
    }

    #[test]
    fn kernel_words_of_a_cell_follow_the_common_words() {
        let line = kernel_command_line(&["lsm=yama".to_owned(), "ringfence.checks=a,b".to_owned()]);
        assert!(
            line.starts_with("console=ttyS0 ") && line.ends_with(" lsm=yama ringfence.checks=a,b"),
            "{line}"
        );
    }

    #[test]
    fn the_payload_has_the_checks_and_the_binary() {
        let directory = tempfile::tempdir().unwrap();
        let checks = directory.path().join("inside");
        fs_err::create_dir_all(checks.join("checks")).unwrap();
        fs_err::write(checks.join("checks/first.sh"), "").unwrap();
        let payload = directory.path().join("payload.tar");
        pack_payload(&checks, Path::new("/bin/true"), &payload).unwrap();
        let mut archive = tar::Archive::new(fs_err::File::open(payload).unwrap());
        let names: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().into_owned())
            .collect();
        assert!(names.iter().any(|name| name.ends_with("checks/first.sh")), "{names:?}");
        assert!(names.iter().any(|name| name.ends_with("ringfence")), "{names:?}");
    }
}
