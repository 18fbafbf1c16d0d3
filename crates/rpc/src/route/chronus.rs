//! The routes into one sandbox.

use std::sync::Arc;

use api::{
    Code,
    arrow::Chronus,
    exec::{AttachQuery, ExecInfo, ExecRequest, ExecResult, OutputQuery, SignalRequest},
    file::{
        FileInfo, FileListQuery, MkdirRequest, MoveRequest, ReadQuery, RemoveQuery, StatQuery, TarQuery,
        TarReport, WatchEvent, WatchQuery, WriteQuery,
    },
    frame,
};

use super::{On, Route, verb};
use crate::{
    PORT_PROTOCOL,
    serve::{exec, file, port, tar},
};

type To = Arc<dyn Chronus>;

const EXEC: &[Code] = &[Code::NotFound];
const FILE: &[Code] = &[Code::NotFound, Code::PermissionDenied, Code::IsDirectory];
const WRITE: &[Code] = &[
    Code::NotFound,
    Code::PermissionDenied,
    Code::IsDirectory,
    Code::DiskFull,
    Code::AlreadyExists,
    Code::Conflict,
];

/// Every route of chronus.
pub(crate) fn routes() -> Vec<Route<To>> {
    let mut all = exec_routes();
    all.extend(file_routes());
    all.extend(tar_routes());
    all.extend(port_routes());
    all
}

fn exec_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Post,
            "/exec",
            verb!("exec"),
            "Run a command. Plain, the answer comes when it has ended (or, with `detach`, when it has started); upgraded, it is a stream of frames. A client that leaves detaches; it kills nothing.",
            |to, call| Box::pin(exec::exec(to, call)),
        )
        .body::<ExecRequest>()
        .json::<ExecResult>()
        .upgrade(frame::PROTOCOL)
        .errors(&[Code::Conflict, Code::QuotaExceeded]),
        Route::new(On::Get, "/execs", verb!("exec_list"), "The execs that run or are remembered.", |to, call| {
            Box::pin(exec::list(to, call))
        })
        .json::<Vec<ExecInfo>>(),
        Route::new(On::Get, "/execs/{exec}", verb!("exec_inspect"), "What is known of an exec.", |to, call| {
            Box::pin(exec::inspect(to, call))
        })
        .json::<ExecInfo>()
        .errors(EXEC),
        Route::new(
            On::Get,
            "/execs/{exec}/attach",
            verb!("exec_attach"),
            "Attach to an exec, alive or remembered, from the offsets on. Needs `Upgrade: dsec-frames`.",
            |to, call| Box::pin(exec::attach(to, call)),
        )
        .query::<AttachQuery>()
        .upgrade(frame::PROTOCOL)
        .errors(EXEC),
        Route::new(
            On::Get,
            "/execs/{exec}/output",
            verb!("exec_output"),
            "What an exec has written so far, or with `wait` all of it when it has ended.",
            |to, call| Box::pin(exec::output(to, call)),
        )
        .query::<OutputQuery>()
        .json::<ExecResult>()
        .errors(EXEC),
        Route::new(On::Post, "/execs/{exec}/signal", verb!("exec_signal"), "Send a signal to an exec.", |to, call| {
            Box::pin(exec::signal(to, call))
        })
        .body::<SignalRequest>()
        .errors(EXEC),
    ]
}

fn file_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Get,
            "/files",
            verb!("file_read"),
            "A file's bytes, or a part of them. Header `x-dsec-file` tells what the file is.",
            |to, call| Box::pin(file::read(to, call)),
        )
        .query::<ReadQuery>()
        .bytes()
        .errors(FILE),
        Route::new(
            On::Put,
            "/files",
            verb!("file_write"),
            "The body becomes the file, whole or not at all. Parents are made.",
            |to, call| Box::pin(file::write(to, call)),
        )
        .query::<WriteQuery>()
        .body_bytes()
        .json::<FileInfo>()
        .errors(WRITE),
        Route::new(On::Delete, "/files", verb!("file_remove"), "Remove a file, or a tree.", |to, call| {
            Box::pin(file::remove(to, call))
        })
        .query::<RemoveQuery>()
        .errors(FILE),
        Route::new(On::Get, "/files/stat", verb!("file_stat"), "What a name is.", |to, call| {
            Box::pin(file::stat(to, call))
        })
        .query::<StatQuery>()
        .json::<FileInfo>()
        .errors(FILE),
        Route::new(On::Get, "/files/list", verb!("file_list"), "The entries of a directory.", |to, call| {
            Box::pin(file::list(to, call))
        })
        .query::<FileListQuery>()
        .json::<Vec<FileInfo>>()
        .errors(FILE),
        Route::new(
            On::Post,
            "/files/mkdir",
            verb!("file_mkdir"),
            "Make a directory and its parents.",
            |to, call| Box::pin(file::mkdir(to, call)),
        )
        .body::<MkdirRequest>()
        .json::<FileInfo>()
        .errors(WRITE),
        Route::new(On::Post, "/files/move", verb!("file_move"), "Rename or move.", |to, call| {
            Box::pin(file::rename(to, call))
        })
        .body::<MoveRequest>()
        .json::<FileInfo>()
        .errors(WRITE),
        Route::new(
            On::Get,
            "/files/watch",
            verb!("file_watch"),
            "Changes of a directory, as they happen.",
            |to, call| Box::pin(file::watch(to, call)),
        )
        .query::<WatchQuery>()
        .lines::<WatchEvent>()
        .errors(FILE),
    ]
}

fn tar_routes() -> Vec<Route<To>> {
    vec![
        Route::new(On::Get, "/tar", verb!("tar_get"), "A tree as a tar stream.", |to, call| {
            Box::pin(tar::get(to, call))
        })
        .query::<TarQuery>()
        .bytes()
        .errors(FILE),
        Route::new(On::Put, "/tar", verb!("tar_put"), "Unpack a tar stream into a directory.", |to, call| {
            Box::pin(tar::put(to, call))
        })
        .query::<TarQuery>()
        .body_bytes()
        .json::<TarReport>()
        .errors(WRITE),
    ]
}

fn port_routes() -> Vec<Route<To>> {
    vec![
        Route::new(
            On::Get,
            "/ports/{port}/connect",
            verb!("port_dial"),
            "A connection to a TCP port inside: raw bytes both ways. Needs `Upgrade: dsec-tcp`.",
            |to, call| Box::pin(port::dial(to, call)),
        )
        .upgrade(PORT_PROTOCOL)
        .errors(&[Code::NotFound]),
    ]
}

/// The HTTP proxy: only where callers come in, never on aether.
#[cfg(feature = "call")]
pub(crate) fn proxy_routes() -> Vec<Route<To>> {
    use crate::serve::proxy;
    const ABOUT: &str =
        "HTTP to a port inside: method, path, query, headers and body go through untouched, upgrades too.";
    ["/ports/{port}/http", "/ports/{port}/http/", "/ports/{port}/http/{*path}"]
        .into_iter()
        .map(|path| {
            Route::new(On::Any, path, verb!("port_http"), ABOUT, |to, call| Box::pin(proxy::http(to, call)))
                .body_bytes()
                .bytes()
                .errors(&[Code::NotFound])
        })
        .collect()
}
