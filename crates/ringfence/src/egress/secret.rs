//! Secrets of the host: read before a sandbox starts, and kept where the sandbox has no copy of
//! them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ringfence_core::policy::HostRule;
use ringfence_core::settings::{Credential, SecretOrigin};
use ringfence_linux::launcher::create_memory_file;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use zeroize::Zeroizing;

use crate::Host;
use crate::host_paths::untrusted::printable;

/// Longest secret, in bytes; servers take no longer header.
const MAX_SECRET_BYTES: usize = 16 * 1024;
/// Longest excerpt of a failed program's standard error, in bytes.
const MAX_EXCERPT_BYTES: usize = 1024;
/// Longest time that a program may take, because it may have to ask somebody for a passphrase.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// A secret. It is in a file in memory, and in the memory of this process only while it is used.
/// The reason is that the first process of a sandbox is a copy of this process's memory, but closes
/// every file that is not its own.
pub(crate) struct Secret(OwnedFd);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Reason why a secret that a sandbox needs could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot get the secret for `{host}` from {origin}")]
pub struct SecretError {
    /// Host that the secret is for.
    pub host: HostRule,
    /// Origin that the settings name for the secret.
    pub origin: SecretOrigin,
    /// Fault of the origin.
    pub source: SecretFault,
}

/// Fault of the origin of a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretFault {
    /// The file cannot be read.
    #[error(transparent)]
    Read(io::Error),
    /// The program cannot be run.
    #[error("cannot run it")]
    Run(#[source] io::Error),
    /// The program ended with a failure.
    #[error("it ended with {status}: {said}")]
    Failed {
        /// Exit status of the program.
        status: ExitStatus,
        /// The end of the program's standard error.
        said: String,
    },
    /// The program takes too long.
    #[error("it did not end within {PROGRAM_TIMEOUT:?}")]
    Slow,
    /// The variable is not set.
    #[error("it is not set")]
    Unset,
    /// The origin has no content.
    #[error("it is empty")]
    Empty,
    /// The secret has a control character, which no header can have.
    #[error("it has a control character in it, which no header can have")]
    Control,
    /// The secret is too long.
    #[error("it is longer than {MAX_SECRET_BYTES} bytes")]
    Long,
}

impl SecretError {
    /// Returns the next thing to do.
    pub fn hint(&self) -> String {
        match &self.origin {
            SecretOrigin::File(path) => {
                format!("write the secret to `{}`, for you alone to read", path.display())
            }
            SecretOrigin::Command(words) => {
                format!(
                    "try `{}` yourself: it prints the secret, and asks for nothing",
                    words.join(" ")
                )
            }
            SecretOrigin::Variable(name) => {
                format!("export {name}, or name another origin under [[credentials]]")
            }
        }
    }
}

impl Secret {
    /// Reads the secret of a credential.
    pub(crate) fn read(credential: &Credential, host: &Host) -> Result<Secret, SecretError> {
        let read = match &credential.origin {
            SecretOrigin::File(path) => file(path),
            SecretOrigin::Command(words) => command(words, host),
            SecretOrigin::Variable(name) => variable(name, host),
        };
        let stored = read.and_then(|secret| match without_line_end(&secret) {
            [] => Err(SecretFault::Empty),
            secret if secret.iter().any(u8::is_ascii_control) => Err(SecretFault::Control),
            secret => create_memory_file(secret).map(Secret).map_err(SecretFault::Read),
        });
        let (name, origin) = (&credential.host, &credential.origin);
        stored.map_err(|source| SecretError { host: name.clone(), origin: origin.clone(), source })
    }

    /// Returns the secret itself. The memory is overwritten when the value is dropped.
    pub(crate) fn reveal(&self) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut secret = Zeroizing::new(vec![0; MAX_SECRET_BYTES]);
        let mut length = 0;
        loop {
            match rustix::io::pread(&self.0, &mut secret[length..], length as u64)? {
                0 => break,
                read => length += read,
            }
        }
        secret.truncate(length);
        Ok(secret)
    }
}

fn without_line_end(secret: &[u8]) -> &[u8] {
    let line = secret.strip_suffix(b"\n").unwrap_or(secret);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns a buffer for a secret and one byte more. The buffer is never reallocated, which would
/// leave a copy behind.
fn secret_buffer() -> Zeroizing<Vec<u8>> {
    Zeroizing::new(Vec::with_capacity(MAX_SECRET_BYTES + 1))
}

fn file(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretFault> {
    let file = fs_err::File::open(path).map_err(SecretFault::Read)?;
    if file.metadata().is_ok_and(|metadata| metadata.mode() & 0o077 != 0) {
        tracing::warn!(path = %path.display(), "users other than its owner may read the file of a \
                                                secret");
    }
    let mut secret = secret_buffer();
    file.take(MAX_SECRET_BYTES as u64 + 1).read_to_end(&mut secret).map_err(SecretFault::Read)?;
    if secret.len() > MAX_SECRET_BYTES { Err(SecretFault::Long) } else { Ok(secret) }
}

fn variable(name: &str, host: &Host) -> Result<Zeroizing<Vec<u8>>, SecretFault> {
    let value =
        host.variables.get(OsStr::new(name)).map(OsString::as_os_str).ok_or(SecretFault::Unset)?;
    let mut secret = secret_buffer();
    if value.len() > MAX_SECRET_BYTES {
        return Err(SecretFault::Long);
    }
    secret.extend_from_slice(value.as_bytes());
    Ok(secret)
}

/// Returns the output of a program. The program starts in the root directory, because the working
/// directory may belong to a project, and hold programs.
fn command(words: &[String], host: &Host) -> Result<Zeroizing<Vec<u8>>, SecretFault> {
    let (program, arguments) = words.split_first().ok_or(SecretFault::Empty)?;
    let mut command = std::process::Command::new(program);
    command.args(arguments).env_clear().envs(&host.variables).current_dir("/");
    let started =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.map_err(SecretFault::Run)?;
    let heard = listen(&mut child);
    if !matches!(heard, Ok(Some(_))) {
        let _ = child.kill(); // fails if the program has ended meanwhile
    }
    let status = child.wait().map_err(SecretFault::Run)?;
    let ProgramOutput { secret, said } =
        heard.map_err(SecretFault::Run)?.ok_or(SecretFault::Slow)?;
    match status.success() {
        true if secret.len() > MAX_SECRET_BYTES => Err(SecretFault::Long),
        true => Ok(secret),
        false => {
            let said =
                String::from_utf8_lossy(&said[said.len().saturating_sub(MAX_EXCERPT_BYTES)..])
                    .into_owned();
            Err(SecretFault::Failed { status, said: printable(said.trim()) })
        }
    }
}

/// Output of a program that is asked for a secret: the secret, and its standard error.
struct ProgramOutput {
    secret: Zeroizing<Vec<u8>>,
    said: Vec<u8>,
}

/// Reads the output of a program until it ends. Returns `None` if it does not end in time. This
/// function starts no threads, because the process is forked afterwards.
fn listen(child: &mut Child) -> io::Result<Option<ProgramOutput>> {
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("its output is not a pipe"));
    };
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    for stream in [output.as_fd(), errors.as_fd()] {
        rustix::io::ioctl_fionbio(stream, true)?;
    }
    let (mut secret, mut said) = (secret_buffer(), Vec::new());
    let (mut is_printing, mut is_talking) = (true, true);
    let deadline = Instant::now() + PROGRAM_TIMEOUT;
    loop {
        let mut waited = vec![PollFd::new(&ended, PollFlags::IN)];
        // Do not poll a stream that has ended, because it is always ready.
        waited.extend(is_printing.then(|| PollFd::new(&output, PollFlags::IN)));
        waited.extend(is_talking.then(|| PollFd::new(&errors, PollFlags::IN)));
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut waited, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_ended = !waited[0].revents().is_empty();
        is_printing = is_printing && drain(&output, &mut secret, MAX_SECRET_BYTES + 1)?;
        is_talking = is_talking && drain(&errors, &mut said, 16 * MAX_EXCERPT_BYTES)?;
        if has_ended {
            return Ok(Some(ProgramOutput { secret, said }));
        }
    }
}

/// Reads the available bytes, and keeps the first `most` of them. Returns true if more may follow.
fn drain(stream: impl AsFd, into: &mut Vec<u8>, most: usize) -> io::Result<bool> {
    let mut chunk = Zeroizing::new([0; 4096]);
    loop {
        match rustix::io::read(&stream, &mut chunk[..]) {
            Ok(0) => return Ok(false),
            Ok(read) => into.extend_from_slice(&chunk[..read.min(most - into.len())]),
            Err(Errno::AGAIN) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SECRET: &str = "s3cret";

    fn read_secret(origin: SecretOrigin) -> Result<String, SecretError> {
        let variables = [("API_KEY", SECRET), ("EMPTY", ""), ("PATH", "/usr/bin:/bin")];
        let variables = variables.map(|(name, value)| (name.into(), value.into())).into();
        let host = Host::new(variables, "/".into());
        let host_rule = "api.example.org".parse().unwrap();
        let credential =
            Credential { host: host_rule, origin, header: Default::default(), placeholder: None };
        let secret = Secret::read(&credential, &host)?;
        assert_eq!(format!("{secret:?}"), "***");
        Ok(String::from_utf8(secret.reveal().unwrap().to_vec()).unwrap())
    }

    fn shell(line: &str) -> SecretOrigin {
        SecretOrigin::Command(["sh", "-c", line].map(str::to_owned).to_vec())
    }

    #[track_caller]
    fn refuse(origin: SecretOrigin, expected: &str) {
        let error = read_secret(origin).unwrap_err();
        assert!(!error.hint().is_empty());
        assert_eq!(
            crate::chain(&error),
            format!("cannot get the secret for `api.example.org` from {expected}")
        );
    }

    #[test]
    fn a_secret_is_the_text_of_its_origin_without_the_last_line_end() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("secret");
        for (contents, expected) in
            [("s3cret", SECRET), ("s3cret\n", SECRET), ("s3cret\r\n", SECRET)]
        {
            fs_err::write(&path, contents).unwrap();
            fs_err::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            assert_eq!(read_secret(SecretOrigin::File(path.clone())).unwrap(), expected);
        }
        assert_eq!(read_secret(SecretOrigin::Variable("API_KEY".to_owned())).unwrap(), SECRET);
        assert_eq!(read_secret(shell("echo s3cret; echo told >&2; pwd >&2")).unwrap(), SECRET);
        // A process that the program leaves behind, and the streams that it holds open, are not
        // waited for.
        assert_eq!(read_secret(shell("echo s3cret; sleep 100 & exec 2>&-")).unwrap(), SECRET);
    }

    #[test]
    fn an_origin_without_a_secret_is_an_error_that_names_the_origin() {
        let missing = "/nothing/here";
        refuse(
            SecretOrigin::File(missing.into()),
            &format!(
                "file {missing}: failed to open file `{missing}`: No such file or directory (os \
                 error 2)"
            ),
        );
        refuse(SecretOrigin::Variable("UNSET".to_owned()), "variable UNSET: it is not set");
        refuse(SecretOrigin::Variable("EMPTY".to_owned()), "variable EMPTY: it is empty");
        refuse(
            shell("echo a; echo b"),
            "command sh: it has a control character in it, which no header can have",
        );
        refuse(shell("true"), "command sh: it is empty");
        refuse(
            shell("echo s3cret; echo 'no such entry' >&2; exit 3"),
            "command sh: it ended with exit status: 3: no such entry",
        );
        refuse(shell("head -c 20000 /dev/zero"), "command sh: it is longer than 16384 bytes");
        refuse(
            SecretOrigin::Command(vec!["no-such-program".to_owned()]),
            "command no-such-program: cannot run it: No such file or directory (os error 2)",
        );
    }
}
