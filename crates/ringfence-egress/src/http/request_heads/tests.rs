use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Returns the bytes that pass when `bytes` arrive in pieces of `size`, and the fault.
async fn passed(bytes: &[u8], size: usize) -> (Vec<u8>, Option<HeadFault>) {
    let (mut client, server) = tokio::io::duplex(size);
    let mut heads = StrictHeadStream::new(RewoundStream::new(Bytes::new(), server), 1024);
    let write = async {
        let _ = client.write_all(bytes).await; // a fault ends the reader
        drop(client);
    };
    let mut out = Vec::new();
    let read = async {
        // An odd size, so that bodies and heads end within what is asked for.
        let mut space = [0; 13];
        while let Ok(read) = heads.read(&mut space).await {
            if read == 0 {
                break;
            }
            out.extend_from_slice(&space[..read]);
        }
        let fault = heads.fault();
        drop(heads);
        fault
    };
    let ((), fault) = tokio::join!(write, read);
    (out, fault)
}

#[tokio::test]
async fn valid_requests_pass_unchanged_in_pieces_of_any_size() {
    let requests = b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n\
        PUT http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 21\r\n\r\n01234\n\n\r\n\r\n0123456789\
        POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nwhat \
        follows is not looked at\n\n";
    for size in [1, 2, 3, 7, 64, 4096] {
        let (out, fault) = passed(requests, size).await;
        assert_eq!(fault, None, "in pieces of {size}");
        assert_eq!(
            String::from_utf8_lossy(&out),
            String::from_utf8_lossy(requests),
            "in pieces of {size}"
        );
    }
}

#[tokio::test]
async fn no_byte_of_a_faulty_head_passes_in_pieces_of_any_size() {
    let good = b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n";
    for (bad, fault) in [
        (&b"GET http://a/ HTTP/1.1\nHost: a\n\n"[..], HeadFault::LineEnd),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", HeadFault::Hosts),
        (b"GET http://a/ HTTP/1.1\r\nX: y\r\n z\r\n\r\n", HeadFault::Name),
        (b"GET http://a\\@b/ HTTP/1.1\r\nHost: a\r\n\r\n", HeadFault::Target),
        (b"\x04\x01\0\x50 is SOCKS4, and \x16\x03\x01 would be TLS", HeadFault::RequestLine),
        (&[b'a'; 2000], HeadFault::TooLong(1024)),
    ] {
        for size in [1, 5, 4096] {
            let (out, found) = passed(&[good, bad].concat(), size).await;
            assert_eq!(found, Some(fault));
            assert_eq!(out, good, "in pieces of {size}");
        }
    }
}

#[tokio::test]
async fn unused_bytes_are_put_back_in_order() {
    let bytes = b"CONNECT a:1 HTTP/1.1\r\n\r\neager words";
    let mut heads = StrictHeadStream::new(
        RewoundStream::new(Bytes::from_static(bytes), tokio::io::empty()),
        1024,
    );
    let mut head = [0; 24];
    heads.read_exact(&mut head).await.unwrap();
    let mut rest = Vec::new();
    heads.into_inner(Bytes::from_static(b"unused, ")).read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"unused, eager words");
}
