//! The server in the sandbox: an sshd that runs as the sandbox's own user, on its loopback, with a
//! configuration of ours.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use super::SshError;
use super::directory::{PinnedServer, SshDirectory};
use super::keys::PublicKey;
use crate::Sandbox;
use crate::backends::PortRoute;
use crate::session::{Exec, Execution, SessionError};

/// Port of the server in a network of the sandbox's own.
const DEFAULT_PORT: u16 = 2222;
/// Tag by which the server's command is found.
const SERVER_TAG: &str = "ringfence-sshd";
/// Number of ports that are tried.
const MAX_PORT_ATTEMPTS: u32 = 4;
/// Longest time that the preparation may take, and the start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two attempts to connect to the port.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Highest number of bytes that are read of the sandbox's report.
const MAX_ANSWER_BYTES: u64 = 256 << 10;
/// Variables that belong to one command or session, and not to the sandbox.
const SESSION_VARIABLES: [&str; 6] =
    ["PWD", "OLDPWD", "SHLVL", "TERM", "_", "RINGFENCE_SSH_DIRECTORY"];

/// Report of the sandbox about itself. It is untrusted: the paths are used only inside, and the
/// rest is checked.
struct SandboxLayout {
    user: String,
    sshd: String,
    directory: String,
    key: PublicKey,
    variables: Vec<String>,
}

/// Finds the running server, or starts it. From now on, the server accepts `keys`.
pub(super) async fn ensure_running(
    sandbox: &Sandbox,
    ssh_directory: &SshDirectory,
    keys: &BTreeSet<PublicKey>,
) -> Result<PinnedServer, SshError> {
    let known = ssh_directory.pinned();
    let identity =
        known.as_ref().map_or_else(crate::run::identity, |server| server.identity.clone());
    let layout = prepare_layout(sandbox, &ssh_directory.directory, &identity, keys).await?;
    if let Some(server) = &known
        && is_running(sandbox).await?
    {
        return Ok(server.clone());
    }
    let port = start(sandbox, &layout).await?;
    let server = match known {
        Some(server) => PinnedServer { port, ..server },
        None => PinnedServer { identity, user: layout.user, key: layout.key.to_string(), port },
    };
    ssh_directory.pin(&server)?;
    Ok(server)
}

async fn prepare_layout(
    sandbox: &Sandbox,
    sandbox_dir: &Path,
    identity: &str,
    keys: &BTreeSet<PublicKey>,
) -> Result<SandboxLayout, SshError> {
    let name = || sandbox.manifest().name.clone();
    let lines: String = keys.iter().map(|key| format!("{key}\n")).collect();
    let exec = Exec::shell(include_str!("prepare.sh"))
        .variable("RINGFENCE_SSH_DIRECTORY", sandbox_dir.to_string_lossy())
        .variable("RINGFENCE_SSH_IDENTITY", identity)
        .variable("RINGFENCE_SSH_KEYS", lines)
        .time(START_TIMEOUT);
    let captured = sandbox.exec(&exec).await?.capture(MAX_ANSWER_BYTES).await?;
    match captured.ended.exit_code {
        Some(0) => SandboxLayout::read(&captured.stdout).map_err(|what| match what {
            LayoutFault::Root => SshError::Root { name: name() },
            LayoutFault::Said(what) => SshError::Nonsense { name: name(), what },
        }),
        Some(3) => Err(SshError::NoServer { name: name() }),
        Some(4) => Err(SshError::NoName { name: name() }),
        Some(5) => Err(SshError::Locked { name: name() }),
        _ if captured.ended.timed_out => {
            let source =
                SessionError::NoAnswer { what: "prepare sshd".to_owned(), timeout: START_TIMEOUT };
            Err(source.into())
        }
        _ => Err(SshError::Start { name: name(), words: output_tail(&captured.stderr) }),
    }
}

/// Fault in a sandbox's report about itself.
#[derive(Debug, PartialEq, Eq)]
enum LayoutFault {
    Root,
    Said(&'static str),
}

impl SandboxLayout {
    fn read(text: &str) -> Result<SandboxLayout, LayoutFault> {
        let mut parts = text.splitn(6, '\n');
        let mut next = |what| parts.next().ok_or(LayoutFault::Said(what));
        let user_id: u32 = next("user id")?.parse().map_err(|_| LayoutFault::Said("user id"))?;
        if user_id == 0 {
            return Err(LayoutFault::Root);
        }
        let user = next("user's name")?.to_owned();
        let (sshd, directory) = (next("sshd")?.to_owned(), next("directory")?.to_owned());
        let key = PublicKey::from_line(next("host key")?).and_then(PublicKey::into_server_key);
        let variables = next("variables")?.split('\0').filter(|variable| is_passed_on(variable));
        // The name becomes part of the client's configuration.
        if !is_plain(&user) {
            return Err(LayoutFault::Said("user's name"));
        }
        let key = key.ok_or(LayoutFault::Said("host key"))?;
        Ok(SandboxLayout {
            user,
            sshd,
            directory,
            key,
            variables: variables.map(str::to_owned).collect(),
        })
    }

    /// Returns the server's configuration, sshd_config(5).
    fn configuration(&self, port: u16) -> String {
        let SandboxLayout { user, directory, variables, .. } = self;
        let mut text = format!(
            "Port {port}\n\
             ListenAddress 127.0.0.1\n\
             HostKey \"{directory}/host_key\"\n\
             PidFile none\n\
             LogLevel ERROR\n\
             UsePAM no\n\
             AllowUsers {user}\n\
             PermitRootLogin no\n\
             AuthenticationMethods publickey\n\
             PasswordAuthentication no\n\
             KbdInteractiveAuthentication no\n\
             AuthorizedKeysFile \"{directory}/authorized_keys\"\n\
             StrictModes no\n\
             AllowTcpForwarding local\n\
             AllowStreamLocalForwarding local\n\
             AllowAgentForwarding yes\n\
             X11Forwarding no\n\
             PermitTunnel no\n\
             PermitUserRC no\n\
             PrintMotd no\n\
             Subsystem sftp internal-sftp\n"
        );
        // Without this line, a session would have only sshd's own variables, and neither the
        // sandbox's proxy nor its PATH. All variables are in one line, because sshd uses only the
        // first such line.
        if !variables.is_empty() {
            let words = variables.iter().map(|variable| format!(" \"{variable}\""));
            text.push_str(&format!("SetEnv{}\n", words.collect::<String>()));
        }
        text
    }
}

/// Returns true if a variable of the sandbox is set in sessions, too. Variables that sshd_config(5)
/// cannot quote are not.
fn is_passed_on(variable: &str) -> bool {
    let Some((name, _)) = variable.split_once('=') else { return false };
    let is_ours = name.starts_with("RINGFENCE_SSH_") || SESSION_VARIABLES.contains(&name);
    !name.is_empty() && !is_ours && !variable.chars().any(|c| c.is_control() || "\"'\\".contains(c))
}

/// Returns true if a user's name needs no quoting anywhere.
fn is_plain(user: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=32).contains(&user.len()) && user.bytes().all(is_word) && !user.starts_with(['-', '.'])
}

/// Starts the server, and waits until it listens. Returns its port.
async fn start(sandbox: &Sandbox, layout: &SandboxLayout) -> Result<u16, SshError> {
    let mut words = "no port was free".to_owned();
    for attempt in 0..MAX_PORT_ATTEMPTS {
        let port =
            if attempt == 0 && has_own_network(sandbox) { DEFAULT_PORT } else { find_free_port()? };
        if is_listening(sandbox, port).await? {
            continue; // another program listens on the port
        }
        let exec = Exec::shell(include_str!("start.sh"))
            .variable("RINGFENCE_SSH_DIRECTORY", &layout.directory)
            .variable("RINGFENCE_SSH_SERVER", &layout.sshd)
            .variable("RINGFENCE_SSH_CONFIGURATION", layout.configuration(port))
            .tag(SERVER_TAG);
        let execution = sandbox.exec(&exec).await?;
        if wait_until_up(sandbox, execution, port).await? {
            return Ok(port);
        }
        let log = Exec::new("tail")
            .arguments(["-n", "3", &format!("{}/log", layout.directory)])
            .time(START_TIMEOUT);
        words = output_tail(&sandbox.exec(&log).await?.capture(MAX_ANSWER_BYTES).await?.stdout);
    }
    Err(SshError::Start { name: sandbox.manifest().name.clone(), words })
}

/// Waits until a server listens, and lets it run. Returns false if the server ended or did not
/// listen in time.
async fn wait_until_up(
    sandbox: &Sandbox,
    mut execution: Execution,
    port: u16,
) -> Result<bool, SshError> {
    let deadline = Instant::now() + START_TIMEOUT;
    while Instant::now() < deadline {
        if is_listening(sandbox, port).await? {
            execution.detach();
            return Ok(true);
        }
        if let Ok(None) = tokio::time::timeout(POLL_INTERVAL, execution.next()).await {
            return Ok(false);
        }
    }
    Ok(false)
}

/// Returns true if the server runs. This function does not connect to the port, because an sshd
/// rejects clients that often connect and send nothing (PerSourcePenalties, sshd_config(5)).
async fn is_running(sandbox: &Sandbox) -> Result<bool, SshError> {
    Ok(sandbox.processes().await?.iter().any(|process| process.tag.as_deref() == Some(SERVER_TAG)))
}

/// Returns true if something listens on a port inside.
async fn is_listening(sandbox: &Sandbox, port: u16) -> Result<bool, SshError> {
    match sandbox.ports().connect(port).await {
        Ok(_) => Ok(true),
        Err(SessionError::PortClosed { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns true if the sandbox's ports are not those of the host, so a fixed port cannot be in use
/// by others.
fn has_own_network(sandbox: &Sandbox) -> bool {
    sandbox.facets().ports == PortRoute::Guest
}

/// Returns a port that is free on the host's loopback now. A program that takes the port meanwhile
/// does not have the server's key.
fn find_free_port() -> Result<u16, SshError> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|source| SshError::Port { source })
}

/// Returns the end of the output of sshd or ssh-keygen, in one line.
fn output_tail(text: &str) -> String {
    const MAX_EXCERPT_CHARS: usize = 400;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let words = lines[lines.len().saturating_sub(3)..].join("; ");
    let words: String =
        crate::host_paths::untrusted::printable(&words).chars().take(MAX_EXCERPT_CHARS).collect();
    if words.is_empty() { "it printed nothing".to_owned() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

    fn layout_text(user_id: &str, user: &str, key: &str, variables: &str) -> String {
        [user_id, user, "/usr/sbin/sshd", "/tmp/d", key, variables].join("\n")
    }

    #[test]
    fn a_report_of_a_sandbox_about_itself_is_read() {
        let layout =
            SandboxLayout::read(&layout_text("1000", "dev", KEY, "A=1\0PWD=/\0B=x y\0")).unwrap();
        assert_eq!((layout.user.as_str(), layout.directory.as_str()), ("dev", "/tmp/d"));
        assert_eq!(layout.variables, ["A=1", "B=x y"]);
        let text = layout.configuration(2222);
        assert!(text.starts_with("Port 2222\nListenAddress 127.0.0.1\n"), "{text}");
        assert!(text.ends_with("SetEnv \"A=1\" \"B=x y\"\n"), "{text}");
    }

    #[test]
    fn a_false_report_of_a_sandbox_about_itself_is_refused() {
        let wrong = |text: String| SandboxLayout::read(&text).err();
        assert_eq!(wrong(layout_text("0", "root", KEY, "")), Some(LayoutFault::Root));
        assert_eq!(wrong(layout_text("x", "dev", KEY, "")), Some(LayoutFault::Said("user id")));
        for user in ["", "a b", "-oProxyCommand=x", "a\"b", "%h", &"a".repeat(33)] {
            assert_eq!(
                wrong(layout_text("1000", user, KEY, "")),
                Some(LayoutFault::Said("user's name")),
                "{user}"
            );
        }
        for key in [
            "",
            "ssh-ed25519 AAAA",
            "*",
            &KEY.replace("ssh-ed25519 ", "@cert-authority * ssh-ed25519 "),
        ] {
            assert_eq!(
                wrong(layout_text("1000", "dev", key, "")),
                Some(LayoutFault::Said("host key")),
                "{key}"
            );
        }
        assert_eq!(wrong("1000\ndev".to_owned()), Some(LayoutFault::Said("sshd")));
    }

    #[test]
    fn only_variables_that_can_be_quoted_and_belong_to_the_sandbox_are_passed_on() {
        for good in ["PATH=/a:/b", "EMPTY=", "URL=http://x:1/?a=b#c"] {
            assert!(is_passed_on(good), "{good}");
        }
        for bad in [
            "",
            "novalue",
            "=x",
            "PWD=/",
            "RINGFENCE_SSH_KEYS=x",
            "A=\"",
            "A='",
            "A=\\",
            "A=1\nPort 1",
        ] {
            assert!(!is_passed_on(bad), "{bad}");
        }
    }

    #[test]
    fn excerpts_of_output_are_short_and_cannot_steer_a_terminal() {
        assert_eq!(output_tail("a\nb\n\nc\nd\x1b[2J\n"), "b; c; d [2J");
        assert_eq!(output_tail(""), "it printed nothing");
    }
}
