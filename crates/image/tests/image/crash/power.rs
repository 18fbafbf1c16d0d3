//! A loss of power: the catalogue lives in a btrfs of its own, as a node's does, and what counts is what had reached its
//! device when the process was killed.
//!
//! The device is a file, copied at that moment: what the file system has not written yet is not in the copy. It commits
//! nothing by itself meanwhile.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Operation, SYNCS, Stage, can_trace, operation, run_killed, state, steps};
use crate::{has, scratch};

/// The smallest that mkfs makes without a word.
const DEVICE_BYTES: u64 = 160 << 20;

/// Ends with its value.
struct Mount(PathBuf);

impl Mount {
    fn of(device: &Path, at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        done(Command::new("mount").args(["-o", "loop,commit=300"]).arg(device).arg(&at));
        Self(at)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg(&self.0).status();
        assert!(ended.is_ok_and(|status| status.success()) || std::thread::panicking(), "umount");
    }
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn copy(from: &Path, to: &Path) {
    done(Command::new("cp").arg("--sparse=always").arg(from).arg(to));
}

/// Cuts the power at each step; how many.
fn cut_everywhere(operation: Operation) -> usize {
    let home = scratch();
    let path = |name: &str| home.path().join(name);
    fs::File::create(path("template")).unwrap().set_len(DEVICE_BYTES).unwrap();
    done(Command::new("mkfs.btrfs").args(["--quiet", "--metadata=single"]).arg(path("template")));
    let registry = operation::registry();
    let repository = registry.reference("");
    let before = {
        let disk = Mount::of(&path("template"), path("at"));
        operation.prepare(&disk.0.join("x"));
        state::of(&disk.0.join("x"))
    };
    copy(&path("template"), &path("whole"));
    let (steps, after) = {
        let disk = Mount::of(&path("whole"), path("at"));
        let dir = disk.0.join("x");
        let steps = steps(operation, &Stage { dir: &dir, registry: &repository }, SYNCS, &path("log"));
        // What was acknowledged and not written yet is lost now.
        copy(&path("whole"), &path("cut"));
        (steps, state::of(&dir))
    };
    assert_eq!(after_cut(&path("cut"), &path("at-cut")), after, "{operation:?} was acknowledged");
    let mut cuts = 0;
    for step in &steps {
        copy(&path("template"), &path("disk"));
        let disk = Mount::of(&path("disk"), path("at"));
        let stage = Stage { dir: &disk.0.join("x"), registry: &repository };
        let outcome = run_killed(operation, &stage, step);
        cuts += usize::from(outcome.killed);
        copy(&path("disk"), &path("cut"));
        drop(disk);
        let disk = Mount::of(&path("cut"), path("at"));
        let stage = Stage { dir: &disk.0.join("x"), registry: &repository };
        state::assert_settled(operation, &stage, &outcome, (&before, &after), step);
    }
    assert!(
        cuts == steps.len() || operation == Operation::Pull,
        "{operation:?}: {cuts} of {} steps",
        steps.len()
    );
    cuts
}

fn after_cut(device: &Path, at: &Path) -> state::State {
    let disk = Mount::of(device, at.to_owned());
    state::of(&disk.0.join("x"))
}

/// An acknowledged image is there after it, with all its bytes.
#[test]
fn a_loss_of_power_at_each_step() {
    if !can_trace() || !has("mkfs.btrfs", "btrfs-progs") {
        return;
    }
    for operation in
        [Operation::ImportTar, Operation::ImportImage, Operation::Merge, Operation::Remove, Operation::Pull]
    {
        let steps = cut_everywhere(operation);
        assert!(steps >= 2, "{operation:?}: cut at {steps} steps only");
    }
}
