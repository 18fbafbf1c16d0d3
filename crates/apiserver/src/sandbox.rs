//! What concerns sandboxes, one verb a file.

mod create;
mod disk;
mod exec;
mod inspect;
mod list;
mod set_ttl;
mod stop;
