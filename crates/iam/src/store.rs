//! The database: one file, its pool and its faults. What is asked of it is beside its subject.

pub(crate) mod audit;
pub(crate) mod keys;
pub(crate) mod projects;
pub(crate) mod usage;

use std::{
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{
    Sqlite, SqlitePool, Transaction,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

const CONNECTIONS_MAX: u32 = 4;
/// How long a writer waits for another, and a query for a connection.
const WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Store(SqlitePool);

/// Why the store did not answer. Logged here; a caller only learns that it is our fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("the key store cannot be made")]
    Create(#[source] io::Error),
    #[error("the key store cannot be opened")]
    Open(#[source] sqlx::Error),
    #[error("the key store cannot be brought up to date")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    #[error("a query of the key store failed")]
    Query(#[from] sqlx::Error),
    #[error("the key store holds what cannot be read")]
    Damaged(#[from] serde_json::Error),
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

    /// A transaction that has the store to itself from its first query on: what it reads stays true until its end.
    async fn begin(&self) -> Result<Transaction<'_, Sqlite>, StoreError> {
        Ok(self.0.begin_with("BEGIN IMMEDIATE").await?)
    }
}

/// JSON of a column.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    Ok(serde_json::from_str(text)?)
}

fn written(value: &impl Serialize) -> Result<String, StoreError> {
    Ok(serde_json::to_string(value)?)
}

/// A time of the database.
fn ms(value: i64) -> u64 {
    value.unsigned_abs()
}

/// A time for the database.
fn to_ms(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
