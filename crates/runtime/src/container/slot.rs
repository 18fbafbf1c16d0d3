//! Slots: a small number that is unique on the machine and stands for a range of uids and a set of cgroups.
//!
//! A slot is claimed by making the file `/run/dsec/slots/<slot>` with O_EXCL; its content names the claimant's
//! data directory, so that an edge can find what it lost track of. Two edges on one machine never share a slot.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

const DIR: &str = "/run/dsec/slots";
/// Host uids of a sandbox's users start here: far above any uid of the host.
const USERS_FIRST: u32 = 0x1000_0000;
/// Host uids of the owners (aether) start here.
const OWNERS_FIRST: u32 = 0x0f00_0000;
/// Ids of one sandbox.
pub const IDS: u32 = 65_536;
/// As many as fit below the last uid.
pub const SLOTS_MAX: u32 = 32_768;

const _: () = assert!(USERS_FIRST as u64 + SLOTS_MAX as u64 * IDS as u64 <= 0xffff_fffe);
const _: () = assert!(OWNERS_FIRST + SLOTS_MAX <= USERS_FIRST);

/// The host uid that is root inside.
pub fn users_first(slot: u32) -> u32 {
    USERS_FIRST + slot * IDS
}

/// The host uid of aether, owner of the user namespace.
pub fn owner(slot: u32) -> u32 {
    OWNERS_FIRST + slot
}

fn path(slot: u32) -> PathBuf {
    Path::new(DIR).join(slot.to_string())
}

/// Claims the first free slot from `start` on, round the whole range once.
pub fn claim(start: u32, claimant: &Path) -> io::Result<u32> {
    fs::create_dir_all(DIR)?;
    for step in 0..SLOTS_MAX {
        let slot = (start + step) % SLOTS_MAX;
        match fs::File::options().write(true).create_new(true).open(path(slot)) {
            Ok(mut file) => {
                file.write_all(claimant.as_os_str().as_encoded_bytes())?;
                return Ok(slot);
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(io::ErrorKind::StorageFull, "every slot is taken"))
}

/// Gives a slot back. Idempotent.
pub fn release(slot: u32) -> io::Result<()> {
    match fs::remove_file(path(slot)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The slots that `claimant` holds.
pub fn held_by(claimant: &Path) -> io::Result<Vec<u32>> {
    let entries = match fs::read_dir(DIR) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut slots = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Some(slot) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else { continue };
        if fs::read(entry.path()).is_ok_and(|who| who == claimant.as_os_str().as_encoded_bytes()) {
            slots.push(slot);
        }
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_never_collide_and_release_frees() {
        let me = Path::new("/nowhere/slot-test");
        let a = claim(30_000, me).unwrap();
        let b = claim(30_000, me).unwrap();
        assert_ne!(a, b);
        let mut held = held_by(me).unwrap();
        held.sort();
        assert!(held.contains(&a) && held.contains(&b));
        release(a).unwrap();
        release(a).unwrap();
        assert!(!held_by(me).unwrap().contains(&a));
        release(b).unwrap();
    }

    #[test]
    fn ranges_of_two_slots_are_apart() {
        assert_eq!(users_first(1) - users_first(0), IDS);
        assert!(owner(SLOTS_MAX - 1) < users_first(0));
    }
}
