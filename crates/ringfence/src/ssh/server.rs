//! The server inside: an sshd that runs as the sandbox's own user, on its loopback, with a configuration of ours.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use super::SshError;
use super::keys::PublicKey;
use super::place::{Pinned, Place};
use crate::session::{Exec, Execution, SessionError};
use crate::{Manifest, Sandbox};

/// Where it listens in a network of the sandbox's own.
const USUAL_PORT: u16 = 2222;
/// What its command is found by.
const TAG: &str = "ringfence-sshd";
/// How many ports are tried.
const ATTEMPTS: u32 = 4;
/// How long it may take to lay out and to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the port is knocked at.
const MOMENT: Duration = Duration::from_millis(10);
/// How much is read of what the sandbox says.
const LONGEST_ANSWER: u64 = 256 << 10;
/// Variables that belong to one command or session, and not to the sandbox.
const PASSING: [&str; 6] = ["PWD", "OLDPWD", "SHLVL", "TERM", "_", "RINGFENCE_SSH_ROOM"];

/// What the sandbox says of itself. Untrusted: the paths are used only inside, the rest is checked.
struct Layout {
    user: String,
    sshd: String,
    directory: String,
    key: PublicKey,
    variables: Vec<String>,
}

/// Finds the server running, or starts it; `keys` are let in from now on.
pub(super) async fn ensure(sandbox: &Sandbox, place: &Place, keys: &BTreeSet<PublicKey>) -> Result<Pinned, SshError> {
    let known = place.pinned();
    let identity = known.as_ref().map_or_else(crate::run::identity, |server| server.identity.clone());
    let layout = lay_out(sandbox, &place.directory, &identity, keys).await?;
    if let Some(server) = &known
        && runs(sandbox).await?
    {
        return Ok(server.clone());
    }
    let port = start(sandbox, &layout).await?;
    let server = match known {
        Some(server) => Pinned { port, ..server },
        None => Pinned { identity, user: layout.user, key: layout.key.to_string(), port },
    };
    place.pin(&server)?;
    Ok(server)
}

async fn lay_out(
    sandbox: &Sandbox,
    room: &Path,
    identity: &str,
    keys: &BTreeSet<PublicKey>,
) -> Result<Layout, SshError> {
    let name = || sandbox.manifest().name.clone();
    let lines: String = keys.iter().map(|key| format!("{key}\n")).collect();
    let exec = Exec::shell(include_str!("prepare.sh"))
        .variable("RINGFENCE_SSH_ROOM", room.to_string_lossy())
        .variable("RINGFENCE_SSH_IDENTITY", identity)
        .variable("RINGFENCE_SSH_KEYS", lines)
        .time(PATIENCE);
    let captured = sandbox.exec(&exec).await?.capture(LONGEST_ANSWER).await?;
    match captured.ended.exit_code {
        Some(0) => Layout::read(&captured.stdout).map_err(|what| match what {
            Wrong::Root => SshError::Root { name: name() },
            Wrong::Said(what) => SshError::Nonsense { name: name(), what },
        }),
        Some(3) => Err(SshError::NoServer { name: name() }),
        Some(4) => Err(SshError::NoName { name: name() }),
        Some(5) => Err(SshError::Locked { name: name() }),
        _ if captured.ended.timed_out => {
            let source = SessionError::Silent { what: "prepare sshd".to_owned(), patience: PATIENCE };
            Err(source.into())
        }
        _ => Err(SshError::Start { name: name(), words: last_words(&captured.stderr) }),
    }
}

/// What is wrong with what a sandbox says of itself.
#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    Root,
    Said(&'static str),
}

impl Layout {
    fn read(text: &str) -> Result<Layout, Wrong> {
        let mut parts = text.splitn(6, '\n');
        let mut next = |what| parts.next().ok_or(Wrong::Said(what));
        let user_id: u32 = next("user id")?.parse().map_err(|_| Wrong::Said("user id"))?;
        if user_id == 0 {
            return Err(Wrong::Root);
        }
        let user = next("user's name")?.to_owned();
        let (sshd, directory) = (next("sshd")?.to_owned(), next("directory")?.to_owned());
        let key = PublicKey::of_line(next("host key")?).and_then(PublicKey::of_server);
        let variables = next("variables")?.split('\0').filter(|variable| is_passed_on(variable));
        // The name becomes part of the client's configuration.
        if !is_plain(&user) {
            return Err(Wrong::Said("user's name"));
        }
        let key = key.ok_or(Wrong::Said("host key"))?;
        Ok(Layout { user, sshd, directory, key, variables: variables.map(str::to_owned).collect() })
    }

    /// The server's configuration, sshd_config(5).
    fn configuration(&self, port: u16) -> String {
        let Layout { user, directory, variables, .. } = self;
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
        // A session would have sshd's own variables alone, without the sandbox's proxy and its PATH. Only the first
        // such line counts, so all are in one.
        if !variables.is_empty() {
            let words = variables.iter().map(|variable| format!(" \"{variable}\""));
            text.push_str(&format!("SetEnv{}\n", words.collect::<String>()));
        }
        text
    }
}

/// Whether a variable of the sandbox is one of its sessions, too: those that sshd_config(5) cannot quote are not.
fn is_passed_on(variable: &str) -> bool {
    let Some((name, _)) = variable.split_once('=') else { return false };
    let is_ours = name.starts_with("RINGFENCE_SSH_") || PASSING.contains(&name);
    !name.is_empty() && !is_ours && !variable.chars().any(|c| c.is_control() || "\"'\\".contains(c))
}

/// Whether a user's name is one that needs no quoting anywhere.
fn is_plain(user: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=32).contains(&user.len()) && user.bytes().all(is_word) && !user.starts_with(['-', '.'])
}

/// Starts the server, and waits until it listens.
async fn start(sandbox: &Sandbox, layout: &Layout) -> Result<u16, SshError> {
    let mut words = "no port was free".to_owned();
    for attempt in 0..ATTEMPTS {
        let port = if attempt == 0 && has_own_network(sandbox.manifest()) { USUAL_PORT } else { some_port()? };
        if listens(sandbox, port).await? {
            continue; // something else is there
        }
        let exec = Exec::shell(include_str!("start.sh"))
            .variable("RINGFENCE_SSH_DIRECTORY", &layout.directory)
            .variable("RINGFENCE_SSH_SERVER", &layout.sshd)
            .variable("RINGFENCE_SSH_CONFIGURATION", layout.configuration(port))
            .tag(TAG);
        let execution = sandbox.exec(&exec).await?;
        if comes_up(sandbox, execution, port).await? {
            return Ok(port);
        }
        let log = Exec::new("tail").arguments(["-n", "3", &format!("{}/log", layout.directory)]).time(PATIENCE);
        words = last_words(&sandbox.exec(&log).await?.capture(LONGEST_ANSWER).await?.stdout);
    }
    Err(SshError::Start { name: sandbox.manifest().name.clone(), words })
}

/// Waits until a server listens, and lets it run; false when it ended instead.
async fn comes_up(sandbox: &Sandbox, mut execution: Execution, port: u16) -> Result<bool, SshError> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if listens(sandbox, port).await? {
            execution.detach();
            return Ok(true);
        }
        if let Ok(None) = tokio::time::timeout(MOMENT, execution.next()).await {
            return Ok(false);
        }
    }
    Ok(false)
}

/// Whether the server runs. Its port is not knocked at for that: an sshd turns away who often comes and says nothing
/// (PerSourcePenalties, sshd_config(5)).
async fn runs(sandbox: &Sandbox) -> Result<bool, SshError> {
    Ok(sandbox.processes().await?.iter().any(|process| process.tag.as_deref() == Some(TAG)))
}

/// Whether something listens on a port inside.
async fn listens(sandbox: &Sandbox, port: u16) -> Result<bool, SshError> {
    match sandbox.ports().connect(port).await {
        Ok(_) => Ok(true),
        Err(SessionError::PortClosed { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether ports inside are not those of the host, so that a fixed one is nobody else's.
fn has_own_network(manifest: &Manifest) -> bool {
    match &manifest.container {
        Some(container) => container.network != "host",
        None => manifest.network != "open" && manifest.network != "host",
    }
}

/// A port that is free on the host's loopback now. Whoever takes it meanwhile does not have the server's key.
fn some_port() -> Result<u16, SshError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|source| SshError::Port { source })
}

/// The end of what sshd or ssh-keygen said, in one line.
fn last_words(text: &str) -> String {
    const MOST: usize = 400;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let words = lines[lines.len().saturating_sub(3)..].join("; ");
    let words: String = crate::untrusted::printable(&words).chars().take(MOST).collect();
    if words.is_empty() { "it says nothing".to_owned() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

    fn said(user_id: &str, user: &str, key: &str, variables: &str) -> String {
        [user_id, user, "/usr/sbin/sshd", "/tmp/d", key, variables].join("\n")
    }

    #[test]
    fn what_a_sandbox_says_of_itself_is_read() {
        let layout = Layout::read(&said("1000", "dev", KEY, "A=1\0PWD=/\0B=x y\0")).unwrap();
        assert_eq!((layout.user.as_str(), layout.directory.as_str()), ("dev", "/tmp/d"));
        assert_eq!(layout.variables, ["A=1", "B=x y"]);
        let text = layout.configuration(2222);
        assert!(text.starts_with("Port 2222\nListenAddress 127.0.0.1\n"), "{text}");
        assert!(text.ends_with("SetEnv \"A=1\" \"B=x y\"\n"), "{text}");
    }

    #[test]
    fn what_a_sandbox_says_of_itself_is_not_believed() {
        let wrong = |text: String| Layout::read(&text).err();
        assert_eq!(wrong(said("0", "root", KEY, "")), Some(Wrong::Root));
        assert_eq!(wrong(said("x", "dev", KEY, "")), Some(Wrong::Said("user id")));
        for user in ["", "a b", "-oProxyCommand=x", "a\"b", "%h", &"a".repeat(33)] {
            assert_eq!(wrong(said("1000", user, KEY, "")), Some(Wrong::Said("user's name")), "{user}");
        }
        for key in ["", "ssh-ed25519 AAAA", "*", &KEY.replace("ssh-ed25519 ", "@cert-authority * ssh-ed25519 ")] {
            assert_eq!(wrong(said("1000", "dev", key, "")), Some(Wrong::Said("host key")), "{key}");
        }
        assert_eq!(wrong("1000\ndev".to_owned()), Some(Wrong::Said("sshd")));
    }

    #[test]
    fn only_variables_that_can_be_quoted_and_belong_to_the_sandbox_are_passed_on() {
        for good in ["PATH=/a:/b", "EMPTY=", "URL=http://x:1/?a=b#c"] {
            assert!(is_passed_on(good), "{good}");
        }
        for bad in ["", "novalue", "=x", "PWD=/", "RINGFENCE_SSH_KEYS=x", "A=\"", "A='", "A=\\", "A=1\nPort 1"] {
            assert!(!is_passed_on(bad), "{bad}");
        }
    }

    #[test]
    fn last_words_are_few_and_cannot_steer_a_terminal() {
        assert_eq!(last_words("a\nb\n\nc\nd\x1b[2J\n"), "b; c; d [2J");
        assert_eq!(last_words(""), "it says nothing");
    }
}
