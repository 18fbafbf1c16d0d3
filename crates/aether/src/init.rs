//! pid 1 of a sandbox: adopts orphans and lets the kernel reap them, and is nothing else.
//!
//! With SIGCHLD ignored, a dead child leaves no zombie, adopted or not, so there is no loop, no wakeup and no
//! descriptor. The kernel shields pid 1 from signals of its own namespace that it does not handle. It is never the
//! parent of an exec (aether is).

use std::process::ExitCode;

/// Never returns while the sandbox lives.
pub fn run() -> ExitCode {
    // What `ps` shows inside; without it, the name of the memfd.
    let _ = rustix::thread::set_name(c"init");
    // Nobody inside may trace it or look at its program, not even root: the kernel asks for a capability that no
    // process inside holds.
    if linux::privilege::set_undumpable().is_err() {
        return ExitCode::FAILURE;
    }
    linux::fork::reap_for_ever()
}
