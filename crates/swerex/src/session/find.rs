//! Which execs are sessions, and of which name: their command says it, so that no list has to be kept.

use std::{collections::BTreeMap, sync::Arc};

use api::{
    arrow::Chronus,
    exec::{Command, ExecInfo, ExecRequest, PtySize, Stdin},
};

use crate::{
    fault::{Exception, Fault},
    python::repr,
};

/// Quiet before bash is there, and told when it is: what is written before would be echoed. `env` finds bash as theirs
/// does. The words behind are arguments, and gone with the shell.
const SCRIPT: &str = "stty -echo && printf '\\137DSEC_r0000000000000000:0:' && exec bash --noediting";
const WORD: &str = "swerex-session";

pub(super) fn request(name: &str) -> ExecRequest {
    let mut request = ExecRequest::argv(["/bin/sh", "-c", SCRIPT, WORD, name]);
    request.pty = Some(PtySize::default());
    request.stdin = Stdin::Stream;
    // A terminal that can nothing, as theirs in a container: no colours, no brackets around what is pasted.
    let env = [("TERM", "dumb"), ("PS0", ""), ("PS1", ""), ("PS2", "")];
    request.env = env.map(|(name, value)| (name.into(), value.into())).into_iter().collect();
    request
}

fn name_of(exec: &ExecInfo) -> Option<&str> {
    let Command::Argv(argv) = &exec.command else { return None };
    match argv.as_slice() {
        [_, _, _, word, name] if word == WORD => Some(name),
        _ => None,
    }
}

/// The sessions that live, by name.
pub(super) async fn all(chronus: &Arc<dyn Chronus>) -> Result<BTreeMap<String, ExecInfo>, Fault> {
    let execs = chronus.exec_list().await?;
    let live = execs.into_iter().filter(|exec| exec.exit.is_none());
    // Of two with one name (created through two servers at once) the newer one.
    Ok(live.filter_map(|exec| Some((name_of(&exec)?.to_owned(), exec))).collect())
}

/// Faults: `SessionDoesNotExistError`.
pub(super) async fn one(chronus: &Arc<dyn Chronus>, name: &str) -> Result<ExecInfo, Fault> {
    all(chronus).await?.remove(name).ok_or_else(|| none(name))
}

pub(super) fn none(name: &str) -> Fault {
    Fault::raised(Exception::SessionDoesNotExist, format!("session {} does not exist", repr(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::ExecId;

    #[test]
    fn a_session_is_known_by_its_command() {
        let exec = |command| ExecInfo {
            exec_id: ExecId::new(),
            command,
            started_ms: 0,
            exit: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            pty: true,
        };
        assert_eq!(name_of(&exec(request("a b").command)), Some("a b"));
        assert_eq!(name_of(&exec(Command::Shell("x".into()))), None);
        assert_eq!(name_of(&exec(Command::Argv(vec!["bash".into()]))), None);
        request("x").validate().unwrap();
    }
}
