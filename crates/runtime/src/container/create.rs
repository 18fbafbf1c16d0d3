//! create: disk, socket, then forge does the rest.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    sync::Arc,
};

use api::{
    Error, Result, SandboxId,
    spec::{Network, QosClass, Scratch},
};

use super::{
    Kept, Shared, blocking, network,
    protocol::{Create, Limits, Upper},
};
use crate::{Handle, Plan, Record};

#[tracing::instrument(level = "debug", name = "runtime.create", skip_all)]
pub(super) async fn create(
    shared: &Arc<Shared>,
    plan: &Plan,
    note: &(dyn for<'r> Fn(&'r Record) + Send + Sync),
) -> Result<Handle> {
    let id = plan.id.clone();
    let upper = match plan.spec.scratch {
        Scratch::Disk => Upper::Disk(shared.upper_dir(&id)),
        // Its pages count as the sandbox's memory: a full disk must be told as that, not by killing for memory.
        Scratch::Memory => {
            Upper::Memory { bytes_max: plan.spec.disk_bytes_max.min(plan.spec.memory_bytes_max / 2) }
        }
    };
    let egress = plan.spec.network == Network::Egress;
    let kept = Kept { upper: upper.clone(), egress, husk: None };
    note(&serde_json::to_value(&kept).map_err(|e| Error::internal(e.to_string()))?);
    let ask = ask(plan, upper);
    let (on_pool, disk_bytes_max, disk) = (shared.clone(), plan.spec.disk_bytes_max, plan.disk.clone());
    let made = blocking("create", move || {
        let mut undo = Undo { shared: on_pool.clone(), id: ask.id.clone(), kept, armed: true };
        on_pool.names.lock().expect("no panic while held").insert(ask.id.clone());
        if let Upper::Disk(_) = &ask.upper {
            let upper = tracing::debug_span!("runtime.upper");
            upper.in_scope(|| on_pool.volume.make_upper(ask.id.as_str(), disk_bytes_max, disk.as_deref()))?;
        }
        let listener = listen(&on_pool, &ask.id)?;
        let forge = tracing::debug_span!("runtime.forge");
        let claiming = on_pool.claiming.read().expect("no panic while held");
        let (created, restarted) = forge.in_scope(|| on_pool.forge.create(ask, listener.as_fd()))?;
        on_pool.slots.lock().expect("no panic while held").insert(created.husk.slot);
        let (slot, init) = (created.husk.slot, created.husk.init);
        undo.kept.husk = Some(created.husk);
        drop(claiming);
        if restarted {
            sweep_later(on_pool.clone());
        }
        if egress {
            tracing::debug_span!("runtime.network").in_scope(|| network::attach(slot, init))?;
        }
        undo.armed = false;
        Ok((undo.kept.clone(), created.init, created.aether))
    });
    let (kept, init, aether) = made.await?;
    shared.handle(&id, &kept, init, aether).map_err(|error| {
        tracing::error!(%error, "no handle");
        Error::internal("create failed on the node")
    })
}

/// What a forge that died had in its pool is nobody's: removed beside the creates that go on.
fn sweep_later(shared: Arc<Shared>) {
    let swept = std::thread::Builder::new().name("sweep".into()).spawn(move || {
        if let Err(error) = shared.sweep(|| shared.forge.pooled()) {
            tracing::warn!(%error, "what a dead forge left is not all removed; the next start looks again");
        }
    });
    if let Err(error) = swept {
        tracing::warn!(%error, "what a dead forge left stays until the next start");
    }
}

/// What was made so far, taken away again when a later step fails.
struct Undo {
    shared: Arc<Shared>,
    id: SandboxId,
    kept: Kept,
    armed: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.armed
            && let Err(error) = super::stop::remove(&self.shared, &self.id, &self.kept)
        {
            tracing::warn!(id = %self.id, %error, "undo of a create left something; the sweep will find it");
        }
    }
}

fn listen(shared: &Shared, id: &SandboxId) -> io::Result<OwnedFd> {
    fs::create_dir_all(shared.run_dir(id))?;
    let listener = UnixListener::bind(shared.socket(id))?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

fn ask(plan: &Plan, upper: Upper) -> Create {
    let spec = &plan.spec;
    let hosts = format!(
        "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{}\n",
        plan.hostname
    );
    Create {
        id: plan.id.clone(),
        layers: plan.layers.clone(),
        upper,
        hostname: plan.hostname.clone(),
        limits: Limits {
            memory_bytes_max: spec.memory_bytes_max,
            cpu_millis_max: spec.cpu_millis_max,
            pids_max: spec.pids_max,
            best_effort: spec.qos == QosClass::BestEffort,
        },
        env: plan.env.clone(),
        user: plan.user.clone(),
        workdir: plan.workdir.clone(),
        etc: vec![
            ("hostname".into(), format!("{}\n", plan.hostname)),
            ("hosts".into(), hosts),
            (
                "resolv.conf".into(),
                if spec.network == Network::Egress { network::resolv_conf() } else { String::new() },
            ),
        ],
    }
}
