//! The audit log: one line for each management call.

use api::{
    Result,
    iam::{Action, AuditEntry},
};

use crate::{Iam, Principal, store::now_ms};

/// What a list holds at most.
const LIST_MAX: u32 = 10_000;
/// A target is a name that a caller chose.
const TARGET_CHARS_MAX: usize = 200;

impl Iam {
    /// Notes a call and how it ended. A failure to note is told to the log: the call is done. What the call answers is not kept
    /// for it.
    pub fn note<T>(
        &self,
        by: &Principal,
        verb: &str,
        target: &str,
        outcome: &Result<T>,
    ) -> impl Future<Output = ()> + use<T> {
        let entry = AuditEntry {
            at_ms: now_ms(),
            key_id: by.key_id.to_string(),
            key_name: by.key_name.clone(),
            project: by.project.clone(),
            verb: verb.to_owned(),
            target: target.chars().take(TARGET_CHARS_MAX).collect(),
            code: outcome.as_ref().err().map(|error| error.code),
        };
        let store = self.store.clone();
        async move {
            if let Err(error) = store.audit(&entry).await {
                tracing::error!(%error, verb = entry.verb, target = entry.target, "a call is not in the audit log");
            }
        }
    }

    /// Calls by keys of the project of `by` and of those below it, newest first. Errors: `permission_denied`.
    pub async fn audit_list(&self, by: &Principal, count_max: u32) -> Result<Vec<AuditEntry>> {
        by.may(Action::AuditRead)?;
        Ok(self.store.audited(&by.project, count_max.min(LIST_MAX)).await?)
    }
}
