//! env ls.

use libdsec::{Client, EnvironmentInfo};

use crate::{outcome::Outcome, print, units};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// NAME:VERSION alone
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) async fn run(args: Args, json: bool) -> Outcome {
    let mut environments = Client::from_env()?.environments().list().await?;
    environments.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    if json {
        print::json(&environments)?;
        return Ok(0);
    }
    let name = |e: &EnvironmentInfo| format!("{}:{}", print::plain(&e.name), print::plain(&e.version));
    if args.quiet {
        environments.iter().try_for_each(|e| print::line(name(e)))?;
        return Ok(0);
    }
    let now = units::now_ms();
    let rows = environments.iter().map(|e| {
        let digest = e.digest.as_deref().map(|d| d.strip_prefix("blake3:").unwrap_or(d));
        [
            name(e),
            parts(e),
            e.layers.len().to_string(),
            units::size(e.size_bytes),
            format!("{} ago", units::duration_ms(now.saturating_sub(e.created_ms))),
            e.in_use.to_string(),
            e.usage.sandboxes.to_string(),
            digest.map_or("a part is gone".to_owned(), |d| d.chars().take(12).collect()),
        ]
    });
    print::table(["ENVIRONMENT", "PARTS", "LAYERS", "SIZE", "MADE", "IN USE", "USES", "DIGEST"], rows)?;
    Ok(0)
}

/// As they were named, lowest first; `~` marks what is followed.
fn parts(environment: &EnvironmentInfo) -> String {
    let part = |part: &libdsec::EnvironmentPart| {
        let reference: String = part.reference.chars().take(24).collect();
        format!("{}{reference}", if part.follow { "~" } else { "" })
    };
    environment.parts.iter().map(part).collect::<Vec<_>>().join(" ")
}
