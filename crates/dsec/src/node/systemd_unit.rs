//! systemd-unit: a unit on stdout, for a person to read and install.
//!
//! `KillMode=process` is what lets sandboxes outlive a restart of the server: systemd must kill the server alone.

use std::path::PathBuf;

use anyhow::Context;

use crate::{config, outcome::Outcome, print};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  dsec systemd-unit > /etc/systemd/system/dsec.service && systemctl enable --now dsec")]
pub(crate) struct Args {
    /// Where everything is kept
    #[arg(long, value_name = "DIR", default_value = "/var/lib/dsec")]
    data: PathBuf,
    /// Address of the API
    #[arg(long, value_name = "ADDR", default_value_t = std::net::SocketAddr::from(([127, 0, 0, 1], config::PORT)))]
    listen: std::net::SocketAddr,
}

pub(crate) fn run(args: &Args, json: bool) -> Outcome {
    let program = std::env::current_exe().context("finding this program")?;
    let data = std::path::absolute(&args.data).context("data")?;
    let (program, data) = (quoted(&program)?, quoted(&data)?);
    let unit = format!(
        "[Unit]
Description=DSec: isolated machines for agents
After=network.target

[Service]
ExecStart={program} up --data {data} --listen {listen}
Environment=HOME=/root
# Sandboxes live on while the server restarts.
KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=1
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target",
        listen = args.listen
    );
    if json {
        print::json(&serde_json::json!({ "unit": unit }))?;
    } else {
        print::line(unit)?;
    }
    Ok(0)
}

/// As a unit file quotes an argument.
fn quoted(path: &std::path::Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    anyhow::ensure!(!text.contains(char::is_control), "{} holds control characters", path.display());
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    Ok(format!("\"{escaped}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_one_argument() {
        assert_eq!(quoted("/a b/%n\"$x".as_ref()).unwrap(), r#""/a b/%%n\"$$x""#);
        assert!(quoted("/a\nb".as_ref()).is_err());
    }
}
