//! Tests of both ends of a link in one process.

use std::time::Duration;

use ringfence_proto::link::frame::LinkFrameDecoder;
use ringfence_proto::link::{LinkError, LinkSide};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::{CarrierEnd, CarrierTimeouts, Link, LinkFailure, run_carrier};

const ASK: CarrierTimeouts =
    CarrierTimeouts::Ask { interval: Duration::from_secs(20), answer: Duration::from_secs(10) };
const LISTEN: CarrierTimeouts = CarrierTimeouts::Listen { silence: Duration::from_secs(90) };

fn ends() -> (Link, Link) {
    (Link::new(LinkSide::Host), Link::new(LinkSide::Guest))
}

/// Uses a carrier at one end, as both ends know what the other one has received.
async fn carry(link: Link, peer_received: u64, carrier: DuplexStream, ask: bool) -> CarrierEnd {
    let turn = link.begin_carrier(peer_received).unwrap();
    let timeouts = if ask { ASK } else { LISTEN };
    run_carrier(&link, turn, carrier, LinkFrameDecoder::default(), timeouts).await
}

#[tokio::test(start_paused = true)]
async fn streams_go_on_after_a_carrier_was_cut() {
    let (host, guest) = ends();
    let mut here = host.open().await.unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number >> 3) as u8).collect();
    let sent = bytes.clone();
    let writing = tokio::spawn(async move {
        here.write_all(&sent).await.unwrap();
        here.shutdown().await.unwrap();
        let mut answer = Vec::new();
        here.read_to_end(&mut answer).await.unwrap();
        answer
    });
    let guest_link = guest.clone();
    let reading = tokio::spawn(async move {
        let mut there = guest_link.accept().await.unwrap();
        let mut received = Vec::new();
        there.read_to_end(&mut received).await.unwrap();
        there.write_all(b"whole").await.unwrap();
        there.shutdown().await.unwrap();
        received
    });
    let mut carriers = 0;
    while !(writing.is_finished() && reading.is_finished()) {
        carriers += 1;
        let (near, far) = duplex(10_000);
        let (host_received, guest_received) = (host.received(), guest.received());
        let near = carry(host.clone(), guest_received, near, true);
        let far = carry(guest.clone(), host_received, far, false);
        // Both ends lose the carrier at once.
        let time = Duration::from_millis(1);
        let _ = tokio::time::timeout(time, async { tokio::join!(near, far) }).await;
        assert!(carriers < 100_000);
    }
    assert!(reading.await.unwrap() == bytes);
    assert_eq!(writing.await.unwrap(), b"whole");
    assert_eq!((host.stream_count(), guest.stream_count()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_carrier_that_answers_no_ping_counts_as_lost() {
    let (host, guest) = ends();
    let began = tokio::time::Instant::now();
    let (near, _far) = duplex(1000);
    assert!(matches!(carry(host.clone(), 0, near, true).await, CarrierEnd::Silent));
    assert_eq!(began.elapsed().as_secs(), 30);

    let began = tokio::time::Instant::now();
    let (_near, far) = duplex(1000);
    assert!(matches!(carry(guest.clone(), 0, far, false).await, CarrierEnd::Silent));
    assert_eq!(began.elapsed().as_secs(), 90);

    let (near, far) = duplex(1000);
    let both = async { tokio::join!(carry(host, 0, near, true), carry(guest, 0, far, false)) };
    let hour = Duration::from_secs(3600);
    assert!(tokio::time::timeout(hour, both).await.is_err(), "a carrier with answers is not lost");
}

#[tokio::test(start_paused = true)]
async fn the_peer_learns_that_a_link_is_closed() {
    let (host, guest) = ends();
    let mut stream = host.open().await.unwrap();
    let (near, far) = duplex(1000);
    let near = tokio::spawn(carry(host.clone(), 0, near, true));
    let far = tokio::spawn(carry(guest.clone(), 0, far, false));
    let mut served = guest.accept().await.unwrap();
    host.fail(LinkFailure::Closed);
    assert!(matches!(near.await.unwrap(), CarrierEnd::Failed(LinkFailure::Closed)));
    assert!(matches!(far.await.unwrap(), CarrierEnd::Failed(LinkFailure::ClosedByPeer)));
    for (stream, failure) in
        [(&mut stream, LinkFailure::Closed), (&mut served, LinkFailure::ClosedByPeer)]
    {
        let error = stream.read_u8().await.unwrap_err();
        assert_eq!(LinkFailure::from_io_error(&error), Some(&failure));
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_carrier_takes_over_from_one_that_takes_no_bytes() {
    let (host, guest) = ends();
    let mut stream = host.open().await.unwrap();
    stream.write_all(&[7; 100_000]).await.unwrap();
    let (near, _stuck) = duplex(10);
    let first = tokio::spawn(carry(host.clone(), 0, near, true));
    tokio::task::yield_now().await;
    let (near, far) = duplex(1000);
    let _second = tokio::spawn(carry(host, 0, near, true));
    let _far = tokio::spawn(carry(guest.clone(), 0, far, false));
    assert!(matches!(first.await.unwrap(), CarrierEnd::Replaced));
    let mut received = vec![0; 100_000];
    guest.accept().await.unwrap().read_exact(&mut received).await.unwrap();
    assert!(received == [7; 100_000]);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_violates_the_protocol_ends_the_link() {
    let (host, _) = ends();
    let mut stream = host.open().await.unwrap();
    let (near, mut far) = duplex(1000);
    far.write_all(b"HTTP/1.1 400 Bad Request").await.unwrap();
    let violation = LinkFailure::Violation(LinkError::Kind { kind: b'H' });
    match carry(host.clone(), 0, near, true).await {
        CarrierEnd::Failed(failure) => assert_eq!(failure, violation),
        end => panic!("{end:?}"),
    }
    let error = stream.read_u8().await.unwrap_err();
    assert_eq!(LinkFailure::from_io_error(&error), Some(&violation));
}
