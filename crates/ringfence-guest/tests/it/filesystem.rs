//! The service `filesystem.Filesystem`.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::guest::GuestProcess;

/// Calls a unary method of the service.
pub(crate) fn call(guest: &GuestProcess, method: &str, message: &Value) -> (u16, Value) {
    call_with(guest, method, "", message)
}

fn call_with(guest: &GuestProcess, method: &str, headers: &str, message: &Value) -> (u16, Value) {
    let head = format!(
        "POST /filesystem.Filesystem/{method} HTTP/1.1\r\ncontent-type: application/json{headers}"
    );
    let mut answer = guest.request(&head, message.to_string().as_bytes());
    let body = answer.rest();
    (answer.status, serde_json::from_slice(&body).expect("is JSON"))
}

#[track_caller]
fn fails(guest: &GuestProcess, method: &str, message: &Value, status: u16, code: &str) {
    let (given, answer) = call(guest, method, message);
    assert_eq!(
        (given, answer["code"].as_str()),
        (status, Some(code)),
        "{method} {message} answered {answer}"
    );
}

fn at(guest: &GuestProcess, name: &str) -> String {
    guest.directory.path().join(name).to_str().expect("is text").to_owned()
}

#[test]
fn a_directory_is_made_with_its_parents_and_only_once() {
    let guest = GuestProcess::start();
    let path = at(&guest, "a/b/c");
    let (status, answer) = call(&guest, "MakeDir", &json!({ "path": path }));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["entry"]["type"], "FILE_TYPE_DIRECTORY");
    assert_eq!(
        (answer["entry"]["name"].as_str(), answer["entry"]["path"].as_str()),
        (Some("c"), Some(path.as_str()))
    );
    fails(&guest, "MakeDir", &json!({ "path": path }), 409, "already_exists");
    fs_err::write(at(&guest, "file"), "").unwrap();
    fails(&guest, "MakeDir", &json!({ "path": at(&guest, "file") }), 400, "invalid_argument");
    fails(&guest, "MakeDir", &json!({ "path": at(&guest, "file/x") }), 400, "invalid_argument");
}

#[test]
fn a_file_is_described_with_its_owner_mode_and_time() {
    let guest = GuestProcess::start();
    fs_err::write(at(&guest, "file"), "12345").unwrap();
    fs_err::set_permissions(at(&guest, "file"), std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink("file", at(&guest, "link")).unwrap();
    let (_, answer) = call(&guest, "Stat", &json!({ "path": at(&guest, "file") }));
    let entry = &answer["entry"];
    assert_eq!((entry["size"].as_str(), entry["mode"].as_u64()), (Some("5"), Some(0o600)));
    assert_eq!(
        (entry["type"].as_str(), entry["permissions"].as_str()),
        (Some("FILE_TYPE_FILE"), Some("-rw-------"))
    );
    let owner = guest.run("stat -c %U:%G file").stdout;
    let (user, group) = owner.trim().split_once(':').unwrap();
    assert_eq!((entry["owner"].as_str(), entry["group"].as_str()), (Some(user), Some(group)));
    assert!(entry["modifiedTime"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    let (_, answer) = call(&guest, "Stat", &json!({ "path": at(&guest, "link") }));
    assert_eq!(
        (&answer["entry"]["type"], &answer["entry"]["isSymlink"]),
        (&json!("FILE_TYPE_FILE"), &json!(true))
    );
    assert!(answer["entry"]["symlinkTarget"].as_str().unwrap().ends_with("/file"));
    fails(&guest, "Stat", &json!({ "path": at(&guest, "missing") }), 404, "not_found");
    fails(&guest, "Stat", &json!({ "path": "~nobody/x" }), 400, "invalid_argument");
}

#[test]
fn relative_paths_start_from_the_home_directory() {
    let guest = GuestProcess::start();
    let home = std::env::var("HOME").unwrap();
    for path in ["", "~", ".", "~/."] {
        assert_eq!(call(&guest, "Stat", &json!({ "path": path })).1["entry"]["path"], json!(home));
    }
}

#[test]
fn relative_paths_start_from_the_home_that_commands_get() {
    let guest = GuestProcess::start();
    let home = at(&guest, "home");
    fs_err::create_dir(&home).unwrap();
    let variables = json!({ "envVars": { "HOME": home, "OTHER": "/" } });
    let head = "POST /init HTTP/1.1\r\ncontent-type: application/json";
    assert_eq!(guest.request(head, variables.to_string().as_bytes()).status, 200);
    for path in ["", "~"] {
        assert_eq!(call(&guest, "Stat", &json!({ "path": path })).1["entry"]["path"], json!(home));
    }
    assert_eq!(guest.run("cd && pwd").stdout.trim(), home);
}

#[test]
fn another_user_is_unauthenticated() {
    let guest = GuestProcess::start();
    // The headers name the users `user` and `nobody-here`.
    let (status, _) =
        call_with(&guest, "Stat", "\r\nauthorization: Basic dXNlcjo=", &json!({ "path": "/" }));
    assert_eq!(status, 200);
    let (status, answer) = call_with(
        &guest,
        "Stat",
        "\r\nauthorization: Basic bm9ib2R5LWhlcmU6",
        &json!({ "path": "/" }),
    );
    assert_eq!((status, answer["code"].as_str()), (401, Some("unauthenticated")));
}

#[test]
fn a_listing_goes_as_deep_as_asked_and_follows_no_link() {
    let guest = GuestProcess::start();
    let root = at(&guest, "root");
    fs_err::create_dir_all(format!("{root}/a/b")).unwrap();
    fs_err::write(format!("{root}/a/b/deep"), "").unwrap();
    fs_err::write(format!("{root}/z"), "").unwrap();
    symlink("a", format!("{root}/link")).unwrap();
    let names = |depth: u32, path: &str| -> Vec<String> {
        let (status, answer) = call(&guest, "ListDir", &json!({ "path": path, "depth": depth }));
        assert_eq!(status, 200, "{answer}");
        let entries = answer["entries"].as_array().unwrap();
        let path = |entry: &Value| {
            Path::new(entry["path"].as_str().unwrap()).strip_prefix(path).unwrap().to_owned()
        };
        entries.iter().map(|entry| path(entry).to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(0, &root), ["a", "link", "z"]);
    assert_eq!(names(1, &root), ["a", "link", "z"]);
    assert_eq!(names(2, &root), ["a", "a/b", "link", "z"]);
    assert_eq!(names(u32::MAX, &root), ["a", "a/b", "a/b/deep", "link", "z"]);
    // The listed directory itself may be a symbolic link.
    assert_eq!(names(1, &format!("{root}/link")), ["b"]);
    fails(&guest, "ListDir", &json!({ "path": format!("{root}/z") }), 400, "invalid_argument");
    fails(&guest, "ListDir", &json!({ "path": format!("{root}/missing") }), 404, "not_found");
}

#[test]
fn a_file_is_moved_with_the_directories_made_for_it() {
    let guest = GuestProcess::start();
    fs_err::write(at(&guest, "from"), "text").unwrap();
    let message = json!({ "source": at(&guest, "from"), "destination": at(&guest, "x/y/to") });
    let (status, answer) = call(&guest, "Move", &message);
    assert_eq!((status, &answer["entry"]["name"]), (200, &json!("to")));
    assert_eq!(fs_err::read_to_string(at(&guest, "x/y/to")).unwrap(), "text");
    assert!(!Path::new(&at(&guest, "from")).exists());
    let gone = json!({ "source": at(&guest, "from"), "destination": at(&guest, "never/made") });
    fails(&guest, "Move", &gone, 404, "not_found");
    assert!(!Path::new(&at(&guest, "never")).exists());
}

#[test]
fn a_file_is_moved_to_another_file_system() {
    let guest = GuestProcess::start();
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let device = |path: &Path| rustix::fs::stat(path).unwrap().st_dev;
    assert_ne!(
        device(other.path()),
        device(guest.directory.path()),
        "`/dev/shm` is a file system of its own"
    );
    fs_err::write(at(&guest, "from"), "text").unwrap();
    fs_err::set_permissions(at(&guest, "from"), std::fs::Permissions::from_mode(0o750)).unwrap();
    let to = other.path().join("to");
    let (status, answer) =
        call(&guest, "Move", &json!({ "source": at(&guest, "from"), "destination": to }));
    assert_eq!((status, &answer["entry"]["permissions"]), (200, &json!("-rwxr-x---")), "{answer}");
    assert_eq!(fs_err::read_to_string(&to).unwrap(), "text");
    assert_eq!(fs_err::read_dir(other.path()).unwrap().count(), 1);
    assert!(!Path::new(&at(&guest, "from")).exists());
    fs_err::create_dir(at(&guest, "directory")).unwrap();
    let directory =
        json!({ "source": at(&guest, "directory"), "destination": other.path().join("d") });
    fails(&guest, "Move", &directory, 400, "failed_precondition");
}

#[test]
fn a_tree_is_removed_whole_and_again() {
    let guest = GuestProcess::start();
    fs_err::create_dir_all(at(&guest, "tree/a/b")).unwrap();
    fs_err::write(at(&guest, "kept"), "").unwrap();
    symlink("../../kept", at(&guest, "tree/a/link")).unwrap();
    mknodat(CWD, at(&guest, "tree/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for _ in 0..2 {
        assert_eq!(
            call(&guest, "Remove", &json!({ "path": at(&guest, "tree") })),
            (200, json!({}))
        );
    }
    assert!(!Path::new(&at(&guest, "tree")).exists() && Path::new(&at(&guest, "kept")).exists());
    fails(&guest, "Remove", &json!({ "path": "/" }), 400, "invalid_argument");
}

#[test]
fn removal_follows_no_link_that_replaces_a_directory() {
    let guest = GuestProcess::start();
    fs_err::create_dir(at(&guest, "kept")).unwrap();
    fs_err::write(at(&guest, "kept/file"), "").unwrap();
    fs_err::create_dir(at(&guest, "tree")).unwrap();
    let swap = "cd tree; n=0; while [ -d . ] && [ $n -lt 2000 ]; do n=$((n+1)); mkdir d \
                2>/dev/null; \
                : >d/x 2>/dev/null; mv -T d e 2>/dev/null; ln -s ../kept d 2>/dev/null; rm -f d; \
                rm -rf e; done";
    let swapping = guest.shell(swap);
    for _ in 0..50 {
        // The result of this call is a race. The files that it removes are not.
        call(&guest, "Remove", &json!({ "path": at(&guest, "tree/d") }));
        assert!(Path::new(&at(&guest, "kept/file")).exists());
    }
    swapping.hang_up();
    assert!(Path::new(&at(&guest, "kept/file")).exists());
}

#[test]
fn unknown_methods_are_unimplemented_and_malformed_calls_are_refused() {
    let guest = GuestProcess::start();
    fails(&guest, "Format", &json!({}), 501, "unimplemented");
    fails(&guest, "Stat", &json!({ "path": 7 }), 400, "invalid_argument");
    fails(&guest, "Stat", &json!({ "path": "a\u{0}b" }), 400, "invalid_argument");
    fails(&guest, "Stat", &json!({ "path": "x".repeat(5000) }), 400, "invalid_argument");
}

#[test]
fn metrics_and_variables_are_reported() {
    let guest = GuestProcess::start();
    let get = |path: &str| -> Value {
        let mut answer = guest.request(&format!("GET {path} HTTP/1.1"), b"");
        assert_eq!(answer.status, 200);
        serde_json::from_slice(&answer.rest()).unwrap()
    };
    let metrics = get("/metrics");
    for name in ["ts", "cpu_count", "mem_total", "mem_used", "disk_total"] {
        assert!(metrics[name].as_u64().is_some_and(|number| number > 0), "{name} of {metrics}");
    }
    guest.run("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done");
    assert!(get("/metrics")["cpu_used_pct"].as_f64().unwrap() > 0.0);
    assert_eq!(get("/envs")["HOME"], json!(std::env::var("HOME").unwrap()));
}
