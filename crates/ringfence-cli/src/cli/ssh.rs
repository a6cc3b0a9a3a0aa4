//! The `ringfence ssh`, `ringfence ssh-config` and `ringfence ssh-proxy` commands.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;
use ringfence::ssh::{self, SshAccess, SshError};
use ringfence::{Host, chain};
use tokio::io::{AsyncWriteExt, copy, split, stdin, stdout};

use super::attach::{Named, block_on};
use crate::answer::print;
use crate::report::{Failure, warn};

const SSH_EXAMPLES: &str = "\
Examples:
  ringfence ssh demo
  ringfence ssh demo -- 'cd workspace && make test'";

/// Opens an ssh session in a sandbox that is up, with the keys of the ssh-agent or of ~/.ssh.
///
/// The first session starts an sshd in the sandbox, as the user of the sandbox. ssh reaches the
/// sshd through the guest, so a session works with a closed network, too. The host key of the sshd
/// is made for the sandbox and known to ssh.
#[derive(Debug, Args)]
#[command(after_help = SSH_EXAMPLES)]
pub(crate) struct Ssh {
    #[command(flatten)]
    sandbox: Named,
    /// Lets programs in the sandbox use the ssh-agent as long as the session lasts.
    #[arg(short = 'A', long)]
    forward_agent: bool,
    /// Command line for the shell in the sandbox; as with ssh, all words are joined to one line.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const CONFIG_EXAMPLES: &str = "\
Examples:
  ringfence ssh-config demo >> ~/.ssh/config
  mkdir -p ~/.ssh/config.d && ringfence ssh-config demo
  rsync -a src/ ringfence-demo:src/";

/// Prints an ssh_config(5) entry, with which ssh, scp, sftp, rsync and editors reach a sandbox.
///
/// If ~/.ssh/config.d exists, the entry is also kept there until the sandbox stops; `Include
/// config.d/*` in ~/.ssh/config makes ssh read the entry.
#[derive(Debug, Args)]
#[command(after_help = CONFIG_EXAMPLES)]
pub(crate) struct SshConfig {
    #[command(flatten)]
    sandbox: Named,
}

/// Connects standard input and output to the sshd of a sandbox, for ssh's ProxyCommand.
#[derive(Debug, Args)]
pub(crate) struct SshProxy {
    #[command(flatten)]
    sandbox: Named,
}

impl Ssh {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let access = prepare(&self.sandbox, &host)?;
        let program = own_program()?;
        let configuration =
            access.write_configuration(&program).map_err(|error| failed(&error, &self.sandbox))?;
        if let Err(error) = access.write_alias(&host, &program) {
            warn(&chain(&error)); // this session works without the alias
        }
        let mut command = Command::new("ssh");
        command.arg("-F").arg(configuration);
        if self.forward_agent {
            command.arg("-A");
        }
        command.arg(access.alias()).arg("--").args(&self.command);
        let error = command.exec();
        Err(match error.kind() {
            ErrorKind::NotFound => Failure::unavailable(
                "the program `ssh` is not installed",
                [
                    "apt install openssh-client".to_owned(),
                    format!("without ssh: ringfence enter {}", self.sandbox.name),
                ],
            ),
            _ => Failure::failed(
                format!("cannot execute `ssh`: {error}"),
                "check the program: command -V ssh",
            ),
        })
    }
}

impl SshConfig {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let access = prepare(&self.sandbox, &host)?;
        let program = own_program()?;
        let stanza = access.stanza(&program).map_err(|error| failed(&error, &self.sandbox))?;
        access.write_alias(&host, &program).map_err(|error| failed(&error, &self.sandbox))?;
        print(&stanza)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl SshProxy {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        block_on(async {
            let sandbox = self.sandbox.attach(&host).await?;
            // Authorize the current keys, which may have changed since the sshd was started.
            ssh::prepare(&sandbox, &host).await.map_err(|error| failed(&error, &self.sandbox))?;
            let inside = ssh::connect(&sandbox, &host)
                .await
                .map_err(|error| failed(&error, &self.sandbox))?;
            let (mut from_inside, mut to_inside) = split(inside);
            let sent = async {
                // Errors are ignored, because if one end breaks off, the other end is closed.
                let _ = copy(&mut stdin(), &mut to_inside).await;
                let _ = to_inside.shutdown().await;
                std::future::pending::<()>().await;
            };
            let received = async {
                let mut out = stdout();
                // Errors are ignored for the same reason.
                let _ = copy(&mut from_inside, &mut out).await;
                let _ = out.flush().await;
            };
            tokio::select! {
                () = sent => {}
                () = received => {} // the last output of the sshd has been passed on
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn prepare(sandbox: &Named, host: &Host) -> Result<SshAccess, Failure> {
    block_on(async {
        let attached = sandbox.attach(host).await?;
        ssh::prepare(&attached, host).await.map_err(|error| failed(&error, sandbox))
    })
}

fn failed(error: &SshError, sandbox: &Named) -> Failure {
    match error {
        SshError::Session(error) => Failure::from_session(error, &sandbox.name),
        error => Failure::with_fault(chain(error), error.hints(), error.fault()),
    }
}

/// Returns the path of this program, which ssh calls again as its proxy command.
fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| {
        Failure::failed(
            format!("cannot find the path of this program: {error}"),
            "call ringfence by its full path",
        )
    })
}
