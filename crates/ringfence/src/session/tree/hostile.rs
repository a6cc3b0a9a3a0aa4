//! Tests with trees that try to be written outside their destination.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::{HostFiles, PieceMessage, PieceReader, PieceWriter, TransferSummary, pack, unpack};
use crate::SessionError;

fn entry(tar: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, link: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    // Set the fields by hand, because the library refuses to write such names.
    let fields = header.as_gnu_mut().unwrap();
    fields.name[..name.len()].copy_from_slice(name.as_bytes());
    fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    header.set_size(content.len() as u64);
    header.set_cksum();
    tar.append(&header, content).unwrap();
}

fn reader(bytes: &[u8], ends: bool) -> PieceReader {
    let (sender, arrivals) = mpsc::channel(bytes.len() / 1000 + 2);
    for piece in bytes.chunks(1000) {
        sender.try_send(PieceMessage::Piece(Bytes::copy_from_slice(piece))).ok().unwrap();
    }
    if ends {
        sender.try_send(PieceMessage::End).ok().unwrap();
    }
    PieceReader::new(arrivals)
}

fn unpacked(
    entries: &[(EntryType, &str, &str, &[u8])],
    to: &Path,
) -> Result<TransferSummary, SessionError> {
    let mut tar = Builder::new(Vec::new());
    for (kind, name, link, content) in entries {
        entry(&mut tar, *kind, name, link, content);
    }
    unpack::unpack_tree(
        &HostFiles::default(),
        reader(&tar.into_inner().unwrap(), true),
        to,
        &AtomicU64::new(0),
    )
}

#[test]
fn an_honest_tree_arrives_without_special_bits() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    let done = unpacked(
        &[
            (EntryType::Directory, "./", "", b""),
            (EntryType::Regular, "./a/b/file", "", b"content"),
            (EntryType::Directory, "a/c/", "", b""),
            (EntryType::Symlink, "a/c/link", "../b/file", b""),
            (EntryType::Regular, "a/b/file", "", b"once more"),
        ],
        &to,
    );
    let done = done.unwrap();
    assert_eq!((done.files, done.bytes, done.left_out_count), (2, 16, 0));
    assert_eq!(fs_err::read_to_string(to.join("a/c/link")).unwrap(), "once more");
    let file = fs_err::metadata(to.join("a/b/file")).unwrap();
    assert_eq!(file.permissions().mode() & 0o7000, 0);
    assert_eq!(file.uid(), rustix::process::geteuid().as_raw());
}

#[test]
fn names_that_lead_out_are_refused() {
    for (name, why) in [
        ("/etc/x", "absolute"),
        ("../x", "leads out"),
        ("a/../../x", "leads out"),
        ("a/..", "leads out"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let error = unpacked(&[(EntryType::Regular, name, "", b"x")], &place.path().join("to"))
            .unwrap_err();
        assert!(
            matches!(&error, SessionError::Tree { why: said, .. } if said.contains(why)),
            "{error:?}"
        );
        assert_eq!(fs_err::read_dir(place.path()).unwrap().count(), 1);
    }
}

#[test]
fn no_link_is_followed_neither_a_planted_nor_an_older_one() {
    let place = tempfile::tempdir().unwrap();
    let (to, outside) = (place.path().join("to"), place.path().join("outside"));
    fs_err::create_dir(&to).unwrap();
    fs_err::create_dir(&outside).unwrap();
    fs_err::write(outside.join("file"), "kept").unwrap();
    symlink(&outside, to.join("older")).unwrap();
    symlink(outside.join("file"), to.join("file")).unwrap();
    unpacked(&[(EntryType::Regular, "older/file", "", b"x")], &to).unwrap_err();
    unpacked(
        &[(EntryType::Directory, "older", "", b""), (EntryType::Regular, "older/x", "", b"x")],
        &to,
    )
    .unwrap_err();
    unpacked(
        &[
            (EntryType::Directory, "d", "", b""),
            (EntryType::Symlink, "l", "d", b""),
            (EntryType::Regular, "l/x", "", b"x"),
        ],
        &to,
    )
    .unwrap_err();
    // A file replaces a link, and the link's target is not changed.
    unpacked(&[(EntryType::Regular, "file", "", b"new")], &to).unwrap();
    assert_eq!(fs_err::read_to_string(to.join("file")).unwrap(), "new");
    unpack::unpack_file(
        &HostFiles::default(),
        reader(b"newer", true),
        &to.join("older"),
        0o4755,
        &AtomicU64::new(0),
    )
    .unwrap();
    assert_eq!(fs_err::read_to_string(to.join("older")).unwrap(), "newer");
    assert_eq!(fs_err::read_to_string(outside.join("file")).unwrap(), "kept");
    assert_eq!(fs_err::read_dir(&outside).unwrap().count(), 1);
    // The destination is itself a link.
    symlink(&outside, place.path().join("link")).unwrap();
    unpacked(&[(EntryType::Regular, "x", "", b"x")], &place.path().join("link")).unwrap_err();
}

#[test]
fn links_out_of_the_tree_and_devices_are_left_out_by_name() {
    let place = tempfile::tempdir().unwrap();
    let to = place.path().join("to");
    let done = unpacked(
        &[
            (EntryType::Symlink, "absolute", "/etc/passwd", b""),
            (EntryType::Symlink, "up", "..", b""),
            (EntryType::Symlink, "d/top", "..", b""),
            (EntryType::Symlink, "by-another", "d/top/..", b""),
            (EntryType::Link, "hard", "d/top", b""),
            (EntryType::Char, "null\x1b", "", b""),
            (EntryType::Fifo, "pipe", "", b""),
        ],
        &to,
    );
    let done = done.unwrap();
    let names: Vec<_> = done.left_out.iter().map(|left| left.name.as_str()).collect();
    assert_eq!(names, ["absolute", "up", "by-another", "hard", "null\u{fffd}", "pipe"]);
    assert_eq!(fs_err::read_dir(&to).unwrap().count(), 1);
}

#[test]
fn trees_that_break_off_or_make_no_sense_are_errors() {
    let mut tar = Builder::new(Vec::new());
    entry(&mut tar, EntryType::Regular, "file", "", &[7; 3000]);
    let whole = tar.into_inner().unwrap();
    let place = tempfile::tempdir().unwrap();
    let read = |bytes: &[u8], ends| {
        unpack::unpack_tree(
            &HostFiles::default(),
            reader(bytes, ends),
            &place.path().join("to"),
            &AtomicU64::new(0),
        )
    };
    read(&whole, true).unwrap();
    for (bytes, ends) in [
        (&whole[..2000], true),
        (&whole[..2000], false),
        (&whole[..], false),
        (&[b'x'; 2048], true),
    ] {
        assert!(read(bytes, ends).is_err());
    }
    let mut tar = Builder::new(Vec::new());
    entry(&mut tar, EntryType::GNULongName, "long", "", &vec![b'a'; 1 << 20]);
    assert!(read(&tar.into_inner().unwrap(), true).is_err());
    let file = place.path().join("file");
    unpack::unpack_file(
        &HostFiles::default(),
        reader(b"half", false),
        &file,
        0o644,
        &AtomicU64::new(0),
    )
    .unwrap_err();
    assert!(!file.exists());
    assert_eq!(fs_err::read_dir(place.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_packed_tree_has_links_and_not_their_targets() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    let long = "n".repeat(200);
    fs_err::create_dir_all(from.join(&long)).unwrap();
    fs_err::write(from.join(&long).join("file"), vec![7; 1 << 20]).unwrap();
    symlink("/etc/passwd", from.join("secret")).unwrap();
    let (sender, mut pieces) = mpsc::channel(100);
    let done = pack::pack(
        pack::open(&HostFiles::default(), &from).unwrap(),
        &from,
        "",
        PieceWriter::new(sender),
        &AtomicU64::new(0),
    )
    .unwrap();
    assert_eq!((done.files, done.bytes), (1, 1 << 20));
    let mut tar = Vec::new();
    while let Some(piece) = pieces.blocking_recv() {
        piece.as_ref().read_to_end(&mut tar).unwrap();
    }
    let done =
        unpack::unpack_tree(&HostFiles::default(), reader(&tar, true), &to, &AtomicU64::new(0))
            .unwrap();
    assert_eq!((done.files, done.bytes, done.left_out_count), (1, 1 << 20, 1));
    assert_eq!(fs_err::read(to.join(&long).join("file")).unwrap().len(), 1 << 20);
    symlink(&from, place.path().join("link")).unwrap();
    assert!(pack::open(&HostFiles::default(), &place.path().join("link")).is_err());
}
