//! Scopes of systemd: groups that the service manager delegates to their owner.
//!
//! Systemd is the only writer of the groups that it creates, except for those that it delegates
//! ("Control Group APIs and Delegation" in its documentation). A group that we create in any other
//! systemd group loses its controllers as soon as a unit starts or the manager reloads. So if our
//! own group is not delegated, we ask systemd for a scope that is.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fs_err as fs;
use rustix::process::Pid;

use super::CgroupObstacle;
use super::discover::CgroupLocation;
use super::name::CgroupName;

/// Directory that exists while systemd is process 1 (sd_booted(3)).
const SYSTEMD_MARKER: &str = "/run/systemd/system";
/// Paths of systemd's own D-Bus client. The caller's `PATH` is not searched, because the client
/// runs with the caller's rights.
const BUSCTL_PATHS: [&str; 2] = ["/usr/bin/busctl", "/bin/busctl"];
/// Time that systemd may take to move a process into its scope.
const SCOPE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Files of a group that limit its processes. The limit on their number is handled separately.
const LIMIT_FILES: [&str; 5] =
    ["memory.max", "memory.high", "memory.swap.max", "cpu.max", "cpuset.cpus"];

/// The owner of a group, who alone may give controllers to the groups below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CgroupOwner {
    /// Any process that may write to the group: the group was delegated, or systemd does not know
    /// it.
    Writer,
    /// The service manager, which did not delegate the group.
    Systemd,
}

/// Determines the owner of our group.
pub(super) fn owner_of(place: &CgroupLocation) -> CgroupOwner {
    if !Path::new(SYSTEMD_MARKER).is_dir() {
        return CgroupOwner::Writer;
    }
    match own_unit(place) {
        // A group below the group of a unit was created by a process to which the unit's group was
        // delegated.
        Some(unit) if unit == place.own && !is_delegated(&unit) => CgroupOwner::Systemd,
        _ => CgroupOwner::Writer,
    }
}

/// Returns the group of the unit that this process belongs to.
fn own_unit(place: &CgroupLocation) -> Option<PathBuf> {
    let is_unit = |group: &&Path| has_suffix(group, &[".service", ".scope", ".slice"]);
    let mut groups = place
        .own
        .ancestors()
        .take_while(|group| group.starts_with(&place.mount) && *group != place.mount);
    groups.find(is_unit).map(Path::to_path_buf)
}

fn has_suffix(group: &Path, suffixes: &[&str]) -> bool {
    let name = group.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    suffixes.iter().any(|suffix| name.ends_with(suffix))
}

/// Returns true if systemd delegated the group of a unit.
fn is_delegated(unit: &Path) -> bool {
    is_scope_of_ours(unit)
        || is_marked_as_delegated(unit)
        || is_delegation_boundary(unit)
        || is_reported_delegated(unit)
}

/// Returns true if a unit is a scope that we requested.
fn is_scope_of_ours(unit: &Path) -> bool {
    let scope = unit
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_suffix(".scope"));
    scope.is_some_and(|name| name.parse::<CgroupName>().is_ok())
}

/// Returns true if the group has systemd's delegation mark. Versions before 254 set only
/// `trusted.delegate`, which root alone can read.
fn is_marked_as_delegated(unit: &Path) -> bool {
    let mut value = [0; 1];
    let mut read = |name: &str| {
        rustix::fs::getxattr(unit, name, &mut value[..]).is_ok_and(|length| length == 1)
    };
    (read("user.delegate") || read("trusted.delegate")) && value == *b"1"
}

/// Returns true if a group belongs to this user and its parent does not: systemd gives the group of
/// a delegated unit to the unit's user.
fn is_delegation_boundary(unit: &Path) -> bool {
    let user = rustix::process::geteuid();
    let owner = |group: &Path| rustix::fs::stat(group).ok().map(|stat| stat.st_uid);
    !user.is_root()
        && owner(unit) == Some(user.as_raw())
        && unit.parent().and_then(owner) != Some(user.as_raw())
}

/// Asks the manager of a unit whether the unit is delegated.
fn is_reported_delegated(unit: &Path) -> bool {
    let Some(name) = unit.file_name().and_then(|name| name.to_str()) else { return false };
    let interface = match name.rsplit_once('.') {
        Some((_, "scope")) => "org.freedesktop.systemd1.Scope",
        Some((_, "service")) => "org.freedesktop.systemd1.Service",
        _ => return false,
    };
    let user = rustix::process::geteuid().as_raw();
    let is_of_user =
        unit.ancestors().skip(1).any(|group| group.ends_with(format!("user@{user}.service")));
    let Ok(mut command) = busctl_command(is_of_user.then_some(user)) else { return false };
    let object = format!("/org/freedesktop/systemd1/unit/{}", object_name(name));
    command.args(["get-property", "org.freedesktop.systemd1", &object, interface, "Delegate"]);
    command.output().is_ok_and(|output| output.stdout.starts_with(b"b true"))
}

/// Returns the name of a unit in its D-Bus object path: every byte that is neither a letter nor a
/// digit is written in hexadecimal, and so is a leading digit.
fn object_name(unit: &str) -> String {
    let part = |(at, byte): (usize, u8)| {
        let is_plain = byte.is_ascii_alphabetic() || (byte.is_ascii_digit() && at > 0);
        if is_plain { char::from(byte).to_string() } else { format!("_{byte:02x}") }
    };
    unit.bytes().enumerate().map(part).collect()
}

/// Prepares a call of the system's manager, or of a user's manager.
fn busctl_command(user: Option<u32>) -> Result<Command, String> {
    let program = BUSCTL_PATHS.iter().find(|program| Path::new(program).exists());
    let program = program.ok_or("there is no `busctl` to ask systemd with")?;
    let mut command = Command::new(program);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.arg(
        user.map_or("--system".to_owned(), |user| {
            format!("--address=unix:path=/run/user/{user}/bus")
        }),
    );
    Ok(command)
}

/// Asks systemd to move `processes`, which are in our group, into a delegated scope.
///
/// Fails if the scope would escape a limit of our group, because every limit of the caller must
/// also apply to its runs.
pub(super) fn move_to_scope(
    place: &CgroupLocation,
    processes: &[Pid],
    name: &str,
) -> Result<(), CgroupObstacle> {
    let refused = |reason: String| CgroupObstacle::NoScope { path: place.own.clone(), reason };
    let unit = own_unit(place).ok_or_else(|| refused("it belongs to no unit".to_owned()))?;
    let manager = SystemdManager::for_unit(place, &unit);
    for group in unit.ancestors().take_while(|group| !manager.holds(group) && *group != place.mount)
    {
        if let Some(file) = LIMIT_FILES.iter().find(|file| is_bounded(&group.join(file))) {
            return Err(CgroupObstacle::Bounded { path: group.join(file) });
        }
    }
    let scope = format!("{name}.scope");
    let mut command = busctl_command(manager.user).map_err(refused)?;
    command.args(["--quiet", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"]);
    command.args([
        "org.freedesktop.systemd1.Manager",
        "StartTransientUnit",
        "ssa(sv)a(sa(sv))",
        &scope,
        "fail",
    ]);
    command.args(scope_properties(&manager, &unit, processes)).arg("0");
    let output =
        command.output().map_err(|error| refused(format!("cannot run `busctl`: {error}")))?;
    if !output.status.success() {
        return Err(refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    wait_for_scope(&scope).map_err(|error| refused(error.to_string()))
}

/// Returns the properties of the scope as arguments for `busctl`: their number, then name, type and
/// value of each.
fn scope_properties(manager: &SystemdManager, unit: &Path, processes: &[Pid]) -> Vec<String> {
    let mut properties: Vec<Vec<String>> = Vec::new();
    let mut add =
        |words: &[&str]| properties.push(words.iter().map(|word| (*word).to_owned()).collect());
    add(&["Description", "s", "limits of a ringfence sandbox"]);
    add(&["Delegate", "b", "true"]);
    add(&["CollectMode", "s", "inactive-or-failed"]);
    add(&["Slice", "s", &manager.slice]);
    let name = unit.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if manager.owns_unit && has_suffix(unit, &[".service"]) {
        // The sandbox of a service ends with the service.
        add(&["BindsTo", "as", "1", name]);
    }
    // Every unit has this limit, usually by default, so the scope gets the same limit.
    let most_processes = fs::read_to_string(unit.join("pids.max")).unwrap_or_default();
    if most_processes.trim().parse::<u64>().is_ok() {
        add(&["TasksMax", "t", most_processes.trim()]);
    }
    let numbers = processes.iter().map(|pid| pid.as_raw_nonzero().to_string());
    let mut list = vec!["PIDs".to_owned(), "au".to_owned(), processes.len().to_string()];
    list.extend(numbers);
    properties.push(list);
    let count = properties.len().to_string();
    std::iter::once(count).chain(properties.into_iter().flatten()).collect()
}

/// Returns true if a file of a group sets a limit.
fn is_bounded(file: &Path) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().next().is_some_and(|first| first != "max")
}

/// Waits until this process is in a scope. Systemd replies as soon as it has begun the move.
fn wait_for_scope(scope: &str) -> io::Result<()> {
    let deadline = Instant::now() + SCOPE_TIMEOUT;
    loop {
        let memberships = fs::read_to_string("/proc/self/cgroup")?;
        if memberships
            .lines()
            .any(|line| line.starts_with("0::") && line.ends_with(&format!("/{scope}")))
        {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("systemd did not start `{scope}` in time"),
            ));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// The systemd instance that is asked: the system's for root, and the user's own for other users.
#[derive(Debug, PartialEq, Eq)]
struct SystemdManager {
    /// User of this manager; `None` for the system's manager.
    user: Option<u32>,
    /// Slice in which the scope is created: the slice of the caller's unit if this manager owns the
    /// unit.
    slice: String,
    /// Group of that slice, if this manager owns the caller's unit.
    slice_group: Option<PathBuf>,
    /// True if this manager owns the caller's unit.
    owns_unit: bool,
}

impl SystemdManager {
    fn for_unit(place: &CgroupLocation, unit: &Path) -> SystemdManager {
        let user = rustix::process::geteuid();
        SystemdManager::for_user((!user.is_root()).then(|| user.as_raw()), place, unit)
    }

    fn for_user(user: Option<u32>, place: &CgroupLocation, unit: &Path) -> SystemdManager {
        // The groups of a user's manager lie below the group of the service that runs the manager.
        let manager_unit = user.map(|user| format!("user@{user}.service"));
        let manager_group = match &manager_unit {
            None => Some(place.mount.clone()),
            Some(name) => {
                unit.ancestors().skip(1).find(|group| group.ends_with(name)).map(Path::to_path_buf)
            }
        };
        let is_user_service = |group: &Path| has_suffix(group, &[".service"]);
        let owns_unit = match (&manager_group, user) {
            (Some(_), Some(_)) => true,
            // The system's manager does not own units below a user's manager.
            (Some(_), None) => !unit.ancestors().skip(1).any(is_user_service),
            (None, _) => false,
        };
        let inside = |group: &&Path| {
            manager_group.as_ref().is_some_and(|own| group.starts_with(own) && *group != own)
        };
        let slice_group = unit
            .ancestors()
            .skip(1)
            .take_while(inside)
            .find(|group| owns_unit && has_suffix(group, &[".slice"]))
            .map(Path::to_path_buf);
        let slice_name =
            slice_group.as_ref().and_then(|group| group.file_name()).and_then(|name| name.to_str());
        let default = if user.is_some() { "app.slice" } else { "system.slice" };
        SystemdManager {
            user,
            slice: slice_name.unwrap_or(default).to_owned(),
            slice_group,
            owns_unit,
        }
    }

    /// Returns true if a group also contains the scope, so that its limits apply to the scope.
    fn holds(&self, group: &Path) -> bool {
        match &self.slice_group {
            Some(slice) => slice.starts_with(group),
            None => {
                let own_slice = self.user.map(|user| format!("user-{user}.slice"));
                own_slice.is_some_and(|slice| group.ends_with(slice))
                    || group.ends_with("user.slice") && self.user.is_some()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(own: &str) -> CgroupLocation {
        let mount = PathBuf::from("/sys/fs/cgroup");
        CgroupLocation { own: mount.join(own), mount }
    }

    #[track_caller]
    fn check(user: Option<u32>, own: &str, slice: &str, outside: &[&str]) {
        let place = place(own);
        let unit = own_unit(&place).expect("a unit");
        let manager = SystemdManager::for_user(user, &place, &unit);
        assert_eq!(manager.slice, slice);
        let groups =
            unit.ancestors().take_while(|group| !manager.holds(group) && *group != place.mount);
        let outside: Vec<PathBuf> = outside.iter().map(|group| place.mount.join(group)).collect();
        assert_eq!(
            groups.collect::<Vec<_>>(),
            outside.iter().map(PathBuf::as_path).collect::<Vec<_>>()
        );
    }

    #[test]
    fn limits_are_looked_for_in_every_group_that_does_not_hold_the_scope() {
        let service = "user.slice/user-7.slice/user@7.service/app.slice/build.slice/x.service";
        check(Some(7), service, "build.slice", &[service]);
        let session = "user.slice/user-7.slice/session-1.scope";
        check(Some(7), session, "app.slice", &[session]);
        check(None, session, "user-7.slice", &[session]);
        check(None, "system.slice/x.service", "system.slice", &["system.slice/x.service"]);
        check(
            Some(7),
            "system.slice/x.service",
            "app.slice",
            &["system.slice/x.service", "system.slice"],
        );
    }

    #[test]
    fn a_group_without_a_unit_belongs_to_its_writer() {
        assert_eq!(own_unit(&place("box/inner")), None);
        assert_eq!(owner_of(&place("box/inner")), CgroupOwner::Writer);
        assert_eq!(
            own_unit(&place("system.slice/x.service/inner")),
            Some(place("system.slice/x.service").own)
        );
    }

    #[test]
    fn a_unit_has_an_object_whose_name_holds_letters_and_digits() {
        assert_eq!(object_name("run-u7.scope"), "run_2du7_2escope");
        assert_eq!(object_name("0a@b.service"), "_30a_40b_2eservice");
    }

    #[test]
    fn a_requested_scope_is_known_by_its_name() {
        assert!(is_scope_of_ours(Path::new(
            "/sys/fs/cgroup/app.slice/ringfence-524-23347-0.scope"
        )));
        assert!(!is_scope_of_ours(Path::new("/sys/fs/cgroup/app.slice/run-r1.scope")));
    }

    #[test]
    fn a_file_bounds_its_group_only_with_a_number() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("memory.max");
        for (text, expected) in
            [("max\n", false), ("157286400\n", true), ("max 100000\n", false), ("\n", false)]
        {
            fs::write(&file, text).unwrap();
            assert_eq!(is_bounded(&file), expected, "{text}");
        }
        assert!(!is_bounded(&directory.path().join("missing")));
    }
}
