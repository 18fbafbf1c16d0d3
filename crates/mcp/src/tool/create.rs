//! create_sandbox: a machine of one's own.

use std::collections::BTreeMap;

use libdsec::{Error, Network, Result, SandboxSpec, limit as api_limit};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Call, Hints, Verb, list::Row, within_bounds};

pub(super) struct CreateSandbox;

pub(super) const NAME: &str = "create_sandbox";
/// The argument that there is only where a sandbox's life is not the server's.
pub(super) const TTL: &str = "ttl_s";

/// A sandbox to be made.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The image it starts from; list_images tells which there are.
    image: String,
    /// A name to call it by, unique while it lives.
    #[serde(default)]
    name: Option<String>,
    /// Workspaces laid over the image, in order.
    #[serde(default)]
    workspaces: Vec<String>,
    /// Toolkits laid on top, in order.
    #[serde(default)]
    toolkits: Vec<String>,
    /// Environment of its commands, over the image's.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Most memory, in MiB; 512 unless told otherwise.
    #[serde(default)]
    memory_mib: Option<u64>,
    /// Most CPU, in cores; 1 unless told otherwise.
    #[serde(default)]
    cpus: Option<f64>,
    /// Let it reach the internet. Without, it has loopback only.
    #[serde(default)]
    internet: bool,
    /// Seconds until it is stopped by itself; an hour unless told otherwise.
    #[serde(default)]
    ttl_s: Option<u64>,
}

impl Args {
    fn into_spec(self) -> Result<SandboxSpec> {
        let mut spec = SandboxSpec {
            name: self.name,
            workspaces: self.workspaces,
            toolkits: self.toolkits,
            env: self.env,
            network: if self.internet { Network::Egress } else { Network::None },
            ..SandboxSpec::new(self.image)
        };
        if let Some(mib) = self.memory_mib {
            spec.memory_bytes_max = within_bounds("memory_mib", mib, 4, 1 << 30)? << 20;
        }
        if let Some(cpus) = self.cpus {
            if !(0.01..=1000.0).contains(&cpus) {
                return Err(Error::invalid(format!("cpus: {cpus} is outside 0.01..=1000")));
            }
            spec.cpu_millis_max = (cpus * 1000.0).round() as u32;
        }
        if let Some(ttl_s) = self.ttl_s {
            spec.ttl_ms = within_bounds("ttl_s", ttl_s, 1, api_limit::TTL_MS_MAX / 1000)? * 1000;
        }
        spec.validate()?;
        Ok(spec)
    }
}

impl Verb for CreateSandbox {
    const NAME: &'static str = NAME;
    const TITLE: &'static str = "Create a sandbox";
    const ABOUT: &'static str = "Make a sandbox: an isolated Linux machine with its own files and processes, started from an image. \
        Its state is kept between calls until it is stopped or its time runs out. Answers with its id.";
    const HINTS: Hints = Hints { read_only: false, destructive: false, idempotent: false, open_world: false };
    const IN_SANDBOX: bool = false;
    const CANCEL_DROPS: bool = false;
    type Args = Args;
    type Answer = Row;

    async fn run(call: Call, args: Args) -> Result<Row> {
        if args.ttl_s.is_some() && call.sandboxes.are_own() {
            return Err(Error::invalid("ttl_s: a sandbox of this session lives as long as the session does"));
        }
        let spec = args.into_spec()?;
        let sandbox = call.sandboxes.create(spec, call.cancel.clone()).await?;
        Ok(Row::of(sandbox.created()))
    }
}
