//! Measurement of a command that writes far more output than is kept: the drain speed and the
//! memory that draining takes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

pub(super) const BYTES: u64 = 1 << 30;
const RUNS: usize = 7;

/// Length of the text file that `cat` writes to the output again and again, in pieces as large as
/// those of an ordinary program.
const PIECE: u64 = 64 << 20;

/// Time and memory that draining took.
pub(super) struct DrainResult {
    pub(super) time: Duration,
    /// Time that the same command takes when its output goes through a pipe to `/dev/null`.
    pub(super) plain: Duration,
    /// Peak memory in bytes of the ringfence process itself, without its children.
    pub(super) peak_memory: u64,
}

impl DrainResult {
    pub(super) fn gigabytes_per_second(&self) -> f64 {
        BYTES as f64 / 1e9 / self.time.as_secs_f64()
    }
}

/// Makes several runs, and returns the median times and the largest memory.
pub(super) fn measure(ringfence: &Path) -> Result<DrainResult> {
    let directory = tempfile::tempdir_in("/var/tmp").context("cannot make a workspace")?;
    let line = "what a program might say, over and over again, on a line of its own\n";
    let text = line.repeat(PIECE as usize / line.len() + 1);
    let mut file = fs_err::File::create(directory.path().join("text"))?;
    file.write_all(&text.as_bytes()[..PIECE as usize])?;
    file.sync_all()?; // otherwise the write-back to the disk would disturb the timed runs
    let script = format!("cat{}", " text".repeat((BYTES / PIECE) as usize));
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let plain = drain_through_pipe(directory.path(), &script)?;
        runs.push(DrainResult { plain, ..drain(ringfence, directory.path(), &script)? });
    }
    let median = |time: fn(&DrainResult) -> Duration| {
        let mut times: Vec<Duration> = runs.iter().map(time).collect();
        times.sort_unstable();
        times[RUNS / 2]
    };
    let peak_memory = runs.iter().map(|run| run.peak_memory).max().context("no run was made")?;
    Ok(DrainResult { time: median(|run| run.time), plain: median(|run| run.plain), peak_memory })
}

fn drain_through_pipe(directory: &Path, script: &str) -> Result<Duration> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{script} | cat > /dev/null")]).current_dir(directory);
    let start = Instant::now();
    let status = command.status().context("cannot run sh")?;
    ensure!(status.success(), "`{script}` ended with {status}");
    Ok(start.elapsed())
}

fn drain(ringfence: &Path, directory: &Path, script: &str) -> Result<DrainResult> {
    let mut command = Command::new(ringfence);
    command
        .args(["run", "--json", "--output", "10M", "--", "sh", "-c", script])
        .current_dir(directory);
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run ringfence")?;
    let process = child.id();
    // Poll the high-water mark of this process alone, because wait4(2) reports the largest value of
    // a process and its children.
    let watcher = std::thread::spawn(move || watch_memory(process));
    let status = child.wait().context("cannot wait for ringfence")?;
    let time = start.elapsed();
    let peak_memory = watcher.join().unwrap_or_default();
    ensure!(status.success(), "`ringfence run --json --output 10M` ended with {status}");
    ensure!(peak_memory > 0, "ringfence ended before its memory could be read");
    Ok(DrainResult { time, plain: time, peak_memory })
}

/// Polls the high-water mark of a process until the process ends, and returns the largest value in
/// bytes.
fn watch_memory(process: u32) -> u64 {
    let status = format!("/proc/{process}/status");
    let mut peak = 0;
    while let Some(mark) =
        fs_err::read_to_string(&status).ok().and_then(|text| high_water_mark(&text))
    {
        peak = mark.max(peak);
        std::thread::sleep(Duration::from_millis(1));
    }
    peak
}

/// Reads `VmHWM` of proc_pid_status(5) in bytes. A process that has ended lacks the field.
fn high_water_mark(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_read_in_bytes() {
        assert_eq!(
            high_water_mark("Name:\tsh\nVmPeak:\t 9 kB\nVmHWM:\t    1596 kB\n"),
            Some(1596 * 1024)
        );
        assert_eq!(high_water_mark("Name:\tsh\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn the_speed_is_in_decimal_gigabytes() {
        let drained = DrainResult {
            time: Duration::from_millis(500),
            plain: Duration::from_secs(1),
            peak_memory: 0,
        };
        assert!((drained.gigabytes_per_second() - 2.147_483_648).abs() < 1e-9);
    }
}
