use super::super::{AdmittedBytes, StreamWatch};
use super::*;
use crate::opening::LineRule;

/// Returns a hello for a server of this name, as one message.
fn hello(name: &[u8]) -> Vec<u8> {
    hello_with(name, &[], &[])
}

/// Returns a hello with this session, and with the bytes `behind` after the extensions.
fn hello_with(name: &[u8], session: &[u8], behind: &[u8]) -> Vec<u8> {
    let length = u16::try_from(name.len()).unwrap().to_be_bytes();
    hello_of_names(&[&[0], &length[..], name].concat(), session, behind)
}

/// Returns a hello with `entry` as the content of the list of names.
fn hello_of_names(entry: &[u8], session: &[u8], behind: &[u8]) -> Vec<u8> {
    let number = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
    let list = [&number(entry.len())[..], entry].concat();
    let names = [&[0, 0], &number(list.len())[..], &list].concat();
    // Groups, signature schemes and a key share, without which rustls reads no hello.
    let rest = [0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 4, 0, 2, 8, 4, 0, 43, 0, 3, 2, 3, 4];
    let share = [&[0, 51, 0, 38, 0, 36, 0, 29, 0, 32][..], &[9; 32]].concat();
    let extensions = [&names[..], &rest, &share].concat();
    let lists = [&[0, 2, 0x13, 1, 1, 0][..], &number(extensions.len()), &extensions].concat();
    let session = [&[u8::try_from(session.len()).unwrap()], session].concat();
    let body = [&[3, 3][..], &[7; 32], &session, &lists, behind].concat();
    [&[1, 0], &number(body.len())[..], &body].concat()
}

fn in_records(message: &[u8], size: usize, minor: u8) -> Vec<u8> {
    let record = |content: &[u8]| {
        let length = u16::try_from(content.len()).unwrap();
        [&[HANDSHAKE, 3, minor], &length.to_be_bytes()[..], content].concat()
    };
    message.chunks(size).flat_map(record).collect()
}

/// Returns the findings in a stream that arrives in pieces of `size`, and the bytes that passed
/// before the first finding.
fn findings(bytes: &[u8], size: usize) -> (Vec<StreamFinding>, Vec<u8>) {
    let (mut watch, mut passed) = (StreamWatch::new(LineRule::None), Vec::new());
    for piece in bytes.chunks(size) {
        match watch.read(piece) {
            AdmittedBytes::All => passed.extend_from_slice(piece),
            AdmittedBytes::Part(mut part) => passed.append(&mut part),
            AdmittedBytes::None => return (watch.take_findings(), passed),
        }
    }
    passed.append(&mut watch.take_rest());
    (Vec::new(), passed)
}

#[test]
fn a_hello_is_found_at_any_byte_in_any_pieces() {
    let named = [StreamFinding::Hello(ClientHello::Named("front.test".to_owned()))];
    let message = hello(b"front.test");
    let whole = in_records(&message, 1 << 14, 1);
    for before in [
        &b""[..],
        b"STARTTLS\r\n",
        &[22],
        &[22, 3],
        &[22, 3, 1, 0, 0],
        &[21, 3, 1, 0, 2, 1, 0],
        &[22, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xf0, 3, 3],
        &[22, 3, 1, 0, 1],
        &[0; 70_000],
    ] {
        for hello in [
            whole.clone(),
            in_records(&message, 1 << 14, 5),
            in_records(&message, 1 << 14, 255),
            in_records(&message, 50, 127),
            in_records(&message, 1, 1),
            [
                &in_records(&message[..9], 9, 1),
                &[21, 3, 1, 0, 2, 1, 0][..],
                &in_records(&message[9..], 99, 1),
            ]
            .concat(),
            [
                &in_records(&message[..9], 9, 1),
                &[22, 3, 9, 0, 0][..],
                &in_records(&message[9..], 99, 1),
            ]
            .concat(),
        ] {
            for size in [1, 7, 1 << 20] {
                let (found, passed) = findings(&[before, &hello, b"rest"].concat(), size);
                assert_eq!(found, named, "{} {size}", before.escape_ascii());
                let is_heard = passed.windows(10).any(|part| part == b"front.test");
                assert!(!is_heard, "{} {size}", before.escape_ascii());
            }
        }
    }
}

#[test]
fn a_hello_is_found_in_records_of_any_version_that_a_server_reads() {
    let named = [StreamFinding::Hello(ClientHello::Named("front.test".to_owned()))];
    let message = hello(b"front.test");
    let record = |version: [u8; 2], content: &[u8]| {
        let length = u16::try_from(content.len()).unwrap();
        [&[HANDSHAKE][..], &version, &length.to_be_bytes(), content].concat()
    };
    for first in [[0, 0], [1, 1], [2, 0], [3, 1], [4, 3], [15, 255]] {
        for later in [first, [3, 3], [16, 0], [255, 255]] {
            let in_two = [record(first, &message[..60]), record(later, &message[60..])].concat();
            for hello in [record(first, &message), in_two] {
                for size in [1, 7, 1 << 20] {
                    let (found, _) = findings(&[b"STARTTLS\r\n", &hello[..]].concat(), size);
                    assert_eq!(found, named, "{first:?} {later:?} {size}");
                }
            }
        }
    }
    let (found, _) = findings(&record([16, 0], &message), 1 << 20);
    assert_eq!(found, [], "no server reads this version");
}

#[test]
fn a_hello_that_only_some_servers_read_is_unreadable() {
    let message = hello(b"front.test");
    let mut with_odd_ciphers = message.clone();
    with_odd_ciphers[40] += 1;
    with_odd_ciphers.insert(41, 0);
    with_odd_ciphers[3] += 1;
    let mut with_short_list = message.clone();
    let length_at = 45;
    with_short_list[length_at + 1] -= 40;
    let mut with_long_list = message;
    with_long_list[length_at] = 0xff;
    for message in [
        hello_with(b"front.test", &[5; 33], &[]),
        hello_with(b"front.test", &[0; 40], &[]),
        hello_with(b"front.test", &[5; 255], &[]),
        hello_with(b"front.test", &[], &[0]),
        hello_with(b"front.test", &[], b"behind the list"),
        with_odd_ciphers,
        with_short_list,
        with_long_list,
        hello_of_names(&[&[1, 0, 1, b'x'][..], &[0, 0, 10], b"front.test"].concat(), &[], &[]),
        hello(b"\x01.front.test"),
    ] {
        for records in [
            in_records(&message, 1 << 14, 1),
            in_records(&message, 100, 1),
            in_records(&message, 3, 3),
        ] {
            for size in [1, 9, 1 << 20] {
                let (found, _) = findings(&[b"STARTTLS\r\n", &records[..]].concat(), size);
                let is_refused =
                    matches!(found[..], [StreamFinding::Hello(ClientHello::Unreadable(_))]);
                assert!(is_refused, "{} {size}: {found:?}", records.escape_ascii());
            }
        }
    }
}

#[test]
fn bytes_of_a_hello_in_small_records_are_no_other_hello() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    for _ in 0..300 {
        let mut message =
            hello_with(b"origin.test", &std::array::from_fn::<_, 32, _>(|_| random()), &[]);
        message[6..38].fill_with(&mut random);
        let share = message.len() - 32;
        message[share..].fill_with(&mut random);
        for size in [1, 2, 43] {
            let (found, passed) = findings(&in_records(&message, size, 1), 1 << 20);
            assert_eq!(
                found,
                [StreamFinding::Hello(ClientHello::Named("origin.test".to_owned()))],
                "{size}"
            );
            assert_eq!(passed, b"");
        }
    }
}

#[test]
fn a_server_name_that_is_an_address_is_read_as_an_address() {
    for address in ["10.9.8.7", "::1", "255.255.255.255"] {
        let (found, _) = findings(&in_records(&hello(address.as_bytes()), 70, 1), 1 << 20);
        assert_eq!(found, [StreamFinding::Hello(ClientHello::Named(address.to_owned()))]);
    }
    let (found, _) = findings(&in_records(&hello(b"10.9.8.7:443"), 70, 1), 1 << 20);
    assert!(matches!(found[..], [StreamFinding::Hello(ClientHello::Unreadable(_))]), "{found:?}");
}

#[test]
fn a_second_hello_is_found_and_passed_bytes_are_unchanged() {
    let own = in_records(&hello(b"origin.test"), 1 << 14, 1);
    let front = in_records(&hello(b"front.test"), 1 << 14, 1);
    let stream = [b"STARTTLS\r\n", &own[..], b"\x17\x03\x03\0\x02ab STARTTLS\r\n", &front].concat();
    for size in [1, 3, 1 << 20] {
        let (mut watch, mut passed, mut names) =
            (StreamWatch::new(LineRule::None), Vec::new(), Vec::new());
        for piece in stream.chunks(size) {
            match watch.read(piece) {
                AdmittedBytes::All => passed.extend_from_slice(piece),
                AdmittedBytes::Part(mut part) => passed.append(&mut part),
                AdmittedBytes::None => {
                    names.append(&mut watch.take_findings());
                    passed.append(&mut watch.release());
                }
            }
        }
        let named = ["origin.test", "front.test"]
            .map(|name| StreamFinding::Hello(ClientHello::Named(name.to_owned())));
        assert_eq!(names, named);
        assert!(passed == stream);
    }
}

#[test]
fn a_hello_that_another_message_follows_is_unreadable() {
    let message = [&hello(b"front.test")[..], &[20, 0, 0, 0]].concat();
    let (found, _) = findings(&in_records(&message, 1 << 14, 3), 11);
    assert!(matches!(found[..], [StreamFinding::Hello(ClientHello::Unreadable(_))]), "{found:?}");
}

#[test]
fn bytes_that_are_no_hello_pass_unchanged() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = Vec::new();
    while noise.len() < 3_000_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    for bytes in [
        noise,
        [22, 3].repeat(9000),
        [22, 3, 1, 0, 9].repeat(9000),
        [22, 3, 1, 0, 90, 2].repeat(9000),
        // A packet of MySQL with 790 bytes.
        [&[22, 3, 0, 3][..], &[b'a'; 790]].concat(),
        vec![22; 100],
        [22, 0, 0, 0].repeat(9000),
        [0, 0, 0, 22, 0, 0, 0, 1].repeat(9000),
        [22, 0, 1, 0].repeat(9000),
        (0..9000_u32).flat_map(|number| (number % 512).to_be_bytes()).collect(),
        (0..9000_u32).flat_map(|number| (number % 512).to_le_bytes()).collect(),
    ] {
        let (found, passed) = findings(&bytes, 64 * 1024);
        assert_eq!(found, []);
        assert!(passed == bytes);
    }
    // Nothing is held back for bytes that are only the start of a possible hello.
    for bytes in [&[22][..], &[22, 3], &[22, 3, 1, 0, 9], &[22, 3, 1, 1, 0, 1, 0]] {
        let mut watch = StreamWatch::new(LineRule::None);
        assert_eq!(watch.read(bytes), AdmittedBytes::All, "{bytes:?}");
    }
}

#[test]
fn too_many_hello_candidates_end_the_stream() {
    let (found, _) = findings(&[22, 3, 1, 0x20, 0, 1, 0].repeat(9000), 1 << 10);
    assert_eq!(found, [StreamFinding::TooManyHellos]);
}
