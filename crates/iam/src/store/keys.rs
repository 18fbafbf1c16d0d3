//! Keys and secrets.

use api::{
    Code, Error, Result,
    iam::{KeyInfo, PrincipalKind, Rights},
};
use sqlx::{Row, sqlite::SqliteRow};

use super::{Store, StoreError, ms, now_ms, to_ms};
use crate::key::Digest;

const KEY: &str = "id, name, project_id, kind, rights, created_ms, expires_ms, revoked_ms, made_by";

impl Store {
    /// `info.project` is not kept. Errors: `already_exists`.
    pub(crate) async fn insert_key(&self, info: &KeyInfo, digest: &Digest) -> Result<()> {
        let inserted = sqlx::query(
            "INSERT INTO api_keys (id, project_id, name, digest, created_ms, kind, rights, expires_ms, made_by)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(&info.id)
        .bind(&info.project_id)
        .bind(&info.name)
        .bind(&digest[..])
        .bind(to_ms(info.created_ms))
        .bind(info.kind.as_str())
        .bind(info.rights.to_bits().cast_signed())
        .bind(info.expires_ms.map(to_ms))
        .bind(&info.made_by)
        .execute(&self.0)
        .await;
        match inserted {
            Ok(_) => Ok(()),
            Err(sqlx::Error::Database(e)) if e.is_unique_violation() => {
                let text = format!("there is a key `{}` already; revoke it first", info.name);
                Err(Error::new(Code::AlreadyExists, text))
            }
            Err(e) => Err(StoreError::Query(e).into()),
        }
    }

    /// The key that is not revoked and has this digest.
    pub(crate) async fn key_by_digest(
        &self,
        digest: &Digest,
    ) -> Result<Option<(Vec<u8>, KeyInfo)>, StoreError> {
        let query = format!("SELECT {KEY}, digest FROM api_keys WHERE digest = $1 AND revoked_ms IS NULL");
        let row = sqlx::query(sqlx::AssertSqlSafe(query)).bind(&digest[..]).fetch_optional(&self.0).await?;
        row.map(|row| Ok((row.try_get("digest")?, key(&row)?))).transpose()
    }

    /// All, revoked ones too, oldest first.
    pub(crate) async fn keys(&self) -> Result<Vec<KeyInfo>, StoreError> {
        let query = format!("SELECT {KEY} FROM api_keys ORDER BY id");
        let rows = sqlx::query(sqlx::AssertSqlSafe(query)).fetch_all(&self.0).await?;
        rows.iter().map(key).collect()
    }

    /// Whether it worked until now.
    pub(crate) async fn revoke_key(&self, id: &str) -> Result<bool, StoreError> {
        let done = sqlx::query("UPDATE api_keys SET revoked_ms = $1 WHERE id = $2 AND revoked_ms IS NULL")
            .bind(to_ms(now_ms()))
            .bind(id)
            .execute(&self.0)
            .await?;
        Ok(done.rows_affected() > 0)
    }

    /// The one of that name; `fresh` becomes it where there is none.
    pub(crate) async fn secret(&self, name: &str, fresh: &[u8; 32]) -> Result<[u8; 32]> {
        sqlx::query(
            "INSERT INTO secrets (name, secret, created_ms) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        )
        .bind(name)
        .bind(&fresh[..])
        .bind(to_ms(now_ms()))
        .execute(&self.0)
        .await
        .map_err(StoreError::Query)?;
        let row = sqlx::query("SELECT secret FROM secrets WHERE name = $1")
            .bind(name)
            .fetch_one(&self.0)
            .await
            .map_err(StoreError::Query)?;
        let secret: Vec<u8> = row.try_get("secret").map_err(StoreError::Query)?;
        secret.try_into().map_err(|_| Error::internal("a secret of the key store has not 32 bytes"))
    }
}

fn key(row: &SqliteRow) -> Result<KeyInfo, StoreError> {
    let kind: String = row.try_get("kind")?;
    Ok(KeyInfo {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        project_id: row.try_get("project_id")?,
        project: String::new(),
        kind: serde_json::from_value::<PrincipalKind>(kind.into())?,
        rights: Rights::from_bits(row.try_get::<i64, _>("rights")?.cast_unsigned()),
        created_ms: ms(row.try_get("created_ms")?),
        expires_ms: row.try_get::<Option<i64>, _>("expires_ms")?.map(ms),
        revoked_ms: row.try_get::<Option<i64>, _>("revoked_ms")?.map(ms),
        made_by: row.try_get("made_by")?,
    })
}
