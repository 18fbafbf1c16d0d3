//! Images from Debian packages, as root file systems in tar files: the default base, and a small one for tests.
//!
//! Built by mmdebstrap from the apt sources of this machine (no host name is written here), once for each list of
//! packages: `target/images/<name>-<hash of the recipe>.tar`. Invariants: a file under its final name is whole (it is
//! renamed into place); one build at a time (a lock); a failed build leaves nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{
    debian::{self, sources},
    step,
};

/// How commands run in the default image unless told otherwise.
pub const USER: &str = "user";
pub const WORKDIR: &str = "/home/user";
pub const ENV: &[&str] =
    &["LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];

#[derive(clap::Args)]
pub struct Args {
    /// The small image of the tests
    #[arg(long)]
    test: bool,
    /// One of base, test, python, node, java
    #[arg(long, conflicts_with = "test")]
    name: Option<String>,
    /// Also copy it here
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What goes into an image.
pub struct Recipe {
    name: &'static str,
    packages: &'static [&'static str],
}

/// What agents work in: Python with pip, git, a C compiler.
pub const BASE: Recipe = Recipe {
    name: "base",
    packages: &[
        "python3",
        "python3-venv",
        "python3-pip",
        "git",
        "build-essential",
        "ca-certificates",
        "curl",
        "procps",
        "less",
        "busybox-static",
    ],
};

/// What tests need and no more: it builds in half a minute.
pub const TEST: Recipe = Recipe { name: "test", packages: &["python3", "busybox-static"] };

/// Real images of other kinds, for the tests that compare them with what tar says: libraries of an interpreter, one large
/// program, a runtime with certificates made by a script of its package.
pub const PYTHON: Recipe =
    Recipe { name: "python", packages: &["python3-venv", "python3-requests", "python3-yaml", "git"] };
const NODE: Recipe = Recipe { name: "node", packages: &["nodejs", "node-semver"] };
const JAVA: Recipe = Recipe { name: "java", packages: &["openjdk-17-jre-headless"] };
/// Those three; tests find them where they are built.
pub const REAL: [&Recipe; 3] = [&PYTHON, &NODE, &JAVA];

/// All that have a name.
const RECIPES: [&Recipe; 5] = [&BASE, &TEST, &PYTHON, &NODE, &JAVA];

/// Runs in the new root. pip may install into it: a sandbox is thrown away, so Debian's guard would only be in the way.
const FINISH: &str = "set -e
useradd --create-home --uid 1000 --shell /bin/bash user
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED /etc/hostname /etc/resolv.conf /var/log/*.log /var/log/apt/*
rm -rf /var/cache/apt/* /var/lib/apt/lists/* /var/cache/debconf/*-old /var/lib/dpkg/*-old /tmp/* /var/tmp/*
mkdir -p /workspace /opt
chown user:user /workspace
";

/// `cargo xtask image`.
pub fn run(args: &Args) -> Result<()> {
    debian::ensure(debian::IMAGE)?;
    let name = args.name.as_deref().unwrap_or(if args.test { TEST.name } else { BASE.name });
    let recipe = RECIPES.into_iter().find(|recipe| recipe.name == name);
    let path = ensure(recipe.with_context(|| format!("no image `{name}`"))?)?;
    if let Some(out) = &args.out {
        let part = out.with_extension("part");
        fs::copy(&path, &part).with_context(|| format!("cannot write {}", part.display()))?;
        fs::rename(&part, out)?;
    }
    println!("{}", args.out.as_ref().unwrap_or(&path).display());
    Ok(())
}

/// The image's tar, built if it is not there.
pub fn ensure(recipe: &Recipe) -> Result<PathBuf> {
    let suite = sources::this_suite()?;
    let dir = step::root().join("target/images");
    fs::create_dir_all(&dir)?;
    let path = dir.join(format!("{}-{:016x}.tar", recipe.name, recipe.hash(&suite)));
    let lock = fs::File::create(dir.join("lock"))?;
    lock.lock().context("cannot lock target/images")?;
    if path.is_file() {
        println!("image: {} is built already", path.display());
        return Ok(path);
    }
    println!("image: building {} of {suite}: {}", recipe.name, recipe.packages.join(" "));
    let start = Instant::now();
    let scratch = dir.join("scratch");
    remove_scratch(&scratch)?;
    fs::create_dir_all(&scratch)?;
    let built = recipe.build(&suite, &scratch).and_then(|part| Ok(fs::rename(part, &path)?));
    let cleaned = remove_scratch(&scratch);
    if built.is_ok() {
        remove_older(&dir, recipe.name, &path)?;
    }
    built.with_context(|| format!("cannot build the {} image", recipe.name))?;
    cleaned?;
    let mib = fs::metadata(&path)?.len() >> 20;
    println!("image: {} MiB in {:.0} s: {}", mib, start.elapsed().as_secs_f64(), path.display());
    Ok(path)
}

impl Recipe {
    /// FNV-1a of everything that decides what is inside.
    fn hash(&self, suite: &str) -> u64 {
        let text = [suite, self.name, FINISH, &self.packages.join(","), &OPTIONS.join(",")].join("\0");
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Gives the path of a whole tar in `scratch`.
    fn build(&self, suite: &str, scratch: &Path) -> Result<PathBuf> {
        let list = sources::of_this_machine(suite)?;
        let sources = scratch.join("sources.list");
        fs::write(&sources, list)?;
        let tar = scratch.join("root.tar");
        let log = scratch.join("log");
        // A mount and a pid namespace of its own: whatever ends the build, no mount and no process is left.
        let mut build = step::command("unshare");
        build.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "mmdebstrap"]);
        build.args(OPTIONS).arg(format!("--include={}", self.packages.join(",")));
        // Packages of Java link to manuals, which are left out, and need their directory for it.
        build.arg("--setup-hook=mkdir -p \"$1/usr/share/man/man1\"");
        build.arg(format!("--customize-hook=chroot \"$1\" sh -c '{FINISH}'"));
        build.arg(suite).arg(&tar).arg(&sources);
        build.env("TMPDIR", scratch).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        let out = fs::File::create(&log)?;
        build.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let status = build.status().context("cannot start mmdebstrap")?;
        if !status.success() {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let tail: Vec<_> = said.lines().rev().take(25).collect();
            bail!("mmdebstrap: {status}\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
        // The tar has no device nodes (`--skip=output/dev` takes the directory too); what mounts /dev needs the directory.
        let empty = scratch.join("empty");
        fs::create_dir_all(empty.join("dev"))?;
        let mut append = step::command("tar");
        append.arg("--append").arg("--file").arg(&tar).args([
            "--numeric-owner",
            "--owner=0",
            "--group=0",
            "--mode=0755",
        ]);
        step::run(append.arg("--directory").arg(&empty).arg("./dev"))?;
        Ok(tar)
    }
}

/// No manuals and no translations: nobody reads them in a sandbox, and they are a third of the files.
const OPTIONS: &[&str] = &[
    "--mode=root",
    "--variant=minbase",
    "--format=tar",
    "--skip=output/dev",
    // Our own last steps clean up: this one runs apt with no sources, and empties the lists of the host too.
    "--skip=cleanup/apt",
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--aptopt=Acquire::Languages \"none\"",
    "--aptopt=Acquire::Retries \"3\"",
    "--aptopt=APT::Install-Recommends \"false\"",
];

/// Images of the same name from earlier recipes.
fn remove_older(dir: &Path, name: &str, newest: &Path) -> Result<()> {
    for path in fs::read_dir(dir)?.flatten().map(|e| e.path()).filter(|p| p != newest) {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        if file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-') && rest.ends_with(".tar")) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// mmdebstrap that was killed leaves its root here; nothing may be mounted in it.
fn remove_scratch(scratch: &Path) -> Result<()> {
    if !scratch.exists() {
        return Ok(());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    if mounts.contains(&format!(" {}/", scratch.display())) {
        bail!("something is mounted under {}: unmount it first", scratch.display());
    }
    fs::remove_dir_all(scratch).with_context(|| format!("cannot remove {}", scratch.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_follows_what_is_inside() {
        let other = Recipe { name: "test", packages: &["python3"] };
        assert_ne!(TEST.hash("bookworm"), other.hash("bookworm"));
        assert_ne!(TEST.hash("bookworm"), TEST.hash("trixie"));
        assert_eq!(TEST.hash("bookworm"), TEST.hash("bookworm"));
    }

    #[test]
    fn the_last_steps_can_stand_in_single_quotes() {
        assert!(!FINISH.contains('\''));
    }
}
