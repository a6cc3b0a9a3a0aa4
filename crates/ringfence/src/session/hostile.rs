//! Tests with guests that lie: each sends raw bytes, and the session must return an error in time.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringfence_core::Fault;
use ringfence_proto::code::Code;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::connector::{GUEST_SOCKET, UnixConnector};
use super::{Exec, Session, SessionError};

/// Longest time that any of these operations may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A guest that answers each request with its next answer, and then closes the connection or sends
/// nothing more.
struct HostileGuest {
    _directory: TempDir,
    session: Session,
    connections: Arc<AtomicUsize>,
}

impl HostileGuest {
    /// Sets the longest silence that the session accepts.
    fn answer_timeout(mut self, answer_timeout: Duration) -> HostileGuest {
        let transport = Arc::get_mut(&mut self.session.transport).expect("nobody else has it yet");
        transport.answer_timeout = answer_timeout;
        self
    }
}

#[derive(Clone, Copy, PartialEq)]
enum AfterAnswers {
    HangUp,
    Wait,
}

fn guest(answers: &[&[u8]], then: AfterAnswers) -> HostileGuest {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join(GUEST_SOCKET)).unwrap();
    let session = Session::new(Arc::new(UnixConnector::for_guest_in(directory.path()).unwrap()));
    let connections = Arc::new(AtomicUsize::new(0));
    let answers: Vec<Vec<u8>> = answers.iter().map(|answer| answer.to_vec()).collect();
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(speak(stream, answers.clone(), then));
        }
    });
    HostileGuest { _directory: directory, session, connections }
}

async fn speak(
    mut stream: UnixStream,
    answers: Vec<Vec<u8>>,
    then: AfterAnswers,
) -> std::io::Result<()> {
    for answer in &answers {
        request(&mut stream).await?;
        stream.write_all(answer).await?;
    }
    match then {
        AfterAnswers::HangUp => Ok(()),
        AfterAnswers::Wait => std::future::pending().await,
    }
}

/// Reads one request: its head, and a body of the length that the head states.
async fn request(stream: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head).to_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

fn unary(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Returns a stream with these bytes in one chunk, which does not end.
fn stream(bytes: &[u8]) -> Vec<u8> {
    let mut answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    write!(answer, "{:x}\r\n", bytes.len()).unwrap();
    [answer.as_slice(), bytes, b"\r\n"].concat()
}

fn frame(flags: u8, text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    [&[flags][..], &length, text.as_bytes()].concat()
}

const STARTED: &str = r#"{"event":{"start":{"pid":7}}}"#;
const ENDED: &str = r#"{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3"}}}"#;

#[track_caller]
fn check_invalid_answer(error: &SessionError, why: &str) {
    assert!(
        matches!(error, SessionError::InvalidAnswer { why: said, .. } if said.contains(why)),
        "{error:?}"
    );
    assert_eq!(error.fault(), Fault::Backend);
}

async fn in_time<T>(awaited: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, awaited).await.expect("it has a deadline of its own")
}

#[tokio::test]
async fn one_connection_carries_one_call_after_another() {
    let command = [frame(0, STARTED), frame(0, ENDED), frame(2, "{}")].concat();
    let command = [stream(&command), b"0\r\n\r\n".to_vec()].concat();
    let guest = guest(
        &[&unary(r#"{"processes":[]}"#), &command, &command, &unary("{}")],
        AfterAnswers::Wait,
    );
    assert_eq!(in_time(guest.session.processes()).await.unwrap(), []);
    for _ in 0..2 {
        let execution = in_time(guest.session.exec(&Exec::new("x"))).await.unwrap();
        assert_eq!(execution.pid(), 7);
        let ended = in_time(execution.wait()).await.unwrap();
        assert_eq!((ended.exit_code, ended.signal, ended.ok()), (Some(3), None, false));
    }
    in_time(guest.session.files().remove("/x")).await.unwrap();
    assert_eq!(guest.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_is_replaced() {
    let guest = guest(&[&unary("{}")], AfterAnswers::HangUp);
    for _ in 0..3 {
        in_time(guest.session.processes()).await.unwrap();
    }
    assert_eq!(guest.connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_connection_that_rested_too_long_is_replaced() {
    let mut guest = guest(&[&unary("{}"), &unary("{}")], AfterAnswers::Wait);
    Arc::get_mut(&mut guest.session.transport).expect("nobody else has it yet").idle.timeout =
        Duration::ZERO;
    for _ in 0..2 {
        in_time(guest.session.processes()).await.unwrap();
    }
    assert_eq!(guest.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn answers_that_are_cut_short_are_lost() {
    for answer in [&b""[..], b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}"]
    {
        let guest = guest(&[answer], AfterAnswers::HangUp);
        let error = in_time(guest.session.processes()).await.unwrap_err();
        assert!(matches!(error, SessionError::Lost { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn answers_that_are_no_answers_are_errors() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(200));
    let large = format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "b".repeat(64 << 10));
    for answer in
        ["\0\0\0\0\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "SSH-2.0-x\r\n\r\n", &many, &large]
    {
        let guest = guest(&[answer.as_bytes()], AfterAnswers::Wait);
        let error = in_time(guest.session.processes()).await.unwrap_err();
        assert!(matches!(error, SessionError::Lost { .. }), "{error:?}");
    }
    for body in ["", "[", r#"{"processes":7}"#, "null"] {
        let guest = guest(&[&unary(body)], AfterAnswers::Wait);
        check_invalid_answer(&in_time(guest.session.processes()).await.unwrap_err(), "");
    }
}

#[tokio::test]
async fn an_answer_without_an_end_is_read_up_to_a_limit() {
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let first = [head.as_slice(), &chunk].concat();
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join(GUEST_SOCKET)).unwrap();
    let session = Session::new(Arc::new(UnixConnector::for_guest_in(directory.path()).unwrap()));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            request(&mut stream).await.unwrap();
            let _ = stream.write_all(&first).await; // fails when the session hangs up, as it should
            while stream.write_all(&chunk).await.is_ok() {}
        }
    });
    let error = in_time(session.processes()).await.unwrap_err();
    assert!(matches!(error, SessionError::TooLong { .. }), "{error:?}");
    let error = in_time(session.files().read("/x", 1 << 20)).await.unwrap_err();
    assert!(matches!(error, SessionError::TooLong { limit: 0x100000, .. }), "{error:?}");
}

#[tokio::test]
async fn failures_are_named_and_their_words_cleaned() {
    for (status, body, code, message) in [
        (
            "404 Not Found",
            r#"{"code":"not_found","message":"no \u001b[31mfile"}"#,
            Code::NotFound,
            "no \u{fffd}[31mfile",
        ),
        ("507 Full", r#"{"code":507,"message":"no space"}"#, Code::ResourceExhausted, "no space"),
        ("500 Oh", "<html>", Code::Unknown, "the guest answers with status 500"),
        ("302 Found", "", Code::Unknown, "the guest answers with status 302"),
    ] {
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let guest = guest(&[answer.as_bytes()], AfterAnswers::Wait);
        match in_time(guest.session.files().stat("/x")).await.unwrap_err() {
            SessionError::Refused { code: found, message: said, .. } => {
                assert_eq!((found, &*said), (code, message))
            }
            error => panic!("{error:?}"),
        }
    }
}

#[tokio::test]
async fn streams_that_make_no_sense_are_errors() {
    let begins = |bytes: &[u8]| stream(bytes);
    for (answer, why) in [
        (begins(&[1, 0, 0, 0, 0]), "flags"),
        (begins(&[0, 0xff, 0xff, 0xff, 0xff]), "longer"),
        (begins(&frame(0, "{")), "understood"),
        (begins(&frame(0, r#"{"event":{"data":{"stdout":"***"}}}"#)), "understood"),
        (begins(&frame(0, ENDED)), "does not begin"),
        (begins(&frame(2, "{}")), "does not begin"),
        (begins(&frame(2, "7")), "understood"),
    ] {
        let guest = guest(&[&answer], AfterAnswers::Wait);
        check_invalid_answer(&in_time(guest.session.exec(&Exec::new("x"))).await.unwrap_err(), why);
    }
    for (rest, why) in
        [(frame(0, STARTED), "second time"), (frame(0, r#"{"event":{}}"#), "understood")]
    {
        let guest = guest(&[&stream(&[frame(0, STARTED), rest].concat())], AfterAnswers::Wait);
        let mut execution = in_time(guest.session.exec(&Exec::new("x"))).await.unwrap();
        check_invalid_answer(&in_time(execution.next()).await.unwrap().unwrap_err(), why);
        assert!(in_time(execution.next()).await.is_none(), "an error is told once");
        assert!(
            in_time(execution.wait()).await.is_err(),
            "and an end that nobody saw is not made up"
        );
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_lost() {
    let guest = guest(&[&stream(&frame(0, STARTED))], AfterAnswers::HangUp);
    let execution = in_time(guest.session.exec(&Exec::new("x"))).await.unwrap();
    let error = in_time(execution.wait()).await.unwrap_err();
    assert!(matches!(error, SessionError::Lost { .. }), "{error:?}");
}

#[tokio::test]
async fn silence_has_a_deadline() {
    let guest = guest(&[], AfterAnswers::Wait).answer_timeout(Duration::from_millis(100));
    let is_silent =
        |error: SessionError| assert!(matches!(error, SessionError::NoAnswer { .. }), "{error:?}");
    is_silent(in_time(guest.session.processes()).await.unwrap_err());
    is_silent(in_time(guest.session.health()).await.unwrap_err());
    is_silent(in_time(guest.session.exec(&Exec::new("x"))).await.unwrap_err());
    is_silent(in_time(guest.session.ports().connect(80)).await.unwrap_err());
    is_silent(in_time(guest.session.files().read("/x", 1)).await.unwrap_err());
    is_silent(
        in_time(guest.session.files().write_from("/x", &mut tokio::io::repeat(0)))
            .await
            .unwrap_err(),
    );
    is_silent(in_time(guest.session.files().write("/x", "short")).await.unwrap_err());

    let guest = self::guest(&[&stream(&frame(0, STARTED))], AfterAnswers::Wait)
        .answer_timeout(Duration::from_secs(2));
    is_silent(
        in_time(in_time(guest.session.exec(&Exec::new("x"))).await.unwrap().wait())
            .await
            .unwrap_err(),
    );
}

#[tokio::test]
async fn a_deadline_is_an_end_and_not_an_error() {
    let late = r#"{"error":{"code":"deadline_exceeded","message":"late"}}"#;
    let killed = r#"{"event":{"end":{"exitCode":-1,"status":"signal: killed"}}}"#;
    let unstarted = frame(2, late);
    for frames in [
        unstarted.clone(),
        [frame(0, STARTED), frame(2, late)].concat(),
        [frame(0, STARTED), frame(0, killed), frame(2, late)].concat(),
    ] {
        let guest = guest(&[&stream(&frames)], AfterAnswers::Wait);
        let exec = Exec::new("x").time(Duration::from_nanos(1));
        let ended =
            in_time(in_time(guest.session.exec(&exec)).await.unwrap().wait()).await.unwrap();
        assert_eq!((ended.timed_out, ended.exit_code, ended.signal), (true, None, Some(9)));
    }
    // The deadline is not the command's own if none was given, or if it has not passed.
    for exec in [Exec::new("x"), Exec::new("x").time(TEST_TIMEOUT)] {
        let guest = guest(&[&stream(&unstarted)], AfterAnswers::Wait);
        let error = in_time(guest.session.exec(&exec)).await.unwrap_err();
        assert_eq!(error.code(), Some(Code::DeadlineExceeded), "{error:?}");
    }
}

/// The guest starts the command only when it is told to, and then waits for the signal that ends
/// the command.
#[tokio::test]
async fn a_command_that_nobody_waits_for_is_ended() {
    for dropped_early in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(GUEST_SOCKET)).unwrap();
        let session =
            Session::new(Arc::new(UnixConnector::for_guest_in(directory.path()).unwrap()));
        let call = tokio::spawn(async move { session.exec(&Exec::new("x")).await });
        let (mut first, _) = in_time(listener.accept()).await.unwrap();
        in_time(request(&mut first)).await.unwrap();
        if dropped_early {
            call.abort();
            first.write_all(&stream(&frame(0, STARTED))).await.unwrap();
        } else {
            first.write_all(&stream(&frame(0, STARTED))).await.unwrap();
            drop(in_time(call).await.unwrap().unwrap());
        }
        let (mut second, _) = in_time(listener.accept()).await.unwrap();
        let signal = in_time(request(&mut second)).await.unwrap();
        assert_eq!(
            String::from_utf8_lossy(&signal),
            r#"{"process":{"pid":7},"signal":"SIGNAL_SIGKILL"}"#
        );
    }
}

#[tokio::test]
async fn a_command_that_was_let_go_is_left_alone() {
    let guest = guest(&[&stream(&frame(0, STARTED))], AfterAnswers::Wait);
    assert_eq!(in_time(guest.session.exec(&Exec::new("x"))).await.unwrap().detach(), 7);
    drop(in_time(guest.session.reconnect(7)).await.unwrap());
    tokio::task::yield_now().await;
    assert_eq!(
        guest.connections.load(Ordering::SeqCst),
        2,
        "one for each stream, none for a signal"
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_read_to_its_end_is_not_sent_as_whole() {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join(GUEST_SOCKET)).unwrap();
    let session = Session::new(Arc::new(UnixConnector::for_guest_in(directory.path()).unwrap()));
    let seen = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        all
    });
    let (mut writer, mut reader) = tokio::io::duplex(1 << 10);
    tokio::spawn(async move {
        writer.write_all(&[b'x'; 10]).await.unwrap();
        std::future::pending::<()>().await;
    });
    let mut failing = (&mut reader).take(10).chain(FailingReader);
    let error = in_time(session.files().write_from("/x", &mut failing)).await.unwrap_err();
    assert!(matches!(error, SessionError::HostStream { .. }), "{error:?}");
    let seen = in_time(seen).await.unwrap();
    assert!(!seen.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&seen));
}

struct FailingReader;

impl tokio::io::AsyncRead for FailingReader {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Err(std::io::Error::other("unreadable")))
    }
}

#[tokio::test]
async fn a_stream_of_nothing_but_keepalives_can_be_given_up() {
    let alive = frame(0, r#"{"event":{"keepalive":{}}}"#);
    let chunk = [format!("{:x}\r\n", alive.len()).as_bytes(), &alive, b"\r\n"].concat();
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join(GUEST_SOCKET)).unwrap();
    let session = Session::new(Arc::new(UnixConnector::for_guest_in(directory.path()).unwrap()));
    tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.unwrap();
        // Fails when the session hangs up, as it should.
        let _ = speak_forever(&mut peer, &frame(0, STARTED), &chunk).await;
    });
    let mut execution = in_time(session.exec(&Exec::new("x"))).await.unwrap();
    assert!(timeout(Duration::from_millis(200), execution.next()).await.is_err());
}

#[tokio::test]
async fn a_guest_that_only_says_that_it_is_alive_does_not_outlast_the_commands_time() {
    let alive = frame(0, r#"{"event":{"keepalive":{}}}"#);
    let chunk = [format!("{:x}\r\n", alive.len()).as_bytes(), &alive, b"\r\n"].concat();
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join(GUEST_SOCKET)).unwrap();
    let mut session =
        Session::new(Arc::new(UnixConnector::for_guest_in(directory.path()).unwrap()));
    Arc::get_mut(&mut session.transport).expect("nobody else has it yet").grace_period =
        Duration::from_millis(50);
    tokio::spawn(async move {
        while let Ok((mut peer, _)) = listener.accept().await {
            let (alive, chunk) = (alive.clone(), chunk.clone());
            // The command never starts. The session hangs up, as it should.
            tokio::spawn(async move { drop(speak_forever(&mut peer, &alive, &chunk).await) });
        }
    });
    let untimed = Exec::new("x");
    assert!(
        timeout(Duration::from_millis(300), session.exec(&untimed)).await.is_err(),
        "it has a minute"
    );
    let error = in_time(session.exec(&untimed.time(Duration::from_millis(50)))).await.unwrap_err();
    assert!(matches!(error, SessionError::NoAnswer { .. }), "{error:?}");
}

async fn speak_forever(peer: &mut UnixStream, first: &[u8], chunk: &[u8]) -> std::io::Result<()> {
    request(peer).await?;
    peer.write_all(&stream(first)).await?;
    loop {
        peer.write_all(chunk).await?;
    }
}
