//! The edge over a fake runtime and a catalogue in memory: every verb, every race, every way to end.

// A test that cannot go on says where: its helpers too.
#![allow(clippy::unwrap_used)]

#[path = "edge/batch.rs"]
mod batch;
#[path = "edge/exec.rs"]
mod exec;
#[path = "edge/image.rs"]
mod image;
#[path = "edge/life.rs"]
mod life;
#[path = "edge/names.rs"]
mod names;
#[path = "edge/restart.rs"]
mod restart;
#[path = "edge/world.rs"]
mod world;
