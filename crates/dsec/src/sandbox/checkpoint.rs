//! checkpoint: disks to go back to; rollback: the way back.

use libdsec::Client;

use crate::{outcome::Outcome, print};

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Verb {
    /// Keep the disk as it is now; prints the checkpoint's name
    Create {
        /// An id or a name
        sandbox: String,
        /// Unique in the sandbox [default: made up]
        name: Option<String>,
    },
    /// List the checkpoints, oldest first
    Ls {
        /// An id or a name
        sandbox: String,
    },
    /// Forget a checkpoint
    Rm {
        /// An id or a name
        sandbox: String,
        name: String,
    },
}

pub(crate) async fn run(verb: Verb, json: bool) -> Outcome {
    let client = Client::from_env()?;
    match verb {
        Verb::Create { sandbox, name } => {
            let made = client.get(&sandbox).await?.checkpoint(name.as_deref()).await?;
            if json { print::json(&made)? } else { print::line(&made.name)? }
        }
        Verb::Ls { sandbox } => {
            let all = client.get(&sandbox).await?.checkpoints().await?;
            if json {
                print::json(&all)?;
            } else {
                all.iter().try_for_each(|checkpoint| print::line(&checkpoint.name))?;
            }
        }
        Verb::Rm { sandbox, name } => {
            client.get(&sandbox).await?.remove_checkpoint(&name).await?;
            if json {
                print::json(&serde_json::json!({ "removed": name }))?;
            } else {
                print::line(print::plain(&name))?;
            }
        }
    }
    Ok(0)
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Every process of the sandbox ends; its disk is what it was at the checkpoint; it runs again under the same id.

Examples:
  dsec checkpoint create work clean
  dsec exec work -- rm -rf /home/user/project
  dsec rollback work clean")]
pub(crate) struct Rollback {
    /// An id or a name
    sandbox: String,
    /// One of `dsec checkpoint ls`
    checkpoint: String,
}

pub(crate) async fn rollback(args: Rollback, json: bool) -> Outcome {
    let sandbox = Client::from_env()?.get(&args.sandbox).await?;
    let bar = print::spinner("rolling back", json);
    let info = sandbox.rollback(&args.checkpoint).await?;
    bar.finish_and_clear();
    if json {
        print::json(&info)?
    } else {
        print::line(&info.id)?
    }
    Ok(0)
}
