//! Upload and download of files.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use ringfence_proto::signature::{SignaturePurpose, sign};
use ringfence_test_ledger::require;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::guest::{GuestProcess, HttpAnswer, eventually};

fn at(guest: &GuestProcess, name: &str) -> String {
    guest.directory.path().join(name).to_str().expect("is text").to_owned()
}

fn get(guest: &GuestProcess, path: &str, headers: &str) -> HttpAnswer {
    guest.request(&format!("GET /files?path={path} HTTP/1.1{headers}"), b"")
}

/// Uploads bytes to a path. Returns the status and the JSON of the answer.
pub(crate) fn put(guest: &GuestProcess, path: &str, headers: &str, body: &[u8]) -> (u16, Value) {
    post(
        guest,
        &format!("?path={path}"),
        &format!("\r\ncontent-type: application/octet-stream{headers}"),
        body,
    )
}

fn post(guest: &GuestProcess, query: &str, headers: &str, body: &[u8]) -> (u16, Value) {
    let mut answer = guest.request(&format!("POST /files{query} HTTP/1.1{headers}"), body);
    let body = answer.rest();
    (answer.status, serde_json::from_slice(&body).expect("is JSON"))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("compresses");
    encoder.finish().expect("compresses")
}

/// Returns bytes without a repeating pattern, so that a misplaced slice is noticed.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64 / 8 + 1)
        .flat_map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .take(length)
        .collect()
}

#[test]
fn a_file_comes_back_as_it_was_sent() {
    let guest = GuestProcess::start();
    let path = at(&guest, "new/directory/file");
    // The lengths cover no bytes, less than one slice, exactly one slice, and many slices.
    for length in [0, 1, 100_000, 256 << 10, (256 << 10) + 1, 5_000_000] {
        let bytes = pattern(length);
        let (status, answer) = put(&guest, &path, "", &bytes);
        assert_eq!(
            (status, &answer),
            (200, &json!([{ "path": path, "name": "file", "type": "file" }]))
        );
        let mut answer = get(&guest, &path, "");
        assert_eq!(answer.status, 200);
        assert!(answer.rest() == bytes, "{length} bytes differ");
    }
}

#[test]
fn a_file_that_exists_is_written_in_place() {
    let guest = GuestProcess::start();
    let path = at(&guest, "file");
    fs_err::write(&path, "something long").unwrap();
    fs_err::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let before = fs_err::metadata(&path).unwrap();
    symlink("file", at(&guest, "link")).unwrap();
    assert_eq!(put(&guest, &at(&guest, "link"), "", b"short").0, 200);
    let after = fs_err::metadata(&path).unwrap();
    assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
    assert_eq!(fs_err::read_to_string(&path).unwrap(), "short");
}

#[test]
fn directories_and_special_files_are_refused_at_once() {
    let guest = GuestProcess::start();
    mknodat(CWD, at(&guest, "fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for path in [at(&guest, "fifo"), at(&guest, ""), "/dev/null".to_owned(), at(&guest, "socket")] {
        assert_eq!(get(&guest, &path, "").status, 400, "{path}");
        assert_eq!(put(&guest, &path, "", b"x").0, 400, "{path}");
    }
    let mut answer = get(&guest, &at(&guest, "missing"), "");
    assert_eq!(answer.status, 404);
    let failure: Value = serde_json::from_slice(&answer.rest()).unwrap();
    assert_eq!(failure["code"], 404);
    assert!(failure["message"].as_str().unwrap().ends_with("does not exist"), "{failure}");
    assert_eq!(get(&guest, "%ff", "").status, 400);
    assert_eq!(post(&guest, "", "\r\ncontent-type: application/octet-stream", b"x").0, 400);
    assert_eq!(post(&guest, "?path=/tmp/x", "\r\ncontent-type: text/plain", b"x").0, 400);
    assert_eq!(guest.request("DELETE /files?path=/tmp/x HTTP/1.1", b"").status, 405);
}

#[test]
fn a_kernel_file_is_read_regardless_of_its_stated_size() {
    let guest = GuestProcess::start();
    let mut answer = get(&guest, "/proc/self/status", "");
    assert_eq!(answer.status, 200);
    assert!(String::from_utf8(answer.rest()).unwrap().contains("ringfence-guest"));
}

#[test]
fn files_are_compressed_both_ways_when_asked() {
    let guest = GuestProcess::start();
    let (path, bytes) = (at(&guest, "file"), pattern(1_000_000));
    assert_eq!(put(&guest, &path, "\r\ncontent-encoding: gzip", &gzip(&bytes)).0, 200);
    assert!(fs_err::read(&path).unwrap() == bytes);
    let compressed = get(&guest, &path, "\r\naccept-encoding: deflate, gzip").rest();
    let mut back = Vec::new();
    GzDecoder::new(compressed.as_slice()).read_to_end(&mut back).unwrap();
    assert!(back == bytes);
    let damaged =
        put(&guest, &at(&guest, "other"), "\r\ncontent-encoding: gzip", &gzip(&bytes)[..1000]);
    assert_eq!(damaged.0, 400);
    assert!(!Path::new(&at(&guest, "other")).exists());
    assert_eq!(put(&guest, &at(&guest, "other"), "\r\ncontent-encoding: br", b"x").0, 400);
}

#[test]
fn an_upload_that_breaks_off_leaves_no_part_of_a_new_file() {
    let guest = GuestProcess::start();
    let (new, small) = (at(&guest, "new"), at(&guest, "small"));
    fs_err::write(&small, "as it was").unwrap();
    for (path, sent) in [(&new, 1_000_000), (&small, 1_000)] {
        let mut stream = guest.connect();
        let head = format!(
            "POST /files?path={path} HTTP/1.1\r\nhost: guest\r\ncontent-type: \
             application/octet-stream\r\n\
             content-length: 2000000\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&pattern(sent)).unwrap();
        if sent > 256 << 10 {
            eventually("the file is begun", || Path::new(path).exists());
        }
    }
    eventually("the part is removed", || !Path::new(&new).exists());
    assert_eq!(fs_err::read_to_string(&small).unwrap(), "as it was");
}

#[test]
fn a_form_carries_files_by_their_full_paths() {
    let guest = GuestProcess::start();
    let (first, second) = (at(&guest, "one"), at(&guest, "two/three"));
    let large = pattern(700_000);
    let mut body = Vec::new();
    for (field, name, bytes) in
        [("file", &first, &b"first"[..]), ("other", &first, b"ignored"), ("file", &second, &large)]
    {
        let head = format!(
            "--XX\r\ncontent-disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--XX--\r\n");
    let kind = "\r\ncontent-type: multipart/form-data; boundary=XX";
    let (status, answer) = post(&guest, "", kind, &body);
    assert_eq!(status, 200, "{answer}");
    let paths: Vec<_> =
        answer.as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, [&first, &second]);
    assert_eq!(fs_err::read(&first).unwrap(), b"first");
    assert!(fs_err::read(&second).unwrap() == large);
    // The path of the request takes precedence over the names in the form, and accepts one file
    // only.
    let (status, answer) = post(&guest, &format!("?path={}", at(&guest, "named")), kind, &body);
    assert_eq!(status, 400);
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .starts_with("you cannot upload multiple files to the same path")
    );
    assert_eq!(fs_err::read(at(&guest, "named")).unwrap(), b"first");
    // The whole form may be compressed.
    fs_err::remove_file(&second).unwrap();
    assert_eq!(post(&guest, "", &format!("{kind}\r\ncontent-encoding: gzip"), &gzip(&body)).0, 200);
    assert!(fs_err::read(&second).unwrap() == large);
}

#[test]
fn a_form_that_ends_before_its_request_keeps_the_connection() {
    let guest = GuestProcess::start();
    let path = at(&guest, "file");
    let disposition = format!("content-disposition: form-data; name=\"file\"; filename=\"{path}\"");
    let form = format!("--XX\r\n{disposition}\r\n\r\nwhole\r\n--XX--\r\n");
    let kind = "content-type: multipart/form-data; boundary=XX\r\ntransfer-encoding: chunked";
    let mut stream = guest.connect();
    write!(
        stream,
        "POST /files HTTP/1.1\r\nhost: guest\r\n{kind}\r\n\r\n{:x}\r\n{form}\r\n",
        form.len()
    )
    .unwrap();
    eventually("the file is whole", || fs_err::read(&path).is_ok_and(|bytes| bytes == b"whole"));
    stream
        .write_all(b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: guest\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200 ") && said.contains("HTTP/1.1 204 "), "{said}");
}

#[test]
fn a_malformed_form_is_refused_without_using_memory() {
    let guest = GuestProcess::start();
    let kind = "\r\ncontent-type: multipart/form-data; boundary=XX";
    for body in [
        &b""[..],
        b"nonsense",
        b"--XX\r\n",
        b"--XX\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\nx",
    ] {
        assert_eq!(post(&guest, "", kind, body).0, 400, "{}", String::from_utf8_lossy(body));
    }
    assert_eq!(post(&guest, "", "\r\ncontent-type: multipart/form-data", b"").0, 400);
    let before = guest.memory();
    let endless = [b"--XX\r\nx: ".to_vec(), vec![b'y'; 32 << 20]].concat();
    assert_eq!(post(&guest, "", kind, &endless).0, 400);
    let grown = guest.memory().saturating_sub(before);
    assert!(grown < 16 << 10, "{grown} KiB");
}

#[test]
fn metadata_is_kept_replaced_and_shown() {
    let guest = GuestProcess::start();
    let path = at(&guest, "file");
    let (status, answer) =
        put(&guest, &path, "\r\nx-metadata-author: me\r\nX-Metadata-Kind: note", b"x");
    assert_eq!(
        (status, &answer[0]["metadata"]),
        (200, &json!({ "author": "me", "kind": "note" })),
        "{answer}"
    );
    let shown = || {
        crate::filesystem::call(&guest, "Stat", &json!({ "path": path })).1["entry"]["metadata"]
            .clone()
    };
    assert_eq!(shown(), json!({ "author": "me", "kind": "note" }));
    assert_eq!(put(&guest, &path, "\r\nx-metadata-kind: other", b"x").0, 200);
    assert_eq!(shown(), json!({ "kind": "other" }));
    assert_eq!(put(&guest, &path, "", b"x").0, 200);
    assert_eq!(shown(), Value::Null);
    let long = format!("\r\nx-metadata-long: {}", "y".repeat(5000));
    assert_eq!(put(&guest, &path, &long, b"x").0, 400);
}

#[test]
fn with_a_token_a_url_must_be_signed() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs_err::write(&token, "secret\n").unwrap();
    let guest = GuestProcess::start_with(&["--token-file", token.to_str().unwrap()]);
    let path = at(&guest, "file");
    fs_err::write(&path, "text").unwrap();
    let refused = |query: &str, message: &str| {
        let mut answer = guest.request(&format!("GET /files?{query} HTTP/1.1"), b"");
        let body: Value = serde_json::from_slice(&answer.rest()).unwrap();
        assert_eq!((answer.status, body), (401, json!({ "code": 401, "message": message })));
    };
    let signed = |expiration: Option<i64>| {
        sign(&path, SignaturePurpose::Read, "", "secret", expiration).replace('+', "%2B")
    };
    refused(&format!("path={path}"), "missing signature query parameter");
    refused(&format!("path={path}&signature=v1_x"), "invalid signature");
    refused(
        &format!("path={path}&signature={}&signature_expiration=9", signed(Some(9))),
        "signature is already expired",
    );
    let mut answer =
        guest.request(&format!("GET /files?path={path}&signature={} HTTP/1.1", signed(None)), b"");
    assert_eq!((answer.status, answer.rest().as_slice()), (200, &b"text"[..]));
    assert_eq!(guest.request(&format!("GET /tree?path={path} HTTP/1.1"), b"").status, 401);
}

#[test]
fn a_full_disk_is_507() {
    require!(user_namespaces);
    let guest = GuestProcess::start();
    let socket = at(&guest, "inner");
    let script = format!(
        "exec unshare -Urm sh -c 'mount -t tmpfs -o size=64k none /mnt && exec {} --socket \
         {socket}'",
        env!("CARGO_BIN_EXE_ringfence-guest")
    );
    let inner = guest.shell(&script);
    eventually("the inner guest listens", || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(crate::guest::DEADLINE)).unwrap();
    let head = "POST /files?path=/mnt/file HTTP/1.1\r\nhost: x\r\ncontent-type: \
                application/octet-stream\r\n\
                content-length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&pattern(1_000_000)).unwrap();
    assert_eq!(HttpAnswer::read(stream).status, 507);
    inner.hang_up();
}

#[test]
fn a_slow_reader_of_a_large_file_uses_no_memory_and_delays_no_client() {
    let guest = GuestProcess::start();
    let path = at(&guest, "large");
    let file = fs_err::File::create(&path).unwrap();
    file.set_len(4 << 30).unwrap();
    let before = guest.memory();
    let stalled: Vec<HttpAnswer> = (0..20).map(|_| get(&guest, &path, "")).collect();
    assert_eq!(put(&guest, &at(&guest, "small"), "", b"x").0, 200);
    assert_eq!(get(&guest, &at(&guest, "small"), "").rest(), b"x");
    let grown = guest.memory().saturating_sub(before) / stalled.len() as u64;
    assert!(grown < 2 << 10, "{grown} KiB each");
}
