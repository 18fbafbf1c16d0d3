//! create: to the first exec answered, one at a time; creates and stops a second; a batch at once.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::try_join_all;

use crate::{node::Node, report::Report};

/// First runs warm the page cache and are not counted.
const WARM_UP_RUNS: usize = 10;

/// The road of a caller: create, exec of `true`, stop. Sandboxes one after the other.
pub async fn to_first_exec(node: &Node, runs: usize, report: &mut Report) -> Result<()> {
    let (mut created, mut executed, mut both, mut stopped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs + WARM_UP_RUNS {
        let start = Instant::now();
        let sandbox = node.client.create(node.spec()).await?;
        let ready = start.elapsed();
        sandbox.exec(["true"]).output().await?.check()?;
        let answered = start.elapsed();
        sandbox.stop().await?;
        let gone = start.elapsed();
        if run >= WARM_UP_RUNS {
            created.push(ready);
            executed.push(answered - ready);
            both.push(answered);
            stopped.push(gone - answered);
        }
    }
    report.put_ms("create.first_exec", &both);
    report.put_ms("create.step_create", &created);
    report.put_ms("create.step_exec", &executed);
    report.put_ms("stop.one", &stopped);
    Ok(())
}

/// Create and stop, `in_flight` at a time, for a while.
pub async fn sustained(node: &Node, in_flight: usize, span: Duration, report: &mut Report) -> Result<()> {
    let start = Instant::now();
    let worker = || async {
        let mut count = 0;
        while start.elapsed() < span {
            let sandbox = node.client.create(node.spec()).await?;
            sandbox.stop().await?;
            count += 1;
        }
        Ok::<_, anyhow::Error>(count)
    };
    let counts = try_join_all((0..in_flight).map(|_| worker())).await?;
    let total: usize = counts.iter().sum();
    report.put(format!("create.sustained_{in_flight}_per_s"), total as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// One request for many: until the last is ready.
pub async fn batch(node: &Node, count: u32, report: &mut Report) -> Result<()> {
    let start = Instant::now();
    let mut created = node.client.create_many(count, node.spec());
    let (mut sandboxes, mut first) = (Vec::new(), None);
    while let Some(sandbox) = created.next().await {
        sandboxes.push(sandbox?);
        first.get_or_insert(start.elapsed());
    }
    let all = start.elapsed();
    report.put(format!("create.batch_{count}_first_ms"), first.unwrap_or_default().as_secs_f64() * 1e3);
    report.put(format!("create.batch_{count}_ms"), all.as_secs_f64() * 1e3);
    report.put(format!("create.batch_{count}_per_s"), f64::from(count) / all.as_secs_f64());
    let start = Instant::now();
    try_join_all(sandboxes.iter().map(|s| s.stop())).await?;
    report.put(format!("stop.batch_{count}_ms"), start.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
