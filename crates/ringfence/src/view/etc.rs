//! Contents of `/etc` in a sandbox: the files that programs need. Keys, shadow files, tokens and
//! the settings of services are absent.

use std::path::{Path, PathBuf};

use ringfence_linux::{Access, Entry};
use rustix::fs::{FileType, Mode, OFlags};

use crate::Host;

/// Files and directories without secrets that ordinary programs read. Each entry costs every run a
/// little time, so files that only services, package managers and editors need are not listed.
const NEEDED_FILES: [&str; 31] = [
    "alternatives",
    "bash.bashrc",
    "crypto-policies",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "profile",
    "protocols",
    "resolv.conf",
    "services",
    "shells",
    "ssl/openssl.cnf",
    "timezone",
    "zshrc",
];
/// Directories of certificates, each with the bundle that programs open.
const CERTIFICATE_DIRECTORIES: [(&str, &str); 2] =
    [("ssl/certs", "ca-certificates.crt"), ("ssl/certs", "ca-bundle.crt")];
/// Paths of all bundles that programs may open.
const CERTIFICATE_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/certs/ca-bundle.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
];
/// Size in bytes up to which a file is copied into the root. A larger file is mounted.
const MAX_COPIED_BYTES: usize = 16 * 1024;

/// Host names that resolve to the sandbox itself.
const OWN_HOSTS: &str = "127.0.0.1 localhost ringfence\n::1 localhost ip6-localhost ip6-loopback\n";

/// Returns the entries that make up `/etc`.
pub(super) fn entries(host: &Host, home: &Path) -> Vec<Entry> {
    let mut entries = vec![
        file("/etc/passwd", passwd(host, home)),
        file("/etc/group", group(host)),
        file("/etc/hostname", "ringfence\n".into()),
        file("/etc/hosts", hosts()),
    ];
    for name in NEEDED_FILES {
        entries.extend(shown(&Path::new("/etc").join(name)));
    }
    entries.extend(certificates());
    entries
}

/// Returns files that send all name lookups to one resolver. The host's own `/etc/hosts` is not
/// shown, because a connection to an address from that file would be judged by the address and not
/// by the name.
pub(super) fn resolver(address: std::net::Ipv4Addr) -> [Entry; 2] {
    [
        file("/etc/resolv.conf", format!("nameserver {address}\n")),
        file("/etc/hosts", OWN_HOSTS.to_owned()),
    ]
}

fn file(path: &str, contents: String) -> Entry {
    Entry::File { path: path.into(), contents: contents.into_bytes() }
}

/// Shows one path of the host at the same path in the sandbox. A link to a path that is not shown
/// is resolved.
fn shown(path: &Path) -> Option<Entry> {
    let stat = rustix::fs::lstat(path).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_size <= MAX_COPIED_BYTES as i64 => {
            let contents = read_small(path).ok()?;
            Some(Entry::File { path: path.into(), contents })
        }
        FileType::RegularFile | FileType::Directory => Some(Entry::Bind {
            source: path.into(),
            destination: path.into(),
            access: Access::Read,
        }),
        FileType::Symlink => {
            let resolved = fs_err::canonicalize(path).ok()?;
            if resolved.starts_with("/usr") {
                let target = fs_err::read_link(path).ok()?;
                return Some(Entry::Symlink { path: path.into(), target });
            }
            match shown(&resolved)? {
                Entry::File { contents, .. } => Some(Entry::File { path: path.into(), contents }),
                Entry::Bind { source, access, .. } => {
                    Some(Entry::Bind { source, destination: path.into(), access })
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Reads a file that is known to be small, with as few system calls as possible, because each run
/// reads dozens of files.
fn read_small(path: &Path) -> rustix::io::Result<Vec<u8>> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut contents = vec![0; MAX_COPIED_BYTES];
    let length = rustix::io::read(&file, &mut contents[..])?;
    contents.truncate(length);
    Ok(contents)
}

/// Returns the directory of certificates. If the bundle in the directory is a link to a path that
/// is absent inside, for example in `/run`, a directory with only the bundle replaces that
/// directory.
fn certificates() -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for (directory, bundle) in CERTIFICATE_DIRECTORIES {
        let directory = Path::new("/etc").join(directory);
        let bundle = directory.join(bundle);
        let Ok(resolved) = fs_err::canonicalize(&bundle) else { continue };
        let inside = fs_err::canonicalize(&directory).unwrap_or_else(|_| directory.clone());
        if !entries.is_empty() {
            break;
        }
        if resolved.starts_with(&inside)
            || resolved.starts_with("/usr")
            || resolved.starts_with("/nix")
        {
            entries.extend(shown(&directory));
        } else {
            entries.push(Entry::Bind {
                source: resolved,
                destination: bundle,
                access: Access::Read,
            });
        }
    }
    entries
}

/// Replaces every bundle of certificates that the entries show with `bundle`.
pub(super) fn trust(entries: &mut Vec<Entry>, bundle: &[u8]) {
    for path in CERTIFICATE_BUNDLES.map(Path::new) {
        if let Some(parent) =
            entries.iter().position(|entry| path != entry.path() && holds(entry, path))
        {
            let unfolded = expand_directory(&entries.remove(parent), path);
            entries.extend(unfolded);
        }
        if let Some(own) = entries.iter_mut().find(|entry| entry.path() == path) {
            *own = Entry::File { path: path.into(), contents: bundle.to_vec() };
        }
    }
}

/// Tells whether an entry shows a directory in which `path` exists.
fn holds(entry: &Entry, path: &Path) -> bool {
    let Entry::Bind { source, destination, .. } = entry else { return false };
    path.strip_prefix(destination).is_ok_and(|rest| rustix::fs::lstat(source.join(rest)).is_ok())
}

/// Replaces the entry of a directory by entries for its contents, recursively down to `path`.
fn expand_directory(entry: &Entry, path: &Path) -> Vec<Entry> {
    let Entry::Bind { source, destination, access } = entry else { return vec![entry.clone()] };
    let listed = fs_err::read_dir(source).into_iter().flatten().flatten();
    let inner = listed.flat_map(|item| {
        let (source, destination) = (item.path(), destination.join(item.file_name()));
        match fs_err::read_link(&source) {
            Ok(target) => vec![Entry::Symlink { path: destination, target }],
            Err(_) if path != destination && path.starts_with(&destination) => {
                expand_directory(&Entry::Bind { source, destination, access: *access }, path)
            }
            Err(_) => vec![Entry::Bind { source, destination, access: *access }],
        }
    });
    inner.collect()
}

/// Returns an `/etc/passwd` with root, nobody and the caller.
fn passwd(host: &Host, home: &Path) -> String {
    let known = fs_err::read_to_string("/etc/passwd").unwrap_or_default();
    let mut text = String::new();
    let mut has_caller = false;
    for line in known.lines() {
        let mut fields = line.split(':');
        let (Some(_), Some(id)) =
            (fields.next(), fields.nth(1).and_then(|id| id.parse::<u32>().ok()))
        else {
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
    // Leave out the members of a group, because they are other users.
    let without_members = |line: &str| line.rsplit_once(':').map(|(head, _)| format!("{head}:\n"));
    known.lines().filter(is_shown).filter_map(without_members).collect()
}

fn hosts() -> String {
    let known = fs_err::read_to_string(PathBuf::from("/etc/hosts")).unwrap_or_default();
    let mut text = OWN_HOSTS.to_owned();
    for line in known
        .lines()
        .filter(|line| !line.contains("localhost") && !line.trim_start().starts_with('#'))
    {
        text.push_str(line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_takes_the_place_of_the_one_in_a_directory_that_is_shown_whole() {
        let root = tempfile::tempdir().unwrap();
        let (certificates, bundle) = (root.path().join("certs"), "ca-certificates.crt");
        fs_err::create_dir_all(certificates.join("java")).unwrap();
        fs_err::write(certificates.join(bundle), "those of the host").unwrap();
        std::os::unix::fs::symlink(bundle, certificates.join("a1b2c3d4.0")).unwrap();
        let shown = |source: &Path, destination: &str| Entry::Bind {
            source: source.into(),
            destination: destination.into(),
            access: Access::Read,
        };
        let mut entries =
            vec![shown(&certificates, "/etc/ssl/certs"), shown(root.path(), "/etc/fonts")];
        trust(&mut entries, b"and ours");
        let at = |path: &str| entries.iter().find(|entry| entry.path() == Path::new(path));
        let contents = b"and ours".to_vec();
        let path = "/etc/ssl/certs/ca-certificates.crt";
        assert_eq!(at(path), Some(&Entry::File { path: path.into(), contents }));
        let link = "/etc/ssl/certs/a1b2c3d4.0";
        assert_eq!(at(link), Some(&Entry::Symlink { path: link.into(), target: bundle.into() }));
        assert_eq!(
            at("/etc/ssl/certs/java"),
            Some(&shown(&certificates.join("java"), "/etc/ssl/certs/java"))
        );
        assert_eq!(at("/etc/ssl/certs"), None);
        assert_eq!(at("/etc/fonts"), Some(&shown(root.path(), "/etc/fonts")));
    }
}
