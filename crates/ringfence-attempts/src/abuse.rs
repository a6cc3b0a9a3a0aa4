//! Attempts to exhaust resources: each uses more than the limit under which it runs.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_core::Clause::{Cleanup, Cpus, Memory, Output, ProcessCount, Time, Tmp};
use ringfence_linux::cgroup;
use ringfence_linux::sys::attempt::{own_processor_time, socket_memory};
use rustix::fs::XattrFlags;
use rustix::net::{self, AddressFamily, SendFlags, SocketType};

use super::{Attempt, AttemptContext, denied, impossible, no_result};

/// The amounts that the attempts use. The limits of the sandbox must be well below them.
#[derive(Debug)]
pub struct AttemptAmounts;

impl AttemptAmounts {
    /// Memory that the attempts use, in bytes.
    pub const MEMORY: usize = 256 << 20;
    /// Number of processes that an attempt starts.
    pub const PROCESSES: usize = 48;
    /// Output that an attempt writes, in bytes.
    pub const OUTPUT: usize = 2 << 20;
    /// Bytes that an attempt writes to a temporary directory.
    pub const TEMPORARY: usize = 8 << 20;
    /// Number of empty files that an attempt creates in a temporary directory.
    pub const FILES: usize = 4096;
    /// Bytes of an extended attribute. The value fits into the one block that ext4 has for all
    /// attributes of a file.
    const ATTRIBUTE: usize = 3800;
    /// Time for which an attempt runs or uses a processor. The deadline must be shorter.
    pub const TIME: Duration = Duration::from_millis(1500);
    /// Time for which an attempt that must be ended would run.
    pub const LINGER: Duration = Duration::from_secs(60);
    /// Share of a processor that a process gets without a limit, even on a busy host.
    pub const SHARE: f64 = 0.45;
}

pub(super) const ATTEMPTS: &[Attempt] = &[
    denied("exhaust-memory", Memory, "use more memory than the limit", |_| {
        let mut memory = vec![0u8; AttemptAmounts::MEMORY];
        for page in memory.chunks_mut(4096) {
            page[0] = 1;
        }
        Ok(format!("{} bytes were used", std::hint::black_box(memory).len()))
    }),
    denied(
        "exhaust-socket-buffers",
        Memory,
        "hold more memory in buffers of sockets than the limit",
        |_| {
            let mut sockets = Vec::new();
            let mut held = 0;
            while held < AttemptAmounts::MEMORY {
                let before = held;
                for kind in [SocketType::STREAM, SocketType::DGRAM] {
                    held += fill_socket_buffers(kind, &mut sockets)?;
                }
                if held - before < 1 << 16 {
                    return Err(no_result(format!("no more than {held} bytes could be held")));
                }
            }
            Ok(format!("{held} bytes were held by {} sockets", sockets.len()))
        },
    ),
    denied(
        "leave-cgroup",
        ProcessCount,
        "leave the cgroup by writing to the file of another",
        |_| {
            let mut refusal = impossible("no file of a cgroup is to be seen");
            for group in cgroup::mount_points() {
                match fs_err::OpenOptions::new().write(true).open(group.join("cgroup.procs")) {
                    Ok(mut file) => match file.write_all(b"0") {
                        Ok(()) => return Ok(format!("`{}` was entered", group.display())),
                        Err(error) => refusal = error,
                    },
                    Err(error) => refusal = error,
                }
            }
            Err(refusal)
        },
    ),
    denied("exhaust-processes", ProcessCount, "start more processes than the limit", |_| {
        let mut children = Vec::new();
        let started = (0..AttemptAmounts::PROCESSES).try_for_each(|_| {
            children.push(start_lingerer("", LingererKind::Attached)?);
            io::Result::Ok(())
        });
        for mut child in children {
            let _ = child.kill(); // the process may have ended meanwhile
            let _ = child.wait(); // as above
        }
        started.map(|()| format!("{} were started", AttemptAmounts::PROCESSES))
    }),
    denied("exhaust-processor", Cpus, "use more processor time than the limit", |_| {
        let (begun, used) = (Instant::now(), own_processor_time());
        while begun.elapsed() < AttemptAmounts::TIME {
            std::hint::black_box((0..1000u64).sum::<u64>());
        }
        let share = (own_processor_time() - used).as_secs_f64() / begun.elapsed().as_secs_f64();
        if share > AttemptAmounts::SHARE {
            Ok("a whole share of a processor was used".to_owned())
        } else {
            Err(no_result("less than a share of a processor was to be had"))
        }
    }),
    denied("exhaust-output", Output, "write more output than is kept", |_| {
        let line = [b'x'; 4096];
        let mut out = io::stdout().lock();
        (0..AttemptAmounts::OUTPUT / line.len()).try_for_each(|_| out.write_all(&line))?;
        writeln!(out).map(|()| "it was written".to_owned())
    }),
    denied(
        "exhaust-temporary-inodes",
        Tmp,
        "make more empty files in /tmp than the limit has pages",
        |context| {
            in_temporary_directory(context, |directory| {
                (0..AttemptAmounts::FILES)
                    .try_for_each(|number| fs_err::write(directory.join(number.to_string()), ""))?;
                Ok(format!("{} files were made", AttemptAmounts::FILES))
            })
        },
    ),
    denied(
        "exhaust-temporary-attributes",
        Tmp,
        "keep more in attributes of files in /tmp than the limit",
        |context| {
            in_temporary_directory(context, |directory| {
                let value = [b'x'; AttemptAmounts::ATTRIBUTE];
                for number in 0..AttemptAmounts::TEMPORARY / AttemptAmounts::ATTRIBUTE {
                    let path = directory.join(number.to_string());
                    fs_err::write(&path, "")?;
                    rustix::fs::setxattr(&path, "user.ringfence", &value, XattrFlags::CREATE)?;
                }
                Ok(format!("{} bytes were kept", AttemptAmounts::TEMPORARY))
            })
        },
    ),
    denied("exhaust-temporary-files", Tmp, "fill /tmp beyond the limit", |context| {
        let path = temporary_directory().join(&context.name);
        let filled = fs_err::write(&path, vec![0; AttemptAmounts::TEMPORARY]);
        let _ = fs_err::remove_file(&path); // the file may not exist
        filled.map(|()| format!("{} bytes were written", AttemptAmounts::TEMPORARY))
    }),
    denied("ignore-deadline", Time, "go on after the deadline", |_| {
        std::thread::sleep(AttemptAmounts::TIME);
        Ok("it went on".to_owned())
    }),
    denied(
        "outlive-success",
        Cleanup,
        "leave a background process behind after success",
        |context| {
            start_lingerer(&context.mark, LingererKind::Attached)
                .map(|_| "it was left behind".to_owned())
        },
    ),
    denied(
        "outlive-success-as-daemon",
        Cleanup,
        "leave a daemon in a session of its own behind",
        |context| {
            start_lingerer(&context.mark, LingererKind::Daemon)
                .map(|_| "it was left behind".to_owned())
        },
    ),
    denied(
        "outlive-deadline",
        Cleanup,
        "leave a daemon behind when the deadline ends the run",
        |context| {
            start_lingerer(&context.mark, LingererKind::Daemon)?;
            std::thread::sleep(AttemptAmounts::TIME);
            Ok("it was left behind".to_owned())
        },
    ),
    denied("outlive-supervisor", Cleanup, "go on after ringfence was killed with SIGKILL", |_| {
        std::thread::sleep(AttemptAmounts::LINGER);
        Ok("it went on".to_owned())
    }),
];

fn temporary_directory() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| "/tmp".into(), PathBuf::from)
}

/// Runs `work` in a new directory below the temporary directory, and removes the new directory.
fn in_temporary_directory(
    context: &AttemptContext,
    work: impl FnOnce(&Path) -> io::Result<String>,
) -> io::Result<String> {
    let directory = temporary_directory().join(&context.name);
    fs_err::create_dir(&directory)?;
    let done = work(&directory);
    let _ = fs_err::remove_dir_all(&directory); // its sandbox removes the rest
    done
}

/// Fills the buffers of two connected sockets and keeps them in `sockets`. Returns the number of
/// bytes that the kernel holds there.
fn fill_socket_buffers(kind: SocketType, sockets: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let here = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    let receiver = net::socket(AddressFamily::INET, kind, None)?;
    net::sockopt::set_socket_recv_buffer_size(&receiver, 1 << 20)?;
    net::bind(&receiver, &here)?;
    let sender = net::socket(AddressFamily::INET, kind, None)?;
    net::sockopt::set_socket_send_buffer_size(&sender, 1 << 20)?;
    let receiver = if kind == SocketType::STREAM {
        net::listen(&receiver, 1)?;
        net::connect(&sender, &net::getsockname(&receiver)?)?;
        net::accept(&receiver)?
    } else {
        net::connect(&sender, &net::getsockname(&receiver)?)?;
        receiver
    };
    let chunk = [b'x'; 16 << 10];
    // The kernel drops a datagram that does not fit, but counts it as sent. 256 datagrams fill any
    // buffer.
    for _ in 0..256 {
        if net::send(&sender, &chunk, SendFlags::DONTWAIT).is_err() {
            break;
        }
    }
    let held = socket_memory(&sender)? + socket_memory(&receiver)?;
    sockets.extend([sender, receiver]);
    Ok(held)
}

/// The relation of a lingering process to the process that starts it.
#[derive(Clone, Copy)]
enum LingererKind {
    Attached,
    Daemon,
}

/// Starts a process that runs for a long time and has `mark` among its arguments.
fn start_lingerer(mark: &str, life: LingererKind) -> io::Result<Child> {
    let own = std::env::current_exe()?;
    let mut command = match life {
        LingererKind::Attached => Command::new(own),
        LingererKind::Daemon => {
            let mut command = Command::new("setsid");
            command.arg("--fork").arg(own);
            command
        }
    };
    command.args(["attempt", "outlive-supervisor", "--mark", mark]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}
