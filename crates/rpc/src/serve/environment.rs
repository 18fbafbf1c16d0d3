//! Environments: create, list, inspect, remove.

use std::sync::Arc;

use api::{arrow::Front, environment::EnvironmentRequest};

use super::{
    answer,
    call::{Call, to_the_end},
    image::reference,
};
use crate::route::Reply;

type To = Arc<dyn Front>;

pub(crate) async fn create(to: To, mut call: Call) -> Reply {
    let request: EnvironmentRequest = call.json().await?;
    request.validate()?;
    let made = to_the_end(async move { to.environment_create(request).await }).await?;
    Ok(answer::json(&made))
}

pub(crate) async fn list(to: To, _: Call) -> Reply {
    Ok(answer::json(&to.environment_list().await?))
}

pub(crate) async fn inspect(to: To, call: Call) -> Reply {
    Ok(answer::json(&to.environment_inspect(&reference(&call)?).await?))
}

pub(crate) async fn remove(to: To, call: Call) -> Reply {
    let reference = reference(&call)?;
    to_the_end(async move { to.environment_remove(&reference).await }).await?;
    Ok(answer::nothing())
}
