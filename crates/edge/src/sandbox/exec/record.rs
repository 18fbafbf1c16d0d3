//! What an edge keeps of a run on disk, `<spool>/<sandbox>/<exec>.json`: for keyed runs from their start, for all from
//! their end. Small outputs ride inside. Between start and end the rest is known to aether.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use api::{
    ExecId,
    exec::{Command, ExecRequest, Exit},
    payload::Payload,
};
use serde::{Deserialize, Serialize};

use super::Run;
use crate::ledger::write_whole;

/// Who asked, so that the same key does not run twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunKey {
    pub(crate) key: String,
    /// Of all in the request that decides what runs.
    pub(crate) fingerprint: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    pub(crate) exec_id: ExecId,
    pub(crate) command: Command,
    pub(crate) started_ms: u64,
    pub(crate) pty: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<RunKey>,
    pub(crate) exit: Option<Exit>,
    /// The output of an ended run, where it is not in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stdout: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stderr: Option<Payload>,
}

/// The files of one run.
pub(crate) fn paths(dir: &Path, id: &ExecId) -> [PathBuf; 3] {
    ["out", "err", "json"].map(|extension| dir.join(format!("{id}.{extension}")))
}

impl RunKey {
    /// The key of `request`, if it has one.
    pub(crate) fn of(request: &ExecRequest) -> Option<Self> {
        let key = request.idempotency_key.clone()?;
        // What only says how to answer does not make another command of it.
        let output_bytes_max = 0;
        let same = ExecRequest { idempotency_key: None, detach: false, output_bytes_max, ..request.clone() };
        let json = serde_json::to_vec(&same).unwrap_or_default();
        Some(Self { key, fingerprint: blake3::hash(&json).to_hex().to_string() })
    }
}

/// Writes what is known of the run now. Blocks.
pub(crate) fn save(run: &Run) -> io::Result<()> {
    let exit = run.log.exit();
    let [stdout, stderr] = if exit.is_some() { run.log.in_memory() } else { [None, None] };
    let record = RunRecord {
        exec_id: run.id.clone(),
        command: run.command.clone(),
        started_ms: run.started_ms,
        pty: run.pty,
        key: run.key.clone(),
        exit,
        stdout: stdout.map(Payload),
        stderr: stderr.map(Payload),
    };
    let path = &run.paths[2];
    let bytes = serde_json::to_vec(&record)?;
    // A record of a run without a key is written once, while aether still has the run: a torn one loses nothing, and
    // the rename is saved. One with a key replaces an older one.
    let write =
        |path: &Path| if run.key.is_some() { write_whole(path, &bytes) } else { fs::write(path, &bytes) };
    match write(path) {
        // The directory is made with its first file.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            write(path)
        }
        other => other,
    }
}

/// Every record of a sandbox that can be read, oldest first. Blocks.
pub(crate) fn load(dir: &Path) -> Vec<RunRecord> {
    let Ok(files) = fs::read_dir(dir) else { return Vec::new() };
    let mut records = Vec::new();
    for path in files.flatten().map(|f| f.path()).filter(|p| p.extension().is_some_and(|e| e == "json")) {
        let parsed = fs::read(&path).map_err(|e| e.to_string());
        match parsed.and_then(|b| serde_json::from_slice::<RunRecord>(&b).map_err(|e| e.to_string())) {
            Ok(record) => records.push(record),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "spool: an unreadable record is moved aside");
                let _ = fs::rename(&path, path.with_extension("corrupt"));
            }
        }
    }
    records.sort_by(|a, b| a.exec_id.cmp(&b.exec_id));
    records
}

/// Removes the files of a run. Blocks.
pub(crate) fn forget(run: &Run) {
    let [out, err] = run.log.spooled().map(|total| total > 0);
    let there = [out, err, true];
    for (path, _) in run.paths.iter().zip(there).filter(|(_, there)| *there) {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "spool: a file of a forgotten exec stays");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_covers_what_runs_and_not_how_it_is_answered() {
        let keyed =
            |text: &str| ExecRequest { idempotency_key: Some("k".into()), ..ExecRequest::shell(text) };
        let one = RunKey::of(&keyed("a")).unwrap();
        assert_eq!(
            RunKey::of(&ExecRequest { detach: true, output_bytes_max: 1, ..keyed("a") }),
            Some(one.clone())
        );
        assert_ne!(RunKey::of(&keyed("b")), Some(one.clone()));
        assert_ne!(RunKey::of(&ExecRequest { cwd: Some("/".into()), ..keyed("a") }), Some(one));
        assert_eq!(RunKey::of(&ExecRequest::shell("a")), None);
    }
}
