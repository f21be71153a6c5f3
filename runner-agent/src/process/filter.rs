//! A filter of system calls (seccomp) for commands: no process of the stack reaches into another one.
//!
//! Providers run beside the tool, as its user and under the same Landlock rules, so Landlock lets them trace the tool, change its memory and
//! take its open files. The filter needs no privilege, and holds without Landlock. All descendants of a command inherit it.

use std::io;

use seccompiler::{apply_filter, sock_filter};

/// Numbers of `ptrace`, `process_vm_readv`, `process_vm_writev` and `pidfd_getfd`, by architecture (`AUDIT_ARCH_…`): all that a kernel for
/// x86-64 or aarch64 runs.
const REFUSED: [(u32, &[u32]); 4] = [
    // x86-64, and three numbers of the x32 ABI.
    (0xc000_003e, &[101, 310, 311, 438, 521, 539, 540]),
    // i386
    (0x4000_0003, &[26, 347, 348, 438]),
    // aarch64
    (0xc000_00b7, &[117, 270, 271, 438]),
    // arm
    (0x4000_0028, &[26, 376, 377, 438]),
];
/// The bit in numbers of the x32 ABI, which has the architecture of x86-64.
const X32: u32 = 0x4000_0000;

/// Places in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Operations: load a word, continue if it is not equal, clear bits, end.
const LOAD: u16 = 0x20;
const IS: u16 = 0x15;
const AND: u16 = 0x54;
const END: u16 = 0x06;

/// Ends of the program: the call goes on, or fails with EPERM.
const ALLOWED: u32 = 0x7fff_0000;
const NOT_PERMITTED: u32 = 0x0005_0001;

/// Restricts this thread and everything that it starts.
///
/// # Errors
/// The kernel has no filters of system calls.
pub(super) fn install() -> io::Result<()> {
    apply_filter(&program()).map_err(io::Error::other)
}

fn program() -> Vec<sock_filter> {
    let step = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let mut program = vec![step(LOAD, ARCHITECTURE, 0, 0)];
    for (architecture, numbers) in REFUSED {
        // Jumps over the rest of the comparisons and the first end, and over the whole block.
        let rest: Vec<(u32, u8)> = numbers.iter().rev().copied().zip(1..).collect();
        let count = rest.last().map_or(0, |(_, count)| *count);
        program.push(step(IS, architecture, 0, count + 4));
        program.extend([step(LOAD, NUMBER, 0, 0), step(AND, !X32, 0, 0)]);
        let comparisons = rest.iter().rev();
        program.extend(comparisons.map(|(number, jump)| step(IS, *number, *jump, 0)));
        program.extend([ALLOWED, NOT_PERMITTED].map(|end| step(END, end, 0, 0)));
    }
    program.push(step(END, ALLOWED, 0, 0));
    program
}
