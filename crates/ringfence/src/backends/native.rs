//! Ringfence's own launcher, with namespaces, Landlock and seccomp. Where user namespaces are
//! forbidden, the launcher uses Landlock and seccomp alone, which is weaker and reported as such.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use ringfence_core::policy::Network;
use ringfence_core::{
    Backend as Name, Capabilities, Clause, Plan, Policy, Support, UnstatedClauses,
};
use ringfence_linux::gate::{self, GateKind};
use ringfence_linux::landlock::{ABI_WITH_SCOPES, Rules, abi};
use ringfence_linux::seccomp::AllowedSockets;
use ringfence_linux::{
    Access, Confinement, ControlReport, Entry, Exec, Launch, LaunchFiles, Launcher, SandboxNetwork,
    Survivors, TerminalMode, View, control,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::limits::{self, CgroupAccess};
use super::{
    Backend, BackendStart, Freshness, GroupNeed, KeptSandbox, LaunchInputs, Preparation,
    PrepareError, PrivateDirectory, ProbeRequest, ProcessLaunch, SandboxFacets, StartedSandbox,
    Unavailable, apparmor, exec, null_streams, process_tree,
};
use crate::backends::probe_cache::{ProbeCache, ProbeSubject};
use crate::{Command, StartError, egress, view};

/// Backend that uses ringfence's own launcher.
pub(super) struct NativeBackend;

/// Mechanisms that the native backend can use on a host.
enum Tier {
    /// Namespaces, a root of the sandbox's own, Landlock if the kernel has it, and seccomp.
    Namespaces { landlock: u32 },
    /// Landlock and seccomp alone.
    Landlock { abi: u32, because: String },
}

impl Backend for NativeBackend {
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<Capabilities, Unavailable> {
        let mut support = limits::support(request, CgroupAccess::AsPolicySays);
        let summary = match tier(request)? {
            Tier::Namespaces { landlock } => {
                support.extend(with_namespaces(landlock, request));
                if landlock > 0 {
                    format!("namespaces, Landlock ABI {landlock}, seccomp")
                } else {
                    "namespaces, seccomp; the kernel has no Landlock".to_owned()
                }
            }
            Tier::Landlock { abi, because } => {
                support.extend(with_landlock_alone(abi, &because, request));
                format!("Landlock ABI {abi} and seccomp alone: {because}")
            }
        };
        Ok(Capabilities {
            backend: Name::Native,
            summary,
            defaults: UnstatedClauses::Required,
            support,
        })
    }

    fn start<'a>(
        &'a self,
        request: BackendStart<'a>,
    ) -> BoxFuture<'a, Result<StartedSandbox, StartError>> {
        Box::pin(process_tree::start(self, request))
    }

    fn attach(&self, sandbox: KeptSandbox<'_>) -> io::Result<SandboxFacets> {
        process_tree::attach(sandbox)
    }

    fn process_launch(&self) -> Option<&dyn ProcessLaunch> {
        Some(self)
    }
}

impl ProcessLaunch for NativeBackend {
    fn prepare(
        &self,
        inputs: &LaunchInputs<'_>,
        command: &Command,
    ) -> Result<Preparation, PrepareError> {
        let sandbox_view = view::build(inputs)?;
        let is_open = matches!(inputs.plan.policy.network, Some(Network::Open));
        if !self.shares_paths(inputs.plan) {
            let (gate, holder) = egress::await_gate(&inputs.plan.policy)?.unzip();
            let network = match (is_open, egress::gate(&inputs.plan.policy)) {
                (true, _) => SandboxNetwork::Host,
                (false, Some(kind)) => SandboxNetwork::Gated(kind),
                (false, None) => SandboxNetwork::Private,
            };
            let directory = inputs.workspace.directory_inside(
                &command.starting_directory(inputs.host, &inputs.workspace.source),
            );
            return Ok(Preparation {
                exec: exec(command, sandbox_view.variables, directory)?,
                confinement: Confinement::Namespaces {
                    view: sandbox_view.view,
                    network,
                    landlock_abi: abi(),
                    streams: inputs.streams.files(),
                },
                passed: Vec::new(),
                gate,
                holder,
                described: Vec::new(),
                group: GroupNeed::None,
                own_processes: 1,
                private: None,
            });
        }
        let private = PrivateDirectory::create(inputs.host.user_id).map_err(|source| {
            PrepareError::Host { what: "a private directory".to_owned(), source }
        })?;
        let mut variables = sandbox_view.variables;
        variables.insert("HOME".into(), private.path().into());
        variables.insert("TMPDIR".into(), private.path().into());
        // Git fails on a configuration file that exists and may not be read. In a root of the
        // sandbox's own, the file is simply absent.
        variables.insert("GIT_CONFIG_NOSYSTEM".into(), "1".into());
        let directory = command.starting_directory(inputs.host, &inputs.workspace.source);
        Ok(Preparation {
            exec: exec(command, variables, directory)?,
            confinement: Confinement::Landlock {
                rules: landlock_rules(&sandbox_view.view, private.path()),
                sockets: if is_open { AllowedSockets::Open } else { AllowedSockets::None },
            },
            passed: Vec::new(),
            gate: None,
            holder: None,
            described: Vec::new(),
            group: GroupNeed::for_tree(inputs.plan),
            own_processes: 1,
            private: Some(private),
        })
    }

    fn shares_paths(&self, plan: &Plan) -> bool {
        // The plan's promises show which tier agreed to it: only a pid namespace can enforce this
        // clause.
        !plan.held.get(&Clause::Processes).is_some_and(Support::is_enforced)
    }
}

/// Translates a view into Landlock rules on the host's own tree.
fn landlock_rules(view: &View, private: &Path) -> Rules {
    let mut paths: Vec<(PathBuf, Access)> =
        vec![(private.into(), Access::Write), ("/proc".into(), Access::Read)];
    for device in ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"] {
        paths.push((Path::new("/dev").join(device), Access::Write));
    }
    for entry in &view.entries {
        match entry {
            Entry::Bind { source, access, .. } => paths.push((source.clone(), *access)),
            // Files that are synthetic in a root of the sandbox's own are the host's files here.
            Entry::File { path, .. } | Entry::Symlink { path, .. } => {
                paths.push((path.clone(), Access::Read))
            }
            _ => {}
        }
    }
    paths.retain(|(path, _)| path.exists());
    Rules { abi: abi(), paths }
}

fn tier(request: &ProbeRequest<'_>) -> Result<Tier, Unavailable> {
    let landlock = abi();
    let cache = ProbeCache::for_subject(request.host, ProbeSubject::Namespaces);
    if request.freshness == Freshness::Remembered && cache.has_mark() {
        return Ok(Tier::Namespaces { landlock });
    }
    match try_namespaces(request.launcher, landlock, None) {
        Ok(()) => {
            cache.store();
            Ok(Tier::Namespaces { landlock })
        }
        Err(failure) if landlock > 0 => {
            Ok(Tier::Landlock { abi: landlock, because: failure.to_string() })
        }
        Err(failure) => {
            let program = std::env::current_exe().unwrap_or_else(|_| "ringfence".into());
            let fix = match &failure {
                TrialError::Step { source, .. }
                    if Errno::from_io_error(source) == Some(Errno::NOSYS) =>
                {
                    "use Linux 5.12 or newer, or bubblewrap: --backend bwrap".to_owned()
                }
                _ => namespace_hint(&program),
            };
            Err(Unavailable { why: format!("{failure}, and the kernel has no Landlock"), fix })
        }
    }
}

/// Error of a trial sandbox.
#[derive(Debug, thiserror::Error)]
enum TrialError {
    #[error("cannot {step}: {source}{}", explain_error(source))]
    Step { step: String, source: io::Error },
    #[error("the trial sandbox ended without a report")]
    Silent,
}

/// Explains an error of clone(2) about user namespaces where the error's own text misleads.
fn explain_error(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) if apparmor::confines_this_process() => {
            " (denied by the AppArmor profile of ringfence)"
        }
        Some(Errno::PERM | Errno::ACCESS) if apparmor::restricts_namespaces() => {
            " (AppArmor lets only named programs use user namespaces)"
        }
        Some(Errno::NOSPC | Errno::USERS) => " (the limit user.max_user_namespaces is reached)",
        Some(Errno::PERM) if is_forbidden_by_sysctl() => {
            " (forbidden by the sysctl kernel.unprivileged_userns_clone)"
        }
        Some(Errno::PERM) => " (forbidden by a container, a security module or a sysctl)",
        Some(Errno::NOSYS) => " (the kernel is too old: Linux 5.12 has what `native` needs)",
        _ => "",
    }
}

/// Tells whether Debian's sysctl forbids user namespaces to ordinary users.
fn is_forbidden_by_sysctl() -> bool {
    let setting =
        fs_err::read_to_string("/proc/sys/kernel/unprivileged_userns_clone").unwrap_or_default();
    setting.trim() == "0" && !rustix::process::geteuid().is_root()
}

/// Returns the next step for the host's administrator to allow user namespaces.
pub(super) fn namespace_hint(program: &Path) -> String {
    apparmor::fix(program).unwrap_or_else(|| {
        if is_forbidden_by_sysctl() {
            "as root, allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
                .to_owned()
        } else {
            "allow user namespaces for this user (sysctl user.max_user_namespaces), or run outside \
             the container"
                .to_owned()
        }
    })
}

/// Builds a whole sandbox and makes it execute a program that does not exist. If the sandbox gets
/// that far, namespaces work.
fn try_namespaces(
    launcher: &Launcher,
    landlock_abi: u32,
    gate: Option<GateKind>,
) -> Result<(), TrialError> {
    let step = |step: &str| {
        let step = step.to_owned();
        |source| TrialError::Step { step, source }
    };
    let view =
        View { entries: vec![Entry::Scratch { path: "/tmp".into(), size: 1 << 20, mode: 0o1777 }] };
    let program: CString = c"/nothing".into();
    let network = gate.map_or(SandboxNetwork::Private, SandboxNetwork::Gated);
    // Any descriptor serves as the gate, because nobody looks at it.
    let (_holder, gate) = gate
        .map(|_| control::socket_pair())
        .transpose()
        .map_err(step("make a pair of sockets"))?
        .unzip();
    let trial = Launch {
        exec: Exec { argv: vec![program.clone()], program, env: Vec::new(), directory: "/".into() },
        confinement: Confinement::Namespaces { view, network, landlock_abi, streams: Vec::new() },
        terminal: TerminalMode::Detached,
        time: None,
        survivors: Survivors::End,
        private: None,
    };
    let stdio = null_streams().map_err(step("open `/dev/null`"))?.map(Some);
    let files = LaunchFiles { stdio, gate, ..LaunchFiles::default() };
    let started = launcher.start(&trial, files, None).map_err(|error| match error {
        ringfence_linux::LaunchError::Clone { source }
        | ringfence_linux::LaunchError::Ask { source } => {
            step("create user, mount, pid, network, ipc and uts namespaces")(source)
        }
    })?;
    match control::receive(&started.control, RecvFlags::empty()) {
        Ok(Some(ControlReport::ExecFailed { errno }))
            if io::Error::from_raw_os_error(errno).kind() == io::ErrorKind::NotFound =>
        {
            Ok(())
        }
        Ok(Some(ControlReport::SetupFailed { step, errno })) => {
            Err(TrialError::Step { step, source: io::Error::from_raw_os_error(errno) })
        }
        _ => Err(TrialError::Silent),
    }
}

fn with_namespaces(landlock: u32, request: &ProbeRequest<'_>) -> Vec<(Clause, Support)> {
    let files = if landlock > 0 { "mount namespace+landlock" } else { "mount namespace" };
    vec![
        (Clause::Filesystem, Support::enforced(files)),
        (Clause::Hide, Support::enforced("mount namespace")),
        (Clause::Protect, Support::enforced("mount namespace")),
        (Clause::Network, Support::enforced("network namespace")),
        (Clause::Egress, try_egress(landlock, request)),
        (Clause::Processes, Support::enforced("pid namespace")),
        (Clause::Ipc, ipc(landlock, request.policy)),
        (Clause::Privilege, Support::enforced("user namespace+no_new_privs+no capabilities")),
        (Clause::Kernel, Support::enforced("seccomp")),
        (Clause::Terminal, Support::enforced("seccomp")),
        (Clause::Environment, Support::enforced("a clean environment, closed descriptors")),
        (Clause::Cleanup, Support::enforced("pid namespace")),
        (Clause::Tmp, Support::enforced("tmpfs size and inodes")),
    ]
}

fn with_landlock_alone(
    abi: u32,
    because: &str,
    request: &ProbeRequest<'_>,
) -> Vec<(Clause, Support)> {
    let program = std::env::current_exe().unwrap_or_else(|_| "ringfence".into());
    let fix = namespace_hint(&program);
    let needs_namespaces = |what: &str| {
        Support::absent(format!("{what}; user namespaces do not work here: {because}"), &fix)
    };
    // Landlock controls neither stat(2) nor chmod(2), chown(2), utime(2) and setxattr(2)
    // (landlock(7)).
    let filesystem = Support::weaker(if abi >= 3 {
        "files outside can be looked up, and the user's own changed in mode and time; the user's \
         terminals can be opened"
    } else {
        "files outside can be looked up, the user's own changed in mode and time, and, with this \
         old Landlock, truncated"
    });
    let processes = if abi >= ABI_WITH_SCOPES {
        Support::weaker(
            "names and arguments of the host's processes can be read, and limits of the user's own \
             be changed",
        )
    } else {
        Support::weaker("processes of the same user can be signalled, and all can be listed")
    };
    // Landlock does not control connect(2) to a path. Without a network, no socket can be made to
    // connect with.
    let ipc = if matches!(request.policy.network, Some(Network::Open)) {
        "with an open network, Unix sockets of the host can be reached by path: an ssh-agent's, a \
         container engine's"
    } else {
        "System V shared memory and queues of the same user can be reached"
    };
    let cleanup = if request.clauses.contains(&Clause::Cleanup) {
        limits::tree_cleanup_support(request, CgroupAccess::AsPolicySays)
    } else {
        Support::weaker("not looked at")
    };
    vec![
        (Clause::Filesystem, filesystem),
        (Clause::Hide, needs_namespaces("Landlock cannot take back a part of what it allows")),
        (Clause::Protect, needs_namespaces("Landlock cannot take back a part of what it allows")),
        (Clause::Network, Support::enforced("seccomp: no socket can be made")),
        (
            Clause::Egress,
            needs_namespaces("without a network of its own, a command reaches all or nothing"),
        ),
        (Clause::Processes, processes),
        (Clause::Ipc, Support::weaker(ipc)),
        (Clause::Privilege, Support::enforced("no_new_privs+no capabilities")),
        (Clause::Kernel, Support::enforced("seccomp")),
        (Clause::Terminal, Support::enforced("seccomp")),
        (Clause::Environment, Support::enforced("a clean environment, closed descriptors")),
        (Clause::Cleanup, cleanup),
        (Clause::Tmp, needs_namespaces("a private directory on the host cannot be bounded")),
    ]
}

/// Returns the support for separating a sandbox with namespaces from the queues, shared memory and
/// sockets of others.
pub(super) fn ipc(landlock: u32, policy: &Policy) -> Support {
    match (matches!(policy.network, Some(Network::Open)), landlock >= ABI_WITH_SCOPES) {
        (false, _) => Support::enforced("ipc+network namespace+seccomp"),
        (true, true) => Support::enforced("ipc namespace+landlock+seccomp"),
        (true, false) => Support::weaker(
            "with an open network, abstract Unix sockets of the host can be reached: the kernel's \
             Landlock is too old",
        ),
    }
}

/// Returns the result of [`egress_support`], and tries to make a tunnel if one is needed.
fn try_egress(landlock: u32, request: &ProbeRequest<'_>) -> Support {
    let support = egress_support(request.policy);
    if egress::gate(request.policy) != Some(GateKind::Transparent) || !support.is_enforced() {
        return support;
    }
    match try_namespaces(request.launcher, landlock, Some(GateKind::Transparent)) {
        Ok(()) => support,
        Err(failure) => Support::absent(
            format!("`transparent` needs a tunnel: {failure}"),
            "leave `transparent` out",
        ),
    }
}

/// Returns the support for restricting a sandbox with a network namespace to the allowed hosts.
pub(super) fn egress_support(policy: &Policy) -> Support {
    if let Some(absent) = egress::absent_support() {
        return absent;
    }
    if egress::gate(policy) != Some(GateKind::Transparent) {
        return Support::enforced("network namespace+egress proxy");
    }
    match rustix::fs::open(gate::TUNNEL_DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Support::enforced("network namespace+egress proxy+tunnel"),
        Err(error) => Support::absent(
            format!(
                "`transparent` needs a tunnel, and `{}` cannot be opened: {error}",
                gate::TUNNEL_DEVICE
            ),
            match error {
                Errno::ACCESS | Errno::PERM => {
                    "chmod 666 /dev/net/tun as root, or leave `transparent` out"
                }
                _ => {
                    "modprobe tun as root, or, in a container, start it with --device /dev/net/tun"
                }
            },
        ),
    }
}
