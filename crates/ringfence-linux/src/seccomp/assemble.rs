//! An assembler for the part of classic BPF that seccomp accepts.
//!
//! Jumps in BPF only lead forward, so the program is written from its end: when a jump is written,
//! its target already exists and the distance is known. A conditional jump reaches 255
//! instructions. A target further away is reached through an unconditional jump that is placed in
//! between.

use std::collections::HashMap;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET,
    BPF_W,
};
use libc::{c_int, sock_filter};

/// A position in the program, counted from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A comparison of the accumulator with a constant.
#[derive(Debug, Clone, Copy)]
pub(super) enum Comparison {
    Equals(u32),
    AtLeast(u32),
    HasAnyOf(u32),
}

/// The result with which a filter's program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Verdict {
    Allow,
    Errno(c_int),
}

/// A program under construction, its last instruction first.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    reversed: Vec<sock_filter>,
    verdicts: HashMap<Verdict, Label>,
}

impl Assembler {
    /// One less than the reach of a conditional jump, because the other branch may still need a
    /// jump in between.
    const MAX_JUMP: usize = 254;

    /// Emits the end of the program with a verdict, or reuses an equal end within reach.
    pub(super) fn verdict(&mut self, verdict: Verdict) -> Label {
        if let Some(&label) = self.verdicts.get(&verdict)
            && self.distance(label) <= Self::MAX_JUMP
        {
            return label;
        }
        let value = match verdict {
            Verdict::Allow => libc::SECCOMP_RET_ALLOW,
            Verdict::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
        };
        let label = self.push(BPF_RET | BPF_K, 0, 0, value);
        self.verdicts.insert(verdict, label);
        label
    }

    /// Emits a load of a word of `seccomp_data`, then continues at `next`.
    pub(super) fn load(&mut self, offset: u32, next: Label) -> Label {
        self.fall_through(next);
        self.push(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset)
    }

    /// Emits a mask that keeps only `bits` of the accumulator, then continues at `next`.
    pub(super) fn mask(&mut self, bits: u32, next: Label) -> Label {
        self.fall_through(next);
        self.push(BPF_ALU | BPF_AND | BPF_K, 0, 0, bits)
    }

    /// Emits a branch that continues at `yes` if the test holds, else at `no`.
    pub(super) fn branch(&mut self, test: Comparison, yes: Label, no: Label) -> Label {
        let yes = self.within_reach(yes);
        let no = self.within_reach(no);
        let (operation, value) = match test {
            Comparison::Equals(value) => (BPF_JEQ, value),
            Comparison::AtLeast(value) => (BPF_JGE, value),
            Comparison::HasAnyOf(value) => (BPF_JSET, value),
        };
        let (yes, no) = (self.near(yes), self.near(no));
        self.push(BPF_JMP | operation | BPF_K, yes, no, value)
    }

    /// Emits tests that continue at `yes` if any of them holds, else at `no`.
    pub(super) fn any(
        &mut self,
        tests: impl IntoIterator<Item = Comparison>,
        yes: Label,
        no: Label,
    ) -> Label {
        tests.into_iter().fold(no, |next, test| self.branch(test, yes, next))
    }

    /// Returns the program that starts at `entry`.
    pub(super) fn finish(mut self, entry: Label) -> Vec<sock_filter> {
        self.fall_through(entry);
        self.reversed.reverse();
        self.reversed
    }

    fn within_reach(&mut self, target: Label) -> Label {
        if self.distance(target) <= Self::MAX_JUMP { target } else { self.jump(target) }
    }

    fn fall_through(&mut self, next: Label) {
        if self.distance(next) > 0 {
            self.jump(next);
        }
    }

    fn jump(&mut self, target: Label) -> Label {
        let distance =
            u32::try_from(self.distance(target)).expect("a filter has at most 4096 instructions");
        self.push(BPF_JMP | BPF_JA, 0, 0, distance)
    }

    /// Counts the instructions between the next instruction to be written and the target.
    fn distance(&self, target: Label) -> usize {
        self.reversed.len() - 1 - target.0
    }

    fn near(&self, target: Label) -> u8 {
        u8::try_from(self.distance(target))
            .expect("a target that is too far is reached over a jump")
    }

    fn push(&mut self, code: u32, jt: u8, jf: u8, k: u32) -> Label {
        let code = u16::try_from(code).expect("operation codes have eight bits");
        self.reversed.push(sock_filter { code, jt, jf, k });
        Label(self.reversed.len() - 1)
    }
}
