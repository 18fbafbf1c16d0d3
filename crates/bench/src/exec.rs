//! exec of `true` in a sandbox that lives; and the same road without an exec, for what HTTP alone costs.

use std::time::Instant;

use anyhow::Result;

use crate::{node::Node, report::Report};

const WARM_UP_RUNS: usize = 20;

pub async fn measure(node: &Node, runs: usize, report: &mut Report) -> Result<()> {
    let sandbox = node.client.create(node.spec()).await?;
    let (mut executed, mut stated, mut inspected) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs + WARM_UP_RUNS {
        let start = Instant::now();
        sandbox.exec(["true"]).output().await?.check()?;
        let exec = start.elapsed();
        let start = Instant::now();
        sandbox.files().stat("/etc/hostname").await?;
        let stat = start.elapsed();
        let start = Instant::now();
        sandbox.info().await?;
        if run >= WARM_UP_RUNS {
            executed.push(exec);
            stated.push(stat);
            inspected.push(start.elapsed());
        }
    }
    sandbox.stop().await?;
    report.put_ms("exec.true", &executed);
    // To aether and back without a process; to the edge and back.
    report.put_ms("file.stat", &stated);
    report.put_ms("sandbox.inspect", &inspected);
    Ok(())
}
