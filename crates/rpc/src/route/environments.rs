//! The routes of environments.

use std::sync::Arc;

use api::{
    Code,
    arrow::Front,
    environment::{EnvironmentInfo, EnvironmentRequest},
};

use super::{On, Route, verb};
use crate::serve::environment;

pub(crate) fn routes() -> Vec<Route<Arc<dyn Front>>> {
    vec![
        Route::new(
            On::Post,
            "/environments",
            verb!("environment_create"),
            "Name a composition of a base, workspaces and toolkits; sandboxes are created of it as of an image.",
            |to, call| Box::pin(environment::create(to, call)),
        )
        .body::<EnvironmentRequest>()
        .json::<EnvironmentInfo>()
        .errors(&[Code::NotFound, Code::AlreadyExists]),
        Route::new(On::Get, "/environments", verb!("environment_list"), "All environments.", |to, call| {
            Box::pin(environment::list(to, call))
        })
        .json::<Vec<EnvironmentInfo>>(),
        Route::new(
            On::Get,
            "/environments/{reference}",
            verb!("environment_inspect"),
            "One environment, by `name` or `name:version`, and what it means now.",
            |to, call| Box::pin(environment::inspect(to, call)),
        )
        .json::<EnvironmentInfo>()
        .errors(&[Code::NotFound]),
        Route::new(
            On::Delete,
            "/environments/{reference}",
            verb!("environment_remove"),
            "Remove an environment; its images stay.",
            |to, call| Box::pin(environment::remove(to, call)),
        )
        .errors(&[Code::NotFound, Code::Conflict]),
    ]
}
