//! A husk becomes a sandbox: limits, root, first process, aether.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use api::husk::Activation;

use super::{
    Forge,
    husk::{Husk, STEP_TIMEOUT},
    inside::{self, Enter},
    root,
};
use crate::container::{
    protocol::{Create, Upper},
    slot, wire,
};

impl Forge {
    /// Makes a sandbox of `husk`. On an error nothing of it is left.
    pub(super) fn create(&mut self, husk: Husk, create: &Create, listener: OwnedFd) -> io::Result<Husk> {
        match self.activate(&husk, create, listener) {
            Ok(()) => Ok(husk),
            Err(error) => {
                husk.destroy();
                Err(error)
            }
        }
    }

    fn activate(&mut self, husk: &Husk, create: &Create, listener: OwnedFd) -> io::Result<()> {
        husk.cgroups.limit(&create.limits).map_err(step("limits"))?;
        let root_uid = slot::users_first(husk.slot);
        let root = root::compose(&mut self.layers, &create.layers, &create.upper, husk.userns(), root_uid)
            .map_err(step("root"))?;
        let enter = Enter {
            hostname: create.hostname.clone(),
            shm_bytes_max: create.limits.memory_bytes_max,
            etc: create.etc.clone(),
        };
        wire::send(husk.init_control.as_fd(), &enter, &[root.as_fd()])?;
        // Both go on at once; then both are heard.
        self.activate_aether(husk, create, listener).map_err(step("aether"))?;
        inside::hear_entered(husk.init_control.as_fd(), STEP_TIMEOUT).map_err(step("init"))?;
        hear_serving(husk).map_err(step("aether"))
    }

    fn activate_aether(&self, husk: &Husk, create: &Create, listener: OwnedFd) -> io::Result<()> {
        let path = |p: std::path::PathBuf| p.to_string_lossy().into_owned();
        let activation = Activation {
            sandbox: create.id.clone(),
            env: create.env.clone(),
            user: create.user.clone(),
            workdir: create.workdir.clone(),
            cgroup_box: path(husk.cgroups.boxed()),
            cgroup_v1_tasks: husk.cgroups.v1_tasks().into_iter().map(path).collect(),
            oom_counter: husk.cgroups.oom_counter().map(path),
            root_in_memory: matches!(create.upper, Upper::Memory { .. }),
            capabilities: linux::confine::capability::DEFAULT,
        };
        let mut fds = vec![listener.as_fd()];
        fds.extend(husk.namespaces.iter().map(|ns| ns.as_fd()));
        wire::send(husk.aether_control.as_fd(), &activation, &fds)
    }
}

/// aether's one byte.
fn hear_serving(husk: &Husk) -> io::Result<()> {
    wire::wait_readable(husk.aether_control.as_fd(), STEP_TIMEOUT)?;
    let mut byte = [0u8; 1];
    match rustix::io::read(&husk.aether_control, &mut byte)? {
        1 => Ok(()),
        _ => Err(io::Error::other("aether ended before it served")),
    }
}

fn step(name: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |e| io::Error::new(e.kind(), format!("{name}: {e}"))
}
