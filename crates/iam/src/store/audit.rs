//! The audit log: appended to, read, and cut when it is long.

use api::{Code, Result, iam::AuditEntry};
use sqlx::Row;

use super::{Store, StoreError, ms, to_ms};

/// Entries that are kept; the oldest go first.
const ENTRIES_MAX: i64 = 1_000_000;
/// Between two cuts.
const CUT_EACH: i64 = 1000;

impl Store {
    pub(crate) async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let done = sqlx::query(
            "INSERT INTO audit (at_ms, key_id, key_name, project, verb, target, code) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(to_ms(entry.at_ms))
        .bind(&entry.key_id)
        .bind(&entry.key_name)
        .bind(&entry.project)
        .bind(&entry.verb)
        .bind(&entry.target)
        .bind(entry.code.map(Code::as_str))
        .execute(&self.0)
        .await?;
        let id = done.last_insert_rowid();
        if id % CUT_EACH == 0 {
            sqlx::query("DELETE FROM audit WHERE id <= $1").bind(id - ENTRIES_MAX).execute(&self.0).await?;
        }
        Ok(())
    }

    /// Of the projects whose paths begin with `path`, newest first.
    pub(crate) async fn audited(&self, path: &str, count_max: u32) -> Result<Vec<AuditEntry>, StoreError> {
        let rows = sqlx::query(
            "SELECT at_ms, key_id, key_name, project, verb, target, code FROM audit
             WHERE project = $1 OR substr(project, 1, length($1) + 1) = $1 || '/' ORDER BY id DESC LIMIT $2",
        )
        .bind(path)
        .bind(i64::from(count_max))
        .fetch_all(&self.0)
        .await?;
        let entry = |row: &sqlx::sqlite::SqliteRow| {
            let code: Option<String> = row.try_get("code")?;
            Ok(AuditEntry {
                at_ms: ms(row.try_get("at_ms")?),
                key_id: row.try_get("key_id")?,
                key_name: row.try_get("key_name")?,
                project: row.try_get("project")?,
                verb: row.try_get("verb")?,
                target: row.try_get("target")?,
                code: code.map(|code| serde_json::from_value(code.into())).transpose()?,
            })
        };
        rows.iter().map(entry).collect()
    }
}
