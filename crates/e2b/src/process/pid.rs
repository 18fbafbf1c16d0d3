//! Process numbers. Their API names a command by a 32-bit number, ours by an id of 128 bits: the number is a digest of
//! the id, and a number is looked up among the execs that the sandbox knows.
//!
//! Two of the 1,024 commands that can live at once share a number with a probability of one in 4,000; then the newer
//! one answers to it.

use api::{ExecId, arrow::Chronus, exec::ExecInfo};

use super::wire::Selector;
use crate::fault::Fault;

/// 31 bits and never 0, so that it is a number of a process in any language.
pub(super) fn of(id: &ExecId) -> u32 {
    let digest = blake3::hash(id.as_str().as_bytes());
    let [a, b, c, d, ..] = *digest.as_bytes();
    (u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff).max(1)
}

/// An exec that runs, or one that ended and is remembered. Faults: `not_found`.
pub(super) async fn find(chronus: &dyn Chronus, selector: &Selector) -> Result<ExecInfo, Fault> {
    if selector.tag.is_some() {
        return Err(Fault::unsupported("process: tags are not kept here; name the process by its pid"));
    }
    let pid = selector.pid.ok_or_else(|| Fault::invalid("process: its pid is missing"))?;
    let execs = chronus.exec_list().await?;
    let newest = execs.into_iter().rev().filter(|exec| of(&exec.exec_id) == pid);
    newest.max_by_key(|exec| exec.exit.is_none()).ok_or_else(|| unknown(pid))
}

/// One that runs.
pub(super) async fn find_live(chronus: &dyn Chronus, selector: &Selector) -> Result<ExecInfo, Fault> {
    let exec = find(chronus, selector).await?;
    match exec.exit {
        None => Ok(exec),
        Some(_) => Err(unknown(of(&exec.exec_id))),
    }
}

fn unknown(pid: u32) -> Fault {
    Fault::not_found(format!("process with pid {pid} not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stable_and_spread() {
        let id: ExecId = "ex-01h00000000000000000000000".parse().unwrap();
        assert_eq!(of(&id), of(&id));
        let ids: Vec<ExecId> = (0..1000).map(|_| ExecId::new()).collect();
        let numbers: std::collections::BTreeSet<u32> = ids.iter().map(of).collect();
        assert!(numbers.len() > 990, "{}", numbers.len());
        assert!(numbers.iter().all(|n| (1..1 << 31).contains(n)));
    }
}
