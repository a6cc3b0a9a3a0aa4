//! Output that is kept: the head and the tail of a stream, whatever it writes between them.
//!
//! Memory stays within the limit. A flood is not even copied: once the head is kept, pages move from the command's
//! pipe to another one, which holds the tail, and from there to nowhere (splice(2)).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};

/// As much waiting in a pipe as this is a flood.
const FLOOD: u64 = 64 * 1024;
/// How long a pipe may fill before it is looked at again.
const MOMENT: Duration = Duration::from_micros(100);
/// What the pipe that holds a flood's tail is asked to hold: the most that any user may have (pipe(7)).
const HELD: usize = 1024 * 1024;

/// The head and the tail of a stream.
#[derive(Debug)]
pub(crate) struct Kept {
    head: Vec<u8>,
    head_limit: usize,
    /// What came last, as far as it was read.
    tail: VecDeque<u8>,
    tail_limit: usize,
    /// What came after that, still in pages of the kernel's.
    flood: Option<Flood>,
    total: u64,
}

/// A pipe that holds the last pages of a flood.
#[derive(Debug)]
struct Flood {
    reader: OwnedFd,
    writer: OwnedFd,
    nowhere: OwnedFd,
    capacity: usize,
}

impl Kept {
    /// Keeps up to `limit` bytes.
    pub(crate) fn new(limit: u64) -> Kept {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let head_limit = limit / 2 + limit % 2;
        Kept {
            head: Vec::new(),
            head_limit,
            tail: VecDeque::new(),
            tail_limit: limit - head_limit,
            flood: None,
            total: 0,
        }
    }

    /// Reads once from a pipe that does not block; returns what was read, nothing at its end.
    pub(crate) fn read<'s>(&mut self, pipe: impl AsFd, scratch: &'s mut [u8]) -> io::Result<&'s [u8]> {
        self.drain()?;
        let length = rustix::io::read(pipe, &mut *scratch)?;
        self.push(&scratch[..length]);
        Ok(&scratch[..length])
    }

    /// Takes a flood out of a pipe without looking at it; false when there is none, or its head is still wanted.
    pub(crate) fn divert(&mut self, pipe: impl AsFd) -> io::Result<bool> {
        if self.head.len() < self.head_limit {
            return Ok(false);
        }
        if rustix::io::ioctl_fionread(&pipe)? < FLOOD {
            // A writer of small pieces is better met seldom than at every piece.
            std::thread::sleep(MOMENT);
            if rustix::io::ioctl_fionread(&pipe)? < FLOOD {
                return Ok(false);
            }
        }
        if self.flood.is_none() {
            self.flood = Some(Flood::new()?);
        }
        let flood = self.flood.as_ref().expect("it was made above");
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        match splice(&pipe, None, &flood.writer, None, flood.capacity, flags) {
            Ok(moved) => self.total += moved as u64,
            Err(Errno::AGAIN) => {
                // The pipe that holds the tail is full: what was kept before it is no longer part of the tail.
                splice(&flood.reader, None, &flood.nowhere, None, flood.capacity / 2, flags)?;
                self.tail.clear();
            }
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Reads what is left of a flood, so that what comes next can come after it.
    fn drain(&mut self) -> io::Result<()> {
        let Some(flood) = self.flood.take() else { return Ok(()) };
        let mut bytes = vec![0; flood.capacity];
        loop {
            match rustix::io::read(&flood.reader, &mut bytes[..]) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(length) => self.keep_at_end(&bytes[..length]),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Keeps what was read elsewhere.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let to_head = bytes.len().min(self.head_limit - self.head.len());
        self.head.extend_from_slice(&bytes[..to_head]);
        self.keep_at_end(&bytes[to_head..]);
    }

    fn keep_at_end(&mut self, bytes: &[u8]) {
        // Only the last `tail_limit` bytes can matter.
        let matters = &bytes[bytes.len().saturating_sub(self.tail_limit)..];
        let surplus = (self.tail.len() + matters.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..surplus);
        self.tail.extend(matters);
    }

    /// What was kept, with a line that counts what was dropped, and that count.
    pub(crate) fn finish(mut self) -> io::Result<(String, u64)> {
        self.drain()?;
        let mut bytes = self.head;
        let dropped = self.total - (bytes.len() + self.tail.len()) as u64;
        if dropped > 0 {
            bytes.extend_from_slice(format!("\n[{dropped} bytes dropped]\n").as_bytes());
        }
        let (older, newer) = self.tail.as_slices();
        bytes.extend_from_slice(older);
        bytes.extend_from_slice(newer);
        drop(self.tail);
        let text =
            String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        Ok((text, dropped))
    }
}

impl Flood {
    fn new() -> io::Result<Flood> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = fcntl_setpipe_size(&writer, HELD); // a host may allow less: then less of the tail is kept
        let capacity = fcntl_getpipe_size(&writer)?;
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        let nowhere = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
        Ok(Flood { reader, writer, nowhere, capacity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(limit: u64, chunks: &[&str], text: &str, dropped: u64) {
        let mut kept = Kept::new(limit);
        chunks.iter().for_each(|chunk| kept.push(chunk.as_bytes()));
        assert_eq!(kept.finish().unwrap(), (text.to_owned(), dropped));
    }

    #[test]
    fn output_within_the_limit_is_whole() {
        check(10, &[], "", 0);
        check(10, &["hello"], "hello", 0);
        check(10, &["hello", "world"], "helloworld", 0);
        check(10, &["helloworld"], "helloworld", 0);
    }

    #[test]
    fn output_beyond_the_limit_keeps_head_and_tail() {
        check(10, &["0123456789ABCDEF"], "01234\n[6 bytes dropped]\nBCDEF", 6);
        check(10, &["01", "23", "45", "67", "89", "AB", "CD", "EF"], "01234\n[6 bytes dropped]\nBCDEF", 6);
        check(10, &["0123456", "789ABCDEFGH"], "01234\n[8 bytes dropped]\nDEFGH", 8);
    }

    #[test]
    fn a_limit_of_nothing_keeps_nothing_but_the_count() {
        check(0, &["abc"], "\n[3 bytes dropped]\n", 3);
        check(1, &["abc"], "a\n[2 bytes dropped]\n", 2);
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced() {
        let mut kept = Kept::new(10);
        kept.push(b"a\xffb");
        assert_eq!(kept.finish().unwrap(), ("a\u{fffd}b".to_owned(), 0));
    }

    /// Writes numbered lines, a flood and then a trickle, and reads them as a run's output is read.
    #[test]
    fn a_flood_keeps_its_first_and_its_last_lines_and_counts_the_rest() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let lines: String = (0..2_000_000).map(|number| format!("{number}\n")).collect();
        let size = lines.len() as u64;
        let source = std::thread::spawn(move || {
            let mut writer = fs_err::File::from_parts(writer.into(), "a pipe");
            io::Write::write_all(&mut writer, lines.as_bytes()).unwrap();
            for number in 0..100 {
                io::Write::write_all(&mut writer, format!("last {number}\n").as_bytes()).unwrap();
            }
        });
        let mut kept = Kept::new(4096);
        let mut scratch = vec![0; 4096];
        loop {
            match kept.divert(&reader) {
                Ok(true) => continue,
                diverted => assert!(!diverted.unwrap()),
            }
            match kept.read(&reader, &mut scratch) {
                Ok([]) => break,
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        source.join().unwrap();
        let (text, dropped) = kept.finish().unwrap();
        let marker = format!("\n[{dropped} bytes dropped]\n");
        let (head, tail) = text.split_once(&marker).unwrap();
        assert!(head.starts_with("0\n1\n2\n3\n"), "{head:.40}");
        assert!(tail.ends_with("last 98\nlast 99\n"), "{tail:.40}");
        assert!(tail.contains("\n1999999\nlast 0\n"), "the end of the flood and what followed it are in order");
        let all: u64 = size + (0..100).map(|number| format!("last {number}\n").len() as u64).sum::<u64>();
        assert_eq!(dropped + (head.len() + tail.len()) as u64, all);
    }
}
