//! The start of an edge over what an earlier one left. The decision is pure ([`plan_recovery`]); then each sandbox gets
//! its actor, which does the work.

use std::{collections::HashSet, fs, io, path::Path, sync::Arc, time::Duration};

use api::{Code, Error, Result, state::State};
use futures_util::{StreamExt, stream};
use runtime::{Handle, Runtime};

use super::Parts;
use crate::{
    clock::now_ms,
    image::keep_swept,
    ledger::Entry,
    sandbox::{Actor, Begin, Sandbox},
    usage::keep_written,
    uses::User,
};

/// Adoptions at once.
const ADOPTIONS_IN_FLIGHT: usize = 16;
/// A runtime that is just starting too may refuse at first.
const ADOPT_TRIES_MAX: u32 = 5;
const ADOPT_DELAY_MS: u64 = 100;
const ADOPT_MS_MAX: u64 = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recovery {
    /// It may live.
    Adopt,
    /// It was on its way back to a checkpoint.
    RollBack,
    /// Nothing of it may stay.
    Reap,
}

/// What to do with an entry at time `now_ms` of boot `boot_id`.
fn plan_recovery(entry: &Entry, boot_id: &str, now_ms: u64) -> Recovery {
    let lives = entry.boot_id == boot_id && entry.expires_ms > now_ms;
    match entry.state {
        State::Running | State::Broken if lives => Recovery::Adopt,
        State::Creating if lives && entry.rolling_back.is_some() => Recovery::RollBack,
        _ => Recovery::Reap,
    }
}

pub(super) async fn recover(parts: &Arc<Parts>, entries: Vec<Entry>) {
    let known: HashSet<String> = entries.iter().map(|e| e.id.to_string()).collect();
    remove_orphan_spools(&parts.config.spool_dir, &known);
    parts.tallies.finished_before(entries.iter().filter_map(|e| e.reservation.clone()).collect());
    let all = stream::iter(entries);
    all.for_each_concurrent(ADOPTIONS_IN_FLIGHT, |entry| recover_one(parts, entry)).await;
    // Now it is known what lives.
    tokio::spawn(keep_swept(Arc::downgrade(parts)));
    tokio::spawn(keep_written(Arc::downgrade(parts)));
}

async fn recover_one(parts: &Arc<Parts>, mut entry: Entry) {
    let id = entry.id.clone();
    let Ok(runtime) = parts.runtime(entry.spec.kind) else {
        tracing::error!(sandbox = %id, kind = ?entry.spec.kind, "recover: no runtime for it; its entry stays");
        // So do its layers, for as long as this process lives.
        std::mem::forget(parts.uses.hold(&entry.images, &entry.layers, User::Sandbox));
        return;
    };
    let recovery = plan_recovery(&entry, parts.ledger.boot_id(), now_ms());
    let adopted = match recovery {
        Recovery::Adopt => adopt(runtime.as_ref(), &entry).await,
        // Its state stays: what it was made of goes, and it is made again.
        Recovery::RollBack => match runtime.reset(&entry.id, &entry.record).await {
            Ok(()) => return roll_back(parts, runtime, entry),
            Err(error) => Err(error),
        },
        Recovery::Reap => Err(Error::new(Code::SandboxGone, "its time, its boot or its create is over")),
    };
    entry.state = match &adopted {
        // A death that the earlier edge saw and this runtime does not: the runtime is right.
        Ok(_) => State::Running,
        Err(error) if is_gone(error) => match entry.state {
            State::Gone => State::Stopping,
            state => state,
        },
        Err(_) => State::Broken,
    };
    let (sandbox, ends) = Sandbox::new(&entry, &parts.config.spool_dir);
    if let Some(key) = &entry.key {
        parts.registry.restore_key(key, &sandbox);
    }
    if let Err(error) = parts.registry.enter(&sandbox) {
        // Two entries with one name: one of them was being created. Neither may be lost.
        tracing::warn!(sandbox = %id, %error, "recover: it cannot enter");
        return reap_unlisted(runtime.as_ref(), parts, &entry).await;
    }
    let begin = match adopted {
        Ok(handle) => {
            sandbox.recover_execs(&handle).await;
            tracing::info!(sandbox = %id, "recover: adopted");
            Begin::Adopt(handle)
        }
        Err(error) if is_gone(&error) => {
            tracing::info!(sandbox = %id, %error, "recover: cleaning up");
            Begin::Reap
        }
        Err(error) => {
            tracing::error!(sandbox = %id, %error, "recover: cannot be adopted");
            Begin::Broken("the node could not reach it after a restart".into())
        }
    };
    let record = Some(entry.record.clone());
    let share = (
        parts.admission.reserve_adopted(&entry.spec),
        parts.uses.hold(&entry.images, &entry.layers, User::Sandbox),
    );
    let actor = Actor::new((sandbox, ends), (entry, record), (runtime, parts.clone()), share);
    actor.start(begin);
}

fn roll_back(parts: &Arc<Parts>, runtime: Arc<dyn Runtime>, entry: Entry) {
    let (id, checkpoint) = (entry.id.clone(), entry.rolling_back.clone().unwrap_or_default());
    tracing::info!(sandbox = %id, checkpoint, "recover: its rollback is done again");
    let (sandbox, ends) = Sandbox::new(&entry, &parts.config.spool_dir);
    if let Some(key) = &entry.key {
        parts.registry.restore_key(key, &sandbox);
    }
    if let Err(error) = parts.registry.enter(&sandbox) {
        tracing::error!(sandbox = %id, %error, "recover: it cannot enter; its entry stays");
        return;
    }
    let share = (
        parts.admission.reserve_adopted(&entry.spec),
        parts.uses.hold(&entry.images, &entry.layers, User::Sandbox),
    );
    let record = Some(entry.record.clone());
    let actor = Actor::new((sandbox, ends), (entry, record), (runtime, parts.clone()), share);
    actor.start(Begin::RollBack(checkpoint));
}

fn is_gone(error: &Error) -> bool {
    matches!(error.code, Code::SandboxGone | Code::NotFound)
}

async fn adopt(runtime: &dyn Runtime, entry: &Entry) -> Result<Handle> {
    let mut tries = 0;
    loop {
        tries += 1;
        let adopted = tokio::time::timeout(
            Duration::from_millis(ADOPT_MS_MAX),
            runtime.adopt(&entry.id, &entry.record),
        );
        let result = adopted.await.unwrap_or_else(|_| Err(Error::internal("the runtime did not answer")));
        match result {
            Err(e) if !is_gone(&e) && tries < ADOPT_TRIES_MAX => {
                tokio::time::sleep(Duration::from_millis(ADOPT_DELAY_MS << tries)).await;
            }
            other => return other,
        }
    }
}

async fn reap_unlisted(runtime: &dyn Runtime, parts: &Parts, entry: &Entry) {
    match runtime.stop(&entry.id, &entry.record).await {
        Ok(()) => {
            if let Err(error) = parts.ledger.remove(&entry.id) {
                tracing::error!(sandbox = %entry.id, %error, "ledger: an entry stays until the next start");
            }
        }
        Err(error) => tracing::error!(sandbox = %entry.id, %error, "recover: stop failed; its entry stays"),
    }
}

/// Spools of sandboxes that nobody knows.
fn remove_orphan_spools(dir: &Path, known: &HashSet<String>) {
    let orphans = || -> io::Result<()> {
        for file in fs::read_dir(dir)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            if name.parse::<api::SandboxId>().is_ok() && !known.contains(&name) {
                fs::remove_dir_all(file.path())?;
            }
        }
        Ok(())
    };
    if let Err(error) = orphans() {
        tracing::warn!(dir = %dir.display(), %error, "spool: an orphan directory stays");
    }
}

#[cfg(test)]
mod tests {
    use api::{SandboxId, spec::SandboxSpec};

    use super::*;

    #[test]
    fn only_what_ran_in_this_boot_and_has_time_left_is_adopted() {
        let entry = |state, boot_id: &str, expires_ms| Entry {
            version: 1,
            boot_id: boot_id.into(),
            id: SandboxId::new(&"e1".parse().unwrap()),
            spec: SandboxSpec::new("base"),
            project: api::spec::root_project(),
            reservation: None,
            layers: Vec::new(),
            images: Vec::new(),
            config: api::image::ImageConfig::default(),
            checkpoints: Vec::new(),
            rolling_back: None,
            state,
            created_ms: 0,
            expires_ms,
            record: serde_json::Value::Null,
            key: None,
        };
        let rolling =
            |boot_id: &str| Entry { rolling_back: Some("c".into()), ..entry(State::Creating, boot_id, 11) };
        assert_eq!(plan_recovery(&rolling("a"), "a", 10), Recovery::RollBack);
        assert_eq!(plan_recovery(&rolling("b"), "a", 10), Recovery::Reap);
        for state in State::ALL {
            let runs = matches!(state, State::Running | State::Broken);
            let expected = if runs { Recovery::Adopt } else { Recovery::Reap };
            assert_eq!(plan_recovery(&entry(*state, "a", 11), "a", 10), expected, "{state:?}");
            assert_eq!(plan_recovery(&entry(*state, "b", 11), "a", 10), Recovery::Reap, "another boot");
            assert_eq!(plan_recovery(&entry(*state, "a", 10), "a", 10), Recovery::Reap, "expired");
        }
    }
}
