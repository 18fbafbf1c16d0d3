//! The flags that describe a sandbox; shared by create and run.

use std::time::Duration;

use clap::ValueEnum;
use libdsec::{Kind, Network, QosClass, Result, SandboxSpec, Scratch, limit};

use crate::units;

#[derive(clap::Args, Debug)]
pub(crate) struct SpecArgs {
    /// An image or an environment: NAME, NAME:VERSION or a digest
    pub(crate) image: String,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Its life, e.g. 30m or 2h; then it is stopped
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration, default_value = "1h", help_heading = "Limits")]
    ttl: Duration,
}

/// All of a sandbox but its image and its life: what `dsec mcp`, whose sandboxes live as long as it does, takes too.
#[derive(clap::Args, Debug)]
pub(crate) struct ShapeArgs {
    /// A name, unique while the sandbox lives
    #[arg(long)]
    name: Option<String>,
    /// Layers above the image, in order; may be repeated
    #[arg(long, value_name = "IMAGE", help_heading = "Layers")]
    workspace: Vec<String>,
    /// Layers on top of all, in order; may be repeated
    #[arg(long, value_name = "IMAGE", help_heading = "Layers")]
    toolkit: Vec<String>,
    /// Most memory, e.g. 512M or 2G
    #[arg(long, short, value_name = "SIZE", value_parser = units::parse_size, default_value = "512M", help_heading = "Limits")]
    memory: u64,
    /// Most CPU, in cores, e.g. 0.5 or 2
    #[arg(long, value_name = "CORES", value_parser = units::parse_cpus, default_value = "1", help_heading = "Limits")]
    cpus: u32,
    /// Most processes and threads
    #[arg(long, value_name = "N", default_value_t = limit::PIDS_DEFAULT, help_heading = "Limits")]
    pids: u32,
    /// Most disk that it may write, e.g. 10G
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "10G", help_heading = "Limits")]
    disk: u64,
    /// What it may reach
    #[arg(long, value_enum, default_value_t = NetworkArg::None)]
    network: NetworkArg,
    /// Where its writable part lives; memory counts against --memory
    #[arg(long, value_enum, default_value_t = ScratchArg::Disk)]
    scratch: ScratchArg,
    /// Give way to other sandboxes when the node is busy
    #[arg(long)]
    best_effort: bool,
    /// Kind of isolation
    #[arg(long, value_enum, default_value_t = KindArg::Container)]
    kind: KindArg,
    /// Default user of commands: a name, UID or UID:GID
    #[arg(long, short, help_heading = "Defaults of its commands")]
    user: Option<String>,
    /// Default working directory
    #[arg(long, short, value_name = "DIR", help_heading = "Defaults of its commands")]
    workdir: Option<String>,
    /// Environment, over the image's; may be repeated
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = units::parse_pair, help_heading = "Defaults of its commands")]
    env: Vec<(String, String)>,
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// For `dsec ls --label`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = units::parse_pair)]
    label: Vec<(String, String)>,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum NetworkArg {
    /// Loopback only
    None,
    /// Out by NAT, nothing in
    Egress,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum ScratchArg {
    Disk,
    Memory,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum KindArg {
    Container,
    MicroVm,
    FullVm,
    FnCall,
}

impl SpecArgs {
    /// Errors: `invalid_argument` with the field's name.
    pub(crate) fn into_spec(self) -> Result<SandboxSpec> {
        self.shape.into_spec(self.image, self.ttl)
    }
}

impl ShapeArgs {
    /// Errors: `invalid_argument` with the field's name.
    pub(crate) fn into_spec(self, image: String, ttl: Duration) -> Result<SandboxSpec> {
        let spec = SandboxSpec {
            kind: match self.kind {
                KindArg::Container => Kind::Container,
                KindArg::MicroVm => Kind::MicroVm,
                KindArg::FullVm => Kind::FullVm,
                KindArg::FnCall => Kind::FnCall,
            },
            workspaces: self.workspace,
            toolkits: self.toolkit,
            name: self.name,
            memory_bytes_max: self.memory,
            cpu_millis_max: self.cpus,
            pids_max: self.pids,
            disk_bytes_max: self.disk,
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            network: match self.network {
                NetworkArg::None => Network::None,
                NetworkArg::Egress => Network::Egress,
            },
            scratch: match self.scratch {
                ScratchArg::Disk => Scratch::Disk,
                ScratchArg::Memory => Scratch::Memory,
            },
            qos: if self.best_effort { QosClass::BestEffort } else { QosClass::LatencySensitive },
            user: self.user,
            env: self.env.into_iter().collect(),
            workdir: self.workdir,
            hostname: self.hostname,
            labels: self.label.into_iter().collect(),
            ..SandboxSpec::new(image)
        };
        spec.validate()?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        spec: SpecArgs,
    }

    #[test]
    fn the_defaults_of_the_flags_are_those_of_the_api() {
        let only = Only::try_parse_from(["x", "debian"]).unwrap();
        assert_eq!(only.spec.into_spec().unwrap(), SandboxSpec::new("debian"));
    }

    #[test]
    fn each_flag_lands_in_its_field() {
        let line = "x d --name n --workspace w --toolkit t1 --toolkit t2 -m 2G --cpus 0.5 --pids 70 --disk 1G --ttl 2h \
                    --network egress --scratch memory --best-effort -u 1000:1000 -w /w -e A=b --hostname h --label k=v";
        let spec = Only::try_parse_from(line.split_whitespace()).unwrap().spec.into_spec().unwrap();
        let expected = SandboxSpec {
            name: Some("n".into()),
            workspaces: vec!["w".into()],
            toolkits: vec!["t1".into(), "t2".into()],
            memory_bytes_max: 2 << 30,
            cpu_millis_max: 500,
            pids_max: 70,
            disk_bytes_max: 1 << 30,
            ttl_ms: 7_200_000,
            network: Network::Egress,
            scratch: Scratch::Memory,
            qos: QosClass::BestEffort,
            user: Some("1000:1000".into()),
            workdir: Some("/w".into()),
            env: [("A".into(), "b".into())].into(),
            hostname: Some("h".into()),
            labels: [("k".into(), "v".into())].into(),
            ..SandboxSpec::new("d")
        };
        assert_eq!(spec, expected);
    }
}
