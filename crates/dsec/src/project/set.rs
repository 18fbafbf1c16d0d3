//! project create, project set.

use libdsec::{Client, Dimension, ProjectInfo, ProjectRequest, ProjectUpdate, Quota, Rights};

use crate::{outcome::Outcome, print, units};

/// Bounds, shared by both.
#[derive(clap::Args, Debug)]
pub(crate) struct Bounds {
    /// What its keys may do at most, e.g. user, sandbox.*,image.read or sandbox.exec:container [default: all that its parent may]
    #[arg(long, value_name = "RIGHTS")]
    rights: Option<Rights>,
    /// Most sandboxes that live at once
    #[arg(long, value_name = "N")]
    sandboxes: Option<u64>,
    /// Most creates in a second; a batch counts as many as it has
    #[arg(long, value_name = "N")]
    creates_per_s: Option<u64>,
    /// Most cores that they have together, e.g. 64
    #[arg(long, value_name = "CORES", value_parser = units::parse_cpus)]
    cpus: Option<u32>,
    /// Most memory that they have together, e.g. 256G
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    memory: Option<u64>,
    /// Most disk that they may write together
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    disk: Option<u64>,
}

impl Bounds {
    fn quota(&self) -> Quota {
        Quota::NONE
            .with(Dimension::Sandboxes, self.sandboxes)
            .with(Dimension::CpuMillis, self.cpus.map(u64::from))
            .with(Dimension::MemoryBytes, self.memory)
            .with(Dimension::DiskBytes, self.disk)
            .with(Dimension::CreatesPerS, self.creates_per_s)
    }
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
A project never has more than those above it, whatever its own bounds say.

Examples:
  dsec project create team --sandboxes 500 --memory 1T
  dsec project create root/team/run-7 --sandboxes 100 --rights user")]
pub(crate) struct Create {
    /// NAME below the key's project, or a whole path, as root/team/run
    project: String,
    #[command(flatten)]
    bounds: Bounds,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
The quota is set as a whole: bounds that are not named go. What runs stays.

Examples:
  dsec project set root/team --sandboxes 200
  dsec project set root/team --rights viewer
  dsec project set root/team --no-quota")]
pub(crate) struct Set {
    /// Path or id
    project: String,
    #[command(flatten)]
    bounds: Bounds,
    /// No bounds of its own
    #[arg(long, conflicts_with_all = ["sandboxes", "cpus", "memory", "disk", "creates_per_s"])]
    no_quota: bool,
}

pub(crate) async fn create(args: Create, json: bool) -> Outcome {
    let (parent, name) = match args.project.rsplit_once('/') {
        Some((parent, name)) => (Some(parent.to_owned()), name),
        None => (None, args.project.as_str()),
    };
    let quota = args.bounds.quota();
    let request = ProjectRequest { name: name.to_owned(), parent, rights: args.bounds.rights, quota };
    told(&Client::from_env()?.projects().create(request).await?, json)
}

pub(crate) async fn set(args: Set, json: bool) -> Outcome {
    let quota = args.bounds.quota();
    let quota = (args.no_quota || quota != Quota::NONE).then_some(quota);
    let update = ProjectUpdate { rights: args.bounds.rights, quota };
    told(&Client::from_env()?.projects().update(&args.project, update).await?, json)
}

fn told(project: &ProjectInfo, json: bool) -> Outcome {
    if json {
        print::json(project)?;
    } else {
        print::line(format_args!("{}  {}", project.path, project.id))?;
    }
    Ok(0)
}
