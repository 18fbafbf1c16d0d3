//! project ls, project show.

use libdsec::{Client, Dimension, ProjectInfo};

use crate::{outcome::Outcome, print, units};

#[derive(clap::Args, Debug)]
pub(crate) struct List {}

#[derive(clap::Args, Debug)]
pub(crate) struct Show {
    /// Path or id
    project: String,
}

pub(crate) async fn list(_: List, json: bool) -> Outcome {
    let projects = Client::from_env()?.projects().list().await?;
    if json {
        print::json(&projects)?;
        return Ok(0);
    }
    let rows = projects.into_iter().map(|project| {
        [
            project.path.clone(),
            of(&project, Dimension::Sandboxes),
            of(&project, Dimension::CpuMillis),
            of(&project, Dimension::MemoryBytes),
            of(&project, Dimension::DiskBytes),
            project.rights_effective.to_string(),
        ]
    });
    print::table(["PROJECT", "SANDBOXES", "CPUS", "MEMORY", "DISK", "RIGHTS"], rows)?;
    Ok(0)
}

/// Used, and the bound that holds.
fn of(project: &ProjectInfo, dimension: Dimension) -> String {
    let text = |value: u64| match dimension {
        Dimension::CpuMillis => format!("{}", value as f64 / 1000.0),
        Dimension::MemoryBytes | Dimension::DiskBytes => units::size(value),
        _ => value.to_string(),
    };
    let used = text(project.used.get(dimension));
    match project.quota_effective.get(dimension) {
        Some(bound) => format!("{used} of {}", text(bound)),
        None => used,
    }
}

pub(crate) async fn show(args: Show, json: bool) -> Outcome {
    let project = Client::from_env()?.projects().inspect(&args.project).await?;
    if json {
        print::json(&project)?;
    } else {
        print::json_pretty(&project)?;
    }
    Ok(0)
}
