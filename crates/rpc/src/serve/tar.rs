//! Trees as tar streams.

use std::sync::Arc;

use api::{arrow::Chronus, file::TarQuery};

use super::{answer, call::Call};
use crate::route::Reply;

type To = Arc<dyn Chronus>;

pub(crate) async fn get(to: To, call: Call) -> Reply {
    let query: TarQuery = call.query()?;
    query.validate()?;
    Ok(answer::bytes("application/x-tar", to.tar_get(query).await?).await?)
}

pub(crate) async fn put(to: To, call: Call) -> Reply {
    let query: TarQuery = call.query()?;
    query.validate()?;
    Ok(answer::json(&to.tar_put(query, call.stream()).await?))
}
