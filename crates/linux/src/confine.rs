//! The system calls that a sandboxed process may make: a seccomp filter, built once, installed per process.
//!
//! In the spirit of Docker's default: every call up to [`KNOWN_LAST`] but those listed here. What is newer, or is
//! refused so that programs fall back, says ENOSYS; what is refused for good says EPERM. The program is a binary
//! search over ranges of numbers: a linear list of 300 comparisons costs more at every exec, and the kernel's cache
//! of always-allowed calls is filled at installation by running the filter once for each call.

use std::{collections::BTreeMap, io};

use libc::sock_filter;

/// `AUDIT_ARCH_X86_64`
const ARCH: u32 = 0xc000_003e;
/// mseal: later calls are not known here, so they are refused.
const KNOWN_LAST: u32 = 462;
/// CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
const NEW_NAMESPACES: u32 = 0x7e02_0000;
const NEW_TIME: u32 = 0x80;
/// What `personality` may set: Linux, 32-bit address limits, no randomisation (debuggers), and the query.
const PERSONALITIES: [u32; 6] = [0, 8, 0x2_0000, 0x2_0008, 0x4_0000, u32::MAX];
/// Terminal ioctls that type into another's terminal.
const IOCTLS_REFUSED: [u32; 2] = [libc::TIOCSTI as u32, libc::TIOCLINUX as u32];
/// Address families that programs need. Others reach past the network namespace (VSOCK), take memory that no limit counts
/// (the rings of PACKET and XDP), or are only attack surface.
const FAMILIES: [u32; 5] = [
    libc::AF_UNSPEC as u32,
    libc::AF_UNIX as u32,
    libc::AF_INET as u32,
    libc::AF_INET6 as u32,
    libc::AF_NETLINK as u32,
];

const ENOSYS: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_uselib,
    libc::SYS_nfsservctl,
    libc::SYS__sysctl,
    libc::SYS_sysfs,
    libc::SYS_ustat,
];

const EPERM: &[i64] = &[
    // Mounts.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_setns,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_lookup_dcookie,
    libc::SYS_syslog,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_vhangup,
    // Keys are not namespaced in full.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The host's clock and memory placement.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_set_mempolicy_home_node,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Allow,
    Errno(i32),
    /// Refuse if any of these bits is set in the low half of the argument.
    UnlessBits(u32, u32),
    /// Refuse if the low half of the argument is one of these.
    Unless(u32, &'static [u32]),
    /// Refuse if it is none of these.
    Only(u32, &'static [u32]),
}

fn verdicts() -> BTreeMap<u32, Verdict> {
    let mut table = BTreeMap::new();
    table.extend(ENOSYS.iter().map(|n| (*n as u32, Verdict::Errno(libc::ENOSYS))));
    table.extend(EPERM.iter().map(|n| (*n as u32, Verdict::Errno(libc::EPERM))));
    table.insert(libc::SYS_clone as u32, Verdict::UnlessBits(0, NEW_NAMESPACES));
    table.insert(libc::SYS_unshare as u32, Verdict::UnlessBits(0, NEW_NAMESPACES | NEW_TIME));
    table.insert(libc::SYS_ioctl as u32, Verdict::Unless(1, &IOCTLS_REFUSED));
    table.insert(libc::SYS_socket as u32, Verdict::Only(0, &FAMILIES));
    table.insert(libc::SYS_socketpair as u32, Verdict::Only(0, &FAMILIES));
    table.insert(libc::SYS_personality as u32, Verdict::Only(0, &PERSONALITIES));
    table
}

/// Numbers from each start on have its verdict, up to the next start.
fn ranges() -> Vec<(u32, Verdict)> {
    let table = verdicts();
    let mut ranges: Vec<(u32, Verdict)> = Vec::new();
    for number in 0..=KNOWN_LAST + 1 {
        let verdict = match table.get(&number) {
            Some(verdict) => *verdict,
            None if number > KNOWN_LAST => Verdict::Errno(libc::ENOSYS),
            None => Verdict::Allow,
        };
        if ranges.last().is_none_or(|(_, last)| *last != verdict) {
            ranges.push((number, verdict));
        }
    }
    ranges
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const BITS: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const GOTO: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Offsets in `struct seccomp_data`: number, architecture, the low half of argument n.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
fn argument(n: u32) -> u32 {
    16 + 8 * n
}

fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}
fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}
fn allow() -> sock_filter {
    op(RETURN, libc::SECCOMP_RET_ALLOW)
}
fn refuse(errno: i32) -> sock_filter {
    op(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32)
}

fn leaf(verdict: Verdict) -> Vec<sock_filter> {
    match verdict {
        Verdict::Allow => vec![allow()],
        Verdict::Errno(errno) => vec![refuse(errno)],
        Verdict::UnlessBits(n, bits) => {
            vec![op(LOAD, argument(n)), jump(BITS, bits, 0, 1), refuse(libc::EPERM), allow()]
        }
        Verdict::Unless(n, values) => one_of(n, values, refuse(libc::EPERM), allow()),
        Verdict::Only(n, values) => one_of(n, values, allow(), refuse(libc::EPERM)),
    }
}

/// Argument `n` is one of `values`: then `yes`, else `no`.
fn one_of(n: u32, values: &[u32], yes: sock_filter, no: sock_filter) -> Vec<sock_filter> {
    let mut code = vec![op(LOAD, argument(n))];
    let count = values.len();
    // From comparison i, the `yes` is behind the other comparisons and the `no`.
    code.extend(values.iter().enumerate().map(|(i, value)| jump(EQUAL, *value, (count - i) as u8, 0)));
    code.extend([no, yes]);
    code
}

/// The number is loaded: find its range by halving.
fn search(ranges: &[(u32, Verdict)]) -> Vec<sock_filter> {
    if let [(_, verdict)] = ranges {
        return leaf(*verdict);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let (below, above) = (search(low), search(high));
    // Conditional jumps reach 255; the long way is by GOTO.
    let mut code = vec![jump(AT_LEAST, high[0].0, 0, 1), op(GOTO, below.len() as u32)];
    code.extend(below);
    code.extend(above);
    code
}

/// A filter ready to install.
pub struct Filter(Vec<sock_filter>);

impl Filter {
    /// The filter of every sandboxed process.
    pub fn new() -> Self {
        let mut code = vec![
            op(LOAD, ARCHITECTURE),
            jump(EQUAL, ARCH, 1, 0),
            // 32-bit programs: their call numbers mean other things.
            refuse(libc::ENOSYS),
            op(LOAD, NUMBER),
        ];
        code.extend(search(&ranges()));
        Self(code)
    }

    /// Installs it for this process and all it starts, for good. Needs CAP_SYS_ADMIN in the user namespace
    /// (no_new_privs is not set, so that sudo works).
    pub fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: the program points to `len` instructions that outlive the call; the kernel copies and verifies it.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Default for Filter {
    fn default() -> Self {
        Self::new()
    }
}

/// Capabilities by number, for bit sets.
pub mod capability {
    pub const CHOWN: u64 = 1;
    pub const DAC_OVERRIDE: u64 = 1 << 1;
    pub const FOWNER: u64 = 1 << 3;
    pub const FSETID: u64 = 1 << 4;
    pub const KILL: u64 = 1 << 5;
    pub const SETGID: u64 = 1 << 6;
    pub const SETUID: u64 = 1 << 7;
    pub const SETPCAP: u64 = 1 << 8;
    pub const NET_BIND_SERVICE: u64 = 1 << 10;
    pub const NET_RAW: u64 = 1 << 13;
    pub const SYS_CHROOT: u64 = 1 << 18;
    pub const MKNOD: u64 = 1 << 27;
    pub const AUDIT_WRITE: u64 = 1 << 29;
    pub const SETFCAP: u64 = 1 << 31;
    /// Docker's default set.
    pub const DEFAULT: u64 = CHOWN
        | DAC_OVERRIDE
        | FOWNER
        | FSETID
        | KILL
        | SETGID
        | SETUID
        | SETPCAP
        | NET_BIND_SERVICE
        | NET_RAW
        | SYS_CHROOT
        | MKNOD
        | AUDIT_WRITE
        | SETFCAP;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn run(code: &[sock_filter], arch: u32, number: u32, args: [u32; 2]) -> u32 {
        let (mut pc, mut a) = (0, 0);
        loop {
            let i = code[pc];
            pc += 1;
            let truth = match i.code {
                LOAD => {
                    a = match i.k {
                        NUMBER => number,
                        ARCHITECTURE => arch,
                        16 => args[0],
                        24 => args[1],
                        other => panic!("load at {other}"),
                    };
                    continue;
                }
                RETURN => return i.k,
                GOTO => {
                    pc += i.k as usize;
                    continue;
                }
                EQUAL => a == i.k,
                AT_LEAST => a >= i.k,
                BITS => a & i.k != 0,
                other => panic!("instruction {other}"),
            };
            pc += if truth { i.jt } else { i.jf } as usize;
        }
    }

    #[test]
    fn every_number_gets_its_verdict() {
        let filter = Filter::new();
        assert!(filter.0.len() < 4096);
        let errno = |e: i32| libc::SECCOMP_RET_ERRNO | e as u32;
        let table = verdicts();
        for number in 0..2000 {
            let got = run(&filter.0, ARCH, number, [0, 0]);
            let want = match table.get(&number) {
                Some(Verdict::Errno(e)) => errno(*e),
                _ if number > KNOWN_LAST => errno(libc::ENOSYS),
                _ => libc::SECCOMP_RET_ALLOW,
            };
            assert_eq!(got, want, "{number}");
        }
        assert_eq!(run(&filter.0, ARCH, 0x4000_0000, [0, 0]), errno(libc::ENOSYS), "x32");
        assert_eq!(run(&filter.0, 0x4000_0003, 1, [0, 0]), errno(libc::ENOSYS), "i386");
    }

    #[test]
    fn arguments_decide_where_they_must() {
        let filter = Filter::new();
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let verdict = |n: i64, args| run(&filter.0, ARCH, n as u32, args);
        assert_eq!(verdict(libc::SYS_clone, [libc::CLONE_NEWUSER as u32 | 17, 0]), refused);
        assert_eq!(verdict(libc::SYS_clone, [libc::CLONE_VM as u32, 0]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(verdict(libc::SYS_unshare, [libc::CLONE_NEWNS as u32, 0]), refused);
        assert_eq!(verdict(libc::SYS_unshare, [libc::CLONE_FILES as u32, 0]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(verdict(libc::SYS_ioctl, [0, libc::TIOCSTI as u32]), refused);
        assert_eq!(verdict(libc::SYS_ioctl, [0, libc::TIOCGWINSZ as u32]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(verdict(libc::SYS_socket, [libc::AF_VSOCK as u32, 0]), refused);
        assert_eq!(verdict(libc::SYS_socket, [libc::AF_INET as u32, 0]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(verdict(libc::SYS_personality, [u32::MAX, 0]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(verdict(libc::SYS_personality, [0x8_0000, 0]), refused);
    }
}
