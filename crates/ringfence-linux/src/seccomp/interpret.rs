//! An interpreter of the part of classic BPF that seccomp accepts, to test filters without
//! installing them.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET,
    BPF_W,
};
use libc::{c_int, sock_filter};

/// The `struct seccomp_data` that the kernel passes to a filter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SyscallData {
    pub(super) number: u32,
    pub(super) architecture: u32,
    pub(super) arguments: [u64; 6],
}

impl SyscallData {
    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.architecture,
            16..64 if offset.is_multiple_of(4) => {
                let argument = self.arguments[((offset - 16) / 8) as usize];
                if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
            }
            _ => panic!("no filter of ours reads offset {offset}"),
        }
    }
}

/// The verdict of a filter, and the number of instructions that it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FilterOutcome {
    pub(super) verdict: Result<(), c_int>,
    pub(super) steps: usize,
}

/// Runs a program. Panics on anything that the kernel would refuse to install.
pub(super) fn interpret(program: &[sock_filter], call: SyscallData) -> FilterOutcome {
    let (mut accumulator, mut position) = (0_u32, 0_usize);
    for steps in 1..=program.len() {
        let sock_filter { code, jt, jf, k } = program[position];
        let code = u32::from(code);
        position += 1;
        let holds = match code {
            _ if code == BPF_LD | BPF_W | BPF_ABS => {
                accumulator = call.word(k);
                continue;
            }
            _ if code == BPF_ALU | BPF_AND | BPF_K => {
                accumulator &= k;
                continue;
            }
            _ if code == BPF_JMP | BPF_JA => {
                position += k as usize;
                continue;
            }
            _ if code == BPF_JMP | BPF_JEQ | BPF_K => accumulator == k,
            _ if code == BPF_JMP | BPF_JGE | BPF_K => accumulator >= k,
            _ if code == BPF_JMP | BPF_JSET | BPF_K => accumulator & k != 0,
            _ if code == BPF_RET | BPF_K => {
                let verdict = match k {
                    libc::SECCOMP_RET_ALLOW => Ok(()),
                    _ if k & 0xffff_0000 == libc::SECCOMP_RET_ERRNO => Err((k & 0xffff) as c_int),
                    _ => panic!("a filter of ours never answers {k:#x}"),
                };
                return FilterOutcome { verdict, steps };
            }
            _ => panic!("no filter of ours has the operation {code:#x}"),
        };
        position += usize::from(if holds { jt } else { jf });
    }
    panic!("the program does not end");
}
