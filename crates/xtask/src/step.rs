//! Running other programs: where the repository is, a command that must succeed, a command whose lines are kept.
//!
//! Invariant: an error names the command line that failed, so that a person can run it by hand.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};

/// The triple that the static aether is built for: naming it keeps RUSTFLAGS away from build scripts.
pub const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// The last one: a static glibc binary cannot look `getrandom` up at run time, and the crate of that name would then
/// open /dev/urandom, which aether's root does not have.
const STATIC_FLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static -C strip=symbols --cfg=getrandom_backend=\"linux_getrandom\"";

/// The top of the repository.
pub fn root() -> PathBuf {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let here = Path::new(&here);
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// `program` at the top of the repository.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// The cargo that runs us.
pub fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

/// The command as a person would type it.
pub fn shown(command: &Command) -> String {
    let quote = |s: &OsStr| {
        let s = s.to_string_lossy();
        if s.contains([' ', '\n', '"', '$']) || s.is_empty() { format!("{s:?}") } else { s.into_owned() }
    };
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    std::iter::once(quote(name)).chain(command.get_args().map(quote)).collect::<Vec<_>>().join(" ")
}

/// Runs it with our own output; an error if it fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs it and gives what it printed on standard output; an error, with its standard error, if it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("`{}` failed: {}\n{}", shown(command), out.status, said.trim_end());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs it, prints both of its streams line by line, and gives each line to `each` as well.
pub fn tee(mut command: Command, mut each: impl FnMut(&str)) -> Result<ExitStatus> {
    let text = shown(&command);
    let (reader, writer) = std::io::pipe().context("pipe")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone().context("pipe")?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start `{text}`"))?;
    // The command holds our copies of the write end; without this the pipe never ends.
    drop(command);
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        std::io::stdout().write_all(&line)?;
        each(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    child.wait().with_context(|| format!("cannot wait for `{text}`"))
}

/// Whether a program of that name is in PATH.
pub fn in_path(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Files of the tree that git tracks or would track, under `pattern` (all for ""), sorted.
pub fn files(pattern: &str) -> Result<Vec<String>> {
    let mut git = command("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]);
    if !pattern.is_empty() {
        git.args(["--", pattern]);
    }
    let mut files: Vec<_> = output(&mut git)?.lines().map(str::to_owned).collect();
    files.retain(|f| root().join(f).is_file());
    files.sort();
    Ok(files)
}

/// Builds the static aether; gives its path.
pub fn build_aether() -> Result<PathBuf> {
    let mut build =
        cargo(["build", "-p", "aether", "--bin", "aether", "--profile", "fast", "--target", TRIPLE]);
    build.args(["--target-dir", "target/static"]);
    build.env("RUSTFLAGS", STATIC_FLAGS);
    run(&mut build)?;
    built_aether()
}

/// The static aether of an earlier build.
pub fn built_aether() -> Result<PathBuf> {
    existing(root().join("target/static").join(TRIPLE).join("fast/aether"))
}

/// Builds the `dsec` binary; gives its path.
pub fn build_dsec() -> Result<PathBuf> {
    run(&mut cargo(["build", "-p", "dsec", "--bin", "dsec", "--profile", "fast"]))?;
    built_dsec()
}

/// The `dsec` of an earlier build.
pub fn built_dsec() -> Result<PathBuf> {
    existing(root().join("target/fast/dsec"))
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    if !path.is_file() {
        bail!("no binary at {}", path.display());
    }
    Ok(path)
}

/// Prints the name, runs it, prints how long it took.
pub fn timed<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("==> {name}");
    let start = Instant::now();
    let done = work();
    let verdict = if done.is_ok() { "ok" } else { "FAILED" };
    println!("<== {name}: {verdict}, {:.1} s", start.elapsed().as_secs_f64());
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_its_command_and_what_it_said() {
        let error = output(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("sh -c") && error.contains("why") && error.contains('3'), "{error}");
    }

    #[test]
    fn tee_sees_both_streams_and_the_status() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 4"]);
        let mut lines = Vec::new();
        let status = tee(command, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(status.code(), Some(4));
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("Cargo.lock").is_file());
    }
}
