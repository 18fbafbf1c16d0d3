//! A node of the demo's own: `dsec up --detach` on a scratch directory and a free port, and its command line.
//!
//! The caller's own context file and data are not touched: DSEC_CONTEXT and DSEC_DATA point into the scratch directory.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::step;

pub struct Node {
    dsec: PathBuf,
    aether: PathBuf,
    pub scratch: PathBuf,
    up: bool,
}

impl Node {
    pub fn new(dsec: &Path, aether: &Path, scratch: &Path) -> Self {
        Self { dsec: dsec.to_owned(), aether: aether.to_owned(), scratch: scratch.to_owned(), up: false }
    }

    fn data(&self) -> PathBuf {
        self.scratch.join("data")
    }

    /// `dsec <args>`, talking to this node.
    pub fn cli<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.dsec);
        command
            .args(args)
            .env("DSEC_CONTEXT", self.scratch.join("context.toml"))
            .env("DSEC_DATA", self.data());
        command.env("DSEC_AETHER", &self.aether).env_remove("DSEC_URL").env_remove("DSEC_API_KEY");
        command.stdin(Stdio::null());
        command
    }

    pub fn up(&mut self) -> Result<()> {
        self.up_with("")
    }

    /// With the text of a configuration file.
    pub fn up_with(&mut self, config: &str) -> Result<()> {
        let path = self.scratch.join("dsec.toml");
        fs::write(&path, config)?;
        // Set before: a start that fails half way may leave what only `down` removes.
        self.up = true;
        step::run(self.cli(["up", "--detach", "--listen", "127.0.0.1:0", "--config"]).arg(&path))
    }

    /// Where it answers, and a key.
    pub fn access(&self) -> Result<(String, String)> {
        let path = self.scratch.join("context.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let value = |name: &str| {
            let lines = text.lines().filter_map(|line| line.split_once('='));
            let found = lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
            found
                .map(|v| v.trim_matches('"').to_owned())
                .next()
                .with_context(|| format!("no {name} in {}", path.display()))
        };
        Ok((value("url")?, value("api_key")?))
    }

    /// Writes a program that kills the server (`kill`), as no end of its own would, and starts it again at the same
    /// address (`up`): for tests of what lives on.
    pub fn restart_program(&self) -> Result<PathBuf> {
        let (url, _) = self.access()?;
        let program = self.scratch.join("restart");
        let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        let text = format!(
            "#!/bin/sh\nset -eu\nunset DSEC_URL DSEC_API_KEY\nexport DSEC_CONTEXT={} DSEC_DATA={} DSEC_AETHER={}\n\
             case \"$1\" in\nkill) pid=$(cat {}) && kill -9 \"$pid\"\n\
             while kill -0 \"$pid\" 2>/dev/null; do sleep 0.05; done ;;\n\
             up) {} up --detach --listen {} --config {} >&2 ;;\nesac\n",
            quoted(&self.scratch.join("context.toml")),
            quoted(&self.data()),
            quoted(&self.aether),
            quoted(&self.data().join("dsec.pid")),
            quoted(&self.dsec),
            url.trim_start_matches("http://"),
            quoted(&self.scratch.join("dsec.toml")),
        );
        fs::write(&program, text)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700))?;
        Ok(program)
    }

    pub fn is_up(&self) -> bool {
        self.up
    }

    pub fn down(&mut self) -> Result<()> {
        self.up = false;
        step::run(&mut self.cli(["down"]))
    }

    /// The last lines of the server's log, for whoever has to find out why.
    pub fn print_log(&self) {
        let log = fs::read(self.data().join("dsec.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(30)..];
        eprintln!("--- the end of the server's log\n{}\n---", tail.join("\n"));
    }
}
