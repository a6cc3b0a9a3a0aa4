//! `GET /metrics`: the resources that the sandbox uses.

use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde::Serialize;

use crate::connect_protocol::{Reply, json_reply};

/// Directory in which a container sees its own cgroup.
const CGROUP_DIRECTORY: &str = "/sys/fs/cgroup";

/// Metrics in the form that envd reports. Memory and disk sizes are in bytes.
#[derive(Debug, Serialize)]
struct SandboxMetrics {
    /// Time of the measurement in seconds since 1970.
    ts: u64,
    cpu_count: usize,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

/// Replies with the current metrics. `cpu_used_pct` is an average since the previous call, and 0 at
/// the first.
pub(crate) fn metrics_reply() -> Reply {
    let cpu_count = available_parallelism().map_or(1, std::num::NonZero::get);
    let memory = read_memory();
    let (disk_used, disk_total) = disk_usage();
    let metrics = SandboxMetrics {
        ts: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        cpu_count,
        cpu_used_pct: processor_percent(cpu_count),
        mem_total: memory.total,
        mem_used: memory.used,
        mem_cache: memory.cache,
        disk_used,
        disk_total,
    };
    json_reply(StatusCode::OK, &metrics)
}

/// Returns the processor usage since the previous call, in percent of all processors.
fn processor_percent(count: usize) -> f64 {
    static LAST_READING: Mutex<Option<(Instant, f64)>> = Mutex::new(None);
    let Some(used) = processor_seconds() else { return 0.0 };
    let now = Instant::now();
    let before = LAST_READING.lock().unwrap_or_else(PoisonError::into_inner).replace((now, used));
    let Some((then, used_then)) = before else { return 0.0 };
    let passed = now.duration_since(then).as_secs_f64() * count as f64;
    if passed <= 0.0 {
        return 0.0;
    }
    let percent = ((used - used_then) / passed * 100.0).clamp(0.0, 100.0);
    (percent * 100.0).round() / 100.0
}

/// Returns the processor time used so far, in seconds: that of the sandbox if its cgroup is
/// visible, else that of the whole machine.
fn processor_seconds() -> Option<f64> {
    let usage = fs_err::read_to_string(format!("{CGROUP_DIRECTORY}/cpu.stat"))
        .ok()
        .and_then(|text| find_field(&text, "usage_usec"));
    if let Some(microseconds) = usage {
        return Some(microseconds as f64 / 1e6);
    }
    let text = fs_err::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .filter_map(|tick| tick.parse().ok())
        .collect();
    // The fields are: user, nice, system, idle, iowait, irq, softirq, steal (proc_stat(5)). All but
    // idle and iowait count as busy.
    let busy: u64 = ticks.iter().take(8).sum::<u64>() - ticks.iter().skip(3).take(2).sum::<u64>();
    Some(busy as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct MemoryUsage {
    total: u64,
    used: u64,
    cache: u64,
}

fn read_memory() -> MemoryUsage {
    let read = |path: String| fs_err::read_to_string(path).ok();
    let machine =
        read("/proc/meminfo".to_owned()).map(|text| parse_meminfo(&text)).unwrap_or_default();
    let number =
        |name: &str| read(format!("{CGROUP_DIRECTORY}/{name}"))?.trim().parse::<u64>().ok();
    // Without a limit, `memory.max` contains `max`. The memory of the machine is then the limit.
    let Some((total, current)) = number("memory.max").zip(number("memory.current")) else {
        return machine;
    };
    let cache = read(format!("{CGROUP_DIRECTORY}/memory.stat"))
        .and_then(|text| find_field(&text, "file"))
        .unwrap_or(0);
    MemoryUsage { total: total.min(machine.total), used: current.saturating_sub(cache), cache }
}

fn parse_meminfo(text: &str) -> MemoryUsage {
    let bytes = |name: &str| find_field(text, name).unwrap_or(0) * 1024;
    let (total, cache) = (bytes("MemTotal:"), bytes("Cached:") + bytes("Buffers:"));
    MemoryUsage { total, used: total.saturating_sub(bytes("MemFree:") + cache), cache }
}

/// Returns the number that follows `name` on the line that begins with `name`.
fn find_field(text: &str, name: &str) -> Option<u64> {
    let mut words = text
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    words.next()?.parse().ok()
}

/// Returns the used and the total bytes of the root file system.
fn disk_usage() -> (u64, u64) {
    let Ok(disk) = rustix::fs::statvfs("/") else { return (0, 0) };
    (disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_memory_does_not_count_as_used() {
        let text = "MemTotal:       1000 kB\nMemFree:         100 kB\nBuffers: 50 kB\nCached:  \
                    250 kB\nSwapCached: 9 kB\n";
        assert_eq!(
            parse_meminfo(text),
            MemoryUsage { total: 1000 << 10, used: 600 << 10, cache: 300 << 10 }
        );
        assert_eq!(parse_meminfo("nonsense"), MemoryUsage::default());
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "usage_usec_extra 1\nusage_usec 42\nfile\n";
        assert_eq!(find_field(text, "usage_usec"), Some(42));
        assert_eq!(find_field(text, "file"), None);
        assert_eq!(find_field(text, "missing"), None);
    }
}
