//! A command that writes far more than is kept: how fast it is drained, and how much memory that takes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

pub(super) const BYTES: u64 = 1 << 30;
const RUNS: usize = 7;

/// The file that is written to the output, again and again: text, in pieces as large as a program's own.
const PIECE: u64 = 64 << 20;

/// What draining took.
pub(super) struct Drained {
    pub(super) time: Duration,
    /// What the same command takes whose output goes through a pipe to nowhere.
    pub(super) plain: Duration,
    /// The most memory that the ringfence process itself held, without its children.
    pub(super) peak_memory: u64,
}

impl Drained {
    pub(super) fn gigabytes_per_second(&self) -> f64 {
        BYTES as f64 / 1e9 / self.time.as_secs_f64()
    }
}

/// Measures a few runs; keeps the median times and the largest memory.
pub(super) fn measure(ringfence: &Path) -> Result<Drained> {
    let directory = tempfile::tempdir_in("/var/tmp").context("cannot make a workspace")?;
    let line = "what a program might say, over and over again, on a line of its own\n";
    let text = line.repeat(PIECE as usize / line.len() + 1);
    let mut file = fs_err::File::create(directory.path().join("text"))?;
    file.write_all(&text.as_bytes()[..PIECE as usize])?;
    file.sync_all()?; // what is still to be written to the disk would be, while somebody is timed
    let script = format!("cat{}", " text".repeat((BYTES / PIECE) as usize));
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let plain = through_a_pipe(directory.path(), &script)?;
        runs.push(Drained { plain, ..drain(ringfence, directory.path(), &script)? });
    }
    let median = |time: fn(&Drained) -> Duration| {
        let mut times: Vec<Duration> = runs.iter().map(time).collect();
        times.sort_unstable();
        times[RUNS / 2]
    };
    let peak_memory = runs.iter().map(|run| run.peak_memory).max().context("no run was made")?;
    Ok(Drained { time: median(|run| run.time), plain: median(|run| run.plain), peak_memory })
}

fn through_a_pipe(directory: &Path, script: &str) -> Result<Duration> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{script} | cat > /dev/null")]).current_dir(directory);
    let start = Instant::now();
    let status = command.status().context("cannot run sh")?;
    ensure!(status.success(), "`{script}` ended with {status}");
    Ok(start.elapsed())
}

fn drain(ringfence: &Path, directory: &Path, script: &str) -> Result<Drained> {
    let mut command = Command::new(ringfence);
    command.args(["run", "--json", "--output", "10M", "--", "sh", "-c", script]).current_dir(directory);
    let start = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("cannot run ringfence")?;
    let process = child.id();
    // wait4(2) reports the largest of a process and its children; the kernel's own high-water mark is of one alone.
    let watcher = std::thread::spawn(move || watch_memory(process));
    let status = child.wait().context("cannot wait for ringfence")?;
    let time = start.elapsed();
    let peak_memory = watcher.join().unwrap_or_default();
    ensure!(status.success(), "`ringfence run --json --output 10M` ended with {status}");
    ensure!(peak_memory > 0, "ringfence ended before its memory could be read");
    Ok(Drained { time, plain: time, peak_memory })
}

/// Follows the high-water mark of a process until it ends.
fn watch_memory(process: u32) -> u64 {
    let status = format!("/proc/{process}/status");
    let mut peak = 0;
    while let Some(mark) = fs_err::read_to_string(&status).ok().and_then(|text| high_water_mark(&text)) {
        peak = mark.max(peak);
        std::thread::sleep(Duration::from_millis(1));
    }
    peak
}

/// Reads `VmHWM` of proc_pid_status(5), which a process that has ended lacks.
fn high_water_mark(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read_in_bytes() {
        assert_eq!(high_water_mark("Name:\tsh\nVmPeak:\t 9 kB\nVmHWM:\t    1596 kB\n"), Some(1596 * 1024));
        assert_eq!(high_water_mark("Name:\tsh\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn the_speed_is_in_decimal_gigabytes() {
        let drained = Drained { time: Duration::from_millis(500), plain: Duration::from_secs(1), peak_memory: 0 };
        assert!((drained.gigabytes_per_second() - 2.147_483_648).abs() < 1e-9);
    }
}
