//! Bubblewrap backend. The backend uses the same view as `native`, and hands bubblewrap the same
//! seccomp filter by descriptor.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use ringfence_core::policy::Network;
use ringfence_core::{
    Backend as Name, Capabilities, Clause, Plan, Policy, Support, UnstatedClauses,
};
use ringfence_linux::gate::{self, GateKind};
use ringfence_linux::inside::{self, GateDescriptors, InsideSteps, NamespaceRoot};
use ringfence_linux::landlock::{Rules, abi};
use ringfence_linux::launcher::create_memory_file;
use ringfence_linux::seccomp::{AllowedSockets, FilterProfile, SeccompFilter};
use ringfence_linux::streams::TERMINAL_NAMES;
use ringfence_linux::view::inode_limit;
use ringfence_linux::{
    Access, Confinement, ControlReport, Entry, Launch, LaunchFiles, Launcher, SHARED_MEMORY_SIZE,
    Survivors, TerminalMode, View, control,
};
use rustix::fs::{Access as Permission, Mode, OFlags};
use rustix::net::RecvFlags;

use super::limits::{self, CgroupAccess};
use super::mounted::{self, on_host};
use super::native::{egress_support, ipc, namespace_hint};
use super::version::VersionNumber;
use super::{
    Backend, BackendStart, Freshness, GroupNeed, KeptSandbox, LaunchInputs, Preparation,
    PrepareError, ProbeRequest, ProcessLaunch, SandboxFacets, StartedSandbox, Unavailable, exec,
    null_streams, process_tree,
};
use crate::backends::probe_cache::{ProbeCache, ProbeSubject};
use crate::{Command, Host, StartError, egress, view};

/// Backend that has bubblewrap set up the sandbox.
pub(super) struct BwrapBackend;

impl Backend for BwrapBackend {
    fn probe(&self, request: &ProbeRequest<'_>) -> Result<Capabilities, Unavailable> {
        let program = find_program(request.host, request.policy)?;
        let start = InitialUser::find(&program, request.host, request.launcher, request.freshness)?;
        let landlock = abi();
        let files = if landlock > 0 {
            "bubblewrap: mount namespace+landlock"
        } else {
            "bubblewrap: mount namespace"
        };
        let mut support = limits::support(request, CgroupAccess::AsPolicySays);
        support.extend([
            (Clause::Filesystem, Support::enforced(files)),
            (Clause::Hide, Support::enforced("bubblewrap: mount namespace")),
            (Clause::Protect, Support::enforced("bubblewrap: mount namespace")),
            (Clause::Network, Support::enforced("bubblewrap: network namespace")),
            (Clause::Egress, egress_support(request.policy)),
            (Clause::Processes, Support::enforced("bubblewrap: pid namespace")),
            (Clause::Ipc, ipc(landlock, request.policy)),
            (
                Clause::Privilege,
                Support::enforced("bubblewrap: user namespace+no_new_privs+no capabilities"),
            ),
            (Clause::Kernel, Support::enforced("seccomp")),
            (Clause::Terminal, Support::enforced("seccomp")),
            (Clause::Environment, Support::enforced("a clean environment, closed descriptors")),
            (Clause::Cleanup, Support::enforced("bubblewrap: pid namespace")),
            (Clause::Tmp, start.tmp_support()),
        ]);
        let with_landlock =
            if landlock > 0 { format!("Landlock ABI {landlock}, ") } else { String::new() };
        let summary = format!("bubblewrap at {}, {with_landlock}seccomp", program.display());
        Ok(Capabilities {
            backend: Name::Bwrap,
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

    fn warnings(&self, host: &Host, policy: &Policy) -> Vec<String> {
        warnings(host, policy)
    }
}

/// Directory in the sandbox for binds whose destination lies in a writable directory. Bubblewrap
/// mounts these binds here, and ringfence's program then mounts each of them at its destination.
const STAGING_DIRECTORY: &str = "/.staged";

/// View in two parts: the entries that bubblewrap mounts, and the entries that ringfence's program
/// applies in the sandbox after that.
#[derive(Debug, Default)]
struct ViewDivision {
    by_bubblewrap: Vec<Entry>,
    inside: Vec<Entry>,
}

impl ViewDivision {
    fn for_view(view: &View, start: InitialUser) -> ViewDivision {
        let mut division = ViewDivision::default();
        for entry in &view.entries {
            match entry {
                _ if start == InitialUser::User => division.by_bubblewrap.push(entry.clone()),
                Entry::Pin { .. } | Entry::Protect { .. } | Entry::Hide { .. } => {
                    division.inside.push(entry.clone())
                }
                Entry::Bind { source, destination, access }
                    if lies_in_writable_bind(view, destination) =>
                {
                    let staged =
                        Path::new(STAGING_DIRECTORY).join(division.inside.len().to_string());
                    let bind = |source: &Path, destination: &Path| Entry::Bind {
                        source: source.to_path_buf(),
                        destination: destination.to_path_buf(),
                        access: *access,
                    };
                    division.by_bubblewrap.push(bind(source, &staged));
                    division.inside.push(bind(&staged, destination));
                }
                _ => division.by_bubblewrap.push(entry.clone()),
            }
        }
        if division.inside.iter().any(|entry| matches!(entry, Entry::Bind { .. })) {
            division.inside.push(Entry::Hide { path: STAGING_DIRECTORY.into() });
        }
        division
    }
}

/// Tells whether `path` lies in a writable bind, so that sandboxed code could put a symbolic link
/// on the way to it.
fn lies_in_writable_bind(view: &View, path: &Path) -> bool {
    view.entries.iter().any(|entry| match entry {
        Entry::Bind { destination, access: Access::Write, .. } => {
            path != destination && path.starts_with(destination)
        }
        _ => false,
    })
}

impl ProcessLaunch for BwrapBackend {
    fn prepare(
        &self,
        inputs: &LaunchInputs<'_>,
        command: &Command,
    ) -> Result<Preparation, PrepareError> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| PrepareError::Host { what, source }
        };
        let program = find_program(inputs.host, &inputs.plan.policy)
            .map_err(|unavailable| io::Error::other(unavailable.why))
            .map_err(failed("bubblewrap"))?;
        let sandbox_view = view::build(inputs)?;
        let view = mounted::uncovered(sandbox_view.view);
        let path = sandbox_view.variables.get(OsStr::new("PATH")).cloned().unwrap_or_default();
        check_command(command, &path, &view)?;
        let expected = mounted::expectations(&view).map_err(failed("the mounts for bubblewrap"))?;

        let directory = inputs
            .workspace
            .directory_inside(&command.starting_directory(inputs.host, &inputs.workspace.source));
        let network = inputs.plan.policy.network.clone().unwrap_or(Network::Closed);
        let mut arguments = BwrapArguments::new(&network, &directory, inputs.streams.terminals());
        let (gate, holder) = egress::await_gate(&inputs.plan.policy)?.unzip();
        let start =
            InitialUser::find(&program, inputs.host, inputs.launcher, Freshness::Remembered)
                .map_err(|unavailable| io::Error::other(unavailable.why))
                .map_err(failed("bubblewrap"))?;
        let division = ViewDivision::for_view(&view, start);
        for entry in &division.by_bubblewrap {
            arguments.entry(entry, &view).map_err(failed("bubblewrap's arguments"))?;
        }
        let mounts_inside = !division.inside.is_empty();
        let has_tunnel = egress::gate(&inputs.plan.policy) == Some(GateKind::Transparent);
        let described = arguments.described(
            &program,
            &sandbox_view.variables,
            &division.inside,
            &view,
            command,
        );
        let described = described.map_err(failed("bubblewrap's arguments"))?;
        if mounts_inside {
            arguments.covers().map_err(failed("bubblewrap's arguments"))?;
        }
        arguments.close().map_err(failed("bubblewrap's arguments"))?;
        let root = if has_tunnel || start == InitialUser::Root {
            Some(arguments.start_as_root(inputs.host, &view))
        } else {
            arguments.filter().map_err(failed("bubblewrap's arguments"))?;
            None
        };
        let tunnel = has_tunnel
            .then(|| arguments.tunnel())
            .transpose()
            .map_err(failed("the tunnel's device"))?;
        let way = holder.map(|holder| GateDescriptors { holder: arguments.pass(holder), tunnel });
        let inside = InsideSteps {
            mounts: division.inside,
            expected,
            streams: inputs.streams.files(),
            root,
            gate: way,
            rules: Rules::in_own_root(abi(), view.writable().cloned()),
            highest_descriptor: crate::HIGHEST_CALLER_DESCRIPTOR,
            exec: exec(command, sandbox_view.variables, directory)?,
        };
        let (command, passed) = arguments
            .command(&program, inputs.launcher, &inside)
            .map_err(failed("bubblewrap's arguments"))?;
        Ok(Preparation {
            // Bubblewrap runs on the host, so the policy must not influence its environment or
            // directory.
            exec: exec(&command, [], "/".into())?,
            confinement: Confinement::Delegated,
            passed,
            gate,
            holder: None,
            described,
            group: GroupNeed::None,
            // The supervisor, the bubblewrap process outside, and the bubblewrap process inside.
            own_processes: 3,
            private: None,
        })
    }

    fn shares_paths(&self, _plan: &Plan) -> bool {
        false
    }
}

/// Arguments of bubblewrap, and the descriptors that they name.
#[derive(Debug)]
struct BwrapArguments {
    words: Vec<OsString>,
    passed: Vec<(i32, OwnedFd)>,
}

/// Number of the first descriptor that bubblewrap itself reads. Lower numbers belong to the
/// command.
const FIRST_DESCRIPTOR: i32 = crate::HIGHEST_CALLER_DESCRIPTOR + 1;

/// Directory in which programs create shared memory.
const SHARED_MEMORY_PATH: &str = "/dev/shm";

impl BwrapArguments {
    fn new(network: &Network, directory: &Path, terminals: &[PathBuf]) -> BwrapArguments {
        let mut arguments = BwrapArguments { words: Vec::new(), passed: Vec::new() };
        arguments.push([
            "--unshare-user",
            "--unshare-ipc",
            "--unshare-pid",
            "--unshare-uts",
            "--unshare-cgroup-try",
        ]);
        if !matches!(network, Network::Open) {
            arguments.push(["--unshare-net"]);
        }
        arguments.push(["--hostname", "ringfence", "--die-with-parent", "--cap-drop", "ALL"]);
        arguments.push([OsStr::new("--chdir"), directory.as_os_str()]);
        arguments.devices(terminals);
        arguments
    }

    /// Adds `/dev` with the given terminals of the host. Ringfence's program makes the terminals
    /// unchangeable later.
    fn devices(&mut self, terminals: &[PathBuf]) {
        let size = SHARED_MEMORY_SIZE.to_string();
        self.push([
            "--dev",
            "/dev",
            "--perms",
            "1777",
            "--size",
            &size,
            "--tmpfs",
            SHARED_MEMORY_PATH,
        ]);
        // Bubblewrap itself mounts the terminal of standard output, under the first name.
        for (name, terminal) in TERMINAL_NAMES[1..].iter().zip(terminals) {
            let inside = Path::new("/dev").join(name);
            self.push([OsStr::new("--dev-bind"), terminal.as_os_str(), inside.as_os_str()]);
        }
        // Make `/dev` read-only, because bubblewrap's own `/dev` is a tmpfs without a size limit,
        // in which its owner may write.
        self.push(["--remount-ro", "/dev"]);
    }

    fn push<W: AsRef<OsStr>>(&mut self, words: impl IntoIterator<Item = W>) {
        self.words.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
    }

    /// Adds a descriptor from which bubblewrap reads `contents`, and returns its number as a word.
    fn data(&mut self, contents: &[u8]) -> io::Result<OsString> {
        Ok(self.pass(create_memory_file(contents)?).to_string().into())
    }

    /// Adds a descriptor and returns its number.
    fn pass(&mut self, fd: OwnedFd) -> i32 {
        let number = FIRST_DESCRIPTOR + self.passed.len() as i32;
        self.passed.push((number, fd));
        number
    }

    /// Makes ringfence's program start as the root of the user namespace, so that it can limit the
    /// tmpfs mounts of `view` and what the kernel grants to a user. The program drops these
    /// capabilities before it runs the command.
    fn start_as_root(&mut self, host: &Host, view: &View) -> NamespaceRoot {
        // For any other user, bubblewrap makes a second user namespace, from which no mount can be
        // changed.
        self.push([
            "--uid",
            "0",
            "--gid",
            "0",
            "--cap-add",
            "CAP_SYS_ADMIN",
            "--cap-add",
            "CAP_SYS_RESOURCE",
        ]);
        // Without CAP_SETFCAP, the root of a namespace may not be mapped into a nested namespace
        // (user_namespaces(7), since Linux 5.12).
        self.push(["--cap-add", "CAP_SETFCAP"]);
        let shared_memory = (PathBuf::from(SHARED_MEMORY_PATH), inode_limit(SHARED_MEMORY_SIZE));
        let scratch = view.entries.iter().filter_map(|entry| match entry {
            Entry::Scratch { path, size, .. } => Some((path.clone(), inode_limit(*size))),
            _ => None,
        });
        let scratch = scratch.chain([shared_memory]).collect();
        NamespaceRoot { user: host.user_id, group: host.group_id, scratch }
    }

    /// Adds a tunnel device, which has no name in the sandbox. Ringfence's program makes the tunnel
    /// with this device, as the root of the user namespace that owns the network.
    fn tunnel(&mut self) -> io::Result<i32> {
        self.push(["--cap-add", "CAP_NET_ADMIN"]);
        // Open with O_PATH only: a tunnel belongs to the network namespace in which its device was
        // really opened, and that must be the sandbox's.
        let device =
            rustix::fs::open(gate::TUNNEL_DEVICE, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(self.pass(device))
    }

    /// Returns a bubblewrap command line that gives `inner` the same view, for people to read.
    fn described(
        &self,
        program: &Path,
        variables: &BTreeMap<OsString, OsString>,
        mounts_inside: &[Entry],
        view: &View,
        inner: &Command,
    ) -> io::Result<Vec<String>> {
        let mut rest = BwrapArguments { words: Vec::new(), passed: Vec::new() };
        for entry in
            mounts_inside.iter().filter(|entry| !entry.path().starts_with(STAGING_DIRECTORY))
        {
            rest.entry(entry, view)?;
        }
        rest.close()?;
        let variables =
            variables.iter().flat_map(|(name, value)| [OsStr::new("--setenv"), name, value]);
        let words = self.words.iter().chain(&rest.words).map(OsString::as_os_str);
        let words = std::iter::once(program.as_os_str()).chain(words);
        let inner = [OsStr::new("--"), &inner.program]
            .into_iter()
            .chain(inner.arguments.iter().map(OsString::as_os_str));
        Ok(words
            .chain(variables)
            .chain(inner)
            .map(|word| word.to_string_lossy().into_owned())
            .collect())
    }

    /// Makes bubblewrap create the directory and the file with which ringfence's program covers
    /// hidden paths.
    fn covers(&mut self) -> io::Result<()> {
        let [directory, file] =
            [View::COVER_DIRECTORY, View::COVER_FILE].map(|name| Path::new("/").join(name));
        self.push([
            OsStr::new("--perms"),
            OsStr::new("0000"),
            OsStr::new("--dir"),
            directory.as_os_str(),
        ]);
        let data = self.data(b"")?;
        self.push([OsString::from("--perms"), "0000".into(), "--file".into(), data, file.into()]);
        Ok(())
    }

    /// Returns the command that runs ringfence's program under bubblewrap with these arguments, and
    /// the descriptors that it needs. The program then carries out `inside`.
    ///
    /// The arguments are passed by descriptor, not as words, so that the policy does not appear in
    /// a process list and no length limit applies.
    ///
    /// The variables of the sandboxed command are not among the arguments, because some of them
    /// would make ringfence's program load files that the sandbox can write (ld.so(8)).
    fn command(
        mut self,
        program: &Path,
        launcher: &Launcher,
        inside: &InsideSteps,
    ) -> io::Result<(Command, Vec<(i32, OwnedFd)>)> {
        let ours = self.pass(launcher.program()?);
        let description = self.pass(inside.write_to_memory()?).to_string();
        let list = self.data(&join_words(&self.words.clone()))?;
        let command = Command::new(program).argument("--args").argument(list).argument("--");
        let command = command
            .argument(format!("/proc/self/fd/{ours}"))
            .argument(inside::NAME)
            .argument(description);
        Ok((command, self.passed))
    }

    fn entry(&mut self, entry: &Entry, view: &View) -> io::Result<()> {
        let os = |path: &PathBuf| path.clone().into_os_string();
        match entry {
            Entry::Directory { path } => self.push([OsString::from("--dir"), os(path)]),
            Entry::Symlink { path, target } => {
                self.push([OsString::from("--symlink"), os(target), os(path)])
            }
            Entry::File { path, contents } => {
                let data = self.data(contents)?;
                self.push([
                    OsString::from("--perms"),
                    "0644".into(),
                    "--file".into(),
                    data,
                    os(path),
                ]);
            }
            Entry::Scratch { path, size, mode } => self.push([
                // Create the parent first: bubblewrap would give missing parents the mode of the
                // tmpfs.
                OsString::from("--perms"),
                "0755".into(),
                "--dir".into(),
                path.parent().unwrap_or(Path::new("/")).into(),
                OsString::from("--perms"),
                format!("{mode:04o}").into(),
                "--size".into(),
                size.to_string().into(),
                "--tmpfs".into(),
                os(path),
            ]),
            Entry::Bind { source, destination, access } => {
                let option = if *access == Access::Write { "--bind" } else { "--ro-bind" };
                self.push([OsString::from(option), os(source), os(destination)]);
            }
            Entry::Pin { path } => {
                self.push([OsString::from("--bind"), os(&on_host(view, path)), os(path)])
            }
            Entry::Protect { path } => {
                self.push([OsString::from("--ro-bind"), os(&on_host(view, path)), os(path)])
            }
            Entry::Hide { path } if on_host(view, path).is_dir() => self.push([
                OsString::from("--perms"),
                "0000".into(),
                "--tmpfs".into(),
                os(path),
                "--remount-ro".into(),
                os(path),
            ]),
            Entry::Hide { path } => self.cover(os(path))?,
        }
        Ok(())
    }

    /// Covers a file with an empty file that nobody may open.
    fn cover(&mut self, path: OsString) -> io::Result<()> {
        let data = self.data(b"")?;
        self.push([OsString::from("--perms"), "0000".into(), "--ro-bind-data".into(), data, path]);
        Ok(())
    }

    /// Adds the last mounts: `/proc`, and a root that is read-only from then on.
    fn close(&mut self) -> io::Result<()> {
        self.push(["--proc", "/proc"]);
        for entry in View::proc_entries().iter().filter(|entry| entry.path().exists()) {
            self.entry(entry, &View::default())?;
        }
        self.push(["--remount-ro", "/"]);
        Ok(())
    }

    /// Adds the seccomp filter as a descriptor.
    fn filter(&mut self) -> io::Result<()> {
        let filter = self.data(
            &SeccompFilter::build(FilterProfile { sockets: AllowedSockets::Private }).to_bytes(),
        )?;
        self.push([OsString::from("--seccomp"), filter]);
        Ok(())
    }
}

/// Joins words in the format of `--args`: a NUL byte ends each word.
fn join_words(words: &[OsString]) -> Vec<u8> {
    words.iter().flat_map(|word| word.as_bytes().iter().copied().chain([0])).collect()
}

/// Checks before the start that the command exists and is executable, because bubblewrap's report
/// of a missing command looks like an exit of the command itself.
fn check_command(command: &Command, path: &OsStr, view: &View) -> Result<(), PrepareError> {
    let program = Path::new(&command.program);
    let name = || program.display().to_string();
    let candidates: Vec<PathBuf> = if command.program.as_bytes().contains(&b'/') {
        if program.is_relative() {
            // The path is relative to a directory in the sandbox: bubblewrap reports a missing
            // program.
            return Ok(());
        }
        vec![program.into()]
    } else {
        std::env::split_paths(path).map(|directory| directory.join(program)).collect()
    };
    let mut found = false;
    for candidate in candidates {
        let host = on_host(view, &candidate);
        if host.is_file() {
            found = true;
            if rustix::fs::access(&host, Permission::EXEC_OK).is_ok() {
                return Ok(());
            }
        }
    }
    Err(if found {
        PrepareError::NotExecutable { program: name() }
    } else {
        PrepareError::NotFound { program: name() }
    })
}

/// Finds bubblewrap in the caller's `PATH`. Skips directories that a sandbox can write, because
/// bubblewrap runs on the host.
fn find_program(host: &Host, policy: &Policy) -> Result<PathBuf, Unavailable> {
    let is_program =
        |program: &PathBuf| program.is_file() && !can_be_planted(program, host, policy);
    let mut candidates = host.path().map(|directory| directory.join("bwrap"));
    candidates.find(is_program).ok_or_else(|| Unavailable {
        why: "there is no `bwrap` in PATH outside the workspace".to_owned(),
        fix: "apt install bubblewrap".to_owned(),
    })
}

/// Tells whether sandboxed code may have written `program`: its path, as given or resolved, lies
/// where the policy lets a sandbox write.
fn can_be_planted(program: &Path, host: &Host, policy: &Policy) -> bool {
    let workspace =
        policy.filesystem.workspace.as_ref().map_or(Path::new("."), |workspace| &workspace.source);
    let writable = policy.filesystem.write.iter().flatten().map(PathBuf::as_path);
    let names = |path: &Path| {
        let absolute = host.absolute(path);
        [fs_err::canonicalize(&absolute).unwrap_or_else(|_| absolute.clone()), absolute]
    };
    let programs = names(program);
    let mut places = writable.chain([workspace, host.directory.as_path()]).flat_map(names);
    program.is_relative()
        || places.any(|place| programs.iter().any(|program| program.starts_with(&place)))
}

/// User as which bubblewrap starts ringfence's program in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InitialUser {
    /// The root of the sandbox's user namespace. Ringfence's program sets limits, mounts by
    /// descriptor the entries that lie in writable directories, and then becomes the command's
    /// user.
    Root,
    /// The command's user, for hosts where a security module takes the capabilities from every
    /// program that bubblewrap starts. Bubblewrap then mounts all entries by path. A symbolic link
    /// may lead such a mount elsewhere; ringfence's program then refuses to run the command.
    User,
}

impl InitialUser {
    /// All variants, the better one first.
    const ALL: [InitialUser; 2] = [InitialUser::Root, InitialUser::User];

    /// Finds the best variant that works on this host. Runs bubblewrap unless the result of an
    /// earlier run may be used.
    fn find(
        program: &Path,
        host: &Host,
        launcher: &Launcher,
        freshness: Freshness,
    ) -> Result<InitialUser, Unavailable> {
        let cache = ProbeCache::for_subject(host, ProbeSubject::Bwrap(program));
        let note = cache.note().filter(|_| freshness == Freshness::Remembered);
        if let Some(known) =
            note.and_then(|note| Self::ALL.into_iter().find(|way| way.name() == note))
        {
            return Ok(known);
        }
        let mut failure = None;
        for way in Self::ALL {
            match preflight(program, host, launcher, way) {
                Ok(()) => {
                    cache.store_note(way.name());
                    return Ok(way);
                }
                Err(unavailable) => failure = Some(unavailable),
            }
        }
        Err(failure.expect("there is a way to fail"))
    }

    fn name(self) -> &'static str {
        match self {
            InitialUser::Root => "root",
            InitialUser::User => "user",
        }
    }

    fn tmp_support(self) -> Support {
        match self {
            InitialUser::Root => Support::enforced("tmpfs size and inodes"),
            InitialUser::User => Support::weaker(
                "the number of files and their attributes are not bounded: bubblewrap sets a size \
                 alone, and a security module keeps ringfence from setting the rest inside",
            ),
        }
    }
}

/// Returns warnings about the bubblewrap that would be used.
fn warnings(host: &Host, policy: &Policy) -> Vec<String> {
    let Ok(program) = find_program(host, policy) else { return Vec::new() };
    let mut command = std::process::Command::new(program);
    let Ok(output) = command.arg("--version").env_clear().output() else { return Vec::new() };
    follows_links(&String::from_utf8_lossy(&output.stdout)).into_iter().collect()
}

/// Returns a warning if `said`, an output such as `bubblewrap 0.8.0`, names a version that may
/// follow symbolic links.
fn follows_links(said: &str) -> Option<String> {
    let version = said.split_whitespace().nth(1)?;
    let is_fixed = VersionNumber::parse(version)? >= VersionNumber::new(0, 12, 0);
    (!is_fixed).then(|| {
        format!(
            "bubblewrap {version} may follow symbolic links out of a sandbox that it sets up \
             (GHSA-pxhw-h44j-8pfx), unless its distributor has patched it: 0.12.0 has the fix"
        )
    })
}

/// Exit code of a preflight that worked. An unusual number, so that a program that misunderstands
/// its arguments does not return it by chance.
const PREFLIGHT_EXIT_CODE: i32 = 86;

/// Text with which an old bubblewrap rejects a flag: 0.5 introduced `--perms`, and 0.6 `--size`.
const UNKNOWN_OPTION_TEXT: &str = "Unknown option";

/// Runs bubblewrap once, with every kind of namespace that a sandbox uses.
fn preflight(
    program: &Path,
    host: &Host,
    launcher: &Launcher,
    way: InitialUser,
) -> Result<(), Unavailable> {
    let unavailable = |why: String| Unavailable { fix: namespace_hint(program), why };
    let failed =
        |error: io::Error| unavailable(format!("cannot run `{}`: {error}", program.display()));
    let mut arguments = BwrapArguments::new(&Network::Closed, Path::new("/"), &[]);
    arguments.push([
        "--ro-bind",
        "/",
        "/",
        "--perms",
        "1777",
        "--size",
        "1048576",
        "--tmpfs",
        "/tmp",
    ]);
    arguments.devices(&[]);
    arguments.close().map_err(failed)?;
    let mut mounts = Vec::new();
    let root = match way {
        InitialUser::Root => {
            mounts.push(Entry::Protect { path: "/tmp".into() });
            Some(arguments.start_as_root(host, &View::default()))
        }
        InitialUser::User => {
            arguments.filter().map_err(failed)?;
            None
        }
    };
    let inner =
        Command::new("/bin/sh").arguments(["-c".to_owned(), format!("exit {PREFLIGHT_EXIT_CODE}")]);
    let inside = InsideSteps {
        mounts,
        expected: Vec::new(),
        streams: Vec::new(),
        root,
        gate: None,
        rules: Rules::in_own_root(abi(), [PathBuf::from("/tmp")]),
        highest_descriptor: crate::HIGHEST_CALLER_DESCRIPTOR,
        exec: exec(&inner, [], "/".into()).map_err(|error| unavailable(error.to_string()))?,
    };
    let (trial, passed) = arguments.command(program, launcher, &inside).map_err(failed)?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| failed(error.into()))?;
    let launch = Launch {
        exec: exec(&trial, [], "/".into()).map_err(|error| unavailable(error.to_string()))?,
        confinement: Confinement::Delegated,
        terminal: TerminalMode::Detached,
        time: None,
        survivors: Survivors::End,
        private: None,
    };
    let [stdin, stdout, _] = null_streams().map_err(failed)?.map(Some);
    let files =
        LaunchFiles { stdio: [stdin, stdout, Some(writer)], terminal: None, gate: None, passed };
    let started =
        launcher.start(&launch, files, None).map_err(|error| unavailable(crate::chain(&error)))?;
    let mut report = control::receive(&started.control, RecvFlags::empty()).map_err(failed)?;
    if let Some(ControlReport::Started { .. }) = report {
        report = control::receive(&started.control, RecvFlags::empty()).map_err(failed)?;
    }
    match report {
        Some(ControlReport::Ended(ending)) if ending.exit_code == Some(PREFLIGHT_EXIT_CODE) => {
            Ok(())
        }
        report => {
            let mut said = vec![0; 4096];
            let length = rustix::io::read(&reader, &mut said[..]).unwrap_or(0);
            let said = String::from_utf8_lossy(&said[..length]).trim().to_owned();
            if said.contains(UNKNOWN_OPTION_TEXT) {
                let why = format!("`{}` is too old: {said}", program.display());
                return Err(Unavailable { why, fix: "install bubblewrap 0.6 or newer".to_owned() });
            }
            Err(unavailable(if said.is_empty() {
                format!("the preflight of bubblewrap failed: {report:?}")
            } else {
                said
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn exactly_the_versions_that_follow_links_are_reported() {
        for old in ["0.8.0", "0.11.9", "0.4", "0.12.0-rc1"] {
            let warning = follows_links(&format!("bubblewrap {old}\n")).expect(old);
            assert!(
                warning.starts_with(&format!("bubblewrap {old} may follow symbolic links")),
                "{warning}"
            );
        }
        for good in ["0.12.0", "0.12.1", "0.20", "1.0.0"] {
            assert_eq!(follows_links(&format!("bubblewrap {good}\n")), None, "{good}");
        }
        assert_eq!(follows_links("something else"), None);
    }

    #[test]
    fn paths_that_a_sandbox_can_write_are_mounted_by_our_own_program() {
        let bind = |source: &str, destination: &str, access| Entry::Bind {
            source: source.into(),
            destination: destination.into(),
            access,
        };
        let guard = [Entry::Pin { path: "/w/.git".into() }, Entry::Hide { path: "/w/key".into() }];
        let plain = [bind("/usr", "/usr", Access::Read), bind("/w", "/w", Access::Write)];
        let nested = bind("/w/data", "/w/data", Access::Read);
        let view = View { entries: plain.iter().chain([&nested]).chain(&guard).cloned().collect() };
        let ViewDivision { by_bubblewrap, inside } =
            ViewDivision::for_view(&view, InitialUser::Root);
        let staged = bind("/w/data", "/.staged/0", Access::Read);
        assert_eq!(by_bubblewrap, plain.iter().chain([&staged]).cloned().collect::<Vec<_>>());
        let mounted = bind("/.staged/0", "/w/data", Access::Read);
        let cover = Entry::Hide { path: STAGING_DIRECTORY.into() };
        assert_eq!(
            inside,
            [&mounted].into_iter().chain(&guard).chain([&cover]).cloned().collect::<Vec<_>>()
        );
        let by_path = ViewDivision::for_view(&view, InitialUser::User);
        assert_eq!((by_path.by_bubblewrap, by_path.inside), (view.entries, Vec::new()));
    }

    #[test]
    fn a_program_that_a_sandbox_could_have_written_is_not_bubblewrap() {
        let root = tempfile::tempdir().unwrap();
        let root = fs_err::canonicalize(root.path()).unwrap();
        let (workspace, writable, system) =
            (root.join("workspace"), root.join("writable"), root.join("system"));
        for directory in [&workspace, &writable, &system] {
            fs_err::create_dir(directory).unwrap();
            fs_err::write(directory.join("bwrap"), "").unwrap();
        }
        std::os::unix::fs::symlink(&workspace, root.join("link")).unwrap();
        let path = format!(".:{0}/workspace:{0}/link:{0}/writable:{0}/system", root.display());
        let variables = BTreeMap::from([("PATH".into(), path.into())]);
        let host = Host::new(variables, workspace.clone());
        let policy = Policy::default().workspace(&workspace).write(&writable);
        assert_eq!(find_program(&host, &policy).unwrap(), system.join("bwrap"));
    }
}
