//! Who a process is inside a sandbox: ids, groups, capabilities.
//!
//! By this thread alone (raw system calls): only for single-threaded processes and their forked children.

use std::io;

use rustix::{
    process::{Gid, Uid},
    thread::{
        CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

/// Becomes `uid`, `gid` and `groups` for good. From 0 to another uid this drops every capability; to 0, in a user
/// namespace just entered, it keeps them all.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let groups: Vec<Gid> = groups.iter().map(|g| Gid::from_raw(*g)).collect();
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// No descendant will ever hold a capability outside `keep` (bit n is capability n).
pub fn bound_capabilities(keep: u64) -> io::Result<()> {
    for n in 0..64 {
        let one = 1u64 << n;
        if keep & one != 0 {
            continue;
        }
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(one)) {
            // The kernel knows no capability of this number, nor of a higher one.
            Err(rustix::io::Errno::INVAL) => break,
            done => done?,
        }
    }
    Ok(())
}

/// Holds exactly `keep`, nothing inheritable.
pub fn limit_capabilities(keep: u64) -> io::Result<()> {
    let keep = CapabilitySet::from_bits_retain(keep);
    let sets = CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}
