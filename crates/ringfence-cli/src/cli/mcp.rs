//! The `ringfence mcp` command, which serves the Model Context Protocol.

mod snippet;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ringfence::policy::Span;
use ringfence::{Command, Engine, EngineError, Host, Sandbox, Settings, StartRequest, chain};
use ringfence_mcp::{HttpOptions, PATH, SandboxSource, Token, serve_http, serve_streams};
use ringfence_service::telemetry::Telemetry;
use tokio::net::TcpListener;

use super::attach::block_on;
use super::fetch::fetch;
use super::flags::{ContainerFlags, PolicyFlags};
use super::monitor::EndSignals;
use crate::answer::print;
use crate::report::{Failure, note};
use snippet::Program;

/// Variable that holds the token if no token file is given.
const TOKEN_VARIABLE: &str = "RINGFENCE_MCP_TOKEN";
/// Default time after which a silent HTTP client is dropped.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Maximum number of bytes that are read of a token file.
const LONGEST_TOKEN: u64 = 4096;

const EXAMPLES: &str = "\
Examples:
  ringfence mcp --print-config claude
  ringfence mcp --allow example.org --memory 2G
  ringfence mcp --listen 127.0.0.1:3001
  ringfence mcp --sandbox demo";

/// Serves tools that work in a sandbox, for agents that use the Model Context Protocol (MCP).
///
/// Without --listen, the server has one client, the program that started the server, on its
/// standard streams. Unless --sandbox is given, each client gets a sandbox of its own under the
/// policy of the flags and settings, and the sandbox ends with the client. The tools run commands
/// and code, read, write and search files, manage processes, and forward ports.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Mcp {
    /// Prints the settings with which PROGRAM starts this server, including the other given flags.
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["listen", "token_file", "host"])]
    print_config: Option<Program>,
    /// Works in the sandbox NAME, which `ringfence up` started, and does not stop the sandbox.
    #[arg(long, value_name = "NAME")]
    #[arg(conflicts_with_all = ["PolicyFlags", "ContainerFlags", "lease"])]
    sandbox: Option<String>,
    /// Maximum lifetime of a client's sandbox, such as 30m or 8h; unlimited by default.
    #[arg(long, value_name = "TIME")]
    lease: Option<Span>,
    /// Serves many clients by HTTP at this address, such as `127.0.0.1:3001`; port 0 is any free
    /// port.
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "HTTP")]
    listen: Option<SocketAddr>,
    /// File with the token that clients must send.
    ///
    /// Without the flag, the variable RINGFENCE_MCP_TOKEN holds the token. An address beyond
    /// loopback needs a token.
    #[arg(long, value_name = "FILE", requires = "listen", help_heading = "HTTP")]
    token_file: Option<PathBuf>,
    /// Host name that clients use for this server, in addition to its address; repeatable.
    #[arg(long, value_name = "NAME", requires = "listen", help_heading = "HTTP")]
    host: Vec<String>,
    /// Drops a client that is silent for TIME and waits for no answer; 15m by default.
    #[arg(long, value_name = "TIME", requires = "listen", help_heading = "HTTP")]
    idle: Option<Span>,
    /// Maximum number of clients at once.
    #[arg(long, value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(requires = "listen", help_heading = "HTTP")]
    clients: u16,
    #[command(flatten)]
    container: ContainerFlags,
    // `policy` must be the last field, because its help heading also applies to the flags that
    // follow.
    #[command(flatten)]
    policy: PolicyFlags,
}

impl Mcp {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        if let Some(program) = self.print_config {
            return print_config(program, &host);
        }
        let token = self.token(&host)?;
        if let Some(address) = self.listen {
            self.check_address(address, token.is_some())?;
        }
        let settings = self.container.settings(&self.policy, host)?;
        let source = self.source(settings)?;
        let telemetry = Telemetry::from_variables(&source.settings().host);
        block_on(self.serve(source, token, telemetry))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Creates the source of sandboxes. Fails if the policy or the workspace cannot work on this
    /// host, so that no client connects in vain.
    fn source(&self, settings: Settings) -> Result<SandboxSource, Failure> {
        if let Some(name) = self.sandbox.clone() {
            return Ok(SandboxSource::Shared { settings: settings.into(), name });
        }
        let request = StartRequest {
            lease: self.lease.map(|lease| lease.duration()),
            container: settings.container.clone(),
            ..StartRequest::new(settings.policy.clone())
        };
        let engine = Engine::new(settings).map_err(|error| match error {
            EngineError::Preflight(error) => error.into(),
            error => Failure::failed(chain(&error), "ringfence doctor"),
        })?;
        // The engine has checked the policy. This call checks the workspace as the first tool call
        // would.
        engine.plan(&request.policy, &Command::new("sh"))?;
        Ok(SandboxSource::Own { engine: engine.into(), request: request.into() })
    }

    async fn serve(
        self,
        mut source: SandboxSource,
        token: Option<Token>,
        telemetry: Telemetry,
    ) -> Result<(), Failure> {
        match &mut source {
            SandboxSource::Own { engine, request } => fetch(engine.settings(), request).await?,
            SandboxSource::Shared { settings, name } => {
                drop(Sandbox::attach(&settings.host, name).await?)
            }
        }
        let served = self.serve_until_ended(source, token, telemetry.clone()).await;
        telemetry.close().await;
        served
    }

    async fn serve_until_ended(
        self,
        source: SandboxSource,
        token: Option<Token>,
        telemetry: Telemetry,
    ) -> Result<(), Failure> {
        let mut ends = EndSignals::listen()?;
        let Some(address) = self.listen else {
            let served = serve_streams(source, telemetry, ends.signalled()).await;
            let hint = "an MCP client starts this command; `ringfence mcp --print-config claude` \
                        prints the settings for a client";
            return served.map_err(|error| {
                Failure::failed(format!("cannot serve the client: {error}"), hint)
            });
        };
        let listen_failed = |error| {
            let hint = "use any free port: --listen 127.0.0.1:0";
            Failure::failed(format!("cannot listen on {address}: {error}"), hint)
        };
        let listener = TcpListener::bind(address).await.map_err(listen_failed)?;
        print(&format!("http://{}{PATH}\n", listener.local_addr().map_err(listen_failed)?))?;
        let idle = self.idle.map_or(DEFAULT_IDLE_TIMEOUT, |idle| idle.duration());
        let options =
            HttpOptions { listener, token, hosts: self.host, idle, most: self.clients.into() };
        serve_http(source, telemetry, options, ends.signalled()).await.map_err(listen_failed)
    }

    /// Reads the token from the file or the variable.
    fn token(&self, host: &Host) -> Result<Option<Token>, Failure> {
        if self.listen.is_none() {
            return Ok(None);
        }
        let (from, text) = match (&self.token_file, host.text(TOKEN_VARIABLE)) {
            (Some(path), _) => (format!("`{}`", path.display()), read(path)?),
            (None, Some(text)) => (TOKEN_VARIABLE.to_owned(), text.to_owned()),
            (None, None) => return Ok(None),
        };
        let hint = "create a token: head -c 32 /dev/urandom | base64 > FILE";
        Token::new(&text)
            .map(Some)
            .map_err(|why| Failure::usage(format!("cannot use the token in {from}: {why}"), hint))
    }

    /// Refuses an address at which other users could connect without a token, or without a known
    /// host name.
    fn check_address(&self, address: SocketAddr, has_token: bool) -> Result<(), Failure> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        if !has_token {
            return Err(Failure::usage(
                format!(
                    "cannot listen on {address} without a token: every client that reaches the \
                     address could run commands"
                ),
                format!(
                    "give a token with --token-file FILE or {TOKEN_VARIABLE}, or listen on \
                     loopback: --listen 127.0.0.1:{}",
                    address.port()
                ),
            ));
        }
        if address.ip().is_unspecified() && self.host.is_empty() {
            return Err(Failure::usage(
                format!(
                    "cannot listen on {address} without a host name: a foreign web page could call \
                     the server by any name"
                ),
                "give the name that clients use for this machine: --host NAME",
            ));
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let mut text = String::new();
    let read = fs_err::File::open(path)
        .and_then(|file| file.take(LONGEST_TOKEN).read_to_string(&mut text));
    read.map_err(|error| {
        Failure::usage(format!("cannot read the token: {error}"), "--token-file FILE")
    })?;
    Ok(text)
}

/// Prints the settings with which another program starts this command with the same flags.
fn print_config(program: Program, host: &Host) -> Result<ExitCode, Failure> {
    let words: Vec<String> = std::env::args().skip_while(|word| word != "mcp").skip(1).collect();
    print(&program.snippet(&command(host)?, &flags(words)))?;
    note(&format!("add this to {}", program.file()));
    Ok(ExitCode::SUCCESS)
}

/// Returns the flags without `--print-config`.
fn flags(words: Vec<String>) -> Vec<String> {
    let mut flags = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.strip_prefix("--print-config") {
            Some("") => drop(words.next()),
            Some(rest) if rest.starts_with('=') => {}
            _ => flags.push(word),
        }
    }
    flags
}

/// Returns the command that starts this program: its name if `PATH` leads to it, else its path.
fn command(host: &Host) -> Result<String, Failure> {
    let own = std::env::current_exe().ok();
    let path = host.text("PATH").unwrap_or_default();
    let found = std::env::split_paths(path)
        .find_map(|directory| fs_err::canonicalize(directory.join("ringfence")).ok());
    if own.is_some() && found == own {
        return Ok("ringfence".to_owned());
    }
    let own = own.and_then(|own| own.into_os_string().into_string().ok());
    own.ok_or_else(|| {
        Failure::failed(
            "cannot find the path of this program",
            "install ringfence at a path that is UTF-8 text",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snippet_has_all_flags_but_the_one_that_asks_for_it() {
        let check = |line: &str, expected: &str| {
            assert_eq!(flags(line.split(' ').map(str::to_owned).collect()).join(" "), expected);
        };
        check("--print-config claude --net open", "--net open");
        check("--net open --print-config=codex -C /p", "--net open -C /p");
    }
}
