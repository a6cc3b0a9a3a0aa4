//! Watches on directories.

use std::time::{Duration, Instant};

use ringfence_proto::filesystem::{EventType, FilesystemEvent, WatchMessage, WatchRequest};
use ringfence_proto::frame::{self, Frame, FrameDecoder};
use serde_json::json;

use crate::files::put;
use crate::filesystem::call;
use crate::guest::{GuestProcess, HttpAnswer, eventually};

/// Stream of a watch's events.
struct WatchStream {
    answer: HttpAnswer,
    decoder: FrameDecoder,
}

impl WatchStream {
    fn start(guest: &GuestProcess, request: &WatchRequest) -> WatchStream {
        let head = "POST /filesystem.Filesystem/WatchDir HTTP/1.1\r\ncontent-type: \
                    application/connect+json";
        let answer = guest.request(head, &frame::encode_message(request));
        assert_eq!(answer.status, 200);
        let mut watching = WatchStream { answer, decoder: FrameDecoder::default() };
        assert!(
            matches!(watching.next(), Ok(WatchMessage::Start(_))),
            "the first message is `start`"
        );
        watching
    }

    fn next(&mut self) -> Result<WatchMessage, String> {
        loop {
            match self.decoder.next_frame().expect("is a frame") {
                Some(Frame::Message(message)) => {
                    return Ok(frame::parse(&message).expect("is a message"));
                }
                Some(Frame::End(end)) => return Err(String::from_utf8(end).expect("is text")),
                None => self
                    .decoder
                    .push(&self.answer.piece().expect("a stream ends with its last frame")),
            }
        }
    }

    fn event(&mut self) -> FilesystemEvent {
        loop {
            match self.next() {
                Ok(WatchMessage::Filesystem(event)) => return event,
                Ok(_) => {}
                Err(end) => panic!("ended with {end}"),
            }
        }
    }

    #[track_caller]
    fn expect(&mut self, expected: &[(&str, EventType)]) {
        let seen: Vec<_> =
            expected.iter().map(|_| self.event()).map(|event| (event.name, event.kind)).collect();
        let expected: Vec<_> =
            expected.iter().map(|&(name, kind)| (name.to_owned(), kind)).collect();
        assert_eq!(seen, expected);
    }
}

fn request(guest: &GuestProcess, name: &str) -> WatchRequest {
    let path = guest.directory.path().join(name);
    fs_err::create_dir_all(&path).expect("makes a directory");
    WatchRequest { path: path.to_str().expect("is text").to_owned(), ..WatchRequest::default() }
}

#[test]
fn an_upload_is_exactly_three_events() {
    let guest = GuestProcess::start();
    let request = request(&guest, "watched");
    let mut watching = WatchStream::start(&guest, &request);
    put(&guest, &format!("{}/file", request.path), "", &vec![b'x'; 100_000]);
    fs_err::create_dir(format!("{}/behind", request.path)).unwrap();
    watching.expect(&[
        ("file", EventType::Create),
        ("file", EventType::Chmod),
        ("file", EventType::Write),
        ("behind", EventType::Create),
    ]);
}

#[test]
fn a_move_is_two_events_and_a_removal_one() {
    let guest = GuestProcess::start();
    let request = WatchRequest { include_entry: true, ..request(&guest, "watched") };
    let mut watching = WatchStream::start(&guest, &request);
    let path = |name: &str| format!("{}/{name}", request.path);
    fs_err::create_dir(path("a")).unwrap();
    let event = watching.event();
    assert_eq!((event.name.as_str(), event.entry.unwrap().path), ("a", path("a")));
    fs_err::rename(path("a"), path("b")).unwrap();
    watching.expect(&[("a", EventType::Rename), ("b", EventType::Create)]);
    fs_err::remove_dir(path("b")).unwrap();
    let event = watching.event();
    assert_eq!((event.name.as_str(), event.kind, event.entry), ("b", EventType::Remove, None));
    fs_err::remove_dir(&request.path).unwrap();
    watching.expect(&[(".", EventType::Remove)]);
}

#[test]
fn subdirectories_and_new_ones_are_watched_only_on_request() {
    let guest = GuestProcess::start();
    let shallow = request(&guest, "watched");
    let path = |name: &str| format!("{}/{name}", shallow.path);
    fs_err::create_dir_all(path("old/deep")).unwrap();
    let deep = WatchRequest { recursive: true, ..shallow.clone() };
    let (mut shallow, mut deep) =
        (WatchStream::start(&guest, &shallow), WatchStream::start(&guest, &deep));

    fs_err::create_dir(path("old/deep/x")).unwrap();
    deep.expect(&[("old/deep/x", EventType::Create)]);
    // All three directories are made at once, so that the inner ones exist before the guest can
    // watch the outer one. Each must be reported exactly once.
    fs_err::create_dir_all(path("new/inner/most")).unwrap();
    deep.expect(&[
        ("new", EventType::Create),
        ("new/inner", EventType::Create),
        ("new/inner/most", EventType::Create),
    ]);
    fs_err::create_dir(path("new/inner/most/later")).unwrap();
    deep.expect(&[("new/inner/most/later", EventType::Create)]);
    // A directory that was moved is watched under its new name only.
    fs_err::rename(path("new"), path("moved")).unwrap();
    deep.expect(&[("new", EventType::Rename), ("moved", EventType::Create)]);
    fs_err::create_dir(path("moved/inner/again")).unwrap();
    deep.expect(&[("moved/inner/again", EventType::Create)]);
    shallow.expect(&[
        ("new", EventType::Create),
        ("new", EventType::Rename),
        ("moved", EventType::Create),
    ]);
}

#[test]
fn entries_created_during_a_scan_are_reported_once() {
    let guest = GuestProcess::start();
    let request = WatchRequest { recursive: true, ..request(&guest, "watched") };
    let mut watching = WatchStream::start(&guest, &request);
    for round in 0..1000 {
        let made = ["", "/b", "/b/c", "/b/c/d"].map(|below| format!("{round}{below}"));
        for name in &made {
            fs_err::create_dir(format!("{}/{name}", request.path)).unwrap();
            let (began, pause) = (Instant::now(), Duration::from_micros(round % 100));
            while began.elapsed() < pause {}
        }
        watching.expect(&made.each_ref().map(|name| (name.as_str(), EventType::Create)));
    }
}

#[test]
fn a_watcher_keeps_events_until_they_are_read() {
    let guest = GuestProcess::start();
    let request = request(&guest, "watched");
    let (status, answer) =
        call(&guest, "CreateWatcher", &json!({ "path": request.path, "recursive": true }));
    assert_eq!(status, 200, "{answer}");
    let watcher = json!({ "watcherId": answer["watcherId"] });
    let events = || -> Vec<(String, String)> {
        let (status, answer) = call(&guest, "GetWatcherEvents", &watcher);
        assert_eq!(status, 200, "{answer}");
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        answer["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| (text(&event["name"]), text(&event["type"])))
            .collect()
    };
    assert_eq!(events(), []);
    put(&guest, &format!("{}/file", request.path), "", b"text");
    let kinds = ["EVENT_TYPE_CREATE", "EVENT_TYPE_CHMOD", "EVENT_TYPE_WRITE"];
    assert_eq!(events(), kinds.map(|kind| ("file".to_owned(), kind.to_owned())));
    assert_eq!(events(), []);
    assert_eq!(call(&guest, "RemoveWatcher", &watcher), (200, json!({})));
    assert_eq!(call(&guest, "RemoveWatcher", &watcher).0, 404);
    assert_eq!(call(&guest, "GetWatcherEvents", &watcher).0, 404);
}

#[test]
fn paths_that_cannot_be_watched_are_refused() {
    let guest = GuestProcess::start();
    assert_eq!(call(&guest, "CreateWatcher", &json!({ "path": "/nowhere" })).0, 404);
    assert_eq!(call(&guest, "CreateWatcher", &json!({ "path": "/etc/passwd" })).0, 400);
    let path = guest.directory.path();
    let mut created = 0;
    while call(&guest, "CreateWatcher", &json!({ "path": path })).0 == 200 {
        created += 1;
    }
    assert!((1..=64).contains(&created), "{created} watchers");
    assert_eq!(call(&guest, "CreateWatcher", &json!({ "path": path })).0, 429);
}

#[test]
fn lost_events_are_reported_and_a_disconnect_ends_the_watch() {
    let guest = GuestProcess::start();
    let request = request(&guest, "watched");
    let (_, answer) = call(&guest, "CreateWatcher", &json!({ "path": request.path }));
    let watcher = json!({ "watcherId": answer["watcherId"] });
    for round in 0..10_000 {
        fs_err::write(format!("{}/{round}", request.path), "x").unwrap();
    }
    let (status, answer) = call(&guest, "GetWatcherEvents", &watcher);
    assert_eq!((status, answer["code"].as_str()), (500, Some("data_loss")));
    assert_eq!(call(&guest, "RemoveWatcher", &watcher).0, 200);

    let before = guest.descriptors();
    let watching = WatchStream::start(&guest, &request);
    assert!(guest.descriptors() > before);
    drop(watching);
    eventually("its descriptors are closed", || guest.descriptors() <= before);
}
