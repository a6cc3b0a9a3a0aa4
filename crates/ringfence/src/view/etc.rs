//! An `/etc` of what programs need, and none of what they must not have: keys, shadow files, tokens, and the
//! settings of services are simply not there.

use std::path::{Path, PathBuf};

use ringfence_linux::{Access, Entry};

use crate::Host;

/// Files and directories that hold no secret and that ordinary programs read.
const NEEDED: [&str; 52] = [
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "default/locale",
    "ethertypes",
    "fedora-release",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "login.defs",
    "lsb-release",
    "magic",
    "magic.mime",
    "manpath.config",
    "mime.types",
    "nanorc",
    "networks",
    "nsswitch.conf",
    "openmpi",
    "os-release",
    "papersize",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "redhat-release",
    "resolv.conf",
    "rpc",
    "services",
    "shells",
    "ssl/openssl.cnf",
    "terminfo",
];
/// More of the same.
const NEEDED_TOO: [&str; 7] = ["timezone", "vim", "vimrc", "wgetrc", "xattr.conf", "zsh", "zshrc"];
/// Directories of certificates, each with the bundle that programs open.
const CERTIFICATES: [(&str, &str); 2] = [("ssl/certs", "ca-certificates.crt"), ("ssl/certs", "ca-bundle.crt")];
/// A file up to this size is copied into the root; a larger one is mounted.
const COPIED: u64 = 8 * 1024;

/// The entries that make up `/etc`.
pub(super) fn entries(host: &Host, home: &Path) -> Vec<Entry> {
    let mut entries = vec![
        file("/etc/passwd", passwd(host, home)),
        file("/etc/group", group(host)),
        file("/etc/hostname", "ringfence\n".into()),
        file("/etc/hosts", hosts()),
    ];
    for name in NEEDED.iter().chain(&NEEDED_TOO) {
        entries.extend(shown(&Path::new("/etc").join(name)));
    }
    entries.extend(certificates());
    entries
}

fn file(path: &str, contents: String) -> Entry {
    Entry::File { path: path.into(), contents: contents.into_bytes() }
}

/// Shows one path of the host at its own place, resolved when it is a link to somewhere that is not shown.
fn shown(path: &Path) -> Option<Entry> {
    let resolved = fs_err::canonicalize(path).ok()?;
    if let Ok(target) = fs_err::read_link(path)
        && resolved.starts_with("/usr")
    {
        return Some(Entry::Symlink { path: path.into(), target });
    }
    let metadata = fs_err::metadata(&resolved).ok()?;
    if metadata.is_file() && metadata.len() <= COPIED {
        let contents = fs_err::read(&resolved).ok()?;
        return Some(Entry::File { path: path.into(), contents });
    }
    let is_shown = metadata.is_file() || metadata.is_dir();
    is_shown.then(|| Entry::Bind { source: resolved, destination: path.into(), access: Access::Read })
}

/// The directory of certificates. Where the bundle in it is a link to somewhere that is absent inside, as into
/// `/run`, a directory with just the bundle takes its place.
fn certificates() -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (directory, bundle) in CERTIFICATES {
        let directory = Path::new("/etc").join(directory);
        let bundle = directory.join(bundle);
        let Ok(resolved) = fs_err::canonicalize(&bundle) else { continue };
        let inside = fs_err::canonicalize(&directory).unwrap_or_else(|_| directory.clone());
        if !entries.is_empty() {
            break;
        }
        if resolved.starts_with(&inside) || resolved.starts_with("/usr") || resolved.starts_with("/nix") {
            entries.extend(shown(&directory));
        } else {
            entries.push(Entry::Bind { source: resolved, destination: bundle, access: Access::Read });
        }
    }
    entries
}

/// The users that can be seen inside: root, nobody, and the caller.
fn passwd(host: &Host, home: &Path) -> String {
    let known = fs_err::read_to_string("/etc/passwd").unwrap_or_default();
    let mut text = String::new();
    let mut has_caller = false;
    for line in known.lines() {
        let mut fields = line.split(':');
        let (Some(_), Some(id)) = (fields.next(), fields.nth(1).and_then(|id| id.parse::<u32>().ok())) else {
            continue;
        };
        if id == host.user_id && !has_caller {
            has_caller = true;
            text.push_str(line);
            text.push('\n');
        } else if id == 0 || id == 65534 {
            text.push_str(line);
            text.push('\n');
        }
    }
    if !has_caller {
        let name = host.text("USER").filter(|name| !name.contains([':', '\n'])).unwrap_or("user");
        let (user, group) = (host.user_id, host.group_id);
        text.push_str(&format!("{name}:x:{user}:{group}::{}:/bin/sh\n", home.display()));
    }
    text
}

fn group(host: &Host) -> String {
    let known = fs_err::read_to_string("/etc/group").unwrap_or_default();
    let is_shown = |line: &&str| {
        let id = line.split(':').nth(2).and_then(|id| id.parse::<u32>().ok());
        id.is_some_and(|id| id == host.group_id || id == 0 || id == 65534)
    };
    // The members of a group are other users: they stay out.
    let without_members = |line: &str| line.rsplit_once(':').map(|(head, _)| format!("{head}:\n"));
    known.lines().filter(is_shown).filter_map(without_members).collect()
}

fn hosts() -> String {
    let known = fs_err::read_to_string(PathBuf::from("/etc/hosts")).unwrap_or_default();
    let mut text = String::from("127.0.0.1 localhost ringfence\n::1 localhost ip6-localhost ip6-loopback\n");
    for line in known.lines().filter(|line| !line.contains("localhost") && !line.trim_start().starts_with('#')) {
        text.push_str(line);
        text.push('\n');
    }
    text
}
