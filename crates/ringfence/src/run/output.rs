//! Captured output: keeps the head and the tail of a stream, and drops the middle if the stream is
//! too long.
//!
//! Memory usage stays within the limit. Large output ("a flood") is not copied: once more than the
//! limit was written, pages move from the command's pipe to other pipes, which hold the tail, and
//! from there to `/dev/null` (splice(2)). A tail is copied only if it is too long for a few pipes.
//! Of endless output, no more than a mebibyte of the tail is guaranteed to be kept.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};

/// Number of bytes waiting in a pipe at which they count as a flood.
const FLOOD_BYTES: u64 = 64 * 1024;
/// Time that a pipe may fill before it is checked again.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// Capacity that is requested for each pipe that holds the tail of a flood: the most that any user
/// may have (pipe(7)).
const TAIL_PIPE_BYTES: usize = 1024 * 1024;
/// Largest number of pipes that hold the tail of a flood.
const MOST_PIPES: usize = 8;
/// Output of more than this many times its limit counts as endless, and less of its end is kept.
/// The reason is that pages that wait for long are no longer in the processor's caches when they
/// are used again, which costs a fifth of the speed.
const ENDLESS_FACTOR: usize = 4;
const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);

/// The head and the tail of a stream.
#[derive(Debug)]
pub(crate) struct KeptOutput {
    head: Vec<u8>,
    head_limit: usize,
    /// Last bytes that were read.
    tail: VecDeque<u8>,
    tail_limit: usize,
    /// Bytes after `tail` that are still in pages of the kernel, oldest pipe first. Only the last
    /// pipe receives more.
    flood: VecDeque<FloodPipe>,
    nowhere: Option<OwnedFd>,
    total: u64,
}

/// A pipe that holds pages of a flood.
#[derive(Debug)]
struct FloodPipe {
    reader: OwnedFd,
    writer: OwnedFd,
    capacity: usize,
    bytes: usize,
}

impl KeptOutput {
    /// Returns a value that keeps up to `limit` bytes.
    pub(crate) fn new(limit: u64) -> KeptOutput {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let head_limit = limit / 2 + limit % 2;
        KeptOutput {
            head: Vec::new(),
            head_limit,
            tail: VecDeque::new(),
            tail_limit: limit - head_limit,
            flood: VecDeque::new(),
            nowhere: None,
            total: 0,
        }
    }

    /// Reads once from a non-blocking pipe. Returns the bytes, which are empty at the end of the
    /// stream.
    pub(crate) fn read<'s>(
        &mut self,
        pipe: impl AsFd,
        scratch: &'s mut [u8],
    ) -> io::Result<&'s [u8]> {
        self.drain()?;
        let length = rustix::io::read(pipe, &mut *scratch)?;
        self.push(&scratch[..length]);
        Ok(&scratch[..length])
    }

    /// Moves a flood out of a pipe without reading it. Returns false if there is no flood, or if
    /// all of the output may still fit the limit.
    pub(crate) fn divert(&mut self, pipe: impl AsFd) -> io::Result<bool> {
        if self.total < (self.head_limit + self.tail_limit) as u64 {
            return Ok(false);
        }
        if rustix::io::ioctl_fionread(&pipe)? < FLOOD_BYTES {
            // If the writer writes small pieces, reading seldom is faster than reading every piece.
            std::thread::sleep(POLL_INTERVAL);
            if rustix::io::ioctl_fionread(&pipe)? < FLOOD_BYTES {
                return Ok(false);
            }
        }
        if self.flood.is_empty() {
            self.flood.push_back(FloodPipe::new()?);
        }
        let last = self.flood.back_mut().expect("one was made above");
        match splice(&pipe, None, &last.writer, None, last.capacity, FLAGS) {
            Ok(moved) => {
                last.bytes += moved;
                self.total += moved as u64;
            }
            Err(Errno::AGAIN) => self.make_room()?,
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Appends an empty pipe, because the last pipe is full.
    fn make_room(&mut self) -> io::Result<()> {
        let limit = self.head_limit + self.tail_limit;
        let is_endless = self.total > limit.saturating_mul(ENDLESS_FACTOR) as u64;
        let wanted =
            if is_endless { self.tail_limit.min(TAIL_PIPE_BYTES) } else { self.tail_limit };
        let mut held: usize = self.flood.iter().map(|held| held.bytes).sum();
        let mut empty = None;
        // Drop pipes that are no longer part of the tail. Then the bytes that were read before them
        // are not part of it, either.
        while let Some(oldest) = self.flood.pop_front_if(|oldest| held - oldest.bytes >= wanted) {
            self.tail.clear();
            oldest.empty(self.nowhere()?)?;
            held -= oldest.bytes;
            empty = Some(oldest);
        }
        if empty.is_none() && self.flood.len() < MOST_PIPES {
            empty = FloodPipe::new().ok();
        }
        if empty.is_none()
            && let Some(oldest) = self.flood.pop_front()
        {
            self.read_all(&oldest)?;
            empty = Some(oldest);
        }
        self.flood.extend(empty.map(|pipe| FloodPipe { bytes: 0, ..pipe }));
        Ok(())
    }

    fn nowhere(&mut self) -> io::Result<&OwnedFd> {
        if self.nowhere.is_none() {
            let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
            self.nowhere = Some(rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?);
        }
        Ok(self.nowhere.as_ref().expect("it was opened above"))
    }

    /// Reads the rest of a flood, so that later bytes come after it.
    fn drain(&mut self) -> io::Result<()> {
        while let Some(held) = self.flood.pop_front() {
            self.read_all(&held)?;
        }
        Ok(())
    }

    fn read_all(&mut self, held: &FloodPipe) -> io::Result<()> {
        let mut bytes = vec![0; held.bytes];
        let mut read = 0;
        while read < bytes.len() {
            read += rustix::io::read(&held.reader, &mut bytes[read..])?;
        }
        self.keep_at_end(&bytes);
        Ok(())
    }

    /// Adds bytes that the caller has read.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let to_head = bytes.len().min(self.head_limit - self.head.len());
        self.head.extend_from_slice(&bytes[..to_head]);
        self.keep_at_end(&bytes[to_head..]);
    }

    fn keep_at_end(&mut self, bytes: &[u8]) {
        // Only the last `tail_limit` bytes can be part of the tail.
        let matters = &bytes[bytes.len().saturating_sub(self.tail_limit)..];
        let surplus = (self.tail.len() + matters.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..surplus);
        self.tail.extend(matters);
    }

    /// Returns the kept text, with a line that tells the number of dropped bytes, and that number.
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
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        Ok((text, dropped))
    }
}

impl FloodPipe {
    fn new() -> io::Result<FloodPipe> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = fcntl_setpipe_size(&writer, TAIL_PIPE_BYTES); // with less, more is copied
        let capacity = fcntl_getpipe_size(&writer)?;
        Ok(FloodPipe { reader, writer, capacity, bytes: 0 })
    }

    /// Drops the bytes that the pipe holds.
    fn empty(&self, nowhere: &OwnedFd) -> io::Result<()> {
        let mut left = self.bytes;
        while left > 0 {
            left -= splice(&self.reader, None, nowhere, None, left, FLAGS)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(limit: u64, chunks: &[&str], text: &str, dropped: u64) {
        let mut kept = KeptOutput::new(limit);
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
        check(
            10,
            &["01", "23", "45", "67", "89", "AB", "CD", "EF"],
            "01234\n[6 bytes dropped]\nBCDEF",
            6,
        );
        check(10, &["0123456", "789ABCDEFGH"], "01234\n[8 bytes dropped]\nDEFGH", 8);
    }

    #[test]
    fn a_limit_of_nothing_keeps_nothing_but_the_count() {
        check(0, &["abc"], "\n[3 bytes dropped]\n", 3);
        check(1, &["abc"], "a\n[2 bytes dropped]\n", 2);
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced() {
        let mut kept = KeptOutput::new(10);
        kept.push(b"a\xffb");
        assert_eq!(kept.finish().unwrap(), ("a\u{fffd}b".to_owned(), 0));
    }

    /// Writes a flood and then small pieces, and reads both as the output of a run is read.
    fn keep(limit: u64, flood: String, trickle: Vec<String>) -> (String, u64) {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        let source = std::thread::spawn(move || {
            let mut writer = fs_err::File::from_parts(writer.into(), "a pipe");
            for part in std::iter::once(flood).chain(trickle) {
                io::Write::write_all(&mut writer, part.as_bytes()).unwrap();
            }
        });
        let mut kept = KeptOutput::new(limit);
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
        kept.finish().unwrap()
    }

    fn numbered(count: u64) -> String {
        (0..count).map(|number| format!("{number}\n")).collect()
    }

    #[test]
    fn a_flood_within_the_limit_is_whole() {
        let flood = numbered(500_000);
        let (text, dropped) = keep(flood.len() as u64, flood.clone(), Vec::new());
        assert_eq!(dropped, 0);
        assert!(text == flood);
    }

    #[test]
    fn of_a_flood_as_much_is_kept_as_the_limit_says() {
        let flood = numbered(3_000_000);
        // Cover a tail that fits several pipes, and one that needs more pipes than there may be.
        for limit in [10_000_000, 20_000_000] {
            for trickle in [Vec::new(), vec!["the end\n".to_owned(); 3]] {
                let all = format!("{flood}{}", trickle.concat());
                let (text, dropped) = keep(limit as u64, flood.clone(), trickle);
                assert_eq!(
                    dropped as usize,
                    all.len() - limit,
                    "of {} with a limit of {limit}",
                    all.len()
                );
                let marker = format!("\n[{dropped} bytes dropped]\n");
                let expected = [&all[..limit / 2], &marker, &all[all.len() - limit / 2..]].concat();
                assert!(text == expected, "with a limit of {limit}: {text:.40}");
            }
        }
    }

    #[test]
    fn of_an_endless_flood_the_last_of_its_end_is_kept() {
        let flood = numbered(4_000_000);
        for limit in [0, 4096, 1_000_000, 5_000_000] {
            let (text, dropped) = keep(limit as u64, flood.clone(), Vec::new());
            let (head, tail) = text.split_once(&format!("\n[{dropped} bytes dropped]\n")).unwrap();
            assert!(
                head == &flood[..limit / 2] && flood.ends_with(tail),
                "with a limit of {limit}"
            );
            assert_eq!(
                dropped as usize + head.len() + tail.len(),
                flood.len(),
                "with a limit of {limit}"
            );
            assert!(
                tail.len() >= TAIL_PIPE_BYTES.min(limit / 2),
                "with a limit of {limit}: {}",
                tail.len()
            );
        }
    }

    #[test]
    fn a_flood_keeps_its_first_and_its_last_lines_and_counts_the_rest() {
        let flood = numbered(2_000_000);
        let trickle: Vec<String> = (0..100).map(|number| format!("last {number}\n")).collect();
        let all = flood.len() + trickle.iter().map(String::len).sum::<usize>();
        let (text, dropped) = keep(4096, flood, trickle);
        let marker = format!("\n[{dropped} bytes dropped]\n");
        let (head, tail) = text.split_once(&marker).unwrap();
        assert!(head.starts_with("0\n1\n2\n3\n"), "{head:.40}");
        assert!(tail.ends_with("last 98\nlast 99\n"), "{tail:.40}");
        assert!(
            tail.contains("\n1999999\nlast 0\n"),
            "the end of the flood and what followed it are in order"
        );
        assert_eq!(dropped as usize + head.len() + tail.len(), all);
    }
}
