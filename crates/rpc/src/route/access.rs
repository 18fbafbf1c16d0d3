//! The routes of projects, keys and the audit log.

use std::sync::Arc;

use api::{
    Code,
    arrow::Front,
    iam::{
        AuditEntry, AuditQuery, KeyInfo, KeyMade, KeyRequest, ProjectInfo, ProjectRequest, ProjectUpdate,
        Tally, TallyQuery,
    },
};

use super::{On, Route, verb};
use crate::serve::access;

type To = Arc<dyn Front>;

/// Every route of `Access`, and the word of an edge about its quota.
pub(crate) fn routes() -> Vec<Route<To>> {
    let mut routes = project_routes();
    routes.extend(key_routes());
    routes.push(
        Route::new(
            On::Post,
            "/tally",
            verb!("tally"),
            "What lives on an edge, by project: for the apiservers before it.",
            |to, call| Box::pin(access::tally(to, call)),
        )
        .body::<TallyQuery>()
        .json::<Tally>()
        .errors(&[Code::Unsupported]),
    );
    routes
}

fn project_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Post,
            "/projects",
            verb!("project_create"),
            "Make a project below that of the key, or below another that is below it.",
            |to, call| Box::pin(access::project_create(to, call)),
        )
        .body::<ProjectRequest>()
        .json::<ProjectInfo>()
        .errors(&[Code::PermissionDenied, Code::NotFound, Code::AlreadyExists, Code::QuotaExceeded]),
        Route::new(
            On::Get,
            "/projects",
            verb!("project_list"),
            "The project of the key, and all below it.",
            |to, call| Box::pin(access::project_list(to, call)),
        )
        .json::<Vec<ProjectInfo>>()
        .errors(&[Code::PermissionDenied]),
        Route::new(
            On::Get,
            "/projects/{reference}",
            verb!("project_inspect"),
            "One project, by id or path: what holds, and what is used.",
            |to, call| Box::pin(access::project_inspect(to, call)),
        )
        .json::<ProjectInfo>()
        .errors(&[Code::PermissionDenied, Code::NotFound]),
        Route::new(
            On::Patch,
            "/projects/{reference}",
            verb!("project_update"),
            "Bound a project: its rights, its quota.",
            |to, call| Box::pin(access::project_update(to, call)),
        )
        .body::<ProjectUpdate>()
        .json::<ProjectInfo>()
        .errors(&[Code::PermissionDenied, Code::NotFound]),
        Route::new(
            On::Delete,
            "/projects/{reference}",
            verb!("project_remove"),
            "Remove a project that has nothing.",
            |to, call| Box::pin(access::project_remove(to, call)),
        )
        .errors(&[Code::PermissionDenied, Code::NotFound, Code::Conflict]),
    ]
}

fn key_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Post,
            "/keys",
            verb!("key_create"),
            "Make a key that may do a part of what this one may. The answer is the only one that holds it.",
            |to, call| Box::pin(access::key_create(to, call)),
        )
        .body::<KeyRequest>()
        .json::<KeyMade>()
        .errors(&[Code::PermissionDenied, Code::NotFound, Code::AlreadyExists]),
        Route::new(
            On::Get,
            "/keys",
            verb!("key_list"),
            "Keys of the project of this one, and of all below it.",
            |to, call| Box::pin(access::key_list(to, call)),
        )
        .json::<Vec<KeyInfo>>()
        .errors(&[Code::PermissionDenied]),
        Route::new(
            On::Delete,
            "/keys/{reference}",
            verb!("key_revoke"),
            "End a key, by id or by the name of one that works.",
            |to, call| Box::pin(access::key_revoke(to, call)),
        )
        .errors(&[Code::PermissionDenied, Code::NotFound]),
        Route::new(
            On::Get,
            "/audit",
            verb!("audit_list"),
            "Management calls by keys of this project and of those below it, newest first.",
            |to, call| Box::pin(access::audit_list(to, call)),
        )
        .query::<AuditQuery>()
        .json::<Vec<AuditEntry>>()
        .errors(&[Code::PermissionDenied]),
    ]
}
