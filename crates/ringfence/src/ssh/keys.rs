//! Public keys of the callers that may log in, and of the server.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::Host;

/// Kinds of keys that are accepted, RFC 4253 section 6.6 and OpenSSH's own. Certificates are not
/// keys.
const KEY_KINDS: [&str; 7] = [
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];
/// Longest key that is accepted, in bytes: enough for 16384 bits of RSA.
const MAX_KEY_BYTES: usize = 4 << 10;
/// Longest answer of an agent, in bytes; the same as OpenSSH's own limit.
const MAX_ANSWER_BYTES: usize = 256 << 10;
/// Highest number of keys that are accepted.
const MAX_KEYS: usize = 64;
/// Longest time that an agent may take. An agent that asks its user for consent does not do so for
/// the list of keys.
const AGENT_TIMEOUT: Duration = Duration::from_secs(5);

/// A public key that was checked: its kind, its bytes, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PublicKey {
    kind: &'static str,
    blob: Vec<u8>,
}

impl PublicKey {
    /// Parses the key in a line such as `ssh-ed25519 AAAA… comment`.
    pub(super) fn from_line(line: &str) -> Option<PublicKey> {
        let mut words = line.split_ascii_whitespace();
        let (kind, blob) = (words.next()?, words.next()?);
        let key = PublicKey::from_blob(STANDARD.decode(blob).ok()?)?;
        (key.kind == kind).then_some(key)
    }

    /// Parses the bytes of a key, which begin with its kind.
    fn from_blob(blob: Vec<u8>) -> Option<PublicKey> {
        let mut rest = blob.as_slice();
        let kind = take_string(&mut rest)?;
        let kind = KEY_KINDS.into_iter().find(|known| known.as_bytes() == kind)?;
        (blob.len() <= MAX_KEY_BYTES && !rest.is_empty()).then_some(PublicKey { kind, blob })
    }

    /// Returns the key if it is complete and of the kind that servers inside have.
    pub(super) fn into_server_key(self) -> Option<PublicKey> {
        let mut rest = self.blob.as_slice();
        let (_kind, point) = (take_string(&mut rest)?, take_string(&mut rest)?);
        (self.kind == "ssh-ed25519" && point.len() == 32 && rest.is_empty()).then_some(self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.kind, STANDARD.encode(&self.blob))
    }
}

/// Returns the keys of the caller: those in the agent, and those in `~/.ssh`.
pub(super) async fn caller_keys(host: &Host) -> BTreeSet<PublicKey> {
    let mut keys = BTreeSet::new();
    if let Some(socket) = host.text("SSH_AUTH_SOCK") {
        match tokio::time::timeout(AGENT_TIMEOUT, agent_keys(Path::new(socket))).await {
            Ok(Ok(found)) => keys.extend(found),
            Ok(Err(error)) => tracing::debug!(socket, %error, "the ssh-agent does not list its \
                                                               keys"),
            Err(_) => tracing::warn!(socket, "the ssh-agent does not answer"),
        }
    }
    if let Some(home) = &host.home {
        keys.extend(directory_keys(&home.join(".ssh")));
    }
    keys.into_iter().take(MAX_KEYS).collect()
}

/// Returns the keys in the `*.pub` files of a directory.
fn directory_keys(directory: &Path) -> Vec<PublicKey> {
    let entries = fs_err::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pub"));
    let texts = files.iter().filter_map(|file| fs_err::read_to_string(file).ok());
    texts
        .flat_map(|text| text.lines().filter_map(PublicKey::from_line).collect::<Vec<_>>())
        .collect()
}

/// Asks an agent for its keys: draft-ietf-sshm-ssh-agent, section 3.5.
async fn agent_keys(socket: &Path) -> io::Result<Vec<PublicKey>> {
    const REQUEST_IDENTITIES: u8 = 11;
    let mut agent = UnixStream::connect(socket).await?;
    agent.write_all(&[0, 0, 0, 1, REQUEST_IDENTITIES]).await?;
    let length = agent.read_u32().await? as usize;
    if length > MAX_ANSWER_BYTES {
        return Err(io::Error::other("its answer is too long"));
    }
    let mut answer = vec![0; length];
    agent.read_exact(&mut answer).await?;
    parse_identities(&answer).ok_or_else(|| io::Error::other("its answer is invalid"))
}

/// Returns the keys in an agent's answer. Keys of unknown kinds are left out.
fn parse_identities(answer: &[u8]) -> Option<Vec<PublicKey>> {
    const IDENTITIES_ANSWER: u8 = 12;
    let (kind, mut rest) = answer.split_first()?;
    if *kind != IDENTITIES_ANSWER {
        return None;
    }
    let count = take_number(&mut rest)?;
    let mut keys = Vec::new();
    for _ in 0..count {
        let (blob, _comment) = (take_string(&mut rest)?, take_string(&mut rest)?);
        keys.extend(PublicKey::from_blob(blob.to_vec()));
    }
    Some(keys)
}

fn take_number(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_be_bytes(*number))
}

/// Takes a string of the protocol: its length, and that many bytes. RFC 4251, section 5.
fn take_string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_number(bytes)? as usize;
    let (string, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(string)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    fn string(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    fn blob(kind: &str, point: &[u8]) -> Vec<u8> {
        [string(kind.as_bytes()), string(point)].concat()
    }

    fn line(kind: &str, point: &[u8]) -> String {
        format!("{kind} {}", STANDARD.encode(blob(kind, point)))
    }

    #[test]
    fn a_key_is_its_kind_and_its_bytes_without_the_words_beside_it() {
        let plain = line("ssh-ed25519", &[7; 32]);
        let key = PublicKey::from_line(&format!("{plain} me@home with words")).unwrap();
        assert_eq!(key.to_string(), plain);
        assert_eq!(key.clone().into_server_key(), Some(key));
    }

    #[test]
    fn text_that_is_no_key_is_refused() {
        let good = line("ssh-ed25519", &[7; 32]);
        for bad in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 AAAA",
            "ssh-ed25519 ????",
            &good.replace("ssh-ed25519 ", "ssh-rsa "),
            &format!("command=\"sh\" {good}"),
            &line("ssh-dss", &[7; 32]),
            &line("ssh-ed25519-cert-v01@openssh.com", &[7; 32]),
            &line("ssh-rsa", &[7; 5000]),
        ] {
            assert_eq!(PublicKey::from_line(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_servers_key_is_exactly_one_ed25519_point() {
        let server = |kind: &str, point: &[u8]| {
            PublicKey::from_line(&line(kind, point)).unwrap().into_server_key()
        };
        assert!(server("ssh-ed25519", &[1; 32]).is_some());
        assert_eq!(server("ssh-ed25519", &[1; 33]), None);
        assert_eq!(server("ssh-rsa", &[1; 32]), None);
        let longer = [blob("ssh-ed25519", &[1; 32]), vec![0]].concat();
        assert_eq!(PublicKey::from_blob(longer).unwrap().into_server_key(), None);
    }

    #[tokio::test]
    async fn an_agents_keys_are_asked_for_and_a_broken_answer_is_an_error() {
        let ssh_directory = tempfile::tempdir().unwrap();
        let known = blob("ssh-ed25519", &[3; 32]);
        let keys =
            [string(&known), string(b"a comment"), string(&blob("new-kind", &[1])), string(b"")]
                .concat();
        let answer = [&[12][..], &2u32.to_be_bytes(), &keys].concat();
        let short = [&[12][..], &9u32.to_be_bytes(), &keys].concat();
        for (name, answer, expected) in [
            ("good", string(&answer), Some(1)),
            ("no keys", string(&[12, 0, 0, 0, 0]), Some(0)),
            ("short", string(&short), None),
            ("failure", string(&[5]), None),
            ("endless", u32::MAX.to_be_bytes().to_vec(), None),
            ("hangs up", Vec::new(), None),
        ] {
            let socket = ssh_directory.path().join(name);
            let listener = UnixListener::bind(&socket).unwrap();
            let agent = tokio::spawn(async move {
                let (mut caller, _) = listener.accept().await.unwrap();
                let mut question = [0; 5];
                caller.read_exact(&mut question).await.unwrap();
                assert_eq!(question, [0, 0, 0, 1, 11]);
                caller.write_all(&answer).await.unwrap();
            });
            let found = agent_keys(&socket).await.ok().map(|keys| keys.len());
            assert_eq!(found, expected, "{name}");
            agent.await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_callers_keys_are_those_of_the_agent_and_those_in_its_home() {
        let home = tempfile::tempdir().unwrap();
        let variables = [("HOME", home.path().to_str().unwrap()), ("SSH_AUTH_SOCK", "/nowhere")];
        let variables =
            variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let host = Host::new(variables, "/".into());
        assert!(caller_keys(&host).await.is_empty());
        fs_err::create_dir(home.path().join(".ssh")).unwrap();
        let good = line("ssh-ed25519", &[1; 32]);
        fs_err::write(home.path().join(".ssh/a.pub"), format!("{good} me\n")).unwrap();
        fs_err::write(home.path().join(".ssh/a"), line("ssh-ed25519", &[2; 32])).unwrap();
        fs_err::write(home.path().join(".ssh/b.pub"), "not a key\n").unwrap();
        let keys: Vec<String> = caller_keys(&host).await.iter().map(ToString::to_string).collect();
        assert_eq!(keys, [good]);
    }
}
