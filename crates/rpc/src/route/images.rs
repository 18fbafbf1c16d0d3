//! The routes of the catalogue.

use std::sync::Arc;

use api::{
    Code,
    arrow::Front,
    image::{ExportQuery, ImageInfo, ImportQuery, MergeRequest, TagRequest},
    pull::{PullEvent, PullRequest},
    store::{GcReport, GcRequest, ImageListQuery, LayerStatus, PublishReport},
};

use super::{On, Route, verb};
use crate::serve::image;

type To = Arc<dyn Front>;

/// Every route of `Images`.
pub(crate) fn routes() -> Vec<Route<To>> {
    let mut routes = catalogue_routes();
    routes.extend(derived_routes());
    routes.extend(store_routes());
    routes
}

/// Of the store that nodes share.
fn store_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Post,
            "/images/{reference}/publish",
            verb!("image_publish"),
            "Send an image to the store that nodes share.",
            |to, call| Box::pin(image::publish(to, call)),
        )
        .json::<PublishReport>()
        .errors(&[Code::NotFound, Code::Unsupported, Code::NoCapacity]),
        Route::new(
            On::Get,
            "/images/{reference}/layers",
            verb!("image_layers"),
            "Where the bytes of an image's layers are.",
            |to, call| Box::pin(image::layers(to, call)),
        )
        .json::<Vec<LayerStatus>>()
        .errors(&[Code::NotFound]),
        Route::new(
            On::Delete,
            "/store/images/{reference}",
            verb!("store_remove"),
            "Remove a name from the store, or an image without a name by its digest.",
            |to, call| Box::pin(image::store_remove(to, call)),
        )
        .errors(&[Code::NotFound, Code::Conflict, Code::Unsupported, Code::NoCapacity]),
        Route::new(
            On::Post,
            "/store/gc",
            verb!("store_gc"),
            "Remove from the store what is old and no image needs.",
            |to, call| Box::pin(image::store_gc(to, call)),
        )
        .body::<GcRequest>()
        .json::<GcReport>()
        .errors(&[Code::Unsupported, Code::NoCapacity, Code::RateLimited]),
    ]
}

fn catalogue_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Post,
            "/images/import",
            verb!("import"),
            "Import a layer or an image: the body is a tar, plain or compressed, or an OCI archive.",
            |to, call| Box::pin(image::import(to, call)),
        )
        .query::<ImportQuery>()
        .body_bytes()
        .json::<ImageInfo>()
        .errors(&[Code::AlreadyExists, Code::Conflict, Code::DiskFull]),
        Route::new(
            On::Post,
            "/images/pull",
            verb!("pull"),
            "Pull an image from an OCI registry. The answer is a line for each piece of progress, and the image last.",
            |to, call| Box::pin(image::pull(to, call)),
        )
        .body::<PullRequest>()
        .lines::<PullEvent>()
        .errors(&[Code::NotFound, Code::Unreachable, Code::NoCapacity, Code::DiskFull, Code::DeadlineExceeded]),
        Route::new(On::Get, "/images", verb!("image_list"), "The catalogue.", |to, call| {
            Box::pin(image::list(to, call))
        })
        .query::<ImageListQuery>()
        .json::<Vec<ImageInfo>>(),
        Route::new(
            On::Get,
            "/images/{reference}",
            verb!("image_inspect"),
            "One image, by `name`, `name:version` or digest.",
            |to, call| Box::pin(image::inspect(to, call)),
        )
        .json::<ImageInfo>()
        .errors(&[Code::NotFound]),
        Route::new(
            On::Delete,
            "/images/{reference}",
            verb!("image_remove"),
            "Remove an image.",
            |to, call| Box::pin(image::remove(to, call)),
        )
        .errors(&[Code::NotFound, Code::Conflict]),
        Route::new(
            On::Get,
            "/images/{reference}/export",
            verb!("image_export"),
            "An image as an archive: an OCI layout, what `docker load` takes, or its root file system as one tar.",
            |to, call| Box::pin(image::export(to, call)),
        )
        .query::<ExportQuery>()
        .bytes()
        .errors(&[Code::NotFound, Code::DiskFull, Code::RateLimited]),
    ]
}

/// What makes an image of another.
fn derived_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Post,
            "/images/{reference}/merge",
            verb!("image_merge"),
            "Merge adjacent layers of an image into a new version of it, with the same content.",
            |to, call| Box::pin(image::merge(to, call)),
        )
        .body::<MergeRequest>()
        .json::<ImageInfo>()
        .errors(&[
            Code::NotFound,
            Code::AlreadyExists,
            Code::Conflict,
            Code::DiskFull,
            Code::RateLimited,
        ]),
        Route::new(
            On::Post,
            "/images/{reference}/tag",
            verb!("image_tag"),
            "Give the layers of an image another name, with its config or another one.",
            |to, call| Box::pin(image::tag(to, call)),
        )
        .body::<TagRequest>()
        .json::<ImageInfo>()
        .errors(&[Code::NotFound, Code::DiskFull]),
    ]
}
