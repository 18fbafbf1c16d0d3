//! The SQLite file.

use std::{
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api::{Code, Error, Result};
use sqlx::{
    Row, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous},
};

use crate::{KeyId, KeyInfo, Principal, ProjectId, ROOT_PROJECT, key::Digest};

const CONNECTIONS_MAX: u32 = 4;
/// How long a writer waits for another, and a query for a connection.
const WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Store(SqlitePool);

/// Why the store did not answer. Logged here; a caller only learns that it is our fault.
#[derive(Debug, thiserror::Error)]
enum StoreError {
    #[error("the key store cannot be made")]
    Create(#[source] io::Error),
    #[error("the key store cannot be opened")]
    Open(#[source] sqlx::Error),
    #[error("the key store cannot be brought up to date")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    #[error("a query of the key store failed")]
    Query(#[source] sqlx::Error),
}

impl From<StoreError> for Error {
    fn from(e: StoreError) -> Self {
        tracing::error!(error = &e as &dyn std::error::Error, "iam");
        Self::internal(e.to_string())
    }
}

impl Store {
    pub(crate) async fn open(path: &Path) -> Result<Self> {
        // The write-ahead log takes the file's mode over.
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(StoreError::Create)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(WAIT_MAX);
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(WAIT_MAX)
            .connect_with(options)
            .await
            .map_err(StoreError::Open)?;
        sqlx::migrate!().run(&pool).await.map_err(StoreError::Migrate)?;
        Ok(Self(pool))
    }

    pub(crate) async fn insert(&self, name: &str, digest: &Digest) -> Result<()> {
        let inserted = sqlx::query(
            "INSERT INTO api_keys (id, project_id, name, digest, created_ms) VALUES (?, ?, ?, ?, ?)",
        )
        .bind(format!("ak-{}", uuid::Uuid::now_v7().simple()))
        .bind(ROOT_PROJECT)
        .bind(name)
        .bind(&digest[..])
        .bind(now_ms())
        .execute(&self.0)
        .await;
        match inserted {
            Ok(_) => Ok(()),
            Err(sqlx::Error::Database(e)) if e.is_unique_violation() => Err(Error::new(
                Code::AlreadyExists,
                format!("there is a key `{name}` already; revoke it first"),
            )),
            Err(e) => Err(StoreError::Query(e).into()),
        }
    }

    /// The key that works and has this digest.
    pub(crate) async fn by_digest(&self, digest: &Digest) -> Result<Option<(Vec<u8>, Principal)>> {
        let row = sqlx::query(
            "SELECT id, project_id, name, digest FROM api_keys WHERE digest = ? AND revoked_ms IS NULL",
        )
        .bind(&digest[..])
        .fetch_optional(&self.0)
        .await
        .map_err(StoreError::Query)?;
        let Some(row) = row else { return Ok(None) };
        let read = || -> sqlx::Result<_> {
            let principal = Principal {
                project_id: ProjectId(row.try_get("project_id")?),
                key_id: KeyId(row.try_get("id")?),
                key_name: row.try_get("name")?,
            };
            Ok((row.try_get("digest")?, principal))
        };
        Ok(Some(read().map_err(StoreError::Query)?))
    }

    /// The one of that name; `fresh` becomes it where there is none.
    pub(crate) async fn secret(&self, name: &str, fresh: &[u8; 32]) -> Result<[u8; 32]> {
        sqlx::query("INSERT INTO secrets (name, secret, created_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING")
            .bind(name)
            .bind(&fresh[..])
            .bind(now_ms())
            .execute(&self.0)
            .await
            .map_err(StoreError::Query)?;
        let row = sqlx::query("SELECT secret FROM secrets WHERE name = ?")
            .bind(name)
            .fetch_one(&self.0)
            .await
            .map_err(StoreError::Query)?;
        let secret: Vec<u8> = row.try_get("secret").map_err(StoreError::Query)?;
        secret.try_into().map_err(|_| Error::internal("a secret of the key store has not 32 bytes"))
    }

    pub(crate) async fn list(&self) -> Result<Vec<KeyInfo>> {
        let rows =
            sqlx::query("SELECT id, project_id, name, created_ms, revoked_ms FROM api_keys ORDER BY id")
                .fetch_all(&self.0)
                .await
                .map_err(StoreError::Query)?;
        let keys: sqlx::Result<Vec<_>> = rows.iter().map(key_info).collect();
        Ok(keys.map_err(StoreError::Query)?)
    }

    /// Whether there was such a key.
    pub(crate) async fn revoke(&self, id_or_name: &str) -> Result<bool> {
        let done = sqlx::query(
            "UPDATE api_keys SET revoked_ms = ? WHERE (id = ? OR name = ?) AND revoked_ms IS NULL",
        )
        .bind(now_ms())
        .bind(id_or_name)
        .bind(id_or_name)
        .execute(&self.0)
        .await
        .map_err(StoreError::Query)?;
        Ok(done.rows_affected() > 0)
    }
}

fn key_info(row: &SqliteRow) -> sqlx::Result<KeyInfo> {
    Ok(KeyInfo {
        id: KeyId(row.try_get("id")?),
        project_id: ProjectId(row.try_get("project_id")?),
        name: row.try_get("name")?,
        created_ms: row.try_get::<i64, _>("created_ms")?.unsigned_abs(),
        revoked_ms: row.try_get::<Option<i64>, _>("revoked_ms")?.map(i64::unsigned_abs),
    })
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
