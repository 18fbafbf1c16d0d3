//! The command line as data. The verbs' own arguments sit beside their code.
//!
//! clap has no groups of commands, so the list is written here by hand; a test holds it to the commands there are.

use clap::{Parser, Subcommand};

use crate::{environment, image, mcp, node, project, sandbox, store};

const GROUPS: &str = "\
Sandboxes:
  create        Make sandboxes and print their ids
  run           Make a sandbox, run one command in it, stop it
  exec          Run a command in a sandbox
  ls            List sandboxes
  inspect       All that is known of a sandbox, as JSON
  cp            Copy files and directories in and out
  logs          Output of a command that runs or has ended
  port          Forward a local TCP port to a server inside
  ttl           Move a sandbox's deadline
  checkpoint    Keep the disk of a sandbox, to go back to
  rollback      Back to a checkpoint, under the same id
  fork          Make sandboxes whose disks are copies of another's
  pack          Make an image of what a sandbox has written
  stop          End sandboxes, leaving nothing behind

Images:
  build         Make an image of a Dockerfile, each step in a sandbox
  image         Import, pull, list, inspect and remove images
  env           Name compositions of images, to create sandboxes of
  store         What the store that nodes share has: list, remove, collect garbage

Access:
  project       Projects: who may use how much
  key           Keys of projects
  audit         Who has managed what

Agents:
  mcp           Serve sandboxes as tools of the Model Context Protocol

Server:
  up            Start the server on this machine
  down          Stop it, and its sandboxes
  status        Is it up, and what runs on it
  systemd-unit  Print a unit for systemd

Examples:
  dsec up --detach
  dsec image import debian ./rootfs.tar
  dsec run debian -- python3 -c 'print(1 + 1)'
  dsec create debian --name work --memory 2G --ttl 2h
  dsec exec work -- ls -l /
  dsec exec -it work -- bash
  dsec cp ./project work:/root/project
  dsec stop work

Exit status: the command's own for exec and run; 124 where --timeout ended it; 125 for an error of DSec.
The server is the one of DSEC_URL and DSEC_API_KEY, else the one that `dsec up` last started here
(~/.config/dsec/context.toml, or the file that DSEC_CONTEXT names).";

/// Isolated machines for agents
#[derive(Parser, Debug)]
#[command(
    name = "dsec",
    version,
    after_help = GROUPS,
    help_template = "{about}\n\n{usage-heading} {usage}\n\n{after-help}\n\nOptions:\n{options}\n",
    disable_help_subcommand = true,
    subcommand_value_name = "COMMAND"
)]
pub(crate) struct Cli {
    /// Machine-readable JSON on stdout, errors as JSON on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Verb {
    /// Start the server on this machine
    Up(node::up::Args),
    /// Stop the server, and its sandboxes
    Down(node::down::Args),
    /// Is the server up, and what runs on it
    Status(node::status::Args),
    /// Print a unit for systemd
    SystemdUnit(node::systemd_unit::Args),
    /// Import, list, inspect and remove images
    #[command(subcommand)]
    Image(image::Verb),
    /// Name compositions of images, to create sandboxes of
    #[command(subcommand)]
    Env(environment::Verb),
    /// Make an image of a Dockerfile, each step in a sandbox
    Build(Box<image::build::Args>),
    /// List, remove and collect the garbage of the store that nodes share
    #[command(subcommand)]
    Store(store::Verb),
    /// Make sandboxes and print their ids
    Create(sandbox::create::Args),
    /// List sandboxes
    Ls(sandbox::list::Args),
    /// All that is known of a sandbox, as JSON
    Inspect(sandbox::inspect::Args),
    /// Run a command in a sandbox
    Exec(sandbox::exec::Args),
    /// Make a sandbox, run one command in it, stop it
    Run(sandbox::run::Args),
    /// Copy files and directories in and out
    Cp(sandbox::copy::Args),
    /// Output of a command that runs or has ended
    Logs(sandbox::logs::Args),
    /// Forward a local TCP port to a server inside
    Port(sandbox::port::Args),
    /// End sandboxes, leaving nothing behind
    Stop(sandbox::stop::Args),
    /// Move a sandbox's deadline
    Ttl(sandbox::ttl::Args),
    /// Keep the disk of a sandbox, to go back to
    #[command(subcommand)]
    Checkpoint(sandbox::checkpoint::Verb),
    /// Back to a checkpoint, under the same id
    Rollback(sandbox::checkpoint::Rollback),
    /// Make sandboxes whose disks are copies of another's
    Fork(sandbox::fork::Args),
    /// Make an image of what a sandbox has written
    Pack(sandbox::pack::Args),
    /// Serve sandboxes as tools of the Model Context Protocol
    Mcp(mcp::Args),
    /// Projects: who may use how much
    #[command(subcommand)]
    Project(project::Verb),
    /// Keys of projects
    #[command(subcommand)]
    Key(project::KeyVerb),
    /// Who has managed what
    Audit(project::Audit),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_written_list_is_the_commands_there_are() {
        let command = Cli::command();
        let mut real: Vec<(String, String)> = command
            .get_subcommands()
            .map(|c| (c.get_name().to_owned(), c.get_about().map(ToString::to_string).unwrap_or_default()))
            .collect();
        let mut listed: Vec<String> = GROUPS
            .lines()
            .filter(|l| l.starts_with("  ") && !l.starts_with("  dsec "))
            .map(|l| l.split_whitespace().next().unwrap().to_owned())
            .collect();
        real.sort();
        listed.sort();
        assert_eq!(listed, real.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
        assert!(real.iter().all(|(_, about)| !about.is_empty()));
    }
}
