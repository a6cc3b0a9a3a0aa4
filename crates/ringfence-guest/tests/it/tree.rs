//! Transfer of directory trees, and archives that try to escape or to do harm.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use tar::{Archive, Builder, EntryType, Header};

use crate::guest::GuestProcess;

fn at(guest: &GuestProcess, name: &str) -> String {
    guest.directory.path().join(name).to_str().expect("is text").to_owned()
}

fn send(guest: &GuestProcess, path: &str, archive: &[u8]) -> (u16, Value) {
    let mut answer = guest.request(&format!("POST /tree?path={path} HTTP/1.1"), archive);
    let body = answer.rest();
    (answer.status, serde_json::from_slice(&body).expect("is JSON"))
}

fn fetch(guest: &GuestProcess, path: &str) -> (u16, Vec<u8>) {
    let mut answer = guest.request(&format!("GET /tree?path={path} HTTP/1.1"), b"");
    (answer.status, answer.rest())
}

/// Returns one archive entry. The path is not checked, so it can be one that a tar library refuses.
fn entry(path: &str, kind: EntryType, link: &str, contents: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    let raw = header.as_old_mut();
    raw.name[..path.len()].copy_from_slice(path.as_bytes());
    raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(contents.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(contents);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Returns the type, mode and contents of each entry of an archive, by path. The contents of a link
/// are its target.
fn contents(archive: &[u8]) -> BTreeMap<String, (EntryType, u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in Archive::new(archive).entries().expect("is an archive") {
        let mut entry = entry.expect("is an entry");
        let path = entry.path().expect("has a path").to_str().expect("is text").to_owned();
        let (kind, mode) =
            (entry.header().entry_type(), entry.header().mode().expect("has a mode"));
        let mut bytes = Vec::new();
        match entry.link_name_bytes() {
            Some(link) => bytes.extend_from_slice(&link),
            None => _ = entry.read_to_end(&mut bytes).expect("is whole"),
        }
        found.insert(path, (kind, mode, bytes));
    }
    found
}

#[test]
fn a_tree_comes_back_as_it_was_sent() {
    let guest = GuestProcess::start();
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    let large: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8).collect();
    let mut builder = Builder::new(Vec::new());
    let mut append = |path: &str, kind: EntryType, mode: u32, bytes: &[u8]| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_000_000_000);
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, path, bytes).unwrap();
    };
    append("closed", EntryType::Directory, 0o500, b"");
    append("closed/within", EntryType::Regular, 0o400, b"text");
    append("program", EntryType::Regular, 0o755, &large);
    append("empty", EntryType::Regular, 0o4600, b"");
    append(&long, EntryType::Regular, 0o644, b"long");
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "link", format!("/{}", "l".repeat(300))).unwrap();
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Link);
    header.set_size(0);
    builder.append_link(&mut header, "twin", "program").unwrap();
    let archive = builder.into_inner().unwrap();

    let (status, answer) = send(&guest, &at(&guest, "made/tree"), &archive);
    assert_eq!((status, answer["entries"].as_u64()), (200, Some(7)), "{answer}");
    let made =
        |name: &str| fs_err::symlink_metadata(at(&guest, &format!("made/tree/{name}"))).unwrap();
    assert_eq!(made("closed").mode() & 0o7777, 0o500);
    assert_eq!(made("empty").mode() & 0o7777, 0o600);
    assert_eq!(made("program").mtime(), 1_000_000_000);
    assert_eq!(made("program").ino(), made("twin").ino());

    mknodat(CWD, at(&guest, "made/tree/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (status, back) = fetch(&guest, &at(&guest, "made/tree"));
    assert_eq!(status, 200);
    let back = contents(&back);
    let names: Vec<_> = back.keys().map(|name| name.trim_end_matches('/').to_owned()).collect();
    let directory = "d".repeat(120);
    assert_eq!(
        names,
        [".", "closed", "closed/within", &directory, &long, "empty", "link", "program", "twin"]
    );
    assert!(back["program"] == (EntryType::Regular, 0o755, large));
    assert_eq!(
        back["link"],
        (EntryType::Symlink, 0o777, format!("/{}", "l".repeat(300)).into_bytes())
    );
    fs_err::set_permissions(at(&guest, "made/tree/closed"), std::fs::Permissions::from_mode(0o700))
        .unwrap();
}

#[test]
fn a_single_file_is_sent_by_its_name_and_a_link_as_a_link() {
    let guest = GuestProcess::start();
    fs_err::write(at(&guest, "file"), "text").unwrap();
    symlink("file", at(&guest, "link")).unwrap();
    let only =
        |name: &str| contents(&fetch(&guest, &at(&guest, name)).1).into_iter().collect::<Vec<_>>();
    assert_eq!(only("file"), [("file".to_owned(), (EntryType::Regular, 0o644, b"text".to_vec()))]);
    assert_eq!(only("link")[0].1.0, EntryType::Symlink);
    assert_eq!(fetch(&guest, &at(&guest, "missing")).0, 404);
    assert_eq!(guest.request("GET /tree HTTP/1.1", b"").status, 400);
}

#[test]
fn unpacking_replaces_links_and_not_their_targets() {
    let guest = GuestProcess::start();
    fs_err::create_dir(at(&guest, "tree")).unwrap();
    fs_err::write(at(&guest, "kept"), "kept").unwrap();
    symlink("../kept", at(&guest, "tree/link")).unwrap();
    fs_err::hard_link(at(&guest, "kept"), at(&guest, "tree/hard")).unwrap();
    let new = archive(&[
        entry("link", EntryType::Regular, "", b"new"),
        entry("hard", EntryType::Regular, "", b"new"),
    ]);
    assert_eq!(send(&guest, &at(&guest, "tree"), &new).0, 200);
    assert_eq!(fs_err::read_to_string(at(&guest, "kept")).unwrap(), "kept");
    assert_eq!(fs_err::read_to_string(at(&guest, "tree/link")).unwrap(), "new");
    assert_eq!(fs_err::read_to_string(at(&guest, "tree/hard")).unwrap(), "new");
}

#[test]
fn an_archive_that_would_leave_its_directory_is_refused() {
    let guest = GuestProcess::start();
    fs_err::create_dir(at(&guest, "outside")).unwrap();
    fs_err::write(at(&guest, "outside/secret"), "secret").unwrap();
    symlink("../outside", at(&guest, "planted")).unwrap();
    let file = |path: &str| entry(path, EntryType::Regular, "", b"evil");
    let outside = at(&guest, "outside");
    let cases: &[(&str, Vec<Vec<u8>>)] = &[
        ("a path upwards", vec![file("../outside/evil")]),
        ("a path upwards within", vec![file("a/../../outside/evil")]),
        ("an absolute path", vec![file(&format!("{outside}/evil"))]),
        (
            "a link, then a file through it",
            vec![entry("l", EntryType::Symlink, &outside, b""), file("l/evil")],
        ),
        (
            "a link, then a directory through it",
            vec![
                entry("l", EntryType::Symlink, "../outside", b""),
                entry("l/evil", EntryType::Directory, "", b""),
            ],
        ),
        (
            "a link in place of a directory",
            vec![
                entry("d", EntryType::Directory, "", b""),
                entry("d", EntryType::Symlink, "../outside", b""),
            ],
        ),
        (
            "a directory that is a link",
            vec![
                entry("l", EntryType::Symlink, "../outside", b""),
                entry("l", EntryType::Directory, "", b""),
            ],
        ),
        ("a hard link upwards", vec![entry("h", EntryType::Link, "../outside/secret", b"")]),
        (
            "a hard link through a link",
            vec![
                entry("l", EntryType::Symlink, "../outside", b""),
                entry("h", EntryType::Link, "l/secret", b""),
            ],
        ),
        (
            "an absolute hard link",
            vec![entry("h", EntryType::Link, &format!("{outside}/secret"), b"")],
        ),
        ("a device", vec![entry("null", EntryType::Char, "", b"")]),
        ("a FIFO", vec![entry("fifo", EntryType::Fifo, "", b"")]),
        ("a sparse file", vec![entry("sparse", EntryType::GNUSparse, "", b"")]),
    ];
    for (number, (what, entries)) in cases.iter().enumerate() {
        let target = at(&guest, &format!("target{number}"));
        let (status, answer) = send(&guest, &target, &archive(entries));
        assert_eq!(status, 400, "{what}: {answer}");
        let names: Vec<_> =
            fs_err::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"], "{what}");
        let secret = fs_err::metadata(format!("{outside}/secret")).unwrap();
        assert_eq!((secret.nlink(), secret.len()), (1, 6), "{what}");
    }
    // A similar path that stays in the directory is accepted.
    assert_eq!(send(&guest, &at(&guest, "good"), &archive(&[file("./a/./b")])).0, 200);
    assert!(Path::new(&at(&guest, "good/a/b")).exists());
}

#[test]
fn a_damaged_archive_is_refused_and_leaves_no_part_of_a_file() {
    let guest = GuestProcess::start();
    let good = archive(&[
        entry("whole", EntryType::Regular, "", &[7; 2000]),
        entry("cut", EntryType::Regular, "", &[7; 9000]),
    ]);
    let (status, answer) = send(&guest, &at(&guest, "tree"), &good[..6000]);
    assert_eq!((status, answer["message"].as_str()), (400, Some("the archive ends early")));
    assert!(
        Path::new(&at(&guest, "tree/whole")).exists()
            && !Path::new(&at(&guest, "tree/cut")).exists()
    );

    let mut wrong_sum = good.clone();
    wrong_sum[0] ^= 1;
    let huge = |kind: EntryType, size: u64| {
        let mut header = Header::new_gnu();
        header.set_path("huge").unwrap();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let before = guest.memory();
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("no archive", vec![b'x'; 100_000]),
        ("a wrong sum", wrong_sum),
        ("a file of more bytes than there are", huge(EntryType::Regular, u64::MAX)),
        ("a directory of more bytes than there are", huge(EntryType::Directory, u64::MAX)),
        ("a name of more bytes than there are", huge(EntryType::GNULongName, u64::MAX)),
        ("a long name", [huge(EntryType::GNULongName, 32 << 20), vec![b'x'; 32 << 20]].concat()),
        ("attributes that are none", archive(&[entry("x", EntryType::XHeader, "", b"nonsense")])),
    ] {
        assert_eq!(send(&guest, &at(&guest, "damaged"), &bytes).0, 400, "{what}");
    }
    let grown = guest.memory().saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} KiB");
    assert!(!Path::new(&at(&guest, "damaged/huge")).is_file());
}

#[test]
fn an_interrupted_archive_leaves_no_partial_file() {
    let guest = GuestProcess::start();
    let mut stream = guest.connect();
    write!(
        stream,
        "POST /tree?path={} HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n",
        at(&guest, "t")
    )
    .unwrap();
    stream.write_all(&entry("cut", EntryType::Regular, "", &[7; 500_000])[..400_000]).unwrap();
    crate::guest::eventually("the file is begun", || Path::new(&at(&guest, "t/cut")).exists());
    drop(stream);
    crate::guest::eventually("the part is removed", || !Path::new(&at(&guest, "t/cut")).exists());
}

/// Posts a message to the tree at a path, and returns the status and the body of the answer.
fn act(guest: &GuestProcess, path: &str, action: &str, message: &Value) -> (u16, Vec<u8>) {
    let target = format!("POST /tree?path={path}&action={action} HTTP/1.1");
    let mut answer = guest.request(&target, message.to_string().as_bytes());
    (answer.status, answer.rest())
}

fn encoded(text: &str) -> String {
    serde_json::to_value(ringfence_proto::bytes::Base64Bytes(text.into()))
        .expect("is text")
        .as_str()
        .expect("is text")
        .to_owned()
}

#[test]
fn a_listing_names_every_entry_with_its_digest() {
    let guest = GuestProcess::start();
    fs_err::create_dir_all(at(&guest, "listed/empty")).unwrap();
    fs_err::write(at(&guest, "listed/file"), "abc").unwrap();
    symlink("/etc/passwd", at(&guest, "listed/link")).unwrap();
    mknodat(CWD, at(&guest, "listed/pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let target = format!("GET /tree?path={}&list=digests HTTP/1.1", at(&guest, "listed"));
    let mut answer = guest.request(&target, b"");
    assert_eq!(answer.status, 200);
    let body = answer.rest();
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let lines: Vec<Value> =
        lines.map(|line| serde_json::from_slice(line).expect("is JSON")).collect();
    let kinds: Vec<_> = lines.iter().map(|line| line["kind"].as_str().expect("is text")).collect();
    assert_eq!(kinds, ["directory", "file", "link", "special", "end"]);
    // The digest of `abc`, FIPS 180-2.
    assert_eq!(lines[1]["digest"], "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    assert_eq!(lines[2]["target"], encoded("/etc/passwd"));
    for (path, query, expected) in [
        ("absent", "list=digests", 404),
        ("listed/file", "list=digests", 400),
        ("listed", "list=names", 400),
    ] {
        let target = format!("GET /tree?path={}&{query} HTTP/1.1", at(&guest, path));
        assert_eq!(guest.request(&target, b"").status, expected, "{path} {query}");
    }
}

#[test]
fn single_files_are_read_and_no_link_is_followed() {
    let guest = GuestProcess::start();
    fs_err::create_dir_all(at(&guest, "tree/d")).unwrap();
    fs_err::write(at(&guest, "secret"), "secret").unwrap();
    fs_err::write(at(&guest, "tree/d/file"), "content").unwrap();
    symlink("../secret", at(&guest, "tree/link")).unwrap();
    symlink("..", at(&guest, "tree/up")).unwrap();
    let names = ["d/file", "link", "up/secret", "../secret", "d", "absent", "d/file"];
    let files: Vec<Value> =
        names.iter().map(|name| serde_json::json!({ "path": encoded(name), "size": 4 })).collect();
    let message = serde_json::json!({ "files": files });
    let (status, body) = act(&guest, &at(&guest, "tree"), "read", &message);
    let content = [&4_u32.to_be_bytes()[..], b"cont", &[0; 4]].concat();
    let broken = [0xff; 4].repeat(5);
    assert_eq!((status, body), (200, [content.clone(), broken, content].concat()));
    assert_eq!(act(&guest, &at(&guest, "tree"), "burn", &message).0, 400);
}

#[test]
fn entries_are_removed_and_directories_only_when_they_are_empty() {
    let guest = GuestProcess::start();
    fs_err::create_dir_all(at(&guest, "tree/full")).unwrap();
    fs_err::create_dir_all(at(&guest, "tree/empty")).unwrap();
    fs_err::write(at(&guest, "tree/full/file"), "").unwrap();
    fs_err::write(at(&guest, "kept"), "").unwrap();
    symlink("..", at(&guest, "tree/up")).unwrap();
    let names = ["empty", "full", "up/kept", "absent", "up"].map(encoded);
    let message = serde_json::json!({ "paths": names });
    let (status, body) = act(&guest, &at(&guest, "tree"), "remove", &message);
    let answer: Value = serde_json::from_slice(&body).expect("is JSON");
    assert_eq!((status, answer), (200, serde_json::json!({ "kept": [1] })));
    assert!(Path::new(&at(&guest, "kept")).exists());
    assert!(Path::new(&at(&guest, "tree/full/file")).exists());
    assert!(!Path::new(&at(&guest, "tree/empty")).exists());
}
