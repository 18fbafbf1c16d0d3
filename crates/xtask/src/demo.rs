//! `cargo xtask demo`: the main job, on real input, through the command line that users have.
//!
//! A real project (toolz, its sdist from the package index) becomes a workspace layer, pytest a toolkit layer, Debian
//! the base. Eight sandboxes run the project's own tests at once; one is broken and mended; output streams; a server
//! inside answers; and when all is stopped, nothing is left on the machine. Each claim is checked, and any that does
//! not hold ends the demo with an error. What the demo made is removed either way.

pub mod node;
mod page;
mod project;
mod suite;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{
    debian, image,
    leak::{self, Snapshot},
    step,
};
use node::Node;

const BASE: &str = "demo-base";
const WORKSPACE: &str = "demo-project";
const TOOLKIT: &str = "demo-toolkit";
const PROJECT_DIR: &str = "/home/user/project";
const TOOLKIT_DIR: &str = "/opt/toolkit";

#[derive(clap::Args)]
pub struct Args {
    /// Sandboxes at once
    #[arg(long, short = 'n', default_value_t = 8)]
    count: usize,
    /// Use the binaries of an earlier build as they are
    #[arg(long)]
    built: bool,
}

/// What took how long, for the table at the end.
#[derive(Default)]
struct Times(Vec<(String, f64)>);

impl Times {
    fn step<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let done = step::timed(name, work)?;
        self.0.push((name.to_owned(), start.elapsed().as_secs_f64()));
        Ok(done)
    }

    fn print(&self) {
        println!("\n{:<58} {:>9}", "step", "seconds");
        for (name, seconds) in &self.0 {
            println!("{name:<58} {seconds:>9.2}");
        }
    }
}

/// A short path, because sockets lie under it and a socket's path has 107 bytes at most.
pub struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Never through a mount: a node that did not go down may still have its volume there.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if mounts.contains(&format!(" {}/", self.0.display())) {
            eprintln!("demo: something is still mounted under {}, so it stays", self.0.display());
        } else if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("demo: cannot remove {}: {error}", self.0.display());
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    if args.count < 2 {
        bail!("-n: at least 2: one is broken, another must not notice");
    }
    let mut times = Times::default();
    times.step("Debian packages", || debian::ensure(debian::DEMO))?;
    let aether = times
        .step("build aether (static)", if args.built { step::built_aether } else { step::build_aether })?;
    let dsec = times.step("build dsec", if args.built { step::built_dsec } else { step::build_dsec })?;
    let base = times.step("base image from Debian packages", || image::ensure(&image::BASE))?;
    let inputs = times.step("fetch the project and pytest", project::fetch)?;

    let scratch = Scratch(PathBuf::from(format!("/var/tmp/dsec-demo-{}", std::process::id())));
    fs::create_dir_all(&scratch.0)?;
    let place = scratch.0.clone();
    let before = Snapshot::beside_others(&place);
    let mut node = Node::new(&dsec, &aether, &scratch.0);
    let shown = show(&mut times, &mut node, args.count, &base, &inputs);
    let down = if node.is_up() { times.step("dsec down", || node.down()) } else { Ok(()) };
    if shown.is_err() {
        node.print_log();
    }
    shown?;
    down?;
    drop(scratch);
    times.step("nothing is left", || {
        leak::assert_none(&before, || Snapshot::beside_others(&place))?;
        println!("as before: {}", before.counts());
        Ok(())
    })?;
    times.print();
    println!("\nThe demo holds: {} sandboxes, every claim checked.", args.count);
    Ok(())
}

/// From `dsec up` to the last `dsec stop`.
fn show(
    times: &mut Times,
    node: &mut Node,
    count: usize,
    base: &Path,
    inputs: &project::Inputs,
) -> Result<()> {
    times.step("dsec up --detach", || node.up())?;
    times.step("import base", || {
        let mut import = node.cli(["image", "import", BASE]);
        import.arg(base).args(["--user", image::USER, "--workdir", image::WORKDIR]);
        image::ENV.iter().for_each(|pair| {
            import.args(["--env", pair]);
        });
        step::run(&mut import)
    })?;
    times.step("import workspace and toolkit", || {
        let layer = |name: &str, dir: &Path, kind: &str, prefix: &str, owner: &str| {
            let mut import = node.cli(["image", "import", name]);
            import.arg(dir).args(["--kind", kind, "--prefix", prefix, "--owner", owner]);
            step::run(&mut import)
        };
        layer(WORKSPACE, &inputs.project, "workspace", PROJECT_DIR, "1000:1000")?;
        layer(TOOLKIT, &inputs.toolkit, "toolkit", TOOLKIT_DIR, "0:0")
    })?;
    let boxes = times.step(&format!("create {count} sandboxes at once"), || create(node, count))?;
    let whole = times.step(&format!("the project's tests in {count} sandboxes at once"), || {
        suite::everywhere(node, &boxes)
    })?;
    times.step("break a file in one: its tests fail, a neighbour's do not", || {
        suite::broken(node, &boxes, &whole)
    })?;
    times.step("mend it: the tests pass again", || suite::mended(node, &boxes[0], &whole))?;
    times.step("output streams while the command runs", || streaming(node, &boxes[1]))?;
    times.step("a page from a server inside, by dsec port", || page::fetch(node, &boxes[1]))?;
    times.step("dsec ls", || step::run(&mut node.cli(["ls"])))?;
    times.step("stop all", || {
        step::run(&mut node.cli(["stop", "--all"]))?;
        let left = step::output(&mut node.cli(["ls", "--quiet"]))?;
        if !left.trim().is_empty() {
            bail!("`dsec ls` still lists {}", left.trim());
        }
        Ok(())
    })
}

fn create(node: &Node, count: usize) -> Result<Vec<String>> {
    let mut create = node.cli(["--json", "create", BASE, "--workspace", WORKSPACE, "--toolkit", TOOLKIT]);
    create.args(["-n", &count.to_string(), "--workdir", PROJECT_DIR, "--label", "job=demo", "--ttl", "30m"]);
    let boxes = parse_created(&step::output(&mut create)?)?;
    if boxes.len() != count {
        bail!("asked for {count} sandboxes, got {}", boxes.len());
    }
    println!("{}", boxes.join("\n"));
    Ok(boxes)
}

/// One JSON object a line, each a sandbox.
fn parse_created(text: &str) -> Result<Vec<String>> {
    let id = |line: &str| {
        let json: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
        json["id"].as_str().map(str::to_owned).with_context(|| format!("no id: {line}"))
    };
    text.lines().filter(|l| !l.trim().is_empty()).map(id).collect()
}

/// The first line must come well before the last: they are printed 0.3 s apart.
fn streaming(node: &Node, sandbox: &str) -> Result<()> {
    let script = "import time\nfor i in range(5):\n    print('tick', i, flush=True)\n    time.sleep(0.3)\n";
    let mut command = node.cli(["exec", sandbox, "--", "python3", "-c", script]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().context("cannot start dsec exec")?;
    let start = Instant::now();
    let mut arrivals = Vec::new();
    for line in BufReader::new(child.stdout.take().context("no pipe")?).lines() {
        arrivals.push(start.elapsed().as_secs_f64());
        println!("{:6.2} s  {}", start.elapsed().as_secs_f64(), line?);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the command failed: {status}");
    }
    match (arrivals.first(), arrivals.last()) {
        (Some(first), Some(last)) if arrivals.len() == 5 && last - first > 0.6 => Ok(()),
        _ => bail!("5 lines should come one by one; they came at {arrivals:.2?} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_lines_of_json() {
        assert_eq!(
            parse_created("{\"id\":\"sb-e1-a\"}\n{\"id\":\"sb-e1-b\"}\n").unwrap(),
            ["sb-e1-a", "sb-e1-b"]
        );
        assert!(parse_created("sb-e1-a\n").is_err());
        assert!(parse_created("{\"error\":{}}\n").is_err());
    }
}
