//! What projects use: reservations and tallies, and their sum beside each project.
//!
//! Invariant: after each transaction here, `used` of a project is what the tallies and the reservations of it and of all
//! below it add up to.

use std::collections::BTreeMap;

use std::time::Duration;

use api::{
    Code, EdgeId, Error, Result,
    iam::{Amount, Tally},
};
use sqlx::{Row, Sqlite, Transaction};

use super::{
    Store, StoreError, now_ms,
    projects::{commit, line, tree},
    read, to_ms, written,
};
use crate::tree::Tree;

/// An edge that works on a reservation says so far more often than this.
const RENEWED_FOR: Duration = Duration::from_secs(120);
/// Reservations that a sweep ends at once.
const SWEEP_MAX: i64 = 1000;

/// By project, without those above.
type Amounts = BTreeMap<String, Amount>;

impl Store {
    /// Takes `amount` from a project and all above it, or from none. Errors: `quota_exceeded`, `not_found`.
    pub(crate) async fn reserve(
        &self,
        id: &str,
        project_id: &str,
        amount: &Amount,
        expires_ms: u64,
    ) -> Result<()> {
        let mut transaction = self.begin().await?;
        // A create's: however many projects there are, these are few.
        let mut tree = line(&mut transaction, project_id).await?;
        if tree.get(project_id).is_none() {
            return Err(Error::not_found("the project of this key is gone"));
        }
        if let Some(exceeded) = tree.exceeded(project_id, amount) {
            return Err(Error::new(Code::QuotaExceeded, exceeded.to_string()));
        }
        let inserted = sqlx::query(
            "INSERT INTO reservations (id, project_id, amount, expires_ms) VALUES ($1, $2, $3, $4)",
        )
        .bind(id)
        .bind(project_id)
        .bind(written(amount)?)
        .bind(to_ms(expires_ms))
        .execute(&mut *transaction)
        .await;
        inserted.map_err(StoreError::Query)?;
        add(&mut transaction, &mut tree, &Amounts::from([(project_id.to_owned(), *amount)]), &Amounts::new())
            .await?;
        commit(transaction).await
    }

    /// Ends a reservation that came to nothing: of `id`, or of all that are over. Returns how many.
    pub(crate) async fn end_reservations(&self, id: Option<&str>) -> Result<u64> {
        let now = to_ms(now_ms());
        if id.is_none() {
            // Nearly always there are none, and a reader keeps nobody waiting.
            let over: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM reservations WHERE expires_ms <= $1")
                .bind(now)
                .fetch_one(&self.0)
                .await
                .map_err(StoreError::Query)?;
            if over == 0 {
                return Ok(0);
            }
        }
        let mut transaction = self.begin().await?;
        let rows = sqlx::query(
            "SELECT id, project_id, amount FROM reservations WHERE ($1 IS NULL AND expires_ms <= $2) OR id = $1 LIMIT $3",
        )
        .bind(id)
        .bind(now)
        .bind(SWEEP_MAX)
        .fetch_all(&mut *transaction)
        .await
        .map_err(StoreError::Query)?;
        if rows.is_empty() {
            return Ok(0);
        }
        let mut gone = Amounts::new();
        for row in &rows {
            let text: String = row.try_get("amount").map_err(StoreError::Query)?;
            let project: String = row.try_get("project_id").map_err(StoreError::Query)?;
            let id: String = row.try_get("id").map_err(StoreError::Query)?;
            put(&mut gone, project, &read(&text)?);
            delete_reservation(&mut transaction, &id).await?;
        }
        let mut tree = tree(&mut transaction).await?;
        add(&mut transaction, &mut tree, &Amounts::new(), &gone).await?;
        commit(transaction).await?;
        Ok(rows.len() as u64)
    }

    /// Replaces what an edge has said. False where it has said something newer already.
    pub(crate) async fn tally(&self, edge: &EdgeId, tally: &Tally) -> Result<bool> {
        let mut transaction = self.begin().await?;
        if !is_newer(&mut transaction, edge, tally).await? {
            return Ok(false);
        }
        let mut tree = tree(&mut transaction).await?;
        let mut gone = said_before(&mut transaction, edge).await?;
        for id in &tally.finished {
            let row = sqlx::query("SELECT project_id, amount FROM reservations WHERE id = $1")
                .bind(id)
                .fetch_optional(&mut *transaction)
                .await
                .map_err(StoreError::Query)?;
            let Some(row) = row else { continue };
            let text: String = row.try_get("amount").map_err(StoreError::Query)?;
            put(&mut gone, row.try_get("project_id").map_err(StoreError::Query)?, &read(&text)?);
            delete_reservation(&mut transaction, id).await?;
        }
        let until = now_ms().saturating_add(RENEWED_FOR.as_millis() as u64);
        for id in &tally.working {
            sqlx::query("UPDATE reservations SET expires_ms = MAX(expires_ms, $1) WHERE id = $2")
                .bind(to_ms(until))
                .bind(id)
                .execute(&mut *transaction)
                .await
                .map_err(StoreError::Query)?;
        }
        // Of projects that are not there: sandboxes that nobody knows. The edge holds them, no quota does.
        let known: Amounts = tally
            .projects
            .iter()
            .filter(|(id, _)| tree.get(id).is_some())
            .map(|(id, a)| (id.clone(), *a))
            .collect();
        for (project, amount) in &known {
            sqlx::query("INSERT INTO tallies (edge_id, project_id, amount) VALUES ($1, $2, $3)")
                .bind(edge.as_str())
                .bind(project)
                .bind(written(amount)?)
                .execute(&mut *transaction)
                .await
                .map_err(StoreError::Query)?;
        }
        add(&mut transaction, &mut tree, &known, &gone).await?;
        commit(transaction).await?;
        Ok(true)
    }
}

/// Adds and takes away, up the tree.
async fn add(
    transaction: &mut Transaction<'_, Sqlite>,
    tree: &mut Tree,
    more: &Amounts,
    less: &Amounts,
) -> Result<(), StoreError> {
    // More first: what is taken away must be there.
    more.iter().for_each(|(project, amount)| tree.add(project, amount));
    less.iter().for_each(|(project, amount)| tree.take(project, amount));
    for project in tree.changed() {
        sqlx::query("UPDATE projects SET used = $1 WHERE id = $2")
            .bind(written(&project.used)?)
            .bind(&project.id)
            .execute(&mut **transaction)
            .await?;
    }
    Ok(())
}

fn put(amounts: &mut Amounts, project: String, amount: &Amount) {
    let sum = amounts.entry(project).or_default();
    *sum = sum.plus(amount);
}

async fn delete_reservation(transaction: &mut Transaction<'_, Sqlite>, id: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM reservations WHERE id = $1").bind(id).execute(&mut **transaction).await?;
    Ok(())
}

/// Notes the tally's number where it is newer than the last.
async fn is_newer(
    transaction: &mut Transaction<'_, Sqlite>,
    edge: &EdgeId,
    tally: &Tally,
) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "INSERT INTO edges (id, started, sequence) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE
         SET started = excluded.started, sequence = excluded.sequence
         WHERE excluded.started > edges.started
            OR (excluded.started = edges.started AND excluded.sequence > edges.sequence)",
    )
    .bind(edge.as_str())
    .bind(to_ms(tally.started_ms))
    .bind(to_ms(tally.sequence))
    .execute(&mut **transaction)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// What the edge's last tally said; it is forgotten.
async fn said_before(
    transaction: &mut Transaction<'_, Sqlite>,
    edge: &EdgeId,
) -> Result<Amounts, StoreError> {
    let rows = sqlx::query("DELETE FROM tallies WHERE edge_id = $1 RETURNING project_id, amount")
        .bind(edge.as_str())
        .fetch_all(&mut **transaction)
        .await?;
    let mut said = Amounts::new();
    for row in &rows {
        let text: String = row.try_get("amount")?;
        put(&mut said, row.try_get("project_id")?, &read(&text)?);
    }
    Ok(said)
}
