//! Translation of a `Start` request into the launch description that the launcher takes.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ringfence_linux::{Confinement, Exec, Launch, Survivors, TerminalMode};
use ringfence_proto::code::{Code, Failure};
use ringfence_proto::process::{ProcessConfig, StartRequest};
use rustix::fs::{Access, AtFlags, CWD, FileType};
use rustix::io::Errno;

use super::ProcessService;
use super::streams::{self, CommandStdio, CommandStreams};
use crate::{network_trial, user};

/// Returns the variables that every command gets: the guest's own, and defaults for `PATH`, `HOME`,
/// `USER` and `LOGNAME`.
pub(super) fn base_environment() -> BTreeMap<Vec<u8>, CString> {
    let user = user::current_user();
    let given = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ("HOME", user.home.into_os_string().into_vec()),
        ("USER", user.name.clone().into_bytes()),
        ("LOGNAME", user.name.into_bytes()),
    ];
    let given =
        given.into_iter().map(|(name, value): (&str, Vec<u8>)| (name.as_bytes().to_vec(), value));
    let own = std::env::vars_os().filter(|(name, _)| !describes_pod(name));
    let own = own.map(|(name, value)| (name.into_vec(), value.into_vec()));
    // Later entries replace earlier ones, so the guest's own variables win over the defaults. No
    // variable contains a NUL, because the system passed them to the guest.
    let all = given.chain(own);
    all.filter_map(|(name, value)| format_variable(&name, &value).map(|variable| (name, variable)))
        .collect()
}

/// Tells whether a variable describes the pod of the guest and its cluster, which are no business
/// of commands.
fn describes_pod(name: &OsStr) -> bool {
    name == network_trial::NODE_ADDRESS_VARIABLE
        || name.as_encoded_bytes().starts_with(network_trial::SERVICE_VARIABLE_PREFIX.as_bytes())
}

/// Describes the launch that a request asks for, and creates the command's streams.
pub(super) fn describe_launch(
    service: &ProcessService,
    request: &StartRequest,
) -> Result<(Launch, CommandStreams, CommandStdio), Failure> {
    let ProcessConfig { cmd, args, envs, cwd } = &request.process;
    if cmd.is_empty() {
        return Err(invalid_failure("the request names no command"));
    }
    let word = |text: &str| {
        CString::new(text).map_err(|_| invalid_failure("a command's words cannot hold a NUL"))
    };
    let program = word(cmd)?;
    let argv = std::iter::once(Ok(program.clone()))
        .chain(args.iter().map(|text| word(text)))
        .collect::<Result<_, _>>()?;
    let exec = Exec {
        program,
        argv,
        env: command_variables(service, envs)?,
        directory: working_directory(service, cwd.as_deref())?,
    };
    let made = match request.pty {
        Some(pty) => streams::open_terminal(pty.size),
        None => streams::open_pipes(request.stdin.unwrap_or(true)),
    };
    let (streams, stdio) =
        made.map_err(|error| system_failure("make the command's streams", &error))?;
    let terminal = if request.pty.is_some() { TerminalMode::Own } else { TerminalMode::Detached };
    let confinement = Confinement::Bare;
    let survivors = if request.end_survivors { Survivors::End } else { Survivors::Leave };
    // The launch has no time limit of its own. The guest enforces the deadline, because the stream
    // must end with the deadline, too.
    let launch = Launch { exec, confinement, terminal, time: None, survivors, private: None };
    Ok((launch, streams, stdio))
}

fn command_variables(
    service: &ProcessService,
    envs: &BTreeMap<String, String>,
) -> Result<Vec<CString>, Failure> {
    let mut all = service.environment.borrow().clone();
    all.extend(check_variables(envs)?);
    Ok(all.into_values().collect())
}

/// Checks the variables that a client sets, and returns them as `NAME=value` by name.
pub(super) fn check_variables(
    envs: &BTreeMap<String, String>,
) -> Result<BTreeMap<Vec<u8>, CString>, Failure> {
    let checked = |(name, value): (&String, &String)| {
        let is_sound = !name.is_empty() && !name.contains('=');
        let variable =
            is_sound.then(|| format_variable(name.as_bytes(), value.as_bytes())).flatten();
        let refusal = || {
            invalid_failure(format!(
                "`{}` cannot be a variable, or its value cannot be one's",
                name.escape_debug()
            ))
        };
        Ok((name.as_bytes().to_vec(), variable.ok_or_else(refusal)?))
    };
    envs.iter().map(checked).collect()
}

fn format_variable(name: &[u8], value: &[u8]) -> Option<CString> {
    CString::new([name, b"=", value].concat()).ok()
}

/// Returns the working directory of the command. `~` and relative paths start from the user's home
/// directory.
fn working_directory(service: &ProcessService, cwd: Option<&str>) -> Result<PathBuf, Failure> {
    let directory = match cwd {
        None | Some("") => service.directory.clone(),
        Some(given) => {
            let home = user::current_user().home;
            match given.strip_prefix('~') {
                Some("") => home,
                Some(rest) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
                _ => home.join(given),
            }
        }
    };
    let refuse = |why: &dyn std::fmt::Display| {
        Err(invalid_failure(format!(
            "cannot start in the directory `{}`: {why}",
            directory.display()
        )))
    };
    match is_directory(&directory) {
        Ok(true) => Ok(directory),
        Ok(false) => refuse(&"it is not a directory"),
        Err(Errno::NOENT) => refuse(&"it does not exist"),
        Err(error) => refuse(&error),
    }
}

fn is_directory(path: &Path) -> Result<bool, Errno> {
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(Errno::NOENT);
    }
    let kind = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode);
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)?;
    Ok(kind == FileType::Directory)
}

/// Returns the failure of a command that execve(2) could not execute.
pub(super) fn exec_failure(program: &str, errno: i32) -> Failure {
    let (code, why) = match Errno::from_raw_os_error(errno) {
        Errno::NOENT | Errno::NOTDIR => {
            (Code::NotFound, "there is no such program, or no interpreter for it".to_owned())
        }
        Errno::ACCESS | Errno::PERM => (Code::PermissionDenied, "it is not executable".to_owned()),
        Errno::NOEXEC => (Code::InvalidArgument, "it is not a program for this machine".to_owned()),
        Errno::TOOBIG => {
            (Code::InvalidArgument, "its arguments and variables are too long".to_owned())
        }
        error => (errno_code(error), error.to_string()),
    };
    Failure::new(code, format!("cannot run `{}`: {why}", program.escape_debug()))
}

/// Returns the failure of a system call.
pub(super) fn system_failure(step: &str, error: &io::Error) -> Failure {
    let code = error
        .raw_os_error()
        .map_or(Code::Internal, |errno| errno_code(Errno::from_raw_os_error(errno)));
    Failure::new(code, format!("cannot {step}: {error}"))
}

fn errno_code(error: Errno) -> Code {
    match error {
        Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::NOSPC => {
            Code::ResourceExhausted
        }
        _ => Code::Internal,
    }
}

fn invalid_failure(message: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidArgument, message)
}
