//! Projects: rows, and the tree that they are.

use api::{
    Code, Error, Result,
    iam::{Amount, ProjectUpdate, Quota, Rights},
};
use sqlx::{Row, Sqlite, SqliteConnection, Transaction, sqlite::SqliteRow};

use super::{Store, StoreError, ms, now_ms, read, to_ms, written};
use crate::tree::{Project, Tree};

impl Store {
    pub(crate) async fn projects(&self) -> Result<Tree, StoreError> {
        let mut connection = self.0.acquire().await?;
        tree(&mut connection).await
    }

    /// `check` is asked of the tree as it is at that moment. Errors: its own; `already_exists`.
    pub(crate) async fn insert_project(
        &self,
        project: &Project,
        check: impl FnOnce(&Tree) -> Result<()>,
    ) -> Result<()> {
        let mut transaction = self.begin().await?;
        check(&tree(&mut transaction).await?)?;
        let inserted = sqlx::query(
            "INSERT INTO projects (id, parent_id, name, created_ms, rights, quota) VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(&project.id)
        .bind(&project.parent_id)
        .bind(&project.name)
        .bind(to_ms(project.created_ms))
        .bind(project.rights.to_bits().cast_signed())
        .bind(written(&project.quota)?)
        .execute(&mut *transaction)
        .await;
        match inserted {
            Ok(_) => commit(transaction).await,
            Err(sqlx::Error::Database(e)) if e.is_unique_violation() => {
                let text = format!("there is a project `{}` there already", project.name);
                Err(Error::new(Code::AlreadyExists, text))
            }
            Err(e) => Err(StoreError::Query(e).into()),
        }
    }

    /// Errors: those of `check`.
    pub(crate) async fn update_project(
        &self,
        id: &str,
        update: &ProjectUpdate,
        check: impl FnOnce(&Tree) -> Result<()>,
    ) -> Result<()> {
        let mut transaction = self.begin().await?;
        check(&tree(&mut transaction).await?)?;
        let done = sqlx::query(
            "UPDATE projects SET rights = COALESCE($1, rights), quota = COALESCE($2, quota) WHERE id = $3",
        )
        .bind(update.rights.map(|rights| rights.to_bits().cast_signed()))
        .bind(update.quota.as_ref().map(written).transpose()?)
        .bind(id)
        .execute(&mut *transaction)
        .await;
        done.map_err(StoreError::Query)?;
        commit(transaction).await
    }

    /// With its keys, which must not work any more. Errors: those of `check`; `conflict`.
    pub(crate) async fn remove_project(
        &self,
        id: &str,
        check: impl FnOnce(&Tree) -> Result<()>,
    ) -> Result<()> {
        let mut transaction = self.begin().await?;
        check(&tree(&mut transaction).await?)?;
        for (what, query) in [
            (
                "keys that work",
                "SELECT COUNT(*) FROM api_keys WHERE project_id = $1 AND revoked_ms IS NULL AND (expires_ms IS NULL OR expires_ms > $2)",
            ),
            (
                "sandboxes on their way",
                "SELECT COUNT(*) FROM reservations WHERE project_id = $1 AND expires_ms > $2",
            ),
        ] {
            let count: i64 = sqlx::query_scalar(query)
                .bind(id)
                .bind(to_ms(now_ms()))
                .fetch_one(&mut *transaction)
                .await
                .map_err(StoreError::Query)?;
            if count > 0 {
                return Err(Error::new(Code::Conflict, format!("the project has {count} {what}")));
            }
        }
        for query in [
            "DELETE FROM api_keys WHERE project_id = $1",
            "DELETE FROM reservations WHERE project_id = $1",
            "DELETE FROM tallies WHERE project_id = $1",
            "DELETE FROM projects WHERE id = $1",
        ] {
            sqlx::query(query).bind(id).execute(&mut *transaction).await.map_err(StoreError::Query)?;
        }
        commit(transaction).await
    }
}

pub(super) async fn commit(transaction: Transaction<'_, Sqlite>) -> Result<()> {
    Ok(transaction.commit().await.map_err(StoreError::Query)?)
}

/// A project and all above it.
pub(super) async fn line(connection: &mut SqliteConnection, id: &str) -> Result<Tree, StoreError> {
    let rows = sqlx::query(
        "WITH RECURSIVE line AS (
             SELECT id, parent_id FROM projects WHERE id = $1
             UNION SELECT above.id, above.parent_id FROM projects above JOIN line ON above.id = line.parent_id)
         SELECT id, parent_id, name, created_ms, rights, quota, used FROM projects WHERE id IN (SELECT id FROM line)",
    )
    .bind(id)
    .fetch_all(connection)
    .await?;
    Ok(Tree::new(rows.iter().map(project).collect::<Result<_, StoreError>>()?))
}

pub(super) async fn tree(connection: &mut SqliteConnection) -> Result<Tree, StoreError> {
    let rows = sqlx::query("SELECT id, parent_id, name, created_ms, rights, quota, used FROM projects")
        .fetch_all(connection)
        .await?;
    Ok(Tree::new(rows.iter().map(project).collect::<Result<_, StoreError>>()?))
}

fn project(row: &SqliteRow) -> Result<Project, StoreError> {
    Ok(Project {
        id: row.try_get("id")?,
        parent_id: row.try_get("parent_id")?,
        name: row.try_get("name")?,
        rights: Rights::from_bits(row.try_get::<i64, _>("rights")?.cast_unsigned()),
        quota: read::<Quota>(row.try_get("quota")?)?,
        used: read::<Amount>(row.try_get("used")?)?,
        created_ms: ms(row.try_get("created_ms")?),
    })
}
