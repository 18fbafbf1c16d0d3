//! `cargo xtask bench` runs it; by hand: DSEC_BINARY, DSEC_AETHER, DSEC_TEST_ROOTFS, then
//! `cargo bench --profile fast -p bench --bench store`. DSEC_BENCH_STORE_MB makes the image smaller than 5,000 MB.
#![allow(clippy::unwrap_used)]

use anyhow::Result;
use bench::{report::Report, store};

fn main() -> Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mut report = Report::default();
        store::measure(&mut report).await?;
        println!("\n{}", report.table());
        Ok(())
    })
}
