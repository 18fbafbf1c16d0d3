//! What one server keeps of a session: a lock, so that its requests come one after the other as with theirs, and a hint
//! of what was read. Losing either loses nothing but order and brevity.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use api::{ExecId, SandboxId};

use super::transcript::Transcript;

/// Sessions whose hints are kept.
const PLACES_MAX: usize = 4096;

/// Up to where the log of an exec was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(super) exec_id: ExecId,
    pub(super) offset: u64,
}

impl Hint {
    /// Where it is in the text, where that is behind `taken`.
    pub(super) fn index_in(&self, exec: &ExecId, text: &Transcript, taken: usize) -> Option<usize> {
        if self.exec_id != *exec || self.offset < text.offset_of(taken) {
            return None;
        }
        let left = usize::try_from(text.end().checked_sub(self.offset)?).ok()?;
        text.bytes().len().checked_sub(left)
    }
}

#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) turn: tokio::sync::Mutex<()>,
    hint: Mutex<Option<Hint>>,
}

impl Place {
    pub(super) fn hint(&self) -> Option<Hint> {
        self.hint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    pub(super) fn note(&self, exec_id: &ExecId, offset: u64) {
        let hint = Hint { exec_id: exec_id.clone(), offset };
        *self.hint.lock().unwrap_or_else(PoisonError::into_inner) = Some(hint);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<HashMap<(SandboxId, String), Arc<Place>>>);

impl Places {
    pub(super) fn of(&self, id: &SandboxId, name: &str) -> Arc<Place> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= PLACES_MAX {
            places.retain(|_, place| Arc::strong_count(place) > 1);
        }
        places.entry((id.clone(), name.to_owned())).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_of_one_exec_and_never_goes_back() {
        let exec = ExecId::new();
        let mut text = Transcript::at(100);
        text.push(100, b"0123456789");
        let hint = |offset| Hint { exec_id: exec.clone(), offset };
        assert_eq!(hint(105).index_in(&exec, &text, 2), Some(5));
        assert_eq!(hint(110).index_in(&exec, &text, 2), Some(10));
        assert_eq!(hint(101).index_in(&exec, &text, 2), None);
        assert_eq!(hint(111).index_in(&exec, &text, 2), None);
        assert_eq!(hint(105).index_in(&ExecId::new(), &text, 2), None);
    }
}
