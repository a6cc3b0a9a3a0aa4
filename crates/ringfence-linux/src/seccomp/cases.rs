//! The filter's verdicts on a system call, by its arguments: every path through the filter's
//! program.
//!
//! The program is followed as the kernel would follow it, with the number of the call known and its
//! arguments unknown. Each comparison with an argument splits the possible values in two, until a
//! verdict is reached. The resulting cases are disjoint and cover every call.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET,
    BPF_W,
};
use libc::{c_int, sock_filter};

use super::assemble::Verdict;

/// A set of words: those that have `value` in the bits of `mask`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WordPattern {
    pub(super) mask: u32,
    pub(super) value: u32,
}

/// A set of calls that all get one verdict, described by the low words of their arguments. The
/// filter ignores the high words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VerdictCase {
    pub(super) arguments: [WordPattern; 6],
    pub(super) verdict: Verdict,
}

/// Returns the cases of a call, merged as far as is easy.
pub(super) fn cases(program: &[sock_filter], architecture: u32, number: u32) -> Vec<VerdictCase> {
    let mut paths = PathSearch { program, architecture, number, found: Vec::new() };
    paths.follow(0, Accumulator::Known(0), [WordPattern::default(); 6]);
    join(paths.found)
}

/// Knowledge about the only register of BPF.
#[derive(Clone, Copy)]
enum Accumulator {
    Known(u32),
    /// The bits of `mask` of an argument.
    Argument {
        index: usize,
        mask: u32,
    },
}

struct PathSearch<'a> {
    program: &'a [sock_filter],
    architecture: u32,
    number: u32,
    found: Vec<VerdictCase>,
}

impl PathSearch<'_> {
    fn follow(
        &mut self,
        mut position: usize,
        mut accumulator: Accumulator,
        arguments: [WordPattern; 6],
    ) {
        loop {
            let sock_filter { code, jt, jf, k } = self.program[position];
            let (code, jt, jf) = (u32::from(code), usize::from(jt), usize::from(jf));
            position += 1;
            if code == BPF_RET | BPF_K {
                return self.found.push(VerdictCase { arguments, verdict: verdict(k) });
            } else if code == BPF_LD | BPF_W | BPF_ABS {
                accumulator = self.load(k);
            } else if code == BPF_ALU | BPF_AND | BPF_K {
                accumulator = match accumulator {
                    Accumulator::Known(word) => Accumulator::Known(word & k),
                    Accumulator::Argument { index, mask } => {
                        Accumulator::Argument { index, mask: mask & k }
                    }
                };
            } else if code == BPF_JMP | BPF_JA {
                position += k as usize;
            } else {
                let comparison = code & !(BPF_JMP | BPF_K);
                match accumulator {
                    Accumulator::Known(word) => {
                        position += if holds(comparison, word, k) { jt } else { jf }
                    }
                    Accumulator::Argument { index, mask } => {
                        let (yes, no) = part(comparison, mask, k);
                        let branches = yes
                            .into_iter()
                            .map(|yes| (yes, jt))
                            .chain(no.into_iter().map(|no| (no, jf)));
                        for (pattern, jump) in branches {
                            let mut arguments = arguments;
                            if let Some(narrower) = arguments[index].and(pattern) {
                                arguments[index] = narrower;
                                self.follow(position + jump, accumulator, arguments);
                            }
                        }
                        return;
                    }
                }
            }
        }
    }

    /// Loads from `struct seccomp_data` (linux/seccomp.h).
    fn load(&self, offset: u32) -> Accumulator {
        match offset {
            0 => Accumulator::Known(self.number),
            4 => Accumulator::Known(self.architecture),
            _ => {
                assert!(
                    offset >= 16 && offset.is_multiple_of(8),
                    "no filter of ours reads offset {offset}"
                );
                Accumulator::Argument { index: (offset as usize - 16) / 8, mask: u32::MAX }
            }
        }
    }
}

fn verdict(value: u32) -> Verdict {
    match value {
        libc::SECCOMP_RET_ALLOW => Verdict::Allow,
        _ => Verdict::Errno((value & libc::SECCOMP_RET_DATA) as c_int),
    }
}

fn holds(comparison: u32, word: u32, constant: u32) -> bool {
    match comparison {
        BPF_JEQ => word == constant,
        BPF_JGE => word >= constant,
        BPF_JSET => word & constant != 0,
        _ => unreachable!("no filter of ours compares by {comparison:#x}"),
    }
}

/// Splits all words into those for which a comparison of their bits in `mask` holds, and the
/// others.
fn part(comparison: u32, mask: u32, constant: u32) -> (Vec<WordPattern>, Vec<WordPattern>) {
    match comparison {
        BPF_JEQ => {
            let equal = WordPattern { mask, value: constant };
            (vec![equal], equal.others())
        }
        BPF_JSET => {
            let without = WordPattern { mask: mask & constant, value: 0 };
            (without.others(), vec![without])
        }
        _ => unreachable!("no filter of ours compares an argument by {comparison:#x}"),
    }
}

impl WordPattern {
    /// Returns the words that are in both sets, or `None` if there are none.
    fn and(self, other: Self) -> Option<Self> {
        let differ = (self.value ^ other.value) & self.mask & other.mask;
        (differ == 0)
            .then_some(Self { mask: self.mask | other.mask, value: self.value | other.value })
    }

    /// Returns the words that are not in the set, as one pattern for each highest bit in which they
    /// can differ.
    fn others(self) -> Vec<Self> {
        let bits = (0..u32::BITS).map(|bit| 1 << bit).filter(|bit| self.mask & bit != 0);
        let by_bit = bits.map(|bit| {
            let mask = self.mask & !(bit - 1);
            Self { mask, value: (self.value & mask) ^ bit }
        });
        by_bit.collect()
    }

    /// Returns the union of two sets that differ only in the value of one bit.
    fn joined(self, other: Self) -> Option<Self> {
        let differ = self.value ^ other.value;
        let mask = self.mask & !differ;
        (self.mask == other.mask && differ.is_power_of_two())
            .then_some(Self { mask, value: self.value & mask })
    }
}

impl VerdictCase {
    /// Returns the case that covers every call, whatever its arguments.
    pub(super) fn always(verdict: Verdict) -> Self {
        Self { arguments: [WordPattern::default(); 6], verdict }
    }

    /// Returns both cases as one, if they differ only in one bit of one argument.
    fn joined(&self, other: &Self) -> Option<Self> {
        let mut different = (0..6).filter(|&index| self.arguments[index] != other.arguments[index]);
        let (Some(index), None) = (different.next(), different.next()) else { return None };
        let mut joined = *self;
        joined.arguments[index] = self.arguments[index].joined(other.arguments[index])?;
        (self.verdict == other.verdict).then_some(joined)
    }
}

/// Joins cases where possible. For example, the rules for IPv4 and IPv6 are the same, and the two
/// numbers share most of their bits.
fn join(cases: Vec<VerdictCase>) -> Vec<VerdictCase> {
    let mut joined: Vec<VerdictCase> = Vec::with_capacity(cases.len());
    for mut case in cases {
        while let Some((position, both)) = joined
            .iter()
            .enumerate()
            .find_map(|(position, known)| Some((position, known.joined(&case)?)))
        {
            joined.swap_remove(position);
            case = both;
        }
        joined.push(case);
    }
    joined
}
