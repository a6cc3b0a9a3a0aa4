//! Tests of links with a real guest, over carriers that break.

mod unreliable;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ringfence_link::LinkFailure;
use ringfence_proto::link::frame::RefusalReason;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::super::connector::{GuestConnector, UnixConnector};
use super::super::{Exec, Session, SessionError};
use super::{LinkConnector, LinkState, LinkTimeouts};
use crate::{CommandInput, PtySize};
use unreliable::{CarrierFault, ExecutedCarrier, LinkedGuest, TOKEN, UnreliableCarrier, quick};

/// Longest time that any of these tests may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a test with a deadline.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(TEST_TIMEOUT, test).await.expect("the test takes too long") });
}

fn linked(carrier: &Arc<UnreliableCarrier>, timeouts: LinkTimeouts) -> Arc<LinkConnector> {
    Arc::new(LinkConnector::start(carrier.clone(), TOKEN, timeouts).unwrap())
}

/// Makes a directory that only this user may enter, as the channel directory of a sandbox is.
fn private_directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    let private = std::fs::Permissions::from_mode(0o700);
    fs_err::set_permissions(directory.path(), private).unwrap();
    directory
}

/// Runs a shell command and returns its exit code and the start of its output.
async fn shell(session: &Session, line: &str) -> (Option<i32>, String) {
    let captured = session.exec(&Exec::shell(line)).await.unwrap().capture(1 << 20).await.unwrap();
    (captured.ended.exit_code, captured.stdout)
}

async fn wait_for(connector: &LinkConnector, wanted: impl FnMut(&LinkState) -> bool) -> LinkState {
    connector.state().wait_for(wanted).await.unwrap().clone()
}

#[test]
fn commands_run_over_one_carrier() {
    run(async {
        let guest = LinkedGuest::start();
        let carrier = Arc::new(UnreliableCarrier::reliable(guest.socket()));
        let session = Session::new(linked(&carrier, LinkTimeouts::default()));
        for number in 0..5 {
            let line = format!("echo {number}; exit {number}");
            assert_eq!(shell(&session, &line).await, (Some(number), format!("{number}\n")));
        }
        let carriers = carrier.dials();
        assert!(carriers <= 3, "{carriers} carriers"); // the guest may not listen yet
    });
}

#[test]
fn a_command_survives_cuts_at_every_place() {
    run(async {
        let guest = LinkedGuest::start();
        let lengths = (0..12).chain([13, 14, 17, 18, 35, 47, 48, 49, 50, 51, 60, 61, 100, 150]);
        let faults = lengths.flat_map(|length| {
            let read = CarrierFault { read: Some(length + 13), ..CarrierFault::default() };
            let write = CarrierFault { write: Some(length + 53), ..CarrierFault::default() };
            [read, write]
        });
        let greetings =
            [1, 4, 12].map(|read| CarrierFault { read: Some(read), ..CarrierFault::default() });
        let carrier = Arc::new(UnreliableCarrier::new(
            guest.socket(),
            greetings.into_iter().chain(faults),
            CarrierFault::default(),
        ));
        let session = Session::new(linked(&carrier, quick()));
        let mut number = 0;
        while carrier.dials() < 50 {
            let line = format!("echo {number}; exit {number}");
            assert_eq!(shell(&session, &line).await, (Some(number), format!("{number}\n")));
            number = (number + 1) % 100;
        }
    });
}

#[test]
fn much_output_arrives_whole_while_the_carrier_is_cut() {
    run(async {
        let guest = LinkedGuest::start();
        let cut = CarrierFault {
            read: Some(3_000_017),
            write: Some(40_000),
            delay: Some(Duration::from_micros(100)),
            ..CarrierFault::default()
        };
        let carrier = Arc::new(UnreliableCarrier::new(guest.socket(), [], cut));
        let session = Session::new(linked(&carrier, LinkTimeouts::default()));
        let mut digest = Sha256::new();
        let mut length = 0;
        let exec = Exec::shell("seq 1 6800000; exit 7");
        let execution = session.exec(&exec).await.unwrap();
        let captured = execution.capture_with(0, |_, bytes| {
            digest.update(bytes);
            length += bytes.len();
        });
        assert_eq!(captured.await.unwrap().ended.exit_code, Some(7));
        let mut expected = Vec::new();
        for number in 1..=6_800_000_u32 {
            use std::io::Write as _;
            writeln!(expected, "{number}").unwrap();
        }
        assert!(length > 50 << 20, "{length}");
        assert_eq!(length, expected.len());
        assert_eq!(digest.finalize(), Sha256::digest(&expected));
        assert!(carrier.dials() > 10, "{} carriers", carrier.dials());
    });
}

#[test]
fn input_terminals_ports_and_files_work_while_the_carrier_is_cut() {
    run(async {
        let guest = LinkedGuest::start();
        let cut =
            CarrierFault { read: Some(50_021), write: Some(60_029), ..CarrierFault::default() };
        let carrier = Arc::new(UnreliableCarrier::new(guest.socket(), [], cut));
        let session = Session::new(linked(&carrier, quick()));
        let bytes: Vec<u8> = (0..300_000_u32).map(|number| ((number * 7) >> 3) as u8).collect();

        let cat = session.exec(&Exec::new("sha256sum").input(CommandInput::Piped)).await.unwrap();
        let input = cat.input();
        input.write(&bytes).await.unwrap();
        input.close().await.unwrap();
        let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(cat.capture(1000).await.unwrap().stdout.starts_with(&sum));

        let path = guest.directory.path().join("file");
        let path = path.to_str().unwrap();
        session.files().write(path, bytes.clone()).await.unwrap();
        assert_eq!(session.files().read(path, 1 << 20).await.unwrap(), bytes);

        let size = PtySize { cols: 91, rows: 37 };
        let terminal = session.exec(&Exec::shell("stty size").terminal(size)).await.unwrap();
        assert_eq!(terminal.capture(1000).await.unwrap().stdout.trim(), "37 91");

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let echo = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap(); // the end of one direction
            stream.write_all(&received).await.unwrap();
        });
        let mut stream = session.ports().connect(port).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        echo.await.unwrap();
        assert!(received == bytes, "{} bytes", received.len());
        assert!(carrier.dials() > 10, "{} carriers", carrier.dials());
    });
}

#[test]
fn another_carrier_takes_over_from_one_that_stands_still() {
    run(async {
        let guest = LinkedGuest::start();
        let stalled = CarrierFault { read: Some(2000), stalls: true, ..CarrierFault::default() };
        let carrier = Arc::new(UnreliableCarrier::new(
            guest.socket(),
            [stalled, stalled],
            CarrierFault::default(),
        ));
        let session = Session::new(linked(&carrier, quick()));
        let (code, output) = shell(&session, "seq 1 2000; exit 3").await;
        assert_eq!((code, output.lines().count()), (Some(3), 2000));
        let streams = std::mem::take(&mut *carrier.stalled.lock().unwrap());
        assert_eq!(streams.len(), 2);
        for stream in streams {
            // The guest has closed its end, although this end is still open.
            let mut stream = tokio::net::UnixStream::from_std(stream).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.unwrap();
        }
    });
}

#[test]
fn a_link_needs_the_token_of_the_guest() {
    run(async {
        let guest = LinkedGuest::start();
        let carrier = Arc::new(UnreliableCarrier::reliable(guest.socket()));
        let right = linked(&carrier, quick());
        assert_eq!(shell(&Session::new(right), "echo in").await.1, "in\n");
        for token in ["", "another token", "the token of this guesT"] {
            let wrong = LinkConnector::start(carrier.clone(), token, quick()).unwrap();
            let refused = LinkFailure::Refused { reason: RefusalReason::Token };
            let ended = wait_for(&wrong, |state| matches!(state, LinkState::Ended(_))).await;
            assert_eq!(ended, LinkState::Ended(refused.clone()));
            let error = wrong.connect().await.err().unwrap();
            assert_eq!(LinkFailure::from_io_error(&error), Some(&refused));
        }
    });
}

#[test]
fn a_link_that_is_lost_for_too_long_fails_with_its_reason() {
    run(async {
        let guest = LinkedGuest::start();
        let carrier = Arc::new(UnreliableCarrier::new(
            guest.socket(),
            [],
            CarrierFault { read: Some(5000), ..CarrierFault::default() },
        ));
        let timeouts = LinkTimeouts { outage: Duration::from_secs(1), ..quick() };
        let connector = linked(&carrier, timeouts);
        wait_for(&connector, |state| *state == LinkState::Connected).await;
        carrier.last_dial.store(carrier.dials(), Ordering::SeqCst);
        let session = Session::new(connector.clone());
        let execution = session.exec(&Exec::shell("seq 1 100000")).await.unwrap();
        let error = execution.capture(0).await.unwrap_err();
        assert!(matches!(error, SessionError::Lost { .. }), "{error:?}");
        let chain = crate::chain(&error);
        assert!(chain.contains("the stream to the guest was lost for 1 second"), "{chain}");
        let lost = LinkFailure::Lost { time: Duration::from_secs(1) };
        assert_eq!(*connector.state().borrow(), LinkState::Ended(lost.clone()));
        let error = connector.connect().await.err().unwrap();
        assert_eq!(LinkFailure::from_io_error(&error), Some(&lost));
    });
}

#[test]
fn a_link_that_the_guest_does_not_know_any_more_ends() {
    run(async {
        let mut guest = LinkedGuest::start();
        let carrier = Arc::new(UnreliableCarrier::reliable(guest.socket()));
        let connector = linked(&carrier, quick());
        wait_for(&connector, |state| *state == LinkState::Connected).await;
        guest.restart();
        let ended = wait_for(&connector, |state| matches!(state, LinkState::Ended(_))).await;
        let refused = LinkFailure::Refused { reason: RefusalReason::UnknownLink };
        assert_eq!(ended, LinkState::Ended(refused));
    });
}

#[test]
fn a_guest_forgets_a_link_after_its_lifetime() {
    run(async {
        let guest = LinkedGuest::start_with(&["--link-lifetime", "0"]);
        let cut = CarrierFault { read: Some(5000), ..CarrierFault::default() };
        let carrier =
            Arc::new(UnreliableCarrier::new(guest.socket(), [cut], CarrierFault::default()));
        let connector = linked(&carrier, quick());
        let session = Session::new(connector.clone());
        let execution = session.exec(&Exec::shell("seq 1 100000")).await.unwrap();
        let error = execution.capture(0).await.unwrap_err();
        assert!(crate::chain(&error).contains("does not know the link"), "{error:?}");
    });
}

#[test]
fn a_guest_ends_when_nobody_keeps_it_if_it_was_told_to() {
    run(async {
        let mut guest = LinkedGuest::start_with(&["--link-lifetime", "2", "--end-without-link"]);
        let carrier = Arc::new(UnreliableCarrier::reliable(guest.socket()));
        let connector = linked(&carrier, quick());
        let session = Session::new(connector.clone());
        // A guest with a carrier stays for longer than the lifetime of a link.
        assert_eq!(shell(&session, "sleep 3; echo stays").await.1, "stays\n");
        drop((session, connector));
        assert_eq!(guest.wait_for_end().await, Some(1));
    });
}

#[test]
fn many_streams_are_served_at_once_and_a_slow_reader_delays_none() {
    run(async {
        let guest = LinkedGuest::start();
        let carrier = Arc::new(UnreliableCarrier::reliable(guest.socket()));
        let connector = linked(&carrier, LinkTimeouts::default());
        let session = Session::new(connector.clone());
        let _stuck = session.exec(&Exec::shell("yes")).await.unwrap(); // nobody reads its output
        let mut streams = Vec::new();
        for _ in 0..600 {
            let mut stream = connector.connect().await.unwrap();
            stream.write_all(b"GET /health HTTP/1.1\r\n").await.unwrap();
            streams.push(stream);
        }
        for stream in streams.iter_mut().rev() {
            stream.write_all(b"host: guest\r\n\r\n").await.unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).await.unwrap();
            assert_eq!(&status, b"HTTP/1.1 204");
        }
        assert_eq!(shell(&session, "echo through").await.1, "through\n");
    });
}

#[test]
fn other_processes_use_the_link_through_the_relay() {
    run(async {
        let guest = LinkedGuest::start();
        let cut = CarrierFault { read: Some(70_003), ..CarrierFault::default() };
        let carrier = Arc::new(UnreliableCarrier::new(guest.socket(), [], cut));
        let connector = linked(&carrier, quick());
        let channel = private_directory();
        let relay = connector.relay_on(channel.path()).unwrap();
        let attached = UnixConnector::for_guest_in(channel.path()).unwrap();
        let session = Session::new(Arc::new(attached.with_outage_limit(quick().outage)));
        let (code, output) = shell(&session, "seq 1 50000; exit 9").await;
        assert_eq!((code, output.lines().count()), (Some(9), 50_000));
        let before = carrier.dials();
        assert_eq!(shell(&session, "echo warm").await.1, "warm\n");
        assert!(carrier.dials() <= before + 1, "a command does not need a carrier of its own");

        let mut stream = UnixConnector::for_guest_in(channel.path()).unwrap().open().await.unwrap();
        drop(relay);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await; // the relay may reset the connection
        assert!(rest.is_empty());
        assert!(session.health().await.is_err());
    });
}

#[test]
fn a_relay_ends_with_its_link() {
    run(async {
        let guest = LinkedGuest::start();
        let carrier = Arc::new(UnreliableCarrier::reliable(guest.socket()));
        let connector = linked(&carrier, quick());
        let channel = private_directory();
        let _relay = connector.relay_on(channel.path()).unwrap();
        let mut stream = UnixConnector::for_guest_in(channel.path()).unwrap().open().await.unwrap();
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: guest\r\n\r\n").await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        drop(connector);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await; // the relay may reset the connection
        while UnixConnector::for_guest_in(channel.path()).unwrap().open().await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_relay_listens_only_in_a_directory_of_its_user() {
    run(async {
        let guest = LinkedGuest::start();
        let carrier = Arc::new(UnreliableCarrier::reliable(guest.socket()));
        let connector = linked(&carrier, quick());
        let channel = TempDir::new().unwrap();
        let open = std::fs::Permissions::from_mode(0o711);
        fs_err::set_permissions(channel.path(), open).unwrap();
        let error = connector.relay_on(channel.path()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        let private = std::fs::Permissions::from_mode(0o700);
        fs_err::set_permissions(channel.path(), private).unwrap();
        connector.relay_on(channel.path()).unwrap();
    });
}

#[test]
fn an_executed_process_is_a_carrier() {
    run(async {
        let guest = LinkedGuest::start();
        let carrier = Arc::new(ExecutedCarrier {
            program: guest.program.clone(),
            socket: guest.socket(),
            processes: Default::default(),
        });
        let connector = Arc::new(LinkConnector::start(carrier.clone(), TOKEN, quick()).unwrap());
        let session = Session::new(connector.clone());
        let exec = Exec::shell("read line; seq 1 $line").input(CommandInput::Piped);
        let running = session.exec(&exec).await.unwrap();
        for process in carrier.processes.lock().unwrap().iter_mut() {
            let _ = process.kill(); // it may have ended because the guest did not listen yet
        }
        running.input().write(b"3000\n").await.unwrap();
        assert_eq!(running.capture(1 << 20).await.unwrap().stdout.lines().count(), 3000);
        drop((session, connector));
        // The guest closes the carrier, so every process ends by itself.
        let processes = std::mem::take(&mut *carrier.processes.lock().unwrap());
        for mut process in processes {
            tokio::task::spawn_blocking(move || process.wait().unwrap()).await.unwrap();
        }
    });
}
