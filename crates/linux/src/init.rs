//! pid 1 of a sandbox: a program of some dozen instructions, made here, in sealed memory.
//!
//! It adopts orphans and lets the kernel reap them, and is nothing else. With SIGCHLD ignored (its parent does that
//! before the exec, see [`become_init`]) a dead child leaves no zombie, adopted or not, so there is no loop, no wakeup
//! and no descriptor. The kernel shields pid 1 from signals of its own namespace that it does not handle.
//!
//! Why not a program of Rust and libc: the start of a static libc asks the processor what it can do some 70 times, and
//! each question leaves the virtual machine (4 us). It would cost every start 0.35 ms, and every sandbox 60 KB.

use std::{
    arch::global_asm,
    ffi::CStr,
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use crate::sealed;

/// What `ps` shows inside.
pub const NAME: &CStr = c"init";

/// Where the program lies in its address space.
const BASE: u64 = 0x40_0000;
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const CODE_AT: usize = HEADER_BYTES + 2 * SEGMENT_BYTES;

// Position independent. Every system call here is in the filter's allow-list.
global_asm!(
    ".pushsection .rodata.dsec_init, \"a\", @progbits",
    ".hidden dsec_init_start",
    ".hidden dsec_init_end",
    ".globl dsec_init_start",
    ".globl dsec_init_end",
    "dsec_init_start:",
    // Nobody inside may trace it or look at its program, not even root: the kernel asks for a capability that no process
    // inside holds. prctl(PR_SET_DUMPABLE, 0); where that fails, exit_group(1).
    "mov eax, 157",
    "mov edi, 4",
    "xor esi, esi",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "test eax, eax",
    "jnz 3f",
    // prctl(PR_SET_NAME, "init"): without it, the name of the memfd.
    "mov eax, 157",
    "mov edi, 15",
    "lea rsi, [rip + 4f]",
    "syscall",
    // pause() for ever.
    "2:",
    "mov eax, 34",
    "syscall",
    "jmp 2b",
    "3:",
    "mov eax, 231",
    "mov edi, 1",
    "syscall",
    "4:",
    ".asciz \"init\"",
    "dsec_init_end:",
    ".popsection",
);

// SAFETY: the labels above, which bound the program's bytes.
unsafe extern "C" {
    static dsec_init_start: u8;
    static dsec_init_end: u8;
}

fn code() -> &'static [u8] {
    let (start, end) = (&raw const dsec_init_start, &raw const dsec_init_end);
    // SAFETY: both symbols bound one read-only section of this program, assembled above.
    unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// One segment of an ELF file.
fn segment(kind: u32, flags: u32, bytes: u64) -> [u8; SEGMENT_BYTES] {
    let mut out = [0; SEGMENT_BYTES];
    out[0..4].copy_from_slice(&kind.to_le_bytes());
    out[4..8].copy_from_slice(&flags.to_le_bytes());
    // Offset 0; virtual and physical address; size in the file and in memory; alignment.
    let address = if bytes == 0 { 0 } else { BASE };
    for (at, value) in [(16, address), (24, address), (32, bytes), (40, bytes), (48, 0x1000)] {
        out[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
    }
    out
}

/// The program as an ELF file (System V ABI, AMD64): one loadable segment, a stack that is not executable.
fn elf() -> Vec<u8> {
    const LOAD: u32 = 1;
    const GNU_STACK: u32 = 0x6474_e551;
    const EXEC: u32 = 1;
    const WRITE: u32 = 2;
    const READ: u32 = 4;
    let total = CODE_AT + code().len();
    let mut file = Vec::with_capacity(total);
    // Magic, 64 bits, little endian, version 1, System V.
    file.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    // An executable for AMD64.
    for half in [2u16, 62] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1u32.to_le_bytes());
    // Entry, program headers, no section headers.
    for word in [BASE + CODE_AT as u64, HEADER_BYTES as u64, 0] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&0u32.to_le_bytes());
    // Sizes and counts of the headers.
    for half in [HEADER_BYTES as u16, SEGMENT_BYTES as u16, 2, 0, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&segment(LOAD, READ | EXEC, total as u64));
    file.extend_from_slice(&segment(GNU_STACK, READ | WRITE, 0));
    file.extend_from_slice(code());
    file
}

/// The program, ready for [`become_init`].
pub fn program() -> io::Result<OwnedFd> {
    sealed::of(&elf())
}

/// Becomes init. Returns only on an error.
pub fn become_init(program: BorrowedFd) -> io::Error {
    crate::fork::ignore_children();
    sealed::exec(program, &["init"])
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::process::CommandExt, process::Command};

    use super::*;

    #[test]
    fn it_starts_has_its_name_and_reaps() {
        let path = std::env::temp_dir().join(format!("dsec-init-{}", std::process::id()));
        fs::write(&path, elf()).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut child = Command::new(&path).arg0("init").spawn().unwrap();
        fs::remove_file(&path).unwrap();
        let status = format!("/proc/{}/status", child.id());
        let named = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            fs::read_to_string(&status).unwrap().starts_with("Name:\tinit\n")
        });
        assert!(named);
        assert!(child.try_wait().unwrap().is_none(), "it sleeps");
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
    }

    #[test]
    fn it_is_one_small_segment() {
        let file = elf();
        assert!(file.len() < 512, "{} bytes", file.len());
        assert_eq!(file.len() - CODE_AT, code().len());
        assert!(file.ends_with(b"init\0"));
    }
}
