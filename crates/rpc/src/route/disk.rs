//! The routes of a sandbox's disk.

use std::sync::Arc;

use api::{
    Code,
    arrow::Front,
    snapshot::{Checkpoint, CheckpointRequest, ForkRequest, PackReport, PackRequest, RollbackRequest},
    spec::{CreateEvent, SandboxInfo},
};

use super::{On, Route, verb};
use crate::serve::disk;

type To = Arc<dyn Front>;

const ALIVE: [Code; 4] = [Code::NotFound, Code::Conflict, Code::SandboxBroken, Code::SandboxGone];

/// Routes of `Edge`, beside those of its life.
pub(crate) fn routes() -> Vec<Route<To>> {
    let mut routes = checkpoint_routes();
    routes.extend([
        Route::new(
            On::Post,
            "/sandboxes/{id}/rollback",
            verb!("rollback"),
            "Back to a checkpoint: processes end, the disk is what it was, the sandbox runs again under its id.",
            |to, call| Box::pin(disk::rollback(to, call)),
        )
        .body::<RollbackRequest>()
        .json::<SandboxInfo>()
        .errors(&ALIVE),
        Route::new(
            On::Post,
            "/sandboxes/{id}/fork",
            verb!("fork"),
            "New sandboxes whose disks start as copies of this one's; no process comes along. Answered as a create.",
            |to, call| Box::pin(disk::fork(to, call)),
        )
        .body::<ForkRequest>()
        .lines::<CreateEvent>()
        .errors(&[Code::NotFound, Code::Conflict, Code::NoCapacity, Code::QuotaExceeded, Code::Unsupported]),
        Route::new(
            On::Post,
            "/sandboxes/{id}/pack_diff",
            verb!("pack_diff"),
            "What the sandbox has written, as a layer and an image. It runs on meanwhile.",
            |to, call| Box::pin(disk::pack_diff(to, call)),
        )
        .body::<PackRequest>()
        .json::<PackReport>()
        .errors(&[Code::NotFound, Code::Conflict, Code::NoCapacity, Code::Unsupported, Code::DeadlineExceeded]),
    ]);
    routes
}

fn checkpoint_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Post,
            "/sandboxes/{id}/checkpoints",
            verb!("checkpoint"),
            "Keep the disk as it is now, to go back to.",
            |to, call| Box::pin(disk::checkpoint(to, call)),
        )
        .body::<CheckpointRequest>()
        .json::<Checkpoint>()
        .errors(&[
            Code::NotFound,
            Code::Conflict,
            Code::AlreadyExists,
            Code::QuotaExceeded,
            Code::Unsupported,
            Code::DeadlineExceeded,
        ]),
        Route::new(
            On::Get,
            "/sandboxes/{id}/checkpoints",
            verb!("checkpoint_list"),
            "The checkpoints of a sandbox, oldest first.",
            |to, call| Box::pin(disk::checkpoint_list(to, call)),
        )
        .json::<Vec<Checkpoint>>()
        .errors(&[Code::NotFound]),
        Route::new(
            On::Delete,
            "/sandboxes/{id}/checkpoints/{name}",
            verb!("checkpoint_remove"),
            "Forget a checkpoint.",
            |to, call| Box::pin(disk::checkpoint_remove(to, call)),
        )
        .errors(&ALIVE),
    ]
}
