//! `cargo xtask bench` runs it; by hand: DSEC_BINARY, DSEC_AETHER, DSEC_TEST_ROOTFS, then
//! `cargo bench --profile fast -p bench --bench node [-- <sections>]`, sections being some of [`SECTIONS`].
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use anyhow::Result;
use bench::{create, disk, exec, floor, idle, image, node::Node, report::Report, transfer, upgrade};

const SECTIONS: [&str; 13] = [
    "floor",
    "create",
    "exec",
    "sustained",
    "batch",
    "file",
    "stream",
    "disk",
    "upgrade",
    "image",
    "image_shared",
    "image_large",
    "idle",
];
const CREATE_RUNS: usize = 300;
const EXEC_RUNS: usize = 500;
const FLOOR_RUNS: usize = 200;
const DISK_RUNS: usize = 50;
const SUSTAINED: Duration = Duration::from_secs(5);
const IDLE_LIVE: u32 = 500;
const LARGE_BYTES: u64 = 1 << 30;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    // Forks: before there is a thread.
    if let Some(("floor", rest)) = args.split_first().map(|(first, rest)| (first.as_str(), rest))
        && !rest.is_empty()
    {
        // With anything after it, it is the child's call: taken for a list of sections it would start itself again.
        return floor::main(rest);
    }
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(&args))
}

async fn run(wanted: &[String]) -> Result<()> {
    let mut report = Report::default();
    let node = Node::start().await?;
    for section in SECTIONS.iter().filter(|s| wanted.is_empty() || wanted.iter().any(|w| w == *s)) {
        match *section {
            "floor" => floor::measure(&node, FLOOR_RUNS, &mut report)?,
            "create" => create::to_first_exec(&node, CREATE_RUNS, &mut report).await?,
            "exec" => exec::measure(&node, EXEC_RUNS, &mut report).await?,
            "sustained" => create::sustained(&node, 4, SUSTAINED, &mut report).await?,
            "batch" => create::batch(&node, 100, &mut report).await?,
            "file" => transfer::file(&node, LARGE_BYTES, &mut report).await?,
            "stream" => transfer::output(&node, LARGE_BYTES, &mut report).await?,
            "disk" => disk::measure(&node, DISK_RUNS, &mut report).await?,
            "upgrade" => upgrade::measure(&node, &mut report).await?,
            "image" => image::measure(&node, &mut report).await?,
            "image_shared" => image::shared(&node, &mut report).await?,
            "image_large" => image::large(&node, &mut report).await?,
            _ => idle::measure(&node, IDLE_LIVE, &mut report).await?,
        }
    }
    let log = node.log();
    node.end().await?;
    report.put_ratio("ratio.create_over_floor", "create.step_create_ms_p50", "floor.create_ms_p50");
    report.put_ratio("ratio.stop_over_floor", "stop.one_ms_p50", "floor.destroy_ms_p50");
    println!("\n{}", report.table());
    if !log.is_empty() {
        println!("the server complained:\n{log}");
    }
    Ok(())
}
